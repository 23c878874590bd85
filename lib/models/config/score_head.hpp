#pragma once
// The head of a model that scores a text in place of predicting its next token: transformers'
// ...ForSequenceClassification, which classifiers and reward models are.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lib/models/config/model_config.hpp"

namespace fsdp {

inline constexpr const char* kScoreWeight = "score.weight";
/// Most labels of a classifier: their numbers are ids of the vocabulary in a token file.
inline constexpr std::int64_t kMostLabels = 1 << 16;

/// The names that transformers gives to labels without names: LABEL_0, LABEL_1, ...
std::vector<std::string> unnamed_labels(std::int64_t count);

/// Gives a language model a new head. \param padding_id  as ModelConfig::pad_token_id
/// \throws RequestError for fewer than 1 or too many labels, or two of one name
void add_score_head(ModelConfig& config, std::vector<std::string> labels, std::int64_t padding_id);

/// Reads the head from a config.json, of transformers or of write_score_head(); no labels: it is a language model's.
/// \throws FormatError naming `source` and the field
void read_score_head(ModelConfig& config, const nlohmann::json& json, const std::string& source);
/// Adds what only this program reads, to what describes the language model.
void write_score_head(const ModelConfig& config, nlohmann::json& json);
/// Adds the fields that transformers reads. \param architecture  class of the language model
void write_score_head_for_transformers(const ModelConfig& config, std::string_view architecture, nlohmann::json& json);

}  // namespace fsdp
