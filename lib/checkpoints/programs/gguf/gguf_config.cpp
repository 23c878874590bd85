// The reverse of gguf_entries.cpp. Keys and their defaults: gguf-py, constants.py, and llama.cpp, llama-model.cpp
// (load_hparams).
#include "lib/checkpoints/programs/gguf/gguf_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/gguf/gguf_model.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/tokenizers/files/json_file.hpp"

namespace fsdp {
namespace {

constexpr std::array<std::string_view, 8> kArchitectures{"gpt2",  "llama", "qwen2",  "qwen3",
                                                         "olmo2", "gemma", "gemma2", "gemma3"};
/// Sizes beyond these are in no model, and would be multiplied or allocated.
constexpr std::int64_t kMostPerHead = 1 << 16, kMostSize = std::int64_t{1} << 31;

class ConfigReader {
 public:
  ConfigReader(const Source& gguf, const nlohmann::json& metadata)
      : gguf_(gguf), metadata_(metadata, gguf.info().named_file().string()) {
    for (const auto& tensor : gguf.tensors()) tensors_.emplace(tensor.name);
  }

  nlohmann::json read() {
    architecture_ = metadata_.at("general.architecture").string();
    if (std::ranges::find(kArchitectures, architecture_) == kArchitectures.end())
      metadata_.get("general.architecture")
          .fail(fmt::format("is {}, and {} are read as models", shortened(architecture_),
                            fmt::join(kArchitectures, ", ")));
    const auto parts = metadata_.get("split.count");
    if (!parts.is_null() && parts.integer() > 1)
      parts.fail(fmt::format("is {}: the model is spread over several files, which are not read", parts.integer()));
    is_gemma_ = architecture_.starts_with("gemma");
    key("tensor_data_layout");  // a remark
    accept("attention.causal", true);
    if (architecture_ == "gpt2") {
      read_gpt2();
    } else {
      read_decoder();
    }
    read_marks();
    refuse_other_keys();
    return std::move(json_);
  }

 private:
  static std::string shortened(const std::string& text) { return text.substr(0, 60); }

  /// A key of the architecture. Those that were asked for are known.
  JsonValue key(const std::string& name) {
    auto full = architecture_ + "." + name;
    known_.insert(full);
    return metadata_.get(full);
  }
  std::optional<std::int64_t> count(const std::string& name, std::int64_t most = kMostSize) {
    const auto value = key(name);
    if (value.is_null()) return std::nullopt;
    const auto number = value.integer();
    if (number < 0 || number > most) value.fail(fmt::format("is {}, which no model has", number));
    return number;
  }
  std::int64_t needed(const std::string& name, std::int64_t most = kMostSize) {
    const auto number = count(name, most);
    if (!number || *number == 0) key(name).fail("is missing or 0");
    return *number;
  }
  std::optional<double> number(const std::string& name) {
    const auto value = key(name);
    if (value.is_null()) return std::nullopt;
    if (!value.json().is_number() || !std::isfinite(value.json().get<double>())) value.fail("is no finite number");
    return value.json().get<double>();
  }
  double needed_number(const std::string& name) {
    const auto found = number(name);
    if (!found) key(name).fail("is missing");
    return *found;
  }
  /// Accepts one value of a key that changes the model.
  template <typename Value>
  void accept(const std::string& name, const Value& only) {
    const auto value = key(name);
    if (!value.is_null() && value.json() != nlohmann::json(only))
      value.fail(fmt::format("is {}, and only {} is read", shortened(json_text(value.json())),
                             json_text(nlohmann::json(only))));
  }
  bool has(const std::string& tensor) const { return tensors_.contains(tensor); }

  std::int64_t layers() {
    const auto blocks = needed("block_count");
    if (blocks > std::ssize(tensors_))
      key("block_count").fail(fmt::format("is {}, but the file has {} tensors", blocks, tensors_.size()));
    return blocks;
  }

  std::int64_t vocabulary() const {
    const auto found = std::ranges::find(gguf_.tensors(), "token_embd.weight", &SourceTensor::name);
    if (found == gguf_.tensors().end()) metadata_.fail("tensor 'token_embd.weight' is missing");
    const auto& shape = found->other ? found->other->shape : found->shape;
    if (shape.size() != 2) metadata_.fail("tensor 'token_embd.weight' is no matrix");
    return shape[0];
  }

  void read_gpt2() {
    json_ = {{"model_type", "gpt2"},
             {"activation_function", "gelu_new"},
             {"n_layer", layers()},
             {"n_head", needed("attention.head_count", kMostPerHead)},
             {"n_embd", needed("embedding_length")},
             {"n_inner", needed("feed_forward_length")},
             {"n_positions", needed("context_length")},
             {"n_ctx", needed("context_length")},
             {"vocab_size", vocabulary()},
             {"layer_norm_epsilon", needed_number("attention.layer_norm_epsilon")},
             {"resid_pdrop", 0.0},
             {"embd_pdrop", 0.0},
             {"attn_pdrop", 0.0},
             {"tie_word_embeddings", true}};
    count("vocab_size");
    accept("attention.head_count_kv", json_["n_head"]);
  }

  void read_decoder() {
    const auto heads = needed("attention.head_count", kMostPerHead), width = needed("embedding_length");
    const auto head_width = count("attention.key_length", kMostPerHead).value_or(width / heads);
    if (head_width == 0) key("attention.key_length").fail("is missing or 0");
    accept("attention.value_length", head_width);
    accept("rope.dimension_count", head_width);
    json_ = {{"model_type", architecture_ == "gemma3" ? "gemma3_text" : architecture_},
             {"num_hidden_layers", layers()},
             {"num_attention_heads", heads},
             {"num_key_value_heads", count("attention.head_count_kv", kMostPerHead).value_or(heads)},
             {"head_dim", head_width},
             {"hidden_size", width},
             {"intermediate_size", needed("feed_forward_length")},
             {"vocab_size", vocabulary()},
             {"max_position_embeddings", needed("context_length")},
             {"rms_norm_eps", needed_number("attention.layer_norm_rms_epsilon")},
             {"tie_word_embeddings", !has("output.weight")},
             {"pad_token_id", nullptr}};
    count("vocab_size");
    for (const auto* experts : {"expert_count", "expert_used_count"}) accept(experts, 0);
    if (architecture_ == "llama" && has("blk.0.attn_output.bias")) json_["attention_bias"] = true;
    if (architecture_ == "llama" && has("blk.0.ffn_up.bias")) json_["mlp_bias"] = true;
    read_rope();
    if (is_gemma_) read_gemma(heads, width, head_width);
  }

  void read_gemma(std::int64_t heads, std::int64_t width, std::int64_t head_width) {
    if (architecture_ == "gemma") return;
    const bool is_second = architecture_ == "gemma2";
    json_["sliding_window"] = needed("attention.sliding_window");
    accept("attention.sliding_window_pattern", is_second ? 2 : 6);
    const bool is_largest = json_["num_hidden_layers"] == (is_second ? kGemma2Of27B : kGemma3Of27B);
    json_["query_pre_attn_scalar"] = is_largest ? width / heads : head_width;
    if (is_second) json_["attn_logit_softcapping"] = number("attn_logit_softcapping").value_or(50.0);
    const auto cap = number("final_logit_softcapping");
    if (is_second || cap) json_["final_logit_softcapping"] = cap.value_or(30.0);
  }

  void read_rope() {
    constexpr double usual_base = 1e4;
    json_["rope_theta"] = number("rope.freq_base").value_or(usual_base);
    if (architecture_ == "gemma3") json_["rope_local_base_freq"] = number("rope.freq_base_swa").value_or(usual_base);
    const auto type = key("rope.scaling.type").is_null() ? "none" : key("rope.scaling.type").string();
    // Whether the model was trained further for it changes nothing.
    key("rope.scaling.finetuned");
    if (type == "linear") {
      json_["rope_scaling"] = {{"rope_type", "linear"}, {"factor", needed_number("rope.scaling.factor")}};
    } else if (type == "yarn") {
      read_yarn();
    } else if (type != "none") {
      key("rope.scaling.type").fail("is " + shortened(type) + ", and none, linear and yarn are read");
    }
  }

  void read_yarn() {
    nlohmann::json scaling{{"rope_type", "yarn"},
                           {"factor", needed_number("rope.scaling.factor")},
                           {"original_max_position_embeddings", needed("rope.scaling.original_context_length")}};
    for (const auto& [field, name] :
         {std::pair("attention_factor", "yarn_attn_factor"), std::pair("beta_fast", "yarn_beta_fast"),
          std::pair("beta_slow", "yarn_beta_slow")})
      if (const auto value = number(std::string("rope.scaling.") + name)) scaling[field] = *value;
    json_["rope_scaling"] = std::move(scaling);
  }

  /// Marks without an id of the vocabulary are left out.
  std::optional<std::int64_t> mark(const std::string& kind) const {
    const auto value = metadata_.get("tokenizer.ggml." + kind + "_token_id");
    if (value.is_null()) return std::nullopt;
    const auto id = value.integer();
    return id >= 0 && id < json_.at("vocab_size").get<std::int64_t>() ? std::optional(id) : std::nullopt;
  }

  void read_marks() {
    if (const auto bos = mark("bos")) json_["bos_token_id"] = *bos;
    if (const auto padding = mark("padding"); padding && architecture_ != "gpt2") json_["pad_token_id"] = *padding;
    const auto eos = mark("eos"), turn = mark("eot");
    if (eos) json_["eos_token_id"] = *eos;
    if (turn && turn != eos) json_["eos_token_id"] = eos ? nlohmann::json{*eos, *turn} : nlohmann::json(*turn);
  }

  /// A key of the architecture that is not known may change what the model computes.
  void refuse_other_keys() const {
    for (const auto& [name, value] : metadata_.object().items())
      if (name.starts_with(architecture_ + ".") && !known_.contains(name))
        metadata_.get(name).fail(fmt::format("is {}, and this key of {} is not known here: it may change the model",
                                             shortened(json_text(value)), architecture_));
  }

  const Source& gguf_;
  JsonValue metadata_;
  std::set<std::string> tensors_, known_;
  std::string architecture_;
  bool is_gemma_ = false;
  nlohmann::json json_;
};

}  // namespace

nlohmann::json config_of_gguf(const Source& gguf, const nlohmann::json& metadata) {
  return ConfigReader(gguf, metadata).read();
}

}  // namespace fsdp
