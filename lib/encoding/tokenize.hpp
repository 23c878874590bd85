#pragma once
// Encodes texts to a token file: reads Parquet, JSON Lines, CSV or plain text, encodes on several threads, writes HDF5.
#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lib/base/messages/ignored.hpp"
#include "lib/base/types/named_values.hpp"
#include "lib/corpus/corpus_report.hpp"
#include "lib/documents/split.hpp"
#include "lib/templates/chat/conversation_options.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

enum class TokenLayout : std::uint8_t {
  automatic,        ///< packed for plain text without max_length, else documents
  packed,           ///< rows in input_ids
  overlapping,      ///< rows in input_ids, each of which begins with the last id of the row before
  documents,        ///< tokens and offsets
  packed_documents  ///< documents in rows of at most seq_len tokens
};

/// Whether the tokenizer's end mark stands between the texts of packed rows.
enum class EndMarks : std::uint8_t {
  automatic,  ///< where the tokenizer has one
  on,
  off
};
inline constexpr std::array kEndMarkNames{NamedValue<EndMarks>{"auto", EndMarks::automatic},
                                          NamedValue<EndMarks>{"on", EndMarks::on},
                                          NamedValue<EndMarks>{"off", EndMarks::off}};

struct TokenizeReport;

struct TokenizeOptions {
  std::vector<std::filesystem::path> inputs;  ///< read in this order; a directory stands for its data_files()
  std::filesystem::path output;               ///< .h5 file; it gets its name when it is complete
  TokenLayout layout = TokenLayout::packed;
  std::int64_t seq_len = 256;   ///< ids per packed row; for packed documents tokens per row and most ids of a document
  std::uint64_t seed = 1337;    ///< order of documents of one size in rows that documents share
  std::string field;            ///< column or key; empty: `text`, or Moves in Parquet files that have it
  std::int64_t max_rows = 0;    ///< documents read over all inputs; 0: all
  std::int64_t max_length = 0;  ///< most ids of a document, the rest is cut; 0: all. Not when packed
  Split split;                  ///< reads a part of the documents; of max_rows, too
  EndMarks end_marks = EndMarks::off;
  ConversationOptions conversations;
  int threads = 1;
  std::string tokenizer_name;      ///< for the output's attributes and the tokenizer's own chat template
  CorpusReport* corpus = nullptr;  ///< gets each document, and may leave some out; null: none

  /// Encode pieces, which are kept in OUTPUT.parts until all are there: with other processes of the same options, and
  /// after a stop only what is missing (piece_folder.hpp). One of the processes writes the output.
  bool in_pieces = false;
  std::int64_t piece_bytes = std::int64_t{64} << 20;                    ///< of the input, in a piece
  std::chrono::milliseconds takeover_after = std::chrono::seconds(90);  ///< as of ClaimWatch
  /// Files that `written` makes: without them, too, a finished output is made again.
  std::vector<std::filesystem::path> also_written;
  /// Called once the output has its name, by the process that wrote it, before others learn that all is done.
  std::function<void(const TokenizeReport&)> written;
};

struct TokenizeProgress {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t bytes_read = 0;  ///< out of bytes_total
  std::int64_t bytes_total = 0;
  std::int64_t bytes_before = 0;  ///< of bytes_read, those that an earlier run or other processes had read at the start
  std::int64_t pieces_done = 0, pieces = 0;  ///< 0: the input is not cut
  bool joining = false;                      ///< all is encoded, and is being written to the output
};

struct TokenizeReport {
  std::vector<std::filesystem::path> files;               ///< files that were read, including those of directories
  std::vector<std::filesystem::path> companions, unread;  ///< of directories, see DataFiles
  std::int64_t documents = 0;                             ///< written; two of each preference
  std::int64_t empty_documents = 0;
  std::int64_t tokens = 0;          ///< encoded and written
  bool is_packed = false;           ///< documents follow each other and are cut into rows
  bool shares_rows = false;         ///< packed documents
  std::string chat_template;        ///< template that wrote conversations; empty: there were none
  bool masked = false;              ///< not all ids count
  bool has_scores = false;          ///< each document ends with the one target of a head of scores
  bool has_preferences = false;     ///< documents are pairs of a chosen and a rejected one
  bool judged = false;              ///< documents are answers, each with a judgement
  std::int64_t equal = 0;           ///< preferences whose sides are equal, which are written
  bool learns_turn_ends = true;     ///< false: no mark after an answer counts
  std::int64_t counted_tokens = 0;  ///< tokens that the loss counts
  std::int64_t elsewhere = 0;       ///< documents in the other part of a split
  std::int64_t skipped = 0;         ///< samples without a counted token, which are left out
  std::string first_skipped;        ///< place of the first skipped sample
  std::int64_t cut_documents = 0;   ///< documents longer than max_length, or than a row of packed documents
  std::int64_t too_short = 0;       ///< packed documents of fewer than 2 ids, which are in no row
  std::int64_t rows = 0;            ///< rows of a packed output, or of packed documents
  std::int64_t end_marks = 0;       ///< of `tokens`, marks between the texts of a packed output
  std::int64_t dropped_tokens = 0;  ///< tokens that are in no row of a packed output
  Ignored ignored;                  ///< keys and columns that nothing reads, by file
  bool stopped = false;             ///< `stop_wanted` returned true; no file was written
  std::int64_t pieces = 0;          ///< of the input; 0: it was not cut
  std::int64_t pieces_done = 0;     ///< those that are kept after a stop
  std::int64_t own_pieces = 0;      ///< those that this process encoded
  std::int64_t other_files = 0;     ///< in OUTPUT.parts, of pieces of other inputs or options
  bool was_complete = false;        ///< the output was there already, and nothing else of this is known
  std::string written_by;           ///< the other process that writes the output; empty: it was this one
};

/// "answers   116 of 420 tokens count (27.6 %), chat template llama3", for a log.
std::string answers_line(const TokenizeReport& report);
/// "2 samples without a token that counts are left out, the first is FILE: line 7"
std::string skipped_line(const TokenizeReport& report);
/// "3 preferences have two equal sides, which say nothing and count"
std::string equal_line(const TokenizeReport& report);
/// Says that no mark after an answer counts, and what to do: for a warning unless report.learns_turn_ends.
std::string turn_end_line(const TokenizeReport& report);

/// Encodes texts and writes the token file. Between documents of a packed output stands the tokenizer's end mark, if
/// the options say so and no document ends or begins with it; without texts among the documents it never does.
/// \param progress     called now and then from the calling thread
/// \param stop_wanted  polled
/// \throws FormatError naming file and line or row of malformed input; RequestError, also for pieces of some documents;
/// IoError
TokenizeReport tokenize(const TokenizeOptions& options, const Tokenizer& tokenizer,
                        const std::function<void(const TokenizeProgress&)>& progress = {},
                        const std::function<bool()>& stop_wanted = {});

}  // namespace fsdp
