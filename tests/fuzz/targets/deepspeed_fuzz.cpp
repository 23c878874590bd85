// A folder of DeepSpeed: model and optimizer files of two ranks, or a universal checkpoint.
#include <array>

#include "fuzz_folder.hpp"
#include "fuzz_source.hpp"

namespace {
constexpr std::array<std::string_view, 11> names = {"mp_rank_00_model_states.pt",
                                                    "zero_pp_rank_0_mp_rank_00_optim_states.pt",
                                                    "zero_pp_rank_1_mp_rank_00_optim_states.pt",
                                                    "zero_pp_rank_0_mp_rank_00_model_states.pt",
                                                    "zero_pp_rank_1_mp_rank_00_model_states.pt",
                                                    "zero/w/fp32.pt",
                                                    "zero/w/exp_avg.pt",
                                                    "zero/b/fp32.pt",
                                                    "zero/b/step.pt",
                                                    "zero/optimizer_state.pt",
                                                    "latest"};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static fuzz::MemoryDirectory memory;
  fuzz::read_source(memory.fill(fuzz::as_text(data, size), names));
  return 0;
}
