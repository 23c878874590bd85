// Weights that are quantization codes, recognised by config.json, or without it by the tensors beside them.
#include "lib/checkpoints/source/stored_quantization.hpp"
#include "lib/checkpoints/programs/formats.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/types/error.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;

namespace {

struct Stored {
  std::string name, dtype;
  std::size_t bytes;
};

/// A directory with these tensors, of one element each.
struct Directory {
  explicit Directory(const std::vector<Stored>& tensors, const std::string& config = "") {
    nlohmann::json header = nlohmann::json::object();
    std::size_t at = 0;
    for (const auto& tensor : tensors) {
      header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", {1}}, {"data_offsets", {at, at + tensor.bytes}}};
      at += tensor.bytes;
    }
    const auto text = header.dump();
    std::string length(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(std::uint64_t{text.size()} >> (8 * i) & 0xff);
    std::ofstream(path / "model.safetensors") << length << text << std::string(at, '\0');
    if (!config.empty()) std::ofstream(path / "config.json") << config;
  }

  std::string refusal() const {
    const auto source = open_source(path.path());
    try {
      refuse_other_quantization(*source);
    } catch (const FormatError& error) {
      return error.what();
    }
    return "";
  }
  test::TempDir path;
};

const std::string kMatrix = "model.layers.0.mlp.up_proj";

}  // namespace

TEST_SUITE("source/stored_quantization") {
  TEST_CASE("config.json names the method") {
    const std::vector<Stored> plain{{kMatrix + ".weight", "BF16", 2}};
    for (const std::string method : {"fp8", "gptq", "awq", "compressed-tensors", "torchao", "mxfp4", "hqq", "aqlm"}) {
      const Directory directory(plain, R"({"quantization_config": {"quant_method": ")" + method + R"("}})");
      const auto told = directory.refusal();
      CHECK(told.find("config.json: ") != std::string::npos);
      CHECK(told.find("quantised by " + method + ",") != std::string::npos);
      CHECK(told.find("as fp4") == std::string::npos);
    }
    const Directory int8(plain, R"({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": true}})");
    CHECK(int8.refusal().find("bitsandbytes in 8 bits") != std::string::npos);
    const Directory fp4(plain, R"({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}})");
    CHECK(fp4.refusal().find("bitsandbytes in 4 bits as fp4") != std::string::npos);
    CHECK(Directory(plain, R"({"quantization_config": null})").refusal().empty());
    CHECK(Directory(plain).refusal().empty());
  }

  TEST_CASE("without config.json, the tensors show codes, scales and the method") {
    const std::map<std::string, std::vector<Stored>> others{
        {"fp8", {{kMatrix + ".weight", "F8_E4M3", 1}, {kMatrix + ".weight_scale_inv", "F32", 4}}},
        {"compressed-tensors", {{kMatrix + ".weight", "I8", 1}, {kMatrix + ".weight_scale", "BF16", 2}}},
        {"bitsandbytes in 8 bits", {{kMatrix + ".weight", "I8", 1}, {kMatrix + ".SCB", "F32", 4}}},
        {"gptq", {{kMatrix + ".qweight", "I32", 4}, {kMatrix + ".qzeros", "I32", 4}}},
        {"awq", {{kMatrix + ".qweight", "I32", 4}, {kMatrix + ".scales", "F16", 2}}},
        {"torchao", {{"up_proj._weight_qdata", "F8_E4M3", 1}, {"up_proj._weight_scale", "F32", 4}}},
        {"by fp8", {{"mlp.experts.up_proj", "F8_E4M3", 1}, {"mlp.experts.up_proj_scale_inv", "F32", 4}}},
        {"mxfp4", {{"mlp.experts.up_proj_blocks", "U8", 1}, {"mlp.experts.up_proj_scales", "U8", 1}}}};
    for (const auto& [method, tensors] : others) {
      CAPTURE(method);
      const auto told = Directory(tensors).refusal();
      CHECK(told.find(method) != std::string::npos);
      CHECK(told.find("model.safetensors") != std::string::npos);
      for (const auto& tensor : tensors) CHECK(told.find("'" + tensor.name + "'") != std::string::npos);
    }
  }

  TEST_CASE("numbers beside a tensor named like a scale, and 8-bit numbers alone, are not codes") {
    CHECK(Directory({{kMatrix + ".weight", "BF16", 2}, {kMatrix + ".weight_scale", "F32", 4}}).refusal().empty());
    CHECK(Directory({{kMatrix + ".weight", "F8_E4M3", 1}}).refusal().empty());
    CHECK(Directory({{"ids.weight", "I64", 8}, {"norm.scale", "F32", 4}}).refusal().empty());
  }
}
