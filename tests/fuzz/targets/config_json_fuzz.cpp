// A model's config.json, and values that are computed from it before a model is built.
#include <nlohmann/json.hpp>

#include "fuzz_support.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/models/config/model_flops.hpp"
#include "lib/models/config/rope.hpp"

namespace {

/// Uses an accepted configuration as every program does.
void use(const fsdp::ModelConfig& config) {
  using namespace fsdp;
  const auto again = model_config_from_json(model_config_to_json(config), "again");
  if (again.num_layers != config.num_layers || again.vocab_size != config.vocab_size) std::abort();
  hf_config(config).dump();
  tied_names(config);
  if (config.num_layers <= 64 && num_parameters(parameter_table(config)) <= 0) std::abort();
  flops_per_token(config, 256);
  if (config.architecture == Architecture::mingpt) return;
  // May refuse: the scaling is not supported, or one of its numbers is wrong.
  if (static_cast<std::int64_t>(rope_frequencies(config).size()) != config.rotary_pairs()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static fuzz::MemoryFile memory;
  const auto text = fuzz::as_text(data, size);
  const auto path = memory.fill(text);
  fuzz::refusal_is_fine([&] { use(read_model_config(path)); });
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded() || fuzz::depth_of(text) > 64) return 0;
  fuzz::refusal_is_fine([&] { use(model_config_from_hf(json, "config.json")); });
  return 0;
}
