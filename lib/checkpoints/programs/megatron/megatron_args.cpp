#include "lib/checkpoints/programs/megatron/megatron_args.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"

namespace fsdp {
namespace {

/// Megatron-core's only kind of scaling of rotary positions has these numbers fixed.
constexpr double kLowFrequencyFactor = 1, kHighFrequencyFactor = 4;
constexpr std::int64_t kTrainedPositions = 8192;

/// Typed access to arguments; None counts as absent.
class Arguments {
 public:
  explicit Arguments(const PickleNode& args) : args_(args) {}

  const PickleValue* find(std::string_view name) const {
    const auto found = args_.find(name);
    return found && !found->value->is_none() ? found->value : nullptr;
  }
  std::optional<std::int64_t> whole(std::string_view name) const {
    const auto* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (value->integer() == nullptr) refuse(name, *value, "a whole number was expected");
    return *value->integer();
  }
  std::optional<double> number(std::string_view name) const {
    const auto* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (const auto* real = value->real(); real != nullptr && std::isfinite(*real)) return *real;
    if (value->integer() != nullptr) return static_cast<double>(*value->integer());
    refuse(name, *value, "a number was expected");
  }
  std::optional<bool> flag(std::string_view name) const {
    const auto* value = find(name);
    return value != nullptr && value->boolean() != nullptr ? std::optional(*value->boolean()) : std::nullopt;
  }
  [[noreturn]] void refuse(std::string_view name, const PickleValue& value, const std::string& wanted) const {
    const auto shown = value.string() != nullptr    ? "'" + std::string(value.string()->text.substr(0, 100)) + "'"
                       : value.boolean() != nullptr ? std::string(*value.boolean() ? "True" : "False")
                       : value.integer() != nullptr ? std::to_string(*value.integer())
                       : value.real() != nullptr    ? fmt::format("{}", *value.real())
                                                    : describe(value);
    throw FormatError(fmt::format("{}: args say {} = {}: {}", args_.file, name, shown, wanted), Remedy::megatron_names);
  }

 private:
  const PickleNode& args_;
};

/// Refuses arguments that change what the weights mean.
void refuse_other_models(const Arguments& args) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> texts{
      {{"normalization", "RMSNorm"}, {"position_embedding_type", "rope"}}};
  for (const auto& [name, wanted] : texts) {
    const auto* value = args.find(name);
    if (value != nullptr && (value->string() == nullptr || value->string()->text != wanted))
      args.refuse(name, *value, "a dense Llama or Qwen has " + std::string(wanted));
  }
  constexpr std::array<std::pair<std::string_view, bool>, 10> flags{{{"swiglu", true},
                                                                     {"apply_layernorm_1p", false},
                                                                     {"layernorm_zero_centered_gamma", false},
                                                                     {"rotary_interleaved", false},
                                                                     {"multi_latent_attention", false},
                                                                     {"squared_relu", false},
                                                                     {"quick_geglu", false},
                                                                     {"attention_output_gate", false},
                                                                     {"qk_l2_norm", false},
                                                                     {"use_mup", false}}};
  for (const auto& [name, wanted] : flags) {
    if (args.flag(name).value_or(wanted) != wanted)
      args.refuse(name, *args.find(name), "no dense Llama or Qwen is like this");
  }
  for (const auto* name : {"num_experts", "window_size", "no_rope_freq"})
    if (const auto* value = args.find(name)) args.refuse(name, *value, "no dense Llama or Qwen has this");
  if (args.number("rotary_percent").value_or(1) != 1)
    args.refuse("rotary_percent", *args.find("rotary_percent"), "a Llama or Qwen rotates whole heads");
}

nlohmann::json rope_scaling_of(const Arguments& args) {
  if (args.flag("use_rope_scaling").value_or(false)) {
    constexpr double kFactor = 8;
    return {{"rope_type", "llama3"},
            {"factor", args.number("rope_scaling_factor").value_or(kFactor)},
            {"low_freq_factor", kLowFrequencyFactor},
            {"high_freq_factor", kHighFrequencyFactor},
            {"original_max_position_embeddings", kTrainedPositions}};
  }
  const auto factor = args.number("rotary_seq_len_interpolation_factor");
  if (factor && *factor != 1) return {{"rope_type", "linear"}, {"factor", *factor}};
  return nullptr;
}

nlohmann::json scaling_of(const ModelConfig& config, std::string_view kind) {
  const auto scaling = parse_json_or_discard(config.rope_scaling, "rope_scaling");
  const bool is_of_kind = scaling.is_object() && scaling.value("rope_type", scaling.value("type", "")) == kind;
  return is_of_kind ? scaling : nlohmann::json();
}

/// The factor of linear scaling; nothing for any other.
std::optional<double> linear_factor(const ModelConfig& config) {
  const auto scaling = scaling_of(config, "linear");
  const auto factor = scaling.is_null() ? 0.0 : scaling.value("factor", 0.0);
  return factor > 0 ? std::optional(factor) : std::nullopt;
}

/// An int where the number is whole, as Megatron-LM has it.
nlohmann::json int_or_real(double number) {
  const bool is_whole = number == std::floor(number) && std::abs(number) < 1e15;
  return is_whole ? nlohmann::json(static_cast<std::int64_t>(number)) : nlohmann::json(number);
}

/// The factor of Llama 3.1's scaling with the numbers that Megatron-core has; nothing for any other.
std::optional<double> llama3_factor(const ModelConfig& config) {
  const auto scaling = scaling_of(config, "llama3");
  if (scaling.is_null()) return std::nullopt;
  const bool has_fixed = scaling.value("low_freq_factor", 0.0) == kLowFrequencyFactor &&
                         scaling.value("high_freq_factor", 0.0) == kHighFrequencyFactor &&
                         scaling.value("original_max_position_embeddings", std::int64_t{0}) == kTrainedPositions;
  return has_fixed ? std::optional(scaling.value("factor", 0.0)) : std::nullopt;
}

void refuse_what_megatron_lacks(const ModelConfig& config) {
  const auto refuse = [&](const std::string& what) {
    throw RequestError(fmt::format("the model: {}, which Megatron-core's GPTModel does not have as args say it", what));
  };
  const auto& traits = config.traits;
  if (config.attention_bias != config.mlp_bias)
    refuse("its output projection or its feed-forward has biases, and not both");
  if (std::ranges::find(traits.sliding, true) != traits.sliding.end()) refuse("some of its layers attend to a window");
}

}  // namespace

nlohmann::json config_fields_of_args(const PickleNode& node) {
  const Arguments args(node);
  refuse_other_models(args);
  nlohmann::json fields{{"rope_theta", args.number("rotary_base").value_or(10000)}};
  const auto eps = args.number("norm_epsilon");
  fields["rms_norm_eps"] = eps ? *eps : args.number("layernorm_epsilon").value_or(1e-5);
  constexpr std::array<std::pair<const char*, const char*>, 6> sizes{
      {{"num_layers", "num_hidden_layers"},
       {"hidden_size", "hidden_size"},
       {"ffn_hidden_size", "intermediate_size"},
       {"num_attention_heads", "num_attention_heads"},
       {"kv_channels", "head_dim"},
       {"max_position_embeddings", "max_position_embeddings"}}};
  for (const auto& [name, field] : sizes)
    if (const auto size = args.whole(name)) fields[field] = *size;
  // Without group_query_attention Megatron-LM ignores num_query_groups, whose default is 1.
  const bool is_grouped = args.flag("group_query_attention").value_or(true);
  const auto groups = args.whole(is_grouped ? "num_query_groups" : "num_attention_heads");
  if (groups) fields["num_key_value_heads"] = *groups;
  if (const auto untied = args.flag("untie_embeddings_and_output_weights")) fields["tie_word_embeddings"] = !*untied;
  if (auto scaling = rope_scaling_of(args); !scaling.is_null()) fields["rope_scaling"] = std::move(scaling);
  return fields;
}

bool args_can_say_rope(const ModelConfig& config) {
  return config.rope_scaling.empty() || llama3_factor(config) || linear_factor(config);
}

void write_megatron_args(PickleWriter& pickle, const ModelConfig& config, DType dtype, bool has_optimizer) {
  refuse_what_megatron_lacks(config);
  const auto scaling = llama3_factor(config);
  nlohmann::json args{{"num_layers", config.num_layers},
                      {"hidden_size", config.embed_size},
                      {"ffn_hidden_size", config.ffn_hidden_size},
                      {"num_attention_heads", config.num_heads},
                      {"group_query_attention", config.kv_heads() != config.num_heads},
                      {"num_query_groups", config.kv_heads()},
                      {"kv_channels", config.head_width()},
                      {"max_position_embeddings", config.block_size},
                      {"vocab_size", config.vocab_size},
                      {"padded_vocab_size", config.vocab_size},
                      {"untie_embeddings_and_output_weights", !config.tie_word_embeddings},
                      {"position_embedding_type", "rope"},
                      {"rotary_base", int_or_real(config.rope_theta)},
                      {"rotary_percent", 1.0},
                      {"rotary_interleaved", false},
                      {"use_rope_scaling", scaling.has_value()},
                      {"normalization", "RMSNorm"},
                      {"norm_epsilon", config.layer_norm_eps},
                      {"apply_layernorm_1p", false},
                      {"qk_layernorm", config.traits.head_norm == HeadNorm::per_head},
                      {"swiglu", true},
                      {"add_bias_linear", config.mlp_bias},
                      {"add_qkv_bias", config.has_qkv_bias()},
                      {"attention_dropout", 0.0},
                      {"hidden_dropout", 0.0},
                      {"tensor_model_parallel_size", 1},
                      {"pipeline_model_parallel_size", 1},
                      {"ckpt_format", "torch_dist"},
                      {"bf16", dtype == DType::bf16},
                      {"fp16", dtype == DType::f16},
                      {"no_save_rng", true},
                      {"no_save_optim", !has_optimizer}};
  if (scaling) args["rope_scaling_factor"] = *scaling;
  if (const auto factor = linear_factor(config)) args["rotary_seq_len_interpolation_factor"] = int_or_real(*factor);
  pickle.global("argparse", "Namespace");
  pickle.empty_tuple();
  pickle.new_object();
  pickle.empty_dict();
  pickle.mark();
  for (const auto& [name, value] : args.items()) {
    pickle.string(name);
    pickle.json(value);
  }
  pickle.string("params_dtype");
  pickle.global("torch", torch_name(dtype));
  pickle.set_items();
  pickle.build();
}

}  // namespace fsdp
