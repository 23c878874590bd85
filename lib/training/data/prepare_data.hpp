#pragma once
// Prepares data as token files: texts are encoded once, into a cache, before the first step.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "lib/base/messages/log.hpp"
#include "lib/documents/split.hpp"
#include "lib/documents/text_layout.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/templates/chat/conversation_options.hpp"
#include "lib/token_files/token_file.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

// Check of the tokenizer that made a token file.

/// Refuses a token file whose notes name a larger vocabulary than the model has, or another kind or size of tokenizer
/// than `tokenizer`. Names and paths are not compared, because one vocabulary may lie in many places. A file without
/// notes passes.
/// \param tokenizer  the tokenizer that the model is known to have; null: only the vocabulary of the model is compared
/// \throws FormatError naming both
void check_token_origin(const TokenFile& file, const Tokenizer* tokenizer, const ModelConfig& model);

struct TextOptions {
  std::string field;          ///< key or column; empty: the usual one
  std::int64_t max_rows = 0;  ///< 0: all
  ConversationOptions conversations;
  TextLayout layout = TextLayout::automatic;
  std::optional<NumberType> token_type;  ///< of token files that are ids and nothing else
  Split split;                           ///< of documents; rows of a stream are of both parts
  std::int64_t row_inputs = 0;           ///< inputs of a row of a stream; needed where texts are one
  std::filesystem::path directory;       ///< for the token files, see token_cache.hpp
  std::string tokenizer_name;
  const Tokenizer* tokenizer = nullptr;  ///< null: no tokenizer is known, texts cannot be read
  const ModelConfig* model = nullptr;    ///< model whose vocabulary the tokenizer must fit; null: not checked
  bool check_origin = false;             ///< refuse token files of another tokenizer; needs `model`
  bool tokenizer_is_sure = false;        ///< the tokenizer is the model's own, not a default
  bool quiet = false;

  /// True for samples that are cut to row_inputs as they are encoded, because what is learned of them is at their end.
  bool cuts_samples() const {
    return conversations.judged || conversations.form == DataForm::preference || conversations.form == DataForm::label;
  }
};

/// The column by which Parquet and Arrow streams are told to be token files or texts: the one that was asked for by its
/// name, or by a form. \return empty when neither was
std::string asked_column(const std::string& field, DataForm form);

/// How token files are opened that do not say how they are to be read.
TokenFileOptions token_file_options(TextLayout layout, std::optional<NumberType> type, const std::string& field);

/// Warns of data in a token file that says which ids count and is not read here, and of what else the user should know.
void log_unread_data(const TokenFile& file, const Logger& log);

/// Returns `data` itself when it is a token file, see is_token_file(). Otherwise rank 0 encodes the documents of that
/// file or directory of texts (JSON Lines, Parquet, CSV, plain), as documents or as rows of options.row_inputs + 1 ids
/// of a stream, each of which begins with the last id of the row before. Rows are of all texts, whatever max_rows is.
/// The name of the result is made of its inputs, so a
/// continued run, or another run on the same data, finds it; of several jobs only one encodes. Collective: the same
/// result on every rank.
/// \param stop_wanted  polled on rank 0
/// \throws RuntimeFailure after stop_wanted returned true; RequestError without a tokenizer; errors of tokenize(), on
/// all
///   ranks
std::filesystem::path prepare_tokens(ProcessGroup& world, const std::filesystem::path& data, const TextOptions& options,
                                     const Logger& log, const std::function<bool()>& stop_wanted);

}  // namespace fsdp
