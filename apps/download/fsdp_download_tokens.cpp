// fsdp-download tokens: converts Parquet, JSON Lines, CSV or text to HDF5 token files.
#include "apps/download/fsdp_download_tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/common/app_main.hpp"
#include "apps/common/no_ranks.hpp"
#include "apps/common/shared_options.hpp"
#include "apps/download/corpus_words.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/base/messages/progress.hpp"
#include "lib/base/process/scheduler.hpp"
#include "lib/base/process/stop_signal.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/documents/data_files.hpp"
#include "lib/documents/text_layout.hpp"
#include "lib/encoding/labels.hpp"
#include "lib/encoding/tokenize.hpp"
#include "lib/hub/snapshot_store.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/tokenizers/files/padding.hpp"

namespace fsdp {
namespace {

constexpr const char* kExamples = R"(Examples
  A text file -> rows of 256 GPT-2 ids, for fsdp-finetune --train-data:
    fsdp-download tokens --input book.txt --tokenizer gpt2 --output book.h5
  Longer rows, from texts under another key of each JSON line, joined, at most 100000 of them:
    fsdp-download tokens --input a.jsonl b.jsonl --field content --max-rows 100000 --tokenizer gpt2 --stream --seq-len 1024 --output rows.h5
  One document per game (the column Moves of every Parquet file of a downloaded data set), with the model's tokenizer:
    fsdp-download laion/strategic_game_chess --max-files 4
    fsdp-download codellama/CodeLlama-7b-hf
    fsdp-download tokens --input laion/strategic_game_chess --tokenizer codellama/CodeLlama-7b-hf --output games.h5
  Conversations ({"messages": [{"role": "user", "content": ...}, ...]} a line), of which the answers count:
    fsdp-download tokens --input chats.jsonl --tokenizer Qwen/Qwen2-0.5B-Instruct --max-length 2048 --output chats.h5
  The same in rows of at most 4096 tokens, several conversations in each:
    fsdp-download tokens --input chats.jsonl --tokenizer Qwen/Qwen2-0.5B-Instruct --documents --pack --seq-len 4096 --output rows.h5
  Many files by 64 processes of 4 nodes, which share the work; the same command again goes on after a stop:
    srun -N 4 --ntasks-per-node=16 fsdp-download tokens --input web/ --tokenizer gpt2 --output web.h5)";

/// Whether the input is cut into pieces, which processes share.
enum class Pieces : std::uint8_t { automatic, on, off };
constexpr std::array kPiecesNames{NamedValue<Pieces>{"auto", Pieces::automatic}, NamedValue<Pieces>{"on", Pieces::on},
                                  NamedValue<Pieces>{"off", Pieces::off}};

struct Arguments {
  TokenizeOptions tokenize;
  std::vector<std::string> inputs;
  std::string output;
  bool pack = false;
  bool stream = false;
  bool documents = false;
  std::string report_file;
  std::vector<std::string> against;
  bool drop_duplicates = false;
  Pieces pieces = Pieces::automatic;
  double piece_mib = 64;
  double takeover_after_seconds = 90;
  JobOptions job;
};

class Help : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: fsdp-download tokens --input FILES... --tokenizer DIR|gpt2 --output X.h5 [OPTIONS]\n";
  }
};

void add_score_options(OptionTable& t, ConversationOptions& o) {
  t.section("Scores of texts");
  t.add_choice("head", kHeadNames, o.head,
               "head of the model that learns from the file: next-token, classify (samples with 'label') or reward "
               "(preferences)");
  t.add("labels", o.labels,
        "names of the labels of --head classify, in the order of their numbers; default: those of the input")
      ->take_all();
  t.add("pad-token-id", o.padding_id,
        "with --head: token at the end of texts that is none of them, as the model's pad_token_id; default: the "
        "tokenizer's pad_token, else its end mark",
        {.default_text = "", .range = {.from = 0, .to = 1 << 24}, .any_sign = true});
}

void add_options(OptionTable& t, Arguments& arguments) {
  auto& o = arguments.tokenize;
  t.add("input", arguments.inputs,
        "Parquet, JSON Lines, CSV or text files, directories of one of these kinds, or data sets ORG/NAME in the "
        "Hugging Face cache; may be repeated",
        {.path = PathKind::file})
      ->required()
      ->take_all();
  t.add("tokenizer", o.tokenizer_name,
        "gpt2 (built in), a model's directory with tokenizer.model, tokenizer.json, or vocab.json and merges.txt, or "
        "ORG/NAME in the Hugging Face cache",
        {.path = PathKind::model})
      ->required();
  t.add("output", arguments.output, "HDF5 file to write, which replaces an older one when it is complete",
        {.path = PathKind::file})
      ->required();
  t.add("seq-len", o.seq_len,
        "token IDs per row, which asks for rows as --stream does; with --documents --pack: tokens per row",
        {.range = {.from = 2, .to = 1 << 24}, .unit = "tokens"});
  t.add("stream", arguments.stream,
        "join all texts and cut them into rows of --seq-len token IDs (the default for plain text)");
  t.add("documents", arguments.documents,
        "keep each text as a document of its own length (the default for JSON Lines, Parquet, Arrow and CSV)");
  t.add("pack", arguments.pack,
        "with --documents: pack whole documents, each cut to --seq-len IDs, into rows of at most --seq-len tokens; "
        "without: the same as --stream");
  t.add("seed", o.seed,
        "with --documents --pack: seed of the choice of documents that share a row, as in the first epoch of "
        "fsdp-finetune --pack (fine-tuning: 42)");
  o.end_marks = EndMarks::automatic;
  t.add_choice("eos", kEndMarkNames, o.end_marks,
               "the tokenizer's EOS token between the texts of packed rows: on, off, or auto (where it has one)");
  t.add("max-length", o.max_length, "most token IDs of a document, whose rest is cut; 0: all",
        {.range = {.from = 0, .to = 1 << 30}, .unit = "tokens"});
  t.add("field", o.field,
        "key or column that holds the texts or messages; default: text, or Moves in Parquet files without text");
  t.section("Conversations and completions");
  add_conversation_options(t, o.conversations, "form");
  t.add("judged", o.conversations.judged,
        "samples are judged answers for --objective kto: prompt, completion and label, or preferences, of which each "
        "side is one");
  add_score_options(t, o.conversations);
  t.section("What the documents are");
  t.add(
      "report", arguments.report_file,
      "JSON file to write about the documents: lengths, empty ones, exact copies and where they are; a picture of the "
      "lengths lies beside it as .svg",
      {.path = PathKind::file});
  t.add("against", arguments.against,
        "token files of documents, such as validation data, of which those among the texts are told; may be repeated",
        {.path = PathKind::file})
      ->take_all();
  t.add("drop-duplicates", arguments.drop_duplicates,
        "leave out documents with the ids of an earlier one, or of one in --against");
  t.section("Several processes");
  t.add_choice("pieces", kPiecesNames, arguments.pieces,
               "encode pieces of the input, kept in OUTPUT.parts until all are done: processes with the same command "
               "share them, and the same command again goes on after a stop. auto: under mpiexec and srun, and in "
               "arrays of jobs");
  t.add("piece-size", arguments.piece_mib,
        "input that a process takes at a time: whole lines of JSON Lines, row groups of Parquet, otherwise whole files",
        {.range = {.from = 0.0001, .to = 1 << 20}, .unit = "MiB"});
  t.add("takeover-after", arguments.takeover_after_seconds,
        "seconds without a sign of life after which the piece of a process on another host is done again",
        {.range = {.from = 0.2, .to = 86400}, .unit = "seconds"});
  t.section("Options");
  t.add("max-rows", o.max_rows, "texts to read, over all files; 0: all");
  o.threads = 0;
  t.add("threads", o.threads, "threads that encode; 0: the cores that it may use, at most 8",
        {.range = {.from = 0, .to = 1024}});
  t.add("json", arguments.job.json, "print the result as one JSON object on stdout");
  t.add("quiet", arguments.job.quiet, "print warnings and errors only");
  t.add_config("file to read options from");
  t.set_version_flag("--version", "fsdp-download " FSDP_VERSION);
}

/// Checks which layout the options ask for together. \throws UsageError
void choose_layout(const CLI::App& app, Arguments& arguments) {
  const auto given = [&](const char* name) { return app.get_option(name)->count() > 0; };
  (void)asked_layout(arguments.stream, arguments.documents);
  const bool rows = !arguments.documents && (arguments.pack || arguments.stream || given("--seq-len"));
  if (arguments.documents && !arguments.pack && given("--seq-len"))
    throw UsageError("--seq-len is the length of rows, and --documents makes none: add --pack, or give --max-length");
  if (rows && given("--max-length"))
    throw UsageError("--max-length cuts documents, and packed rows hold none: add --documents, or leave it out");
  if (given("--seed") && !(arguments.documents && arguments.pack))
    throw UsageError("--seed decides which documents share a row: it goes with --documents --pack");
  auto& layout = arguments.tokenize.layout;
  layout = TokenLayout::automatic;
  if (arguments.documents) layout = arguments.pack ? TokenLayout::packed_documents : TokenLayout::documents;
  if (rows) layout = TokenLayout::packed;
}

std::string progress_line(const TokenizeProgress& now, std::int64_t max_rows, const Progress& progress) {
  double done = now.bytes_total > 0 ? static_cast<double>(now.bytes_read) / static_cast<double>(now.bytes_total) : 0;
  if (max_rows > 0) done = std::max(done, static_cast<double>(now.documents) / static_cast<double>(max_rows));
  const auto rate = static_cast<double>(now.tokens) / std::max(1e-3, progress.seconds());
  if (now.joining) {
    return fmt::format("writing {} of {}, {}", format_bytes(static_cast<double>(now.bytes_read)),
                       format_bytes(static_cast<double>(now.bytes_total)), format_count_of(now.documents, "document"));
  }
  auto text = fmt::format("{} of {}, {:.0f} %", format_bytes(static_cast<double>(now.bytes_read)),
                          format_bytes(static_cast<double>(now.bytes_total)), 100 * std::min(done, 0.99));
  if (now.pieces == 0) {
    text += fmt::format(", {}, {}, {}/s", format_count_of(now.documents, "document"),
                        format_count_of(now.tokens, "token"), format_count(static_cast<std::int64_t>(rate)));
  }
  if (now.pieces > 0) text += fmt::format(", {} of {} pieces", now.pieces_done, now.pieces);
  // Pieces that were there at the start say nothing about the speed.
  const auto here = static_cast<double>(now.bytes_read - now.bytes_before) /
                    static_cast<double>(std::max<std::int64_t>(1, now.bytes_total - now.bytes_before));
  if (now.bytes_before > 0) done = here;
  if (done > 0) text += fmt::format(", {} left", progress.left(done));
  return text;
}

std::int64_t cut_length(const TokenizeOptions& options, const TokenizeReport& result) {
  if (!result.shares_rows) return options.max_length;
  return options.max_length > 0 ? std::min(options.max_length, options.seq_len) : options.seq_len;
}

std::string summary(const TokenizeOptions& options, const TokenizeReport& result, double seconds) {
  auto text = format_count_of(result.documents, "document");
  if (result.cut_documents > 0)
    text += fmt::format(" ({} cut to {} ids)", format_count(result.cut_documents), cut_length(options, result));
  if (result.empty_documents > 0) text += fmt::format(" ({} empty)", format_count(result.empty_documents));
  text += ", " + format_count_of(result.tokens, "token");
  if (result.end_marks > 0)
    text += fmt::format(" ({} between documents)", format_count_of(result.end_marks, "end mark"));
  if (result.is_packed) {
    text += fmt::format(", {} of {}, {} at the end left out", format_count_of(result.rows, "row"), options.seq_len,
                        format_count_of(result.dropped_tokens, "token"));
  }
  if (result.shares_rows) {
    text += fmt::format(", {} of at most {} tokens", format_count_of(result.rows, "row"), options.seq_len);
    if (result.too_short > 0)
      text += fmt::format(", {} of fewer than 2 ids left out", format_count_of(result.too_short, "document"));
  }
  return text + fmt::format("; {} written in {}", options.output.string(), format_duration(seconds));
}

nlohmann::json report_of(const TokenizeOptions& options, const TokenizeReport& result, const Tokenizer& tokenizer,
                         double seconds) {
  nlohmann::json report{{"output", options.output.string()},
                        {"layout", result.is_packed     ? "rows"
                                   : result.shares_rows ? "packed documents"
                                                        : "documents"},
                        {"tokenizer", options.tokenizer_name},
                        {"tokenizer_description", tokenizer.description()},
                        {"vocab_size", tokenizer.vocab_size()},
                        {"documents", result.documents},
                        {"empty_documents", result.empty_documents},
                        {"tokens", result.tokens},
                        {"seconds", seconds}};
  if (!result.chat_template.empty()) report["chat_template"] = result.chat_template;
  if (options.max_length > 0 || result.shares_rows) report["cut_documents"] = result.cut_documents;
  if (result.masked) {
    report["counted_tokens"] = result.counted_tokens;
    report["skipped"] = result.skipped;
    if (result.skipped > 0) report["first_skipped"] = result.first_skipped;
  }
  if (result.is_packed) {
    report["seq_len"] = options.seq_len;
    report["rows"] = result.rows;
    report["dropped_tokens"] = result.dropped_tokens;
    report["end_marks"] = result.end_marks;
  }
  if (result.shares_rows) {
    report["seq_len"] = options.seq_len;
    report["seed"] = options.seed;
    report["rows"] = result.rows;
    report["too_short"] = result.too_short;
  }
  if (result.pieces > 0) {
    report["pieces"] = result.pieces;
    report["own_pieces"] = result.own_pieces;
  }
  report["ignored"] = result.ignored.to_json();
  auto& files = report["inputs"] = nlohmann::json::array();
  for (const auto& file : result.files) files.push_back(file.string());
  for (const auto& file : result.unread) report["not_read"].push_back(file.string());
  return report;
}

/// Null when the options ask for nothing of it.
std::unique_ptr<CorpusReport> make_corpus_report(const Arguments& arguments, const Tokenizer& tokenizer) {
  if (arguments.report_file.empty() && arguments.against.empty() && !arguments.drop_duplicates) return nullptr;
  auto corpus = std::make_unique<CorpusReport>(arguments.output, arguments.drop_duplicates);
  for (const auto& file : arguments.against) corpus->compare_with(file, tokenizer.description());
  return corpus;
}

/// Cores for a process, of which a launcher may have started several on this host.
int cores_of_this_process() {
  const int cores = usable_cores(), processes = ranks_on_this_host();
  const bool is_bound = !allowed_cores().empty() && std::ssize(allowed_cores()) < std::thread::hardware_concurrency();
  return processes > 1 && !is_bound ? std::max(1, cores / processes) : cores;
}

void choose_pieces(Arguments& arguments) {
  auto& options = arguments.tokenize;
  // A task of an array may as well have an input of its own.
  const bool is_one_of_several = several_started().has_value() || (in_job_array() && options.max_rows == 0);
  options.in_pieces = arguments.pieces == Pieces::on || (arguments.pieces == Pieces::automatic && is_one_of_several);
  if (!options.in_pieces) return;
  if (options.max_rows > 0) {
    throw UsageError(
        "--max-rows reads the first texts, which one process does by itself: leave it out, or start one process with "
        "--pieces off");
  }
  options.piece_bytes = static_cast<std::int64_t>(arguments.piece_mib * (1 << 20));
  options.takeover_after =
      std::chrono::milliseconds(static_cast<std::int64_t>(1000 * arguments.takeover_after_seconds));
  if (!arguments.report_file.empty()) options.also_written = {arguments.report_file};
}

/// Lets a head of scores read its samples, and finds the labels and the padding. \throws UsageError
void choose_head(TokenizeOptions& options, const Tokenizer& tokenizer, const Logger& log) {
  auto& samples = options.conversations;
  if (samples.judged && samples.head != HeadKind::next_token)
    throw UsageError("--judged is for --objective kto, whose model predicts tokens: leave it or --head out");
  const bool is_classifier = samples.head == HeadKind::classify;
  if (!samples.labels.empty() && !is_classifier) throw UsageError("--labels belongs to --head classify");
  if (samples.padding_id >= 0 && samples.head == HeadKind::next_token)
    throw UsageError("--pad-token-id belongs to --head classify or reward");
  if (samples.head == HeadKind::next_token) return;
  const auto form = is_classifier ? DataForm::label : DataForm::preference;
  if (samples.form != DataForm::automatic && samples.form != form)
    throw UsageError("--head says what samples are, and --form asks for something else: leave it out");
  samples.form = form;
  if (samples.padding_id < 0) samples.padding_id = padding_of(options.tokenizer_name, tokenizer).value_or(-1);
  if (!is_classifier || !samples.labels.empty()) return;
  if (options.in_pieces) throw UsageError("--head classify by several processes: name the labels by --labels");
  samples.labels = find_labels(options.inputs, options.field, {});
  log.info(format_count_of(std::ssize(samples.labels), "label"));
}

/// Tells the end of a process that did not write the output.
void tell_of_other(const TokenizeReport& result, const Arguments& arguments, const Logger& log) {
  const auto& output = arguments.output;
  if (!speaks_for_the_job()) return;
  if (result.was_complete) {
    log.info(output + ": is complete, made from these files with these options: nothing is left to do");
  } else {
    // The one that writes may belong to another job of an array.
    log.info(fmt::format("all {} are encoded, {} by this process, and {} writes {}",
                         format_count_of(result.pieces, "piece"), result.own_pieces, result.written_by, output));
  }
}

[[noreturn]] void end_stopped(const TokenizeReport& result, const Arguments& arguments, int signal) {
  if (result.pieces == 0)
    throw Error(ExitCode::failed, fmt::format("stopped by signal {}; nothing was written", signal));
  throw Error(ExitCode::stopped_early,
              fmt::format("stopped by signal {}; {} of {} pieces are done and kept in {}.parts: the same command again "
                          "does the others",
                          signal, result.pieces_done, result.pieces, arguments.output));
}

void print_result(const Arguments& arguments) {
  if (arguments.job.json) return;
  std::cout << arguments.output << std::endl;
  if (!std::cout) throw IoError("stdout: cannot write the result");
}

ExitCode run_tokens(const CLI::App& app, Arguments& arguments, const Logger& log, nlohmann::json& report) {
  auto& options = arguments.tokenize;
  choose_layout(app, arguments);
  choose_pieces(arguments);
  const auto settings = hub_settings(process_environment());
  for (const auto& input : arguments.inputs)
    options.inputs.push_back(find_snapshot(input, RepoType::dataset, settings));
  if (options.tokenizer_name != kBuiltInTokenizer) {
    options.tokenizer_name = find_snapshot(options.tokenizer_name, RepoType::model, settings).string();
  }
  options.output = arguments.output;
  const int cores = cores_of_this_process();
  if (options.threads > cores) {
    log.warning(fmt::format("--threads {}: this process may use {} cores and encodes with as many threads",
                            options.threads, cores));
    options.threads = cores;
  }
  if (options.threads == 0) options.threads = std::min(8, cores);
  const auto tokenizer = open_tokenizer(options.tokenizer_name);
  choose_head(options, *tokenizer, log);
  const bool speaks = !options.in_pieces || speaks_for_the_job();
  if (speaks) log.info(tokenizer->description());
  const StopSignal signal;
  constexpr double kSecondsBetweenLines = 10;
  Progress progress(log, speaks, kSecondsBetweenLines);
  if (!arguments.report_file.empty()) {
    auto others = data_files(options.inputs);
    others.push_back(options.output);
    others.insert(others.end(), arguments.against.begin(), arguments.against.end());
    check_report_file(arguments.report_file, others);
  }
  const auto corpus = make_corpus_report(arguments, *tokenizer);
  options.corpus = corpus.get();
  nlohmann::json facts;  // of the corpus
  if (corpus != nullptr) {
    options.written = [&](const TokenizeReport& result) {
      facts = corpus_to_json(*corpus, result.cut_documents);
      if (arguments.report_file.empty()) return;
      write_corpus_report(arguments.report_file, options.output, *corpus, facts);
    };
  }
  const auto result = tokenize(
      options, *tokenizer,
      [&](const TokenizeProgress& now) {
        progress.show([&] { return progress_line(now, options.max_rows, progress); });
      },
      [&] { return signal.received() != 0; });
  progress.finish();
  if (result.stopped) end_stopped(result, arguments, signal.received());
  if (result.was_complete || !result.written_by.empty()) {
    tell_of_other(result, arguments, log);
    if (result.was_complete ? !speaks_for_the_job() : several_started().has_value()) return ExitCode::ok;
    report = {{"output", arguments.output},
              {"written_by", result.written_by},
              {"pieces", result.pieces},
              {"own_pieces", result.own_pieces}};
    if (result.was_complete) print_result(arguments);
    return ExitCode::ok;
  }
  if (!result.companions.empty()) log.info("left out  " + file_list(result.companions));
  log_ignored(result.ignored, log);
  if (!result.unread.empty()) log.warning("not read: " + file_list(result.unread, true));
  if (result.masked || !result.chat_template.empty()) log.info(answers_line(result));
  if (result.skipped > 0) log.warning(skipped_line(result));
  if (result.equal > 0) log.warning(equal_line(result));
  if (!result.learns_turn_ends) log.warning(turn_end_line(result), Remedy::of_chat_template);
  log.info(summary(options, result, progress.seconds()));
  if (result.other_files > 0) {
    log.info(fmt::format("{}.parts holds {} of other inputs or options, which may be removed if no process makes them",
                         arguments.output, format_count_of(result.other_files, "file")));
  }
  report = report_of(options, result, *tokenizer, progress.seconds());
  if (corpus != nullptr) {
    report["report"] = std::move(facts);
    tell_corpus(*corpus, result.cut_documents, arguments.drop_duplicates, log);
  }
  print_result(arguments);
  return ExitCode::ok;
}

}  // namespace

int tokens_main(int argc, char** argv) {
  OptionTable app{
      "Converts text data to a token file for training: Parquet, JSON Lines, CSV or plain text to HDF5.\n"
      "It reads files as streams, encodes them on several threads and writes them in order: the result does not\n"
      "depend on the number of threads. Prints the name of the file.\n"
      "Exit codes: 0 done, 1 failed or stopped, 2 usage, 4 bad input, 85 stopped with pieces that the same command\n"
      "goes on from.",
      "fsdp-download tokens"};
  app.formatter(std::make_shared<Help>());
  app.footer(kExamples);
  Arguments arguments;
  add_options(app, arguments);
  if (const int code = parse(app, argc, argv); code >= 0) return code;
  return run_job(
      arguments.job, [](const MpiOptions&) { return std::make_unique<NoRanks>(); },
      [&](ProcessGroup&, const Logger& log, nlohmann::json& report) {
        return run_tokens(app, arguments, log, report);
      });
}

}  // namespace fsdp
