#pragma once
// Texts to token files: reads Parquet, JSON Lines, CSV or plain text, encodes on several threads, writes HDF5.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lib/text/chat/conversation_options.hpp"
#include "lib/text/tokenizer/tokenizer.hpp"

namespace fsdp {

enum class TokenLayout : std::uint8_t {
  automatic,        ///< documents where there are conversations, completions or a largest length, else packed
  packed,           ///< rows in input_ids
  documents,        ///< tokens and offsets
  packed_documents  ///< the same in rows of at most seq_len tokens
};

struct TokenizeOptions {
  std::vector<std::filesystem::path> inputs;  ///< in this order; of a directory what data_files() finds in it
  std::filesystem::path output;               ///< .h5, written under another name and renamed when complete
  TokenLayout layout = TokenLayout::packed;
  std::int64_t seq_len = 256;   ///< ids per packed row; of packed documents tokens per row, and ids of a document
  std::uint64_t seed = 1337;    ///< which of the documents of one size shares which row
  std::string field;            ///< column or key; empty: `text`, or Moves in Parquet files that have it
  std::int64_t max_rows = 0;    ///< documents read over all inputs; 0: all
  std::int64_t max_length = 0;  ///< ids of a document, the rest is cut; 0: all. Not when packed
  ConversationOptions conversations;
  int threads = 1;
  std::string tokenizer_name;  ///< for the output's attributes and the tokenizer's own chat template
};

struct TokenizeProgress {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t bytes_read = 0;  ///< of bytes_total
  std::int64_t bytes_total = 0;
};

struct TokenizeReport {
  std::vector<std::filesystem::path> files;               ///< that were read, directories looked into
  std::vector<std::filesystem::path> companions, unread;  ///< of directories, see DataFiles
  std::int64_t documents = 0;
  std::int64_t empty_documents = 0;
  std::int64_t tokens = 0;          ///< encoded
  bool is_packed = false;           ///< one after the other, cut into rows
  bool shares_rows = false;         ///< packed documents
  std::string chat_template;        ///< by which conversations were written; empty: there were none
  bool masked = false;              ///< not all ids count
  std::int64_t counted_tokens = 0;  ///< of `tokens`, those that the loss counts
  std::int64_t skipped = 0;         ///< samples without a counted token, which are not among the documents
  std::string first_skipped;        ///< where the first of them stands
  std::int64_t cut_documents = 0;   ///< that were longer than max_length, or than a row of packed documents
  std::int64_t too_short = 0;       ///< of packed documents: those of fewer than 2 ids, which are in no row
  std::int64_t rows = 0;            ///< of a packed output, or of packed documents
  std::int64_t dropped_tokens = 0;  ///< the tail of a packed output
  bool stopped = false;             ///< `stop_wanted` said so; nothing was written
};

/// "answers   116 of 420 tokens count (27.6 %), chat template llama3", for a log.
std::string answers_line(const TokenizeReport& report);
/// "2 samples without a token that counts are left out, the first is FILE: line 7"
std::string skipped_line(const TokenizeReport& report);

/// Documents of a packed output follow each other without marks between them but those of encode_document().
/// \param progress     called now and then from the calling thread
/// \param stop_wanted  asked now and then
/// \throws FormatError naming file and line or row of what is malformed; UsageError; IoError
TokenizeReport tokenize(const TokenizeOptions& options, const Tokenizer& tokenizer,
                        const std::function<void(const TokenizeProgress&)>& progress = {},
                        const std::function<bool()>& stop_wanted = {});

}  // namespace fsdp
