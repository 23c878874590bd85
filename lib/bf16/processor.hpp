#pragma once
// What this machine's processor has for bf16.
#include <string_view>

#include "lib/bf16/facts.hpp"

namespace fsdp {

/// Asks /proc/cpuinfo (the processor itself where that is not mounted), the auxiliary vector (AArch64) and, where there
/// are AMX tiles, the kernel for leave to use them (arch_prctl ARCH_REQ_XCOMP_PERM, as oneDNN does before its first
/// product).
ProcessorFacts read_processor();

namespace detail {

/// Name and x86 flags from the text of /proc/cpuinfo.
ProcessorFacts parse_cpuinfo(std::string_view text);
/// Fills the AArch64 fields from AT_HWCAP2.
void apply_arm_hwcap2(unsigned long hwcap2, ProcessorFacts& facts);

}  // namespace detail
}  // namespace fsdp
