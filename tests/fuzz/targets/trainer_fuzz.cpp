// Checkpoints of trainers and of torch-checkpointing: accelerate, Hugging Face's Trainer, Lightning, Composer.
#include <array>

#include "fuzz_folder.hpp"
#include "fuzz_source.hpp"
#include "lib/checkpoints/programs/trainers/trainer_source.hpp"

namespace {
constexpr std::array<std::string_view, 21> names = {"model.safetensors",
                                                    "optimizer.bin",
                                                    "scheduler.bin",
                                                    "trainer_state.json",
                                                    "config.json",
                                                    "rng_state_0.pth",
                                                    "pytorch_model_fsdp.bin",
                                                    "pytorch_model_fsdp_0/.metadata",
                                                    "pytorch_model_fsdp_0/__0_0.distcp",
                                                    "optimizer_0/.metadata",
                                                    "optimizer_0/__0_0.distcp",
                                                    ".metadata",
                                                    "__0_0.distcp",
                                                    "meta.pt",
                                                    "latest-rank0.pt",
                                                    "ep0-ba2-rank0.pt",
                                                    "metadata.pkl",
                                                    "model_0.safetensors",
                                                    "model_1.safetensors",
                                                    "optimizer_0.pt",
                                                    "config_0.json"};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static fuzz::MemoryDirectory memory;
  const auto folder = memory.fill(fuzz::as_text(data, size), names);
  const auto newest = newest_of_trainer(folder);
  fuzz::read_source(newest.empty() ? folder : newest);
  return 0;
}
