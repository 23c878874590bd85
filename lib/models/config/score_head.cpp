#include "lib/models/config/score_head.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/models/config/model_config_fields.hpp"

namespace fsdp {
namespace {

using config_detail::field_or;

constexpr const char* kOwnField = "scores";
constexpr std::string_view kClassEnding = "ForSequenceClassification";

/// \return what is wrong with the labels; empty: nothing
std::string problem_of(const std::vector<std::string>& labels) {
  if (std::ssize(labels) > kMostLabels)
    return fmt::format("{} labels, there can be at most {}", labels.size(), kMostLabels);
  std::set<std::string_view> seen;
  for (const auto& label : labels) {
    if (!seen.insert(label).second) return fmt::format("two labels are called '{}'", label);
  }
  return "";
}

bool is_of_scores(const nlohmann::json& json) {
  const auto classes = json.find("architectures");
  return classes != json.end() && classes->is_array() && !classes->empty() && classes->front().is_string() &&
         classes->front().get_ref<const std::string&>().ends_with(kClassEnding);
}

/// The names in the order of their numbers. transformers takes num_labels where id2label is absent, and else 2.
std::vector<std::string> labels_of(const nlohmann::json& json, const std::string& source) {
  const auto names = json.find("id2label");
  if (names == json.end() || names->is_null()) {
    const auto count = field_or<std::int64_t>(json, "num_labels", 2, source);
    if (count < 1 || count > kMostLabels)
      throw FormatError(fmt::format("{}: field 'num_labels' is {}, expected 1 to {}", source, count, kMostLabels));
    return unnamed_labels(count);
  }
  if (!names->is_object()) throw FormatError(source + ": field 'id2label' is no object of names");
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < names->size(); ++i) {
    const auto name = names->find(std::to_string(i));
    if (name == names->end() || !name->is_string())
      throw FormatError(fmt::format("{}: field 'id2label' has no name for {}, and {} names", source, i, names->size()));
    labels.push_back(name->get<std::string>());
  }
  if (labels.empty()) throw FormatError(source + ": field 'id2label' names no label");
  return labels;
}

/// transformers takes another loss for these, and an export would say what was not trained.
void refuse_other_problem(const nlohmann::json& json, std::size_t labels, const std::string& source) {
  const auto problem = field_or(json, "problem_type", std::string(), source);
  if (problem == "multi_label_classification" || (problem == "regression" && labels > 1))
    throw FormatError(source + ": field 'problem_type' is " + problem + ", and a text has one label here");
}

}  // namespace

std::vector<std::string> unnamed_labels(std::int64_t count) {
  std::vector<std::string> labels;
  for (std::int64_t i = 0; i < count; ++i) labels.push_back("LABEL_" + std::to_string(i));
  return labels;
}

void add_score_head(ModelConfig& config, std::vector<std::string> labels, std::int64_t padding_id) {
  if (labels.empty()) throw RequestError("a head of scores without a label");
  if (const auto problem = problem_of(labels); !problem.empty()) throw RequestError(problem);
  config.labels = std::move(labels);
  config.pad_token_id = padding_id;
  config.score_is_new = true;
}

void read_score_head(ModelConfig& config, const nlohmann::json& json, const std::string& source) {
  // A language model may get a head, and has its padding then. Negative numbers are no tokens' to transformers.
  const auto padding = json.find("pad_token_id");
  if (padding != json.end() && padding->is_number_integer())
    config.pad_token_id = std::max<std::int64_t>(-1, field_or<std::int64_t>(json, "pad_token_id", -1, source));
  if (const auto own = json.find(kOwnField); own != json.end()) {
    if (!own->is_object()) throw FormatError(source + ": field 'scores' is no object");
    const auto names = own->find("labels");
    const auto is_text = [](const nlohmann::json& label) { return label.is_string(); };
    if (names == own->end() || !names->is_array() || names->empty() || !std::ranges::all_of(*names, is_text))
      throw FormatError(source + ": field 'scores' has no list of labels");
    config.labels = names->get<std::vector<std::string>>();
    config.pad_token_id = field_or<std::int64_t>(*own, "pad_token_id", -1, source);
    config.score_is_new = field_or(*own, "is_new", false, source);
  } else if (is_of_scores(json)) {
    config.labels = labels_of(json, source);
    refuse_other_problem(json, config.labels.size(), source);
  }
  if (const auto problem = problem_of(config.labels); !problem.empty()) throw FormatError(source + ": " + problem);
}

void write_score_head(const ModelConfig& config, nlohmann::json& json) {
  if (!config.has_scores()) return;
  auto& own = json[kOwnField] = {{"labels", config.labels}};
  if (config.pad_token_id >= 0) own["pad_token_id"] = config.pad_token_id;
  if (config.score_is_new) own["is_new"] = true;
}

void write_score_head_for_transformers(const ModelConfig& config, std::string_view architecture, nlohmann::json& json) {
  if (!config.has_scores()) return;
  std::string name(architecture);
  for (const std::string_view ending : {"ForCausalLM", "LMHeadModel"}) {
    if (name.ends_with(ending)) name.resize(name.size() - ending.size());
  }
  if (name == "Gemma3") name += "Text";
  json["architectures"] = {name + std::string(kClassEnding)};
  auto names = nlohmann::json::object(), numbers = names;
  for (std::size_t i = 0; i < config.labels.size(); ++i) {
    names[std::to_string(i)] = config.labels[i];
    numbers[config.labels[i]] = i;
  }
  json["id2label"] = std::move(names);
  json["label2id"] = std::move(numbers);
  if (config.pad_token_id >= 0) json["pad_token_id"] = config.pad_token_id;
}

}  // namespace fsdp
