#include "lib/encoding/tokenize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/documents/data_files.hpp"
#include "lib/documents/documents.hpp"
#include "lib/documents/text_layout.hpp"
#include "lib/encoding/encode_pieces.hpp"
#include "lib/encoding/encode_pipeline.hpp"
#include "lib/encoding/fingerprint.hpp"
#include "lib/encoding/piece_folder.hpp"
#include "lib/templates/chat/chat_template.hpp"
#include "lib/token_files/token_file_writer.hpp"

namespace fsdp {
namespace {

void check(const TokenizeOptions& options) {
  if (options.inputs.empty()) throw RequestError("no input files were named");
  if (options.output.empty()) throw RequestError("no output file was named");
  if (options.threads < 1) throw RequestError(std::to_string(options.threads) + " threads cannot encode");
  if (options.max_rows < 0) throw RequestError("at most " + std::to_string(options.max_rows) + " rows cannot be read");
}

void check_output_is_no_input(const TokenizeOptions& options, const std::vector<std::filesystem::path>& files) {
  for (const auto& file : files) {
    std::error_code error;
    if (std::filesystem::equivalent(file, options.output, error)) {
      throw RequestError(options.output.string() + ": is the output and an input");
    }
  }
}

std::string joined(const std::vector<std::filesystem::path>& paths) {
  std::string text;
  for (const auto& path : paths) {
    if (text.size() > 200) return text + ", ...";
    text += (text.empty() ? "" : ", ") + path.string();
  }
  return text;
}

bool holds_texts_only(const DocumentStream& stream) {
  return !stream.has(DataForm::messages) && !stream.has(DataForm::prompt_completion) &&
         !stream.has(DataForm::preference) && !stream.has(DataForm::label);
}

/// Checks that a head's samples are there, and a place for their targets.
void check_scores(const TokenizeOptions& options, const DocumentStream& stream, const TokenizeReport& report) {
  const auto& chat = options.conversations;
  const auto form = chat.head == HeadKind::classify ? DataForm::label : DataForm::preference;
  if (chat.form != form || !stream.has(form))
    throw RequestError("the target of a text that is scored comes from labels or preferences", Remedy::of_form);
  if (report.is_packed)
    throw RequestError("texts that are scored are documents with a target each, which rows of a stream do not hold");
  if (chat.head == HeadKind::classify && chat.labels.empty()) throw RequestError("no labels are named");
}

void check_answers(const TokenizeOptions& options, const DocumentStream& stream, const TokenizeReport& report) {
  if (report.judged && (stream.has(DataForm::text) || stream.has(DataForm::messages)))
    throw RequestError(
        "judged answers are samples with 'prompt', 'completion' and 'label', or preferences, and some files hold "
        "others");
  for (const auto other : {DataForm::text, DataForm::messages, DataForm::prompt_completion}) {
    if (!report.judged && stream.has(other))
      throw RequestError("some files hold preferences and others do not: encode them apart", Remedy::of_form);
  }
  const std::string what = report.judged ? "judged answers" : "preferences";
  if (report.is_packed || report.shares_rows)
    throw RequestError(what + " are documents beside each other, which rows do not hold: write documents");
  if (options.conversations.train_on == TrainOn::all)
    throw RequestError(what + " are learned by their answers, and all ids were to count");
  if (options.corpus != nullptr)
    throw RequestError("copies are found in texts, conversations and completions, and not in " + what);
}

/// Notes in the report the form of the samples and of the output.
void choose_layout(const TokenizeOptions& options, const DocumentStream& stream, TokenizeReport& report) {
  const bool texts_only = holds_texts_only(stream);
  report.is_packed = options.layout == TokenLayout::automatic
                         ? options.max_length == 0 && is_stream(TextLayout::automatic, report.files)
                         : options.layout == TokenLayout::packed || options.layout == TokenLayout::overlapping;
  report.shares_rows = options.layout == TokenLayout::packed_documents;
  report.masked = !texts_only && (options.conversations.train_on == TrainOn::answers ||
                                  options.conversations.head != HeadKind::next_token);
  report.has_scores = options.conversations.head != HeadKind::next_token;
  report.judged = options.conversations.judged;
  report.has_preferences = stream.has(DataForm::preference) && !report.judged;
  if (report.has_preferences || report.judged) check_answers(options, stream, report);
  if (report.has_scores) {
    check_scores(options, stream, report);
  } else if (stream.has(DataForm::label)) {
    throw RequestError("labels are learned by a head that classifies, and another one is asked for");
  }
  if (report.is_packed && options.max_length > 0)
    throw RequestError("a largest length cuts documents, and packed rows hold none: leave it or packing out");
}

/// Largest number of ids of a document; 0: no limit.
std::int64_t largest_length(const TokenizeOptions& options, const TokenizeReport& report) {
  if (!report.shares_rows) return options.max_length;
  return options.max_length > 0 ? std::min(options.max_length, options.seq_len) : options.seq_len;
}

DocumentEncoder make_encoder(const TokenizeOptions& options, const Tokenizer& tokenizer, const DocumentStream& stream,
                             TokenizeReport& report) {
  const auto& chat = options.conversations;
  ConversationRules rules{{}, chat.marks, chat.pairs, chat.train_on};
  if (stream.needs_template()) {
    rules.chat = find_chat_template(chat.chat_template, options.tokenizer_name);
    report.chat_template = rules.chat->name();
  }
  EncodeOptions how;
  how.train_on = chat.train_on;
  how.messages_field = chat.form == DataForm::label ? "messages" : messages_field({chat.form, options.field});
  if (!options.field.empty()) how.text_field = options.field;
  how.max_length = largest_length(options, report);
  how.split = options.split;
  how.max_prompt_length = chat.max_prompt_length;
  how.truncation = chat.truncation;
  how.head = chat.head;
  how.labels = chat.labels;
  how.padding_id = chat.padding_id;
  how.judged = chat.judged;
  return {tokenizer, rules, how};
}

std::unique_ptr<TokenFileWriter> open_writer(const std::filesystem::path& file, const TokenizeOptions& options,
                                             const Tokenizer& tokenizer, const TokenizeReport& report,
                                             bool texts_only) {
  TokenFileNotes notes{.tokenizer = options.tokenizer_name,
                       .tokenizer_description = tokenizer.description(),
                       .vocab_size = tokenizer.vocab_size(),
                       .sources = {}};
  for (const auto& source : report.files) notes.sources.push_back(source.string());
  notes.chat_template = report.chat_template;
  notes.masked = report.masked;
  notes.has_preferences = report.has_preferences;
  notes.judged = report.judged;
  if (const auto& chat = options.conversations; chat.head != HeadKind::next_token) {
    notes.head = name_of(kHeadNames, chat.head);
    notes.labels = chat.labels;
    notes.padding_id = chat.padding_id;
  }
  if (!texts_only) notes.train_on = report.masked ? "answers" : "all";
  if (report.shares_rows) return write_packed_documents(file, {options.seq_len, options.seed}, notes);
  if (options.layout == TokenLayout::overlapping) return write_overlapping_rows(file, options.seq_len, notes);
  return report.is_packed ? write_packed_rows(file, options.seq_len, notes) : write_token_documents(file, notes);
}

/// Puts end marks between documents.
class Joiner {
 public:
  /// \param mark  nothing: documents follow each other
  explicit Joiner(std::optional<std::int32_t> mark) : mark_(mark) {}

  /// To be called before a document is added. \return the number of marks added: 0 or 1
  std::int64_t add_before(std::span<const std::int32_t> ids, TokenFileWriter& writer) {
    if (!mark_ || ids.empty()) return 0;
    const bool adds = last_ && *last_ != *mark_ && ids.front() != *mark_;
    if (adds) writer.add(std::span(&*mark_, 1));
    last_ = ids.back();
    return adds ? 1 : 0;
  }

 private:
  std::optional<std::int32_t> mark_;
  std::optional<std::int32_t> last_;  ///< last id of the last document that has any
};

/// \throws RequestError when a mark is asked for and there is none
std::optional<std::int32_t> mark_between(const TokenizeOptions& options, const Tokenizer& tokenizer,
                                         const TokenizeReport& report, bool texts_only) {
  if (options.end_marks == EndMarks::off) return {};
  if (options.end_marks == EndMarks::on && !tokenizer.eos_id())
    throw RequestError("the tokenizer (" + tokenizer.description() + ") names no end mark", Remedy::of_eos);
  return report.is_packed && texts_only ? tokenizer.eos_id() : std::nullopt;
}

void add_batch(const detail::EncodedBatch& batch, CorpusReport* corpus, Joiner& joiner, TokenFileWriter& writer,
               TokenizeReport& report) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < batch.ends.size(); ++i) {
    const auto size = batch.ends[i] - begin;
    const auto ids = std::span(batch.ids).subspan(begin, size);
    const auto mask = std::span(batch.mask).subspan(begin, size);
    begin = batch.ends[i];
    if (corpus != nullptr && !corpus->add(batch.places[i], ids)) continue;
    report.end_marks += joiner.add_before(ids, writer);
    writer.add(ids, report.masked ? mask : mask.first(0));
    if (ids.empty()) ++report.empty_documents;
    if (report.shares_rows && size < 2) ++report.too_short;
    ++report.documents;
    report.tokens += std::ssize(ids);
    report.counted_tokens += std::count(mask.begin(), mask.end(), std::uint8_t{1});
  }
  report.cut_documents += batch.cut;
  report.equal += batch.equal;
  if (report.skipped == 0) report.first_skipped = batch.first_skipped;
  report.skipped += batch.skipped;
  report.elsewhere += batch.elsewhere;
  report.ignored.add(batch.ignored);
}

void check_that_something_is_there(const TokenizeOptions& options, const TokenizeReport& report) {
  if (report.documents > 0) return;
  if (report.elsewhere > 0 && report.skipped == 0)
    throw FormatError(joined(report.files) + ": none of " + std::to_string(report.elsewhere) + " documents is " +
                      (options.split.held_out ? "held out" : "left to train on") +
                      ": choose another share, or give more documents");
  if (options.corpus != nullptr && options.corpus->dropped() > 0)
    throw FormatError(joined(report.files) + ": all " + format_count_of(options.corpus->dropped(), "document") +
                      " are copies of others, and were to be left out");
  if (report.skipped == 0) throw FormatError("no documents in " + joined(report.files));
  throw FormatError("none of the " + std::to_string(report.skipped) + " samples in " + joined(report.files) +
                    " has a token that counts (the first is " + report.first_skipped +
                    "): do the assistant's messages have this role, and does the length leave room for them?");
}

/// All that is known before the first document is encoded.
struct Job {
  const TokenizeOptions& options;
  const Tokenizer& tokenizer;
  const std::function<void(const TokenizeProgress&)>& progress;
  const std::function<bool()>& stop_wanted;
  bool texts_only;
  std::int64_t longest;  ///< ids of a document; 0: no limit
};

void encode_stream(const Job& job, DocumentStream& stream, const DocumentEncoder& encoder, Joiner& joiner,
                   TokenFileWriter& writer, TokenizeReport& report) {
  std::int64_t bytes_read = 0;
  const auto take = [&](const detail::EncodedBatch& batch) {
    add_batch(batch, job.options.corpus, joiner, writer, report);
    bytes_read = batch.bytes_read;
  };
  const auto stops = [&] {
    if (job.progress) {
      job.progress({.documents = report.documents,
                    .tokens = report.tokens,
                    .bytes_read = bytes_read,
                    .bytes_total = stream.bytes_total()});
    }
    return job.stop_wanted && job.stop_wanted();
  };
  report.stopped = !detail::encode_all(stream, encoder, job.options.threads, take, stops);
  if (report.stopped) return;
  report.ignored.add(stream.ignored());
}

/// Hash of what decides the ids of a piece beside its texts.
std::uint64_t encoding_of(const Job& job, const TokenizeReport& report) {
  const auto& options = job.options;
  Fingerprint hash;
  hash.add_tokenizer(options.tokenizer_name);
  hash.add_samples(options.tokenizer_name, options.field, options.conversations);
  hash.add(fmt::format("{} {} {}", job.longest, report.masked, options.corpus != nullptr));
  return hash.value();
}

/// Hash of what decides the output beside the pieces.
std::uint64_t layout_of(const Job& job, const TokenizeReport& report) {
  const auto& options = job.options;
  Fingerprint hash;
  hash.add(fmt::format("{} {} {} {} {} {}", report.is_packed, options.layout == TokenLayout::overlapping,
                       report.shares_rows, options.seq_len, options.seed, options.end_marks != EndMarks::off));
  hash.add(options.tokenizer_name);
  if (options.corpus == nullptr) return hash.value();
  hash.add(fmt::format("drops {}", options.corpus->drops()));
  for (const auto& against : options.corpus->against()) hash.add_data_file(against.file);
  return hash.value();
}

std::unique_ptr<detail::PieceFolder> make_pieces(const Job& job, const TokenizeReport& report) {
  const auto& options = job.options;
  if (options.max_rows > 0 || options.split.is_on())
    throw RequestError("a part of the documents is read by one process: leave out the limit, or the pieces");
  if (options.piece_bytes < 1)
    throw RequestError("pieces of " + std::to_string(options.piece_bytes) + " bytes hold nothing");
  check_token_output(options.output);
  detail::PieceFolder::Plan plan{.output = options.output,
                                 .also_written = options.also_written,
                                 .pieces = {},
                                 .encoding = encoding_of(job, report),
                                 .layout = layout_of(job, report),
                                 .takeover_after = options.takeover_after};
  for (const auto& file : report.files) {
    for (auto& piece : cut_into_pieces(file, options.piece_bytes)) plan.pieces.push_back(std::move(piece));
  }
  return std::make_unique<detail::PieceFolder>(std::move(plan));
}

/// Encodes the pieces that no other process does, and waits for those of others. \return true when this process is to
/// write the output, of which `folder` then holds all
bool encode_with_others(const Job& job, const DocumentEncoder& encoder, detail::PieceFolder& folder,
                        TokenizeReport& report) {
  using Join = detail::PieceFolder::Join;
  const auto& options = job.options;
  const detail::PieceEncoder pieces(encoder, {options.conversations.form, options.field, options.conversations.judged},
                                    options.threads,
                                    {job.tokenizer.vocab_size(), report.masked, options.corpus != nullptr});
  folder.all_done();
  const auto before = folder.bytes_done();
  const auto tell = [&](std::int64_t bytes_of_piece) {
    if (!job.progress) return;
    job.progress({.bytes_read = folder.bytes_done() + bytes_of_piece,
                  .bytes_total = folder.bytes_total(),
                  .bytes_before = before,
                  .pieces_done = folder.pieces_done(),
                  .pieces = static_cast<std::int64_t>(folder.size())});
  };
  Join join = Join::unknown;
  while (join == Join::unknown) {
    report.stopped = !encode_pieces(folder, pieces, tell, job.stop_wanted);
    report.pieces_done = folder.pieces_done();
    report.own_pieces = folder.own();
    if (report.stopped) return false;
    if (folder.is_complete()) break;
    join = folder.take_join();
    if (join == Join::unknown) std::this_thread::sleep_for(detail::kPoll);
  }
  if (join == Join::mine) return true;
  report.written_by = folder.holder().empty() ? "another process" : folder.holder();
  return false;
}

void join_pieces(const Job& job, detail::PieceFolder& folder, Joiner& joiner, TokenFileWriter& writer,
                 TokenizeReport& report) {
  detail::PieceReader reader(folder, {job.tokenizer.vocab_size(), report.masked, job.options.corpus != nullptr});
  for (detail::EncodedBatch batch; reader.next(batch);) {
    report.stopped = job.stop_wanted && job.stop_wanted();
    if (report.stopped || folder.lost()) return;
    add_batch(batch, job.options.corpus, joiner, writer, report);
    if (!job.progress) continue;
    job.progress({.documents = report.documents,
                  .tokens = report.tokens,
                  .bytes_read = reader.bytes_read(),
                  .bytes_total = folder.bytes_total(),
                  .pieces_done = report.pieces,
                  .pieces = report.pieces,
                  .joining = true});
  }
}

/// \param stop_wanted  polled
void complete(const Job& job, const std::function<bool()>& stop_wanted, TokenFileWriter& writer,
              TokenizeReport& report) {
  const auto& options = job.options;
  if (options.corpus != nullptr) options.corpus->finish();
  check_that_something_is_there(options, report);
  report.stopped = !writer.finish(stop_wanted);
  if (report.shares_rows) report.rows = writer.document_rows();
  report.tokens += report.end_marks;
  if (options.layout == TokenLayout::overlapping) {
    report.rows = overlapping_rows(report.tokens, options.seq_len);
    if (report.tokens >= options.seq_len) report.dropped_tokens = (report.tokens - 1) % (options.seq_len - 1);
  } else if (report.is_packed) {
    report.rows = packed_rows(report.tokens, options.seq_len);
    report.dropped_tokens = report.tokens - report.rows * options.seq_len;
  }
}

/// Writes the output from the pieces that `folder` has claimed the joining of.
void write_joined(const Job& job, detail::PieceFolder& folder, Joiner& joiner, TokenizeReport& report) {
  const auto stops = [&] { return folder.lost() || (job.stop_wanted && job.stop_wanted()); };
  const auto file = folder.unfinished_output().string();
  try {
    const auto writer = open_writer(file, job.options, job.tokenizer, report, job.texts_only);
    join_pieces(job, folder, joiner, *writer, report);
    if (!report.stopped && !folder.lost()) complete(job, stops, *writer, report);
  } catch (const Error& error) {
    // A process that slept finds the pieces removed by the one that took the joining over.
    const bool is_mine = !folder.lost_now();
    const std::string problem = error.what();
    if (is_mine && !problem.starts_with(file)) throw;
    if (is_mine) throw Error(error.code(), job.options.output.string() + problem.substr(file.size()), error.advice());
  }
  if (folder.lost() || (!report.stopped && !folder.publish_output())) {
    report.stopped = false;
    report.written_by = "another process, which took it over from this one,";
  }
  if (report.stopped || !report.written_by.empty()) return;
  if (job.options.written) job.options.written(report);
  report.other_files = folder.finish_join();
}

}  // namespace

TokenizeReport tokenize(const TokenizeOptions& options, const Tokenizer& tokenizer,
                        const std::function<void(const TokenizeProgress&)>& progress,
                        const std::function<bool()>& stop_wanted) {
  check(options);
  TokenizeReport report;
  auto found = find_data_files(options.inputs);
  report.files = std::move(found.files);
  report.companions = std::move(found.companions);
  report.unread = std::move(found.unread);
  check_output_is_no_input(options, report.files);
  DocumentStream stream(report.files, {options.conversations.form, options.field, options.conversations.judged},
                        options.max_rows);
  choose_layout(options, stream, report);
  const auto encoder = make_encoder(options, tokenizer, stream, report);
  report.learns_turn_ends = encoder.learns_turn_ends();
  const Job job{options, tokenizer, progress, stop_wanted, holds_texts_only(stream), largest_length(options, report)};
  Joiner joiner(mark_between(options, tokenizer, report, job.texts_only));
  if (options.in_pieces) {
    const auto folder = make_pieces(job, report);
    report.pieces = static_cast<std::int64_t>(folder->size());
    report.was_complete = folder->is_complete();
    if (!report.was_complete && encode_with_others(job, encoder, *folder, report))
      write_joined(job, *folder, joiner, report);
    return report;
  }
  const auto writer = open_writer(options.output, options, tokenizer, report, job.texts_only);
  encode_stream(job, stream, encoder, joiner, *writer, report);
  if (!report.stopped) complete(job, stop_wanted, *writer, report);
  if (!report.stopped && options.written) options.written(report);
  return report;
}

std::string answers_line(const TokenizeReport& report) {
  const double share = 100.0 * static_cast<double>(report.counted_tokens) /
                       static_cast<double>(std::max<std::int64_t>(1, report.tokens));
  const auto counts = report.masked
                          ? fmt::format("{} of {} tokens count ({:.1f} %)", format_count(report.counted_tokens),
                                        format_count(report.tokens), share)
                          : std::string("all tokens count");
  const auto by = report.chat_template.empty()           ? std::string()
                  : report.chat_template == kOwnTemplate ? std::string(", the tokenizer's chat template")
                                                         : ", chat template " + report.chat_template;
  return "answers   " + counts + by;
}

std::string turn_end_line(const TokenizeReport& report) {
  const auto by =
      report.chat_template == kOwnTemplate ? "the tokenizer's chat template" : "chat template " + report.chat_template;
  return "nothing behind an answer counts by " + by +
         ", so the model does not learn to end its turn: in a copy of the template, put "
         "{% generation %} and {% endgeneration %} around each answer with a mark behind it that ends the turn";
}

std::string equal_line(const TokenizeReport& report) {
  return fmt::format("{} two equal sides, which {} nothing and {}",
                     report.equal == 1 ? "1 preference has" : format_count(report.equal) + " preferences have",
                     report.equal == 1 ? "says" : "say", report.equal == 1 ? "counts" : "count");
}

std::string skipped_line(const TokenizeReport& report) {
  return fmt::format("{} without a token that counts {} left out, the first is {}",
                     format_count_of(report.skipped, "sample"), report.skipped == 1 ? "is" : "are",
                     report.first_skipped);
}

}  // namespace fsdp
