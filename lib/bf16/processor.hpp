#pragma once
// Detects the bf16 features of this machine's processor.
#include <string_view>

#include "lib/bf16/facts.hpp"

namespace fsdp {

/// Reads /proc/cpuinfo (or CPUID where /proc is not mounted) and the auxiliary vector (AArch64). If there are AMX
/// tiles, requests the kernel's permission to use them (arch_prctl ARCH_REQ_XCOMP_PERM), as oneDNN does before its
/// first product.
ProcessorFacts read_processor();

namespace detail {

/// Extracts the name and the x86 flags from the text of /proc/cpuinfo.
ProcessorFacts parse_cpuinfo(std::string_view text);
/// Sets the AArch64 fields from the value of AT_HWCAP2.
void apply_arm_hwcap2(unsigned long hwcap2, ProcessorFacts& facts);

}  // namespace detail
}  // namespace fsdp
