#include "lib/compute/ops/onednn_limit.hpp"

#include <strings.h>

#include <array>
#include <cstdlib>
#include <utility>

namespace fsdp {
namespace {

/// oneDNN's names for less than all (its documentation, "CPU Dispatcher Control").
constexpr std::array<std::pair<const char*, int>, 7> kLevels{{{"SSE41", 0},
                                                              {"AVX", 1},
                                                              {"AVX2", 2},
                                                              {"AVX2_VNNI", 3},
                                                              {"AVX2_VNNI_2", 3},
                                                              {"AVX512_CORE", 4},
                                                              {"AVX512_CORE_VNNI", 5}}};

}  // namespace

bool onednn_may_use(OnednnLevel level) {
  const char* wish = std::getenv("ONEDNN_MAX_CPU_ISA");
  if (wish == nullptr) wish = std::getenv("DNNL_MAX_CPU_ISA");
  if (wish == nullptr) return true;
  for (const auto& [name, most] : kLevels) {
    if (::strcasecmp(wish, name) == 0) return most >= static_cast<int>(level);
  }
  return true;
}

}  // namespace fsdp
