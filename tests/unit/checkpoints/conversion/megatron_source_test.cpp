#include "lib/checkpoints/programs/megatron/megatron_source.hpp"

#include <doctest/doctest.h>

#include <numeric>

#include "lib/base/text/json_text.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/conversion/conversion_input.hpp"
#include "lib/checkpoints/transform/transform.hpp"
#include "tests/support/advice_of.hpp"
#include "tests/unit/checkpoints/programs/convert_test_support.hpp"

using namespace fsdp;

namespace {

struct MegatronStored : test::MemorySource {
  MegatronStored() { info_.format = "DCP"; }
  std::string& format() { return info_.format; }
  std::filesystem::path& directory() { return info_.directory; }
  SourceTensor& tensor(std::size_t number) { return tensors_[number]; }
};

struct MegatronModel {
  const char* family;
  std::int64_t layers, heads, groups, width, hidden, ffn, vocab;
  bool tied = false, biases = false;
};

constexpr MegatronModel kModels[]{{"llama", 2, 4, 2, 3, 10, 7, 11},
                                  {"llama", 1, 6, 6, 2, 12, 5, 9, true, true},
                                  {"mistral", 3, 4, 1, 2, 8, 6, 13},
                                  {"qwen2", 2, 6, 3, 4, 24, 9, 17, true},
                                  {"qwen3", 2, 4, 2, 6, 16, 8, 15}};

ModelConfig megatron_config(const MegatronModel& model) {
  nlohmann::json json{
      {"model_type", model.family},          {"num_hidden_layers", model.layers}, {"num_attention_heads", model.heads},
      {"num_key_value_heads", model.groups}, {"head_dim", model.width},           {"hidden_size", model.hidden},
      {"intermediate_size", model.ffn},      {"vocab_size", model.vocab},         {"max_position_embeddings", 64},
      {"tie_word_embeddings", model.tied}};
  if (model.biases) json["attention_bias"] = json["mlp_bias"] = true;
  if (std::string(model.family) == "mistral") json["sliding_window"] = nullptr;
  return model_config_from_json(json, "a test");
}

/// A model with random elements, and two moments of each parameter.
std::shared_ptr<MegatronStored> random_model(const ModelConfig& config, bool with_states) {
  auto source = std::make_shared<MegatronStored>();
  unsigned seed = 0;
  const auto add = [&](const std::string& name, const Shape& shape, StatePath path) {
    source->add(name, DType::f32, shape, test::random_bytes(test::tensor_bytes(DType::f32, shape), ++seed),
                std::move(path));
  };
  for (const auto& spec : parameter_table(config)) add("model." + spec.name, spec.shape, {"model", spec.name});
  if (!with_states) return source;
  for (const auto& spec : parameter_table(config))
    for (const auto* key : {"exp_avg", "exp_avg_sq"})
      add("optim.state." + spec.name + "." + key, spec.shape, {"optim", "state", spec.name, key});
  return source;
}

/// A copy of `source` as a DCP directory has it. \param padding  rows after the vocabulary
std::shared_ptr<MegatronStored> stored(const Source& source, std::int64_t padding, bool numbered) {
  auto copy = std::make_shared<MegatronStored>();
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    const auto& tensor = source.tensors()[i];
    auto bytes = test::read_whole(source, i);
    auto shape = tensor.shape;
    const auto layers = tensor.name.find("decoder.layers.");
    if (numbered && layers != std::string::npos) {
      const auto size = bytes.size() / static_cast<std::size_t>(shape[0]);
      for (std::int64_t layer = 0; layer < shape[0]; ++layer) {
        auto name = tensor.name;
        name.insert(layers + std::string("decoder.layers.").size(), std::to_string(layer) + ".");
        const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(layer * static_cast<std::int64_t>(size));
        copy->add(name, tensor.dtype, Shape(shape.begin() + 1, shape.end()),
                  test::Bytes(begin, begin + static_cast<std::ptrdiff_t>(size)));
      }
      continue;
    }
    if (tensor.name.ends_with("word_embeddings.weight") || tensor.name.ends_with("output_layer.weight")) {
      shape[0] += padding;
      bytes.resize(test::tensor_bytes(tensor.dtype, shape), std::byte{0x5a});
    }
    copy->add(tensor.name, tensor.dtype, shape, std::move(bytes));
  }
  return copy;
}

std::vector<float> counted(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

/// Writes config.json of a test and returns its directory.
class ConfigFile {
 public:
  explicit ConfigFile(const nlohmann::json& json) { test::write_file(directory_ / "config.json", json_text(json)); }
  std::filesystem::path path() const { return directory_.path(); }

 private:
  test::TempDir directory_;
};

const MegatronModel kTiny{"llama", 1, 4, 2, 1, 1, 2, 3};

/// A model of one column whose elements are counted within each tensor, as Megatron-core stores it.
std::shared_ptr<MegatronStored> tiny_stored() {
  auto source = std::make_shared<MegatronStored>();
  const auto add = [&](const std::string& name, const Shape& shape) {
    source->add(name, DType::f32, shape, test::bytes_of(counted(static_cast<std::size_t>(num_elements(shape)))));
  };
  add("embedding.word_embeddings.weight", {8, 1});
  add("decoder.layers.self_attention.linear_qkv.layer_norm_weight", {1, 1});
  add("decoder.layers.self_attention.linear_qkv.weight", {1, 8, 1});
  add("decoder.layers.self_attention.linear_proj.weight", {1, 1, 4});
  add("decoder.layers.mlp.linear_fc1.layer_norm_weight", {1, 1});
  add("decoder.layers.mlp.linear_fc1.weight", {1, 4, 1});
  add("decoder.layers.mlp.linear_fc2.weight", {1, 1, 2});
  add("decoder.final_layernorm.weight", {1});
  add("output_layer.weight", {8, 1});
  return source;
}

std::vector<float> floats_of(const Source& source, const std::string& name) {
  return test::values_of<float>(test::read_whole(source, test::number_of(source, "model." + name)));
}

}  // namespace

TEST_SUITE("convert/megatron_source") {
  TEST_CASE("megatron_as_hf: rows of queries, keys and values by group; gate before up; padding is cut") {
    const ConfigFile file(hf_config(megatron_config(kTiny)));
    const auto hf = megatron_as_hf(tiny_stored(), file.path());
    using Floats = std::vector<float>;
    CHECK((floats_of(*hf, "model.layers.0.self_attn.q_proj.weight") == Floats{0, 1, 4, 5}));
    CHECK((floats_of(*hf, "model.layers.0.self_attn.k_proj.weight") == Floats{2, 6}));
    CHECK((floats_of(*hf, "model.layers.0.self_attn.v_proj.weight") == Floats{3, 7}));
    CHECK((floats_of(*hf, "model.layers.0.mlp.gate_proj.weight") == Floats{0, 1}));
    CHECK((floats_of(*hf, "model.layers.0.mlp.up_proj.weight") == Floats{2, 3}));
    CHECK((floats_of(*hf, "model.embed_tokens.weight") == Floats{0, 1, 2}));
    CHECK((floats_of(*hf, "lm_head.weight") == Floats{0, 1, 2}));
    CHECK(hf->info().format == kMegatronFormat);
    CHECK(hf->model_config().at("num_key_value_heads") == 2);
  }

  TEST_CASE("hf_as_megatron and megatron_as_hf: every family there and back, with its optimizer") {
    for (const auto& model : kModels) {
      for (const bool numbered : {false, true}) {
        CAPTURE(model.family);
        CAPTURE(numbered);
        const auto config = megatron_config(model);
        const auto hf = random_model(config, true);
        const auto megatron = hf_as_megatron(hf, config, false);
        for (std::size_t i = 0; i < megatron->tensors().size(); ++i)
          CHECK((test::read_pieces(*megatron, i, 7) == test::read_whole(*megatron, i)));
        const ConfigFile file(hf_config(config));
        const auto copy = stored(*megatron, numbered ? 0 : 5, numbered);
        CHECK(is_megatron(*copy));
        const auto back = megatron_as_hf(copy, file.path());
        CHECK(back->tensors().size() == hf->tensors().size());
        test::check_same(*back, *hf);
      }
    }
  }

  TEST_CASE("hf_as_megatron: stacks are stored by layer; masters for 16-bit weights; states of modules") {
    const auto config = megatron_config(kModels[0]);
    const auto megatron = hf_as_megatron(random_model(config, true), config, true);
    const auto& tensors = megatron->tensors();
    const auto qkv = test::number_of(*megatron, "decoder.layers.self_attention.linear_qkv.weight");
    CHECK(tensors[qkv].shape == Shape{2, 24, 10});
    CHECK(tensors[qkv].num_shards == 2);
    const auto masters = test::number_of(*megatron, "optimizer.state.fp32_param.decoder.layers.mlp.linear_fc1.weight");
    const auto weights = test::number_of(*megatron, "decoder.layers.mlp.linear_fc1.weight");
    CHECK((test::read_whole(*megatron, masters) == test::read_whole(*megatron, weights)));
    CHECK(megatron->values().size() == 8);
    CHECK(megatron->values().front().name == "decoder.layers.self_attention.linear_proj._extra_state/shard_0_2");
    // Masters are the weights that are read back.
    const ConfigFile file(hf_config(config));
    const std::shared_ptr<const Source> half =
        cast(hf_as_megatron(random_model(config, true), config, true), DType::bf16);
    test::check_same(*megatron_as_hf(stored(*half, 0, false), file.path()), *random_model(config, true));
  }

  TEST_CASE("megatron_as_hf: fields of config.json complete what tensors show") {
    const ConfigFile heads(nlohmann::json{{"num_attention_heads", 4}});
    const auto found = megatron_as_hf(tiny_stored(), heads.path())->model_config();
    const nlohmann::json wanted{{"num_hidden_layers", 1}, {"num_key_value_heads", 2},    {"head_dim", 1},
                                {"hidden_size", 1},       {"intermediate_size", 2},      {"vocab_size", 8},
                                {"model_type", "llama"},  {"tie_word_embeddings", false}};
    for (const auto& [name, value] : wanted.items()) {
      CAPTURE(name);
      CHECK(found.at(name) == value);
    }
    auto beside = tiny_stored();
    beside->directory() = heads.path();
    CHECK(megatron_as_hf(beside, "")->model_config().at("vocab_size") == 8);
  }

  TEST_CASE("megatron_as_hf: refuses sizes that are unknown or do not fit, and other models") {
    const auto said = [](const std::shared_ptr<MegatronStored>& source, const nlohmann::json& fields) {
      const ConfigFile file(fields);
      return test::message_of<Error>([&] { megatron_as_hf(source, file.path()); });
    };
    const auto has = [](const std::string& text, const char* word) { return text.find(word) != std::string::npos; };
    CHECK(test::advice_of([] { megatron_as_hf(tiny_stored(), ""); }).remedy == Remedy::megatron_heads);
    CHECK(has(said(tiny_stored(), {{"num_attention_heads", 3}}), "linear_proj"));
    CHECK(has(said(tiny_stored(), {{"num_attention_heads", 8}, {"head_dim", 1}}), "linear_qkv"));
    CHECK(has(said(tiny_stored(), {{"num_attention_heads", 4}, {"num_key_value_heads", 4}}), "linear_qkv"));
    CHECK(has(said(tiny_stored(), {{"num_attention_heads", 4}, {"vocab_size", 9}}), "word_embeddings"));
    CHECK(has(said(tiny_stored(), {{"num_attention_heads", 4}, {"num_hidden_layers", 2}}), "decoder.layers"));
    CHECK(has(said(tiny_stored(), {{"num_attention_heads", 4}, {"tie_word_embeddings", true}}), "output_layer"));
    CHECK(has(said(tiny_stored(), {{"num_attention_heads", 4}, {"model_type", "gemma"}}), "field"));
    auto router = tiny_stored();
    router->add("decoder.layers.mlp.router.weight", DType::f32, {1, 4, 1}, test::bytes_of(counted(4)));
    CHECK(has(said(router, {{"num_attention_heads", 4}}), "router"));
    auto other = tiny_stored();
    other->format() = "torch zip";
    CHECK_FALSE(is_megatron(*other));
  }

  TEST_CASE("megatron_as_hf: leaves out an optimizer that is stored in pieces") {
    const ConfigFile heads(nlohmann::json{{"num_attention_heads", 4}});
    auto source = tiny_stored();
    source->add("optimizer.state.exp_avg.decoder.final_layernorm.weight", DType::f32, {1, 1},
                test::bytes_of(counted(1)));
    const auto flat = megatron_as_hf(source, heads.path());
    CHECK(flat->tensors().size() == 12);
    REQUIRE(flat->info().remarks.size() == 1);
    CHECK(flat->info().remarks[0].find("exp_avg") != std::string::npos);
  }

  TEST_CASE("hf_as_megatron: refuses other models, missing and superfluous tensors, and untied heads") {
    const auto config = megatron_config(kTiny);
    CHECK_THROWS_AS(hf_as_megatron(random_model(config, false), ModelConfig(), false), RequestError);
    auto more = random_model(config, false);
    more->add("model.model.layers.0.self_attn.q_norm.weight", DType::f32, {1}, test::bytes_of(counted(1)),
              {"model", "model.layers.0.self_attn.q_norm.weight"});
    CHECK_THROWS_AS(hf_as_megatron(more, config, false), RequestError);
    auto larger = config;
    larger.num_layers = 2;
    CHECK_THROWS_AS(hf_as_megatron(random_model(config, false), larger, false), FormatError);
    auto tied = config;
    tied.tie_word_embeddings = true;
    CHECK_THROWS_AS(hf_as_megatron(random_model(config, false), tied, false), RequestError);
  }
}
