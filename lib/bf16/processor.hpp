#pragma once
// Detects the bf16 features of this machine's processor.
#include <string>
#include <string_view>

namespace fsdp {

struct ProcessorFacts {
  std::string name;            ///< "AMD EPYC 9654"
  bool avx512_bf16 = false;    ///< x86: has dot products of bf16 pairs
  bool amx_bf16 = false;       ///< x86: has products of bf16 tiles
  bool amx_tile = false;       ///< x86: has the tiles that amx_bf16 needs
  bool amx_permitted = false;  ///< the kernel lets this process use tiles
  std::string amx_refusal;     ///< the kernel's reason for refusing
  bool arm_bf16 = false;       ///< AArch64: BFDOT, BFMMLA
  bool arm_sve_bf16 = false;   ///< AArch64: bf16 instructions in SVE
};

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
