#pragma once
// The parts of tokenizer.json that both kinds of vocabularies share.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/text/tokenizer/added_tokens.hpp"
#include "lib/text/tokenizer/document_marks.hpp"
#include "lib/text/tokenizer/json_file.hpp"
#include "lib/text/tokenizer/tokenizer_config.hpp"

namespace fsdp::detail {

/// `model`, as written.
struct JsonModel {
  std::vector<std::string> pieces;  ///< by id; empty ones are gaps
  std::vector<std::pair<std::string, std::string>> merges;
  bool byte_fallback = false;
  bool ignore_merges = false;
};

/// \param num_added  how many more ids the added tokens take: gaps in the ids are theirs
JsonModel read_model(const JsonValue& model, std::size_t num_added);

/// The file's added tokens, in its order.
std::vector<AddedToken> read_added_tokens(const JsonValue& list);

/// The file's added tokens and what the config adds or changes.
std::vector<AddedToken> added_tokens_of(const JsonModel& model, const std::vector<AddedToken>& of_file,
                                        const std::string& where, const TokenizerConfig& config);

/// The marks of a post-processor.
/// \param vocab_size  ids must be below
DocumentMarks read_post_processor(const JsonValue& post_processor, std::int64_t vocab_size);

/// The id of a mark: the configured name's, else that of the first usual name that is an added token.
std::optional<std::int32_t> find_mark(const std::optional<std::string>& name,
                                      const std::vector<std::string_view>& usual_names,
                                      const std::vector<AddedToken>& tokens);

/// The steps of a normalizer or pre-tokenizer: those of a Sequence, itself, or none for null.
/// \param list  what a Sequence calls its members: "normalizers", "pretokenizers", ...
std::vector<JsonValue> steps_of(const JsonValue& value, std::string_view list);

/// `value`'s "type".
const std::string& type_of(const JsonValue& value);

/// Refuses a step of an unknown type. \param supported  what could stand there
[[noreturn]] void refuse_type(const JsonValue& value, const std::string& supported);

}  // namespace fsdp::detail
