#include "lib/tokenizers/gguf/gguf_pre_tokenizer.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace fsdp {
namespace {

// Split patterns of tokenizer.json, as their makers write them.
constexpr std::string_view kLlama3Pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                                            R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                                           R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDigits = "digits";   // a step Digits of single digits
constexpr std::string_view kGpt2Step = "GPT-2";  // the pattern that ByteLevel itself has

struct PreName {
  std::vector<std::string_view> steps;
  std::vector<std::string_view> names;  ///< the first one is written, all are read
  bool ignores_merges = false;
  bool composes = false;  ///< NFC comes before
  bool adds_bos = false;
};

std::vector<PreName> known_names() {
  return {{.steps = {kGpt2Step}, .names = {"gpt-2"}},
          {.steps = {kLlama3Pattern},
           .names = {"llama-bpe", "llama3", "llama-v3"},
           .ignores_merges = true,
           .adds_bos = true},
          {.steps = {kLlama3Pattern}, .names = {"dbrx"}},
          {.steps = {kQwen2Pattern}, .names = {"qwen2", "deepseek-r1-qwen"}, .composes = true},
          {.steps = {kTekkenPattern}, .names = {"tekken"}, .ignores_merges = true, .adds_bos = true},
          {.steps = {kDigits, kGpt2Step}, .names = {"smollm"}}};
}

nlohmann::json json_of(std::string_view step) {
  if (step == kGpt2Step)
    return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  if (step == kDigits) return {{"type", "Digits"}, {"individual_digits", true}};
  return {{"type", "Split"}, {"pattern", {{"Regex", std::string(step)}}}, {"behavior", "Isolated"}, {"invert", false}};
}

}  // namespace

std::optional<std::string> gguf_pre_name(const JsonValue& pre_tokenizer, bool ignores_merges) {
  const auto type_of = [](const JsonValue& step) { return step.optional_string("type").value_or(""); };
  const auto list = type_of(pre_tokenizer) == "Sequence" ? pre_tokenizer.at("pretokenizers").elements()
                                                         : std::vector<JsonValue>{pre_tokenizer};
  std::vector<std::string> steps;
  for (const auto& step : list) {
    const auto type = type_of(step);
    if (type == "ByteLevel") {
      if (step.boolean("use_regex", true)) steps.emplace_back(kGpt2Step);
    } else if (type == "Digits") {
      steps.emplace_back(step.boolean("individual_digits", false) ? kDigits : "runs of digits");
    } else {
      steps.push_back(step.get("pattern").optional_string("Regex").value_or(type));
    }
  }
  const auto names = known_names();
  const auto found = std::find_if(names.begin(), names.end(), [&](const PreName& known) {
    // One pattern has two names, which differ in this.
    const bool is_other = known.steps.front() == kLlama3Pattern && known.ignores_merges != ignores_merges;
    return !is_other && std::equal(steps.begin(), steps.end(), known.steps.begin(), known.steps.end());
  });
  return found == names.end() ? std::nullopt : std::optional(std::string(found->names.front()));
}

std::optional<GgufPreTokenizer> gguf_pre_tokenizer(const std::string& name) {
  const auto names = known_names();
  const auto found = std::find_if(names.begin(), names.end(), [&](const PreName& known) {
    return std::find(known.names.begin(), known.names.end(), name) != known.names.end();
  });
  if (found == names.end()) return std::nullopt;
  GgufPreTokenizer made{.steps = nlohmann::json::array(),
                        .normalizer = found->composes ? nlohmann::json{{"type", "NFC"}} : nlohmann::json(),
                        .ignores_merges = found->ignores_merges,
                        .adds_bos = found->adds_bos};
  for (const auto step : found->steps) made.steps.push_back(json_of(step));
  if (found->steps.back() != kGpt2Step) {
    auto bytes = json_of(kGpt2Step);
    bytes["use_regex"] = false;
    made.steps.push_back(std::move(bytes));
  }
  made.steps = made.steps.size() == 1 ? nlohmann::json(made.steps.front())
                                      : nlohmann::json{{"type", "Sequence"}, {"pretokenizers", made.steps}};
  return made;
}

std::string gguf_pre_names() {
  std::string all;
  for (const auto& known : known_names())
    for (const auto name : known.names) all += (all.empty() ? "" : ", ") + std::string(name);
  return all;
}

}  // namespace fsdp
