#include "lib/bf16/processor.hpp"

#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fsdp {
namespace {

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

void apply_flag(std::string_view flag, ProcessorFacts& facts) {
  if (flag == "avx512_bf16") facts.avx512_bf16 = true;
  if (flag == "amx_bf16") facts.amx_bf16 = true;
  if (flag == "amx_tile") facts.amx_tile = true;
}

/// Reads the features by CPUID, for machines without /proc. CPUID still reports features that the kernel has disabled.
[[maybe_unused]] void apply_cpuid([[maybe_unused]] ProcessorFacts& facts) {
#if defined(__x86_64__)
  // Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
    facts.amx_bf16 = (edx & 1U << 22) != 0;
    facts.amx_tile = (edx & 1U << 24) != 0;
  }
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) facts.avx512_bf16 = (eax & 1U << 5) != 0;
#endif
}

[[maybe_unused]] void ask_for_tiles(ProcessorFacts& facts) {
#if defined(__x86_64__)
  // Source: Linux Documentation/arch/x86/xstate.rst
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  facts.amx_permitted = ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  if (!facts.amx_permitted) facts.amx_refusal = std::strerror(errno);
#else
  facts.amx_permitted = false;
#endif
}

}  // namespace

namespace detail {

ProcessorFacts parse_cpuinfo(std::string_view text) {
  ProcessorFacts facts;
  // All cores report the same, so the lines of the first core suffice.
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const auto line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const auto key = trim(line.substr(0, colon));
    auto value = trim(line.substr(colon + 1));
    if (key == "model name" && facts.name.empty()) facts.name = value;
    if (key != "flags") continue;
    while (!value.empty()) {
      const auto space = std::min(value.find(' '), value.size());
      apply_flag(value.substr(0, space), facts);
      value.remove_prefix(std::min(space + 1, value.size()));
    }
    break;
  }
  return facts;
}

void apply_arm_hwcap2(unsigned long hwcap2, ProcessorFacts& facts) {
  // Source: Linux arch/arm64/include/uapi/asm/hwcap.h
  constexpr unsigned long kSveBf16 = 1UL << 12;
  constexpr unsigned long kBf16 = 1UL << 14;
  facts.arm_bf16 = (hwcap2 & kBf16) != 0;
  facts.arm_sve_bf16 = (hwcap2 & kSveBf16) != 0;
}

}  // namespace detail

ProcessorFacts read_processor() {
  ProcessorFacts facts;
#if defined(__aarch64__)
  // On AArch64, /proc/cpuinfo has neither a name nor these features; under emulation it describes another processor.
  detail::apply_arm_hwcap2(::getauxval(AT_HWCAP2), facts);
#else
  std::ifstream file("/proc/cpuinfo");
  std::stringstream text;
  text << file.rdbuf();
  facts = detail::parse_cpuinfo(text.str());
  if (text.str().empty()) apply_cpuid(facts);
  if (facts.amx_tile) ask_for_tiles(facts);
#endif
  utsname machine{};
  if (facts.name.empty())
    facts.name = ::uname(&machine) == 0 ? std::string(machine.machine) + " processor" : "processor";
  return facts;
}

}  // namespace fsdp
