#include "tests/support/torch_doctest.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "lib/base/types/error.hpp"
#include "lib/compute/ops/nf4.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/formats/safetensors.hpp"
#include "lib/models/config/quantize_config.hpp"
#include "lib/ranks/thread_group.hpp"
#include "lib/training/state/load/load.hpp"
#include "tests/support/read_tensor.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;
using fsdp::test::read_tensor;

namespace {

std::filesystem::path fixtures() { return FSDP_FIXTURE_DIR; }

/// All rows of each parameter that belongs to a quantised matrix, as `ranks` ranks have them after loading.
std::map<std::string, at::Tensor> loaded(const std::filesystem::path& directory, const QuantizeConfig& quantize,
                                         int ranks, std::string* hash = nullptr) {
  ShardingOptions sharding;
  sharding.quantize = quantize;
  sharding.lora.rank = 2;
  const auto config = read_model_config(directory);
  std::map<std::string, at::Tensor> whole;
  for (const auto& spec : quantized_table(config, quantize)) {
    if (spec.stands_for >= 0)
      whole[spec.name] = at::empty(spec.shape, spec.storage == Storage::byte ? at::kByte : at::kFloat);
  }
  run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
    const at::NoGradGuard no_grad;
    ModelRuntime runtime(world, config, sharding, {}, 1);
    load_weights(runtime, directory);
    for (std::size_t i = 0; i < runtime.decoder().parameters.size(); ++i) {
      const auto place = whole.find(runtime.decoder().parameters[i].name);
      const auto range = runtime.engine().range(i);
      if (place == whole.end() || range.num_rows == 0) continue;
      place->second.narrow(0, range.first_row, range.num_rows)
          .copy_(runtime.engine().master_weight(i).narrow(0, 0, range.num_rows));
    }
    if (hash != nullptr && world.rank() == 0) *hash = runtime.base().hash;
    world.barrier();
  });
  return whole;
}

at::Tensor as_stored(const SafetensorsReader& file, const std::string& name) {
  if (!name.ends_with(kNestedOffset)) return read_tensor(file, name).view({-1});
  const auto matrix = name.substr(0, name.size() - std::string_view(kNestedOffset).size());
  const auto state = read_tensor(file, matrix + ".quant_state.bitsandbytes__nf4");
  const std::string text(static_cast<const char*>(state.const_data_ptr()), static_cast<std::size_t>(state.numel()));
  return at::full({1}, nlohmann::json::parse(text).at("nested_offset").get<float>(), at::kFloat);
}

void check_equal(const std::map<std::string, at::Tensor>& found, const SafetensorsReader& expected) {
  for (const auto& [name, values] : found) {
    CAPTURE(name);
    const auto theirs = as_stored(expected, name);
    CHECK(values.view({-1}).narrow(0, 0, theirs.numel()).equal(theirs));
  }
}

}  // namespace

TEST_SUITE("checkpoint/load in 4 bits") {
  TEST_CASE("each rank makes of its blocks what bitsandbytes made of the whole matrix") {
    const auto base = fixtures() / "numerics/llama_nano";
    const SafetensorsReader theirs(fixtures() / "training/qlora/quantised_f32_base.safetensors");
    std::string first;
    for (int ranks = 1; ranks <= 4; ++ranks) {
      std::string hash;
      check_equal(loaded(base, {true, true}, ranks, &hash), theirs);
      if (ranks == 1) first = hash;
      CHECK(hash == first);
      const auto single = loaded(base, {true, false}, ranks, &hash);
      CHECK(hash == first);  // of what was read, whatever it is kept as
      for (const auto& [name, values] : single) {
        if (!name.ends_with(kAbsmax)) continue;
        const auto weight = read_tensor(SafetensorsReader(base / "model.safetensors"),
                                        name.substr(0, name.size() - std::string_view(kAbsmax).size()));
        CHECK(values.equal(quantize_nf4(weight.view({-1})).absmax));
      }
    }
  }

  TEST_CASE("transformers' checkpoints in 4 bits are taken as they are") {
    for (const bool nested : {false, true}) {
      const auto folder = fixtures() / "training/qlora" / (nested ? "checkpoint_double" : "checkpoint_single");
      CHECK(stored_quantization(folder) == QuantizeConfig{true, nested});
      std::string first;
      for (int ranks = 1; ranks <= 4; ++ranks) {
        std::string hash;
        check_equal(loaded(folder, {true, nested}, ranks, &hash), SafetensorsReader(folder / "model.safetensors"));
        if (ranks == 1) first = hash;
        CHECK(hash == first);
      }
      CHECK_THROWS_WITH_AS(loaded(folder, {true, !nested}, 2), doctest::Contains("double quantisation"), FormatError);
    }
  }

  TEST_CASE("how weights are stored is read with care") {
    const fsdp::test::TempDir dir;
    const auto stored = [&](const std::string& quantization) {
      std::ofstream(dir / "config.json") << R"({"quantization_config": )" << quantization << "}";
      return stored_quantization(dir.path());
    };
    CHECK(!stored_quantization(fixtures() / "numerics/llama_nano"));
    CHECK(!stored("null"));
    CHECK(stored(R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"})") ==
          QuantizeConfig{true, false});
    for (const char* other :
         {R"({"quant_method": "gptq", "bits": 4})", R"({"quant_method": "bitsandbytes", "load_in_8bit": true})",
          R"({"quant_method": "bitsandbytes", "load_in_4bit": true})", "[]", R"({"quant_method": 4})"}) {
      CAPTURE(std::string(other));
      CHECK_THROWS_AS(stored(other), FormatError);
    }
  }
}
