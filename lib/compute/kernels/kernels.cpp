#include "lib/compute/kernels/kernels.hpp"

#include <vector>

#include "lib/base/process/variables.hpp"

#ifdef FSDP_KERNELS_AARCH64
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

namespace fsdp::kernels {

namespace portable {
extern const Table kTable;
}
#ifdef FSDP_KERNELS_X86
namespace avx2 {
extern const Table kTable;
}
namespace avx512 {
extern const Table kTable;
}
#elif defined(FSDP_KERNELS_AARCH64)
namespace sve {
extern const Table kTable;
}
#endif

namespace {

std::vector<const Table*> find_runnable() {
  std::vector<const Table*> tables{&portable::kTable};
#ifdef FSDP_KERNELS_X86
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx2) tables.push_back(&avx2::kTable);
  if (has_avx512) tables.push_back(&avx512::kTable);
#elif defined(FSDP_KERNELS_AARCH64)
  if ((::getauxval(AT_HWCAP) & HWCAP_SVE) != 0) {
    // NEON, which all have, needs no masks; SVE gains where its vectors are longer: not on Grace and Graviton4.
    constexpr int kNeonBytes = 16;
    const int length = ::prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK;
    tables.insert(length > kNeonBytes ? tables.end() : tables.begin(), &sve::kTable);
  }
#endif
  return tables;
}

const Table& choose() {
  const auto tables = runnable_tables();
  const auto wish = variable_value("FSDP_CPU_ISA");
  for (const auto* table : tables) {
    if (table->name == wish) return *table;
  }
  return *tables.back();
}

}  // namespace

std::span<const Table* const> runnable_tables() {
  static const std::vector<const Table*> tables = find_runnable();
  return tables;
}

const Table& table() {
  static const Table& chosen = choose();
  return chosen;
}

}  // namespace fsdp::kernels
