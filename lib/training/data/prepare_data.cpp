#include "lib/training/data/prepare_data.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/base/messages/progress.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/documents/data_files.hpp"
#include "lib/encoding/tokenize.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/data/token_cache.hpp"

namespace fsdp {
void check_token_origin(const TokenFile& file, const Tokenizer* tokenizer, const ModelConfig& model) {
  const auto notes = file.notes();
  const auto origin =
      fmt::format("{}: its ids are {}'s ({})", file.file().string(), notes.tokenizer, notes.tokenizer_description);
  const bool same_size = tokenizer != nullptr && (notes.vocab_size == tokenizer->vocab_size() ||
                                                  notes.vocab_size == tokenizer->required_rows());
  if (notes.vocab_size > model.vocab_size && !(same_size && tokenizer->required_rows() <= model.vocab_size)) {
    throw FormatError(
        fmt::format("{}, a vocabulary of {}, and the model's has {}", origin, notes.vocab_size, model.vocab_size),
        Remedy::other_tokenizer);
  }
  if (tokenizer == nullptr || notes.tokenizer_description.empty()) return;
  const auto form = described_form(notes.tokenizer_description);
  const bool other_kind = form && !may_be_one_vocabulary(*form, tokenizer->form());
  if (other_kind || (notes.vocab_size > 0 && !same_size)) {
    throw FormatError(fmt::format("{}, the model's tokenizer is {}", origin, tokenizer->description()),
                      Remedy::other_tokenizer);
  }
}

namespace {

/// Tells the user about options that have no effect because the token file was written with its own.
void log_settled_options(const TokenFile& file, const TextOptions& options, const Logger& log) {
  const auto notes = file.notes();
  const auto& asked = options.conversations;
  if (options.layout == TextLayout::stream && file.has_documents()) {
    log.warning(file.file().string() + " holds documents, which are not joined to a stream",
                Remedy::stream_passed_over);
  }
  if (asked.train_on == TrainOn::all && notes.masked) {
    log.warning(file.file().string() + " was written with a loss_mask, which counts", Remedy::train_on_passed_over);
  }
  std::error_code error;
  const bool is_name = !asked.chat_template.empty() && !std::filesystem::exists(asked.chat_template, error);
  if (is_name && notes.chat_template != asked.chat_template) {
    log.warning(fmt::format("{} was written {}", file.file().string(),
                            notes.chat_template.empty() ? "without a chat template" : "by " + notes.chat_template),
                {Remedy::template_passed_over, asked.chat_template});
  }
}

void log_answers(const TokenizeReport& report, const Logger& log) {
  log_ignored(report.ignored, log);
  if (report.chat_template.empty() && !report.masked) return;
  if (!report.has_scores) log.info(answers_line(report));
  if (report.skipped > 0) log.warning(skipped_line(report));
  if (report.equal > 0) log.warning(equal_line(report));
  if (report.has_preferences && report.cut_documents > 0)
    log.warning(format_count_of(report.cut_documents, "preference") + " with a side that was cut to its end");
  if (report.judged && report.cut_documents > 0)
    log.warning(format_count_of(report.cut_documents, "sample") + " with an answer that was cut to its end");
  if (report.has_scores && !report.has_preferences && report.cut_documents > 0)
    log.warning(fmt::format("{} of {} are longer than their place, and are cut before their label",
                            format_count(report.cut_documents), format_count_of(report.documents, "text")),
                Remedy::of_seq_len);
  if (!report.learns_turn_ends) log.warning(turn_end_line(report), Remedy::of_chat_template);
}

/// True when the cache has a readable entry. \param damage  set to the problem of an entry that cannot be read
bool holds_whole(const std::filesystem::path& entry, std::string& damage) {
  if (!TokenCache::holds(entry)) return false;
  try {
    open_token_file(entry);
    return true;
  } catch (const FormatError& error) {
    damage = error.what();
    return false;
  }
}

std::filesystem::path encode(const std::filesystem::path& data, TextOptions options, const Logger& log,
                             const std::function<bool()>& stop_wanted) {
  TokenizeOptions how;
  auto found = find_data_files({data});
  how.inputs = std::move(found.files);
  if (!found.companions.empty() && !options.quiet) log.info("left out  " + file_list(found.companions));
  if (!found.unread.empty()) log.warning("not read: " + file_list(found.unread));
  if (options.model != nullptr) check_vocabulary(*options.tokenizer, options.tokenizer_name, *options.model);
  const bool stream = is_stream(options.layout, how.inputs);
  options.layout = stream ? TextLayout::stream : TextLayout::documents;
  if (stream) {
    options.max_rows = 0;
    options.split = {};
  }
  const TokenCache cache(options.directory);
  how.output = cache.entry(data, token_fingerprint(how.inputs, options));
  std::string damage;
  if (holds_whole(how.output, damage)) return how.output;
  const EntryClaim claim(how.output, stop_wanted, [&](const std::string& holder) {
    log.info(fmt::format("waiting   {} is being encoded by {}", data.string(), holder));
  });
  if (holds_whole(how.output, damage)) return how.output;  // written by the job that had the claim
  if (!damage.empty()) log.warning(damage + ". The texts are encoded again");
  how.layout = stream ? TokenLayout::overlapping : TokenLayout::documents;
  how.seq_len = options.row_inputs + 1;
  if (stream) how.end_marks = EndMarks::automatic;
  how.field = options.field;
  how.conversations = options.conversations;
  // Other samples are cut as they are read. A preference whose cut side has no target is left out.
  if (options.cuts_samples()) how.max_length = options.row_inputs;
  how.max_rows = options.max_rows;
  how.split = options.split;
  how.threads = usable_cores();
  how.tokenizer_name = options.tokenizer_name;
  constexpr double kSecondsBetweenLines = 10;
  Progress progress(log, !options.quiet, kSecondsBetweenLines);
  const auto what = fmt::format("encoding  {}", data.filename().string());
  const auto report = tokenize(
      how, *options.tokenizer,
      [&](const TokenizeProgress& done) {
        progress.show_share(
            what,
            static_cast<double>(done.bytes_read) / static_cast<double>(std::max<std::int64_t>(1, done.bytes_total)),
            fmt::format("{}, {}", format_count_of(done.documents, "text"), format_count_of(done.tokens, "token")));
      },
      stop_wanted);
  progress.finish();
  if (report.stopped) throw RuntimeFailure("stopped while the texts of " + data.string() + " were being encoded");
  cache.remove_unused();
  log_answers(report, log);
  const auto samples = report.has_preferences ? format_count_of(report.documents / 2, "preference")
                                              : format_count_of(report.documents, "text");
  log.info(fmt::format("encoded   {}   {}, {} by {} in {:.1f} s   {}", data.string(), samples,
                       format_count_of(report.tokens, "token"), options.tokenizer->description(), progress.seconds(),
                       how.output.string()));
  return how.output;
}

}  // namespace

std::string asked_column(const std::string& field, DataForm form) {
  if (!field.empty() || form == DataForm::automatic) return field;
  const bool is_text = form == DataForm::text || form == DataForm::label;
  return form == DataForm::messages ? "messages" : is_text ? "text" : "prompt";
}

TokenFileOptions token_file_options(TextLayout layout, std::optional<NumberType> type, const std::string& field) {
  TokenFileOptions options;
  options.documents = layout == TextLayout::documents;
  options.raw = type;
  options.field = field;
  return options;
}

void log_unread_data(const TokenFile& file, const Logger& log) {
  if (log.rank() != 0) return;
  for (const auto& remark : file.remarks()) log.warning(file.file().string() + ": " + remark);
  const auto unread = file.unread();
  if (unread.empty()) return;
  log.warning(
      fmt::format("{}: {} {} not read, every id counts; where some do not, write a dataset loss_mask (of labels "
                  "it is labels != -100), in Parquet and Arrow a column labels",
                  file.file().string(), fmt::join(unread, ", "), unread.size() == 1 ? "is" : "are"));
}

std::filesystem::path prepare_tokens(ProcessGroup& world, const std::filesystem::path& data, const TextOptions& options,
                                     const Logger& log, const std::function<bool()>& stop_wanted) {
  // Rank 0 works: all ranks fail with its error, or go on with its file.
  return text_of_root(world, [&] {
    const auto column = asked_column(options.field, options.conversations.form);
    if (is_token_file(data, column)) {
      auto how = token_file_options(options.layout, options.token_type, column);
      how.stream_inputs = options.row_inputs;
      how.checked_later = true;  // by who opens the file to read its ids
      const auto tokens = open_token_file(data, how);
      if (options.check_origin)
        check_token_origin(*tokens, options.tokenizer_is_sure ? options.tokenizer : nullptr, *options.model);
      log_settled_options(*tokens, options, log);
      log_unread_data(*tokens, log);
      return data.string();
    }
    if (options.tokenizer == nullptr)
      throw RequestError(data.string() + " holds texts, and no tokenizer is known", Remedy::give_tokenizer);
    return encode(data, options, log, stop_wanted).string();
  });
}

}  // namespace fsdp
