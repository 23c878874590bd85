// Each row has the numbers of the model's config.json on the Hugging Face hub.
#include "lib/models/config/known_models.hpp"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

namespace fsdp {
namespace {

struct Row {
  const char* name;  ///< on the hub
  const char* type;  ///< model_type
  std::int64_t layers, heads, kv_heads, width, ffn, vocabulary, positions;
  const char* more;  ///< other keys of config.json, as JSON; "" for none
};

constexpr const char* kLlama2 = R"({"rms_norm_eps":1e-5,"rope_theta":1e4})";
constexpr const char* kCodeLlama = R"({"rms_norm_eps":1e-5,"rope_theta":1e6})";
constexpr const char* kLlama3 = R"({"rms_norm_eps":1e-5,"rope_theta":5e5})";
constexpr const char* kLlama31 = R"({"rms_norm_eps":1e-5,"rope_theta":5e5,"rope_scaling":{"rope_type":"llama3",
  "factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}})";
constexpr const char* kLlama32 =
    R"({"rms_norm_eps":1e-5,"rope_theta":5e5,"tie_word_embeddings":true,"rope_scaling":{"rope_type":"llama3",
  "factor":32.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}})";
constexpr const char* kMistral1 = R"({"rms_norm_eps":1e-5,"rope_theta":1e4,"sliding_window":4096})";
constexpr const char* kMistral3 = R"({"rms_norm_eps":1e-5,"rope_theta":1e6,"sliding_window":null})";
constexpr const char* kQwenTied = R"({"rms_norm_eps":1e-6,"rope_theta":1e6,"tie_word_embeddings":true})";
constexpr const char* kQwen = R"({"rms_norm_eps":1e-6,"rope_theta":1e6,"tie_word_embeddings":false})";
constexpr const char* kQwen14 = R"({"rms_norm_eps":1e-5,"rope_theta":1e6,"tie_word_embeddings":false})";
constexpr const char* kGemma2 = R"({"head_dim":256,"query_pre_attn_scalar":256})";
constexpr const char* kGemma2Of27 = R"({"head_dim":128,"query_pre_attn_scalar":144})";
constexpr const char* kFalcon = R"({"multi_query":true,"new_decoder_architecture":false})";
constexpr const char* kFalconNew = R"({"new_decoder_architecture":true})";

constexpr Row kRows[]{
    // name, type, layers, heads, key heads, width, feed-forward, vocabulary, positions
    {"codellama/CodeLlama-7b-hf", "llama", 32, 32, 32, 4096, 11008, 32016, 16384, kCodeLlama},
    {"codellama/CodeLlama-13b-hf", "llama", 40, 40, 40, 5120, 13824, 32016, 16384, kCodeLlama},
    {"codellama/CodeLlama-34b-hf", "llama", 48, 64, 8, 8192, 22016, 32000, 16384, kCodeLlama},
    {"meta-llama/Llama-2-7b-hf", "llama", 32, 32, 32, 4096, 11008, 32000, 4096, kLlama2},
    {"meta-llama/Llama-2-13b-hf", "llama", 40, 40, 40, 5120, 13824, 32000, 4096, kLlama2},
    {"meta-llama/Llama-2-70b-hf", "llama", 80, 64, 8, 8192, 28672, 32000, 4096, kLlama2},
    {"meta-llama/Meta-Llama-3-8B", "llama", 32, 32, 8, 4096, 14336, 128256, 8192, kLlama3},
    {"meta-llama/Meta-Llama-3-70B", "llama", 80, 64, 8, 8192, 28672, 128256, 8192, kLlama3},
    {"meta-llama/Llama-3.1-8B", "llama", 32, 32, 8, 4096, 14336, 128256, 131072, kLlama31},
    {"meta-llama/Llama-3.1-70B", "llama", 80, 64, 8, 8192, 28672, 128256, 131072, kLlama31},
    {"meta-llama/Llama-3.1-405B", "llama", 126, 128, 8, 16384, 53248, 128256, 131072, kLlama31},
    {"meta-llama/Llama-3.2-1B", "llama", 16, 32, 8, 2048, 8192, 128256, 131072,
     R"({"head_dim":64,"rms_norm_eps":1e-5,"rope_theta":5e5,"tie_word_embeddings":true,"rope_scaling":{"rope_type":
     "llama3","factor":32.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}})"},
    {"meta-llama/Llama-3.2-3B", "llama", 28, 24, 8, 3072, 8192, 128256, 131072, kLlama32},
    {"mistralai/Mistral-7B-v0.1", "mistral", 32, 32, 8, 4096, 14336, 32000, 32768, kMistral1},
    {"mistralai/Mistral-7B-v0.3", "mistral", 32, 32, 8, 4096, 14336, 32768, 32768, kMistral3},
    {"Qwen/Qwen2.5-0.5B", "qwen2", 24, 14, 2, 896, 4864, 151936, 32768, kQwenTied},
    {"Qwen/Qwen2.5-1.5B", "qwen2", 28, 12, 2, 1536, 8960, 151936, 131072, kQwenTied},
    {"Qwen/Qwen2.5-3B", "qwen2", 36, 16, 2, 2048, 11008, 151936, 32768, kQwenTied},
    {"Qwen/Qwen2.5-7B", "qwen2", 28, 28, 4, 3584, 18944, 152064, 131072, kQwen},
    {"Qwen/Qwen2.5-14B", "qwen2", 48, 40, 8, 5120, 13824, 152064, 131072, kQwen14},
    {"Qwen/Qwen2.5-32B", "qwen2", 64, 40, 8, 5120, 27648, 152064, 131072, kQwen14},
    {"Qwen/Qwen2.5-72B", "qwen2", 80, 64, 8, 8192, 29568, 152064, 131072, kQwen14},
    {"Qwen/Qwen3-0.6B", "qwen3", 28, 16, 8, 1024, 3072, 151936, 40960, kQwenTied},
    {"Qwen/Qwen3-1.7B", "qwen3", 28, 16, 8, 2048, 6144, 151936, 40960, kQwenTied},
    {"Qwen/Qwen3-4B", "qwen3", 36, 32, 8, 2560, 9728, 151936, 40960, kQwenTied},
    {"Qwen/Qwen3-8B", "qwen3", 36, 32, 8, 4096, 12288, 151936, 40960, kQwen},
    {"Qwen/Qwen3-14B", "qwen3", 40, 40, 8, 5120, 17408, 151936, 40960, kQwen},
    {"Qwen/Qwen3-32B", "qwen3", 64, 64, 8, 5120, 25600, 151936, 40960, kQwen},
    {"google/gemma-2-2b", "gemma2", 26, 8, 4, 2304, 9216, 256000, 8192, kGemma2},
    {"google/gemma-2-9b", "gemma2", 42, 16, 8, 3584, 14336, 256000, 8192, kGemma2},
    {"google/gemma-2-27b", "gemma2", 46, 32, 16, 4608, 36864, 256000, 8192, kGemma2Of27},
    {"tiiuae/falcon-7b", "falcon", 32, 71, 1, 4544, 4 * 4544, 65024, 2048, kFalcon},
    {"tiiuae/falcon-40b", "falcon", 60, 128, 8, 8192, 4 * 8192, 65024, 2048, kFalconNew},
    {"tiiuae/falcon-180B", "falcon", 80, 232, 8, 14848, 4 * 14848, 65024, 2048, kFalconNew},
    {"openai-community/gpt2", "gpt2", 12, 12, 12, 768, 3072, 50257, 1024, ""},
    {"openai-community/gpt2-medium", "gpt2", 24, 16, 16, 1024, 4096, 50257, 1024, ""},
    {"openai-community/gpt2-large", "gpt2", 36, 20, 20, 1280, 5120, 50257, 1024, ""},
    {"openai-community/gpt2-xl", "gpt2", 48, 25, 25, 1600, 6400, 50257, 1024, ""},
};

nlohmann::json json_of(const Row& row) {
  const std::string type = row.type;
  auto json = *row.more == '\0' ? nlohmann::json::object() : nlohmann::json::parse(row.more);
  json["model_type"] = type;
  json["vocab_size"] = row.vocabulary;
  if (type == "gpt2") {
    json.update(
        {{"n_layer", row.layers}, {"n_head", row.heads}, {"n_embd", row.width}, {"n_positions", row.positions}});
    return json;
  }
  json.update({{"num_hidden_layers", row.layers},
               {"num_attention_heads", row.heads},
               {"hidden_size", row.width},
               {"max_position_embeddings", row.positions}});
  if (type == "falcon") {
    json.update({{"num_kv_heads", row.kv_heads}, {"ffn_hidden_size", row.ffn}});
    return json;
  }
  json.update({{"num_key_value_heads", row.kv_heads}, {"intermediate_size", row.ffn}});
  json["hidden_act"] = type == "gemma2" ? "gelu_pytorch_tanh" : "silu";
  if (type == "gemma2") json["hidden_activation"] = json["hidden_act"];
  return json;
}

/// The part of a name that tells the sizes, in lower case.
std::string bare(std::string_view name) {
  std::string text;
  for (const char c : name.substr(name.find('/') + 1))
    text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (text.starts_with("meta-")) text.erase(0, 5);
  for (const std::string_view end : {"-hf", "-instruct", "-chat", "-it"})
    if (text.ends_with(end)) text = text.substr(0, text.size() - end.size());
  return text;
}

std::string owner(std::string_view name) {
  std::string text;
  if (name.find('/') == std::string_view::npos) return text;
  for (const char c : name.substr(0, name.find('/')))
    text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

std::optional<KnownModel> find_known_model(std::string_view name) {
  const auto wanted = bare(name), of = owner(name);
  const auto* found = std::ranges::find_if(
      kRows, [&](const Row& row) { return bare(row.name) == wanted && (of.empty() || of == owner(row.name)); });
  if (found == std::end(kRows)) return std::nullopt;
  return KnownModel{found->name, model_config_from_json(json_of(*found), found->name)};
}

std::vector<std::string> known_model_names() {
  std::vector<std::string> names;
  for (const auto& row : kRows) names.emplace_back(row.name);
  return names;
}

}  // namespace fsdp
