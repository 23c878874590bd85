// A folder of files per rank: DTensor and ShardedTensor, of two ranks.
#include <array>

#include "fuzz_folder.hpp"
#include "fuzz_source.hpp"

namespace {
constexpr std::array<std::string_view, 7> names = {"model_world_size_2_rank_0.pt",       "model_world_size_2_rank_1.pt",
                                                   "optim_world_size_2_rank_0.pt",       "optim_world_size_2_rank_1.pt",
                                                   "extra_state_world_size_2_rank_0.pt", "fsdp_config.json",
                                                   "model_world_size_1_rank_0.pt"};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static fuzz::MemoryDirectory memory;
  fuzz::read_source(memory.fill(fuzz::as_text(data, size), names));
  return 0;
}
