#include "apps/eval/evaluate_job.hpp"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "apps/eval/conversation.hpp"
#include "apps/eval/label_result.hpp"
#include "apps/eval/result.hpp"
#include "lib/base/files/file.hpp"
#include "lib/base/files/temporary_directory.hpp"
#include "lib/base/messages/progress.hpp"
#include "lib/base/process/stop_signal.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/compute/ops/rowwise_ops.hpp"
#include "lib/compute/tensor/host_allocator.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/data/data_loader.hpp"
#include "lib/training/data/head_targets.hpp"
#include "lib/training/data/prepare_data.hpp"
#include "lib/training/evaluate/evaluate.hpp"
#include "lib/training/evaluate/generate.hpp"
#include "lib/training/evaluate/generation_ends.hpp"
#include "lib/training/evaluate/prompt.hpp"
#include "lib/training/evaluate/prompt_file.hpp"
#include "lib/training/evaluate/prompt_results.hpp"
#include "lib/training/evaluate/subject.hpp"
#include "lib/training/objectives/reference.hpp"

namespace fsdp {
namespace {

struct EvaluationData {
  std::optional<TokenLoader> reader;
  std::int64_t rows = 0;
  std::int64_t ids_not_scored = 0;  ///< beyond the longest sequence that the model takes
};

struct EvaluationInput {
  bool texts = false;
  std::vector<EvaluationData> of_subject;
  bool same_tokens = true;  ///< all subjects see the same sequences of ids, so losses per token can be compared
};

/// Makes a folder in $TMPDIR that all ranks of a node see. Collective over the node's ranks. \throws IoError on all of
/// them
std::string make_scratch_directory(ProcessGroup& node) {
  return text_of_root(node, [] {
    std::error_code error;
    auto name = (std::filesystem::temp_directory_path(error) / "fsdp-eval.XXXXXX").string();
    if (error || ::mkdtemp(name.data()) == nullptr) {
      throw IoError((error ? "the temporary folder" : name) + ": " +
                    (error ? error.message() : std::system_category().message(errno)) +
                    ": texts cannot be encoded there; name another place with --cache-dir or TMPDIR");
    }
    return name;
  });
}

/// True when `data` is texts rather than a token file. \throws IoError when it is neither a folder nor can be read
bool holds_texts(const std::filesystem::path& data, const std::string& field) {
  if (is_token_file(data, field)) return false;
  if (!std::filesystem::is_directory(data)) File::open_read(data).close();
  return true;
}

/// \pre these are files of ids that this program wrote, or the same file
bool same_lengths(const std::filesystem::path& a, const std::filesystem::path& b) {
  if (a == b) return true;
  const auto of_a = open_token_file(a), of_b = open_token_file(b);
  if (of_a->num_records() != of_b->num_records() || of_a->notes().left_out != of_b->notes().left_out) return false;
  for (std::int64_t i = 0; i < of_a->num_records(); ++i) {
    if (of_a->length(i) != of_b->length(i)) return false;
  }
  return true;
}

/// The samples that the models read: texts, or with scores labels or preferences.
ConversationOptions samples_of(const EvaluateOptions& options, const std::vector<EvaluationSubject>& subjects) {
  auto samples = options.conversations;
  samples.head = head_of(subjects.front().config);
  for (const auto& subject : subjects) {
    if (subject.config.labels == subjects.front().config.labels) continue;
    throw UsageError("--compare: " + subjects.front().path.string() + " and " + subject.path.string() +
                     " make other things of a text: their heads or labels differ");
  }
  if (samples.head == HeadKind::next_token) return samples;
  const auto form = samples.head == HeadKind::reward ? DataForm::preference : DataForm::label;
  if (samples.form != DataForm::automatic && samples.form != form)
    throw UsageError("--data-form: the model " +
                     std::string(form == DataForm::label ? "gives labels" : "gives a reward") +
                     ", and reads samples with 'label' or preferences: leave it out");
  samples.form = form;
  return samples;
}

/// Opens options.data for every subject. Texts are encoded first, into options.cache_dir or a temporary folder that is
/// removed before this returns. Sequences have the same length for all subjects. Collective.
/// \throws RuntimeFailure after a signal while texts are encoded; what prepare_tokens() and DataLoader throw
EvaluationInput open_evaluation_data(ProcessGroup& world, const EvaluateOptions& options,
                                     std::vector<EvaluationSubject>& subjects, const Logger& log) {
  EvaluationInput input;
  const auto samples = samples_of(options, subjects);
  const auto column = asked_column(options.data_field, samples.form);
  input.texts = holds_texts(options.data, column);
  const auto node = world.split_by_node();
  std::optional<TemporaryDirectory> scratch;  // the node's first rank removes it
  const StopSignal signal;  // so that the temporary folder is removed when a signal interrupts the encoding
  TextOptions how;
  how.field = options.data_field;
  how.conversations = samples;
  how.layout = asked_layout(options.stream, options.documents);
  how.max_rows = options.max_rows;
  how.quiet = options.runtime.quiet;
  how.directory = options.cache_dir;
  if (input.texts && options.cache_dir.empty())
    how.directory = scratch.emplace(make_scratch_directory(*node), node->rank() == 0).path();

  const auto of_tokens = token_file_options(how.layout, options.token_type, column);
  if (!input.texts) log_unread_data(*open_token_file(options.data, of_tokens), log);

  SequenceLimit limit{options.seq_len, row_positions(subjects.front().config, options.seq_len)};
  for (const auto& subject : subjects)
    limit.positions = std::min(limit.positions, row_positions(subject.config, options.seq_len));
  how.row_inputs = limit.row_inputs();
  std::vector<std::filesystem::path> files;
  for (auto& subject : subjects) {
    if (input.texts) open_subject_tokenizer(subject, options.data + " holds texts: it");
    const bool has_scores = subject.config.has_scores();
    if (has_scores && subject.config.pad_token_id < 0 && !subject.tokenizer_name.empty())
      open_subject_tokenizer(subject, "a text's padding");
    how.tokenizer_name = subject.tokenizer_name;
    how.tokenizer = subject.tokenizer.get();
    how.conversations.labels = subject.config.labels;
    if (has_scores)
      how.conversations.padding_id = padding_of_texts(subject.config, subject.tokenizer_name, how.tokenizer);
    // Each node has a temporary folder of its own.
    auto& group = scratch ? *node : world;
    files.push_back(input.texts ? prepare_tokens(group, options.data, how, log, [&] { return signal.received() != 0; })
                                : std::filesystem::path(options.data));
    EvaluationData data;
    data.reader.emplace(files.back(), limit, subject.config.vocab_size, 0, of_tokens);
    check_targets(*data.reader, subject.config, how.conversations.padding_id, "--data " + options.data);
    const bool reads_part =
        data.reader->has_preferences() || samples.head != HeadKind::next_token || !options.log_probs.empty();
    if (options.max_rows > 0 && reads_part)
      data.reader.emplace(files.back(), limit, subject.config.vocab_size, options.max_rows, of_tokens);
    if (!options.reference.empty() && !data.reader->has_preferences())
      throw UsageError("--reference is for preferences, and " + options.data + " holds none");
    data.rows = data.reader->num_records();
    if (options.max_rows > 0 && !reads_part) data.rows = std::min(data.rows, options.max_rows);
    run_agreed(world, [&] {
      if (world.rank() == 0) data.reader->require_targets(data.rows);
    });
    if (options.pack && !data.reader->is_stream()) data.reader->pack({0, false}, data.rows);
    data.ids_not_scored = data.reader->ids_left_out(data.rows);
    input.of_subject.push_back(std::move(data));
    input.same_tokens = input.same_tokens && same_lengths(files.front(), files.back());
  }
  world.barrier();  // all ranks have opened the files in the folder that is removed now
  if (signal.received() != 0) throw RuntimeFailure("stopped by a signal before the evaluation began");
  return input;
}

void check(const EvaluateOptions& o) {
  if (o.data.empty() && !o.prompt && o.prompts.empty() && o.chess.empty() && !o.chat && !o.tasks.any())
    throw UsageError("nothing to do: give --data, --tasks, --chess, --prompt, --prompts, --chat or several of them");
  if (o.batch_size < 1) throw UsageError(fmt::format("--batch-size is {}, it must be at least 1", o.batch_size));
  if (o.sharding.quantize.double_quant && !o.sharding.quantize.enabled())
    throw UsageError("--double-quant needs --quantize nf4");
  if (o.compare.empty() && !o.gates.empty()) throw UsageError("--gate belongs to --compare A B");
  if (o.converses() && !(o.data.empty() && o.chess.empty() && !o.tasks.any()))
    throw UsageError(
        "--chat without --prompt or --prompts is a conversation, which goes without --data, --chess and --tasks");
  if (!o.tasks.any() && (o.tasks.apply_chat_template || !o.tasks.log_samples.empty() || o.tasks.choice.limit ||
                         o.tasks.choice.num_fewshot))
    throw UsageError("--limit, --num-fewshot, --apply-chat-template and --log-samples go with --tasks");
  if (o.tasks.choice.limit && !(*o.tasks.choice.limit > 0))
    throw UsageError("--limit is a number of rows, or a share below 1");
  if (o.tasks.bootstrap_iters < 0) throw UsageError("--bootstrap-iters is negative");
  if (o.tasks.choice.num_fewshot && *o.tasks.choice.num_fewshot < 0) throw UsageError("--num-fewshot is negative");
  if (!o.compare.empty() && !o.tasks.log_samples.empty())
    throw UsageError("--log-samples is for one checkpoint: it does not go with --compare");
  if (o.prompt && !o.prompts.empty()) throw UsageError("--prompt and --prompts: give one of them");
  if (o.prompts.empty() && !o.output.empty()) throw UsageError("--output is for the results of --prompts FILE");
  if (o.output.empty() && o.overwrite) throw UsageError("--overwrite is for --output FILE");
  if (!o.prompts.empty() && o.output.empty() && o.runtime.json)
    throw UsageError("--json and the results of --prompts would both be on stdout: give --output FILE");
  check_sampling(o.sampling);
  if (o.system && !o.chat && !o.tasks.any()) throw UsageError("--system goes with --chat or --tasks");
  if (o.stream && o.pack)
    throw UsageError("--stream joins texts, and --pack keeps them apart in a row: give one of them");
  if ((o.stream || o.documents) && o.data.empty())
    throw UsageError("--stream and --documents say how the texts of --data are read: give --data");
  if ((!o.log_probs.empty() || !o.reference.empty()) && o.data.empty())
    throw UsageError("--log-probs and --reference are of the texts of --data: give --data");
  if (!o.log_probs.empty() && !o.compare.empty())
    throw UsageError("--log-probs is of one checkpoint: it does not go with --compare");
  if (o.pack && o.data.empty()) throw UsageError("--pack puts the texts of --data together: give --data");
  if (!o.compare.empty() && (o.prompt || !o.prompts.empty() || o.chat))
    throw UsageError("--prompt, --prompts and --chat do not go with --compare");
}

/// Reports gates on metrics that this evaluation does not compute before any work is done.
void check_gates(const std::vector<Gate>& gates, const EvaluateOptions& options, const EvaluationInput* input) {
  for (const auto& gate : gates) {
    if (gate.is_of_task()) {
      if (!options.tasks.any()) throw UsageError("--gate " + gate.text + " needs --tasks");
      continue;
    }
    const bool chess = gate.metric.starts_with("chess_");
    const auto head = input == nullptr ? std::string() : input->of_subject.front().reader->tokens().notes().head;
    if (!chess && (head == name_of(kHeadNames, HeadKind::classify)) != gate.metric.starts_with("label_"))
      throw UsageError("--gate " + gate.text +
                       ": a classifier has label_accuracy and label_loss, and nothing else has");
    if (chess && options.chess.empty()) throw UsageError("--gate " + gate.text + " needs --chess");
    if (!chess && input == nullptr) throw UsageError("--gate " + gate.text + " needs --data");
    const bool of_preferences = input != nullptr && input->of_subject.front().reader->has_preferences();
    if (!chess && of_preferences != gate.metric.starts_with("reward_"))
      throw UsageError(
          "--gate " + gate.text +
          (of_preferences ? ": preferences have reward_accuracy and reward_margin" : " needs preferences in --data"));
    if (gate.metric == "bits_per_byte" && !input->texts)
      throw UsageError("--gate " + gate.text + " needs texts in --data: token files do not say their bytes");
    if ((gate.metric == "loss" || gate.metric == "perplexity") && !input->same_tokens)
      throw UsageError("--gate " + gate.text +
                       ": the tokenizers of A and B make different tokens of these texts; gate bits_per_byte");
    if (gate.metric == "chess_legal" && options.chess_positions == 0)
      throw UsageError("--gate " + gate.text + " needs --chess-positions");
  }
}

class EvaluateJob {
 public:
  EvaluateJob(ProcessGroup& world, const EvaluateOptions& options, const Logger& log)
      : world_(world), options_(options), log_(log) {}

  ExitCode run(nlohmann::json& report) {
    check(options_);
    std::vector<Gate> gates;
    for (const auto& text : options_.gates) gates.push_back(parse_gate(text, "--gate"));
    install_host_allocator();
    const auto node = world_.split_by_node();
    set_threads(*node, log_);
    device_ = choose_device(options_.runtime.device, world_, *node);
    warn_of_unused_gpus(world_, device_, log_);
    is_alike_ = (!options_.prompts.empty() || options_.tasks.any()) && device_.backend == nullptr;
    if (is_alike_) device_.ops = std::make_shared<RowwiseOps>();
    if (options_.tasks.any()) tasks_.emplace(world_, options_.tasks, gates);
    open_subjects();
    if (!options_.data.empty()) input_ = open_evaluation_data(world_, options_, subjects_, log_);
    if (input_ && device_.backend != nullptr) {
      for (auto& data : input_->of_subject) data.reader->pad_to(kGpuLengthStep);
    }
    check_gates(gates, options_, input_ ? &*input_ : nullptr);
    report["world_size"] = world_.size();
    if (options_.compare.empty()) {
      evaluate(0, report);
      return loss_is_finite_ ? ExitCode::ok : ExitCode::answer_no;
    }
    return compare_both(gates, report);
  }

 private:
  void open_subjects() {
    auto paths = options_.compare;
    if (paths.empty()) paths.push_back(options_.checkpoint);
    for (const auto& path : paths) {
      std::error_code error;
      subjects_.push_back(
          open_subject(std::filesystem::weakly_canonical(path, error), options_.model_config, options_.tokenizer));
      auto& subject = subjects_.back();
      if (!options_.adapter.empty()) add_adapter(subject, options_.adapter, options_.tokenizer);
      if (subject.config.has_scores()) check_scored(subject);
      log_.warnings_of_all(subject.remarks);
      // Weights that are stored in 4 bits stay as they are.
      if (!subject.quantize.enabled()) subject.quantize = options_.sharding.quantize;
      open_prompts(subject);
      if (!options_.chess.empty()) open_subject_tokenizer(subject, "--chess");
      if (tasks_) open_subject_tokenizer(subject, "--tasks");
      if (const auto longest = longest_row(subject.config); options_.seq_len > longest) {
        throw UsageError(
            fmt::format("--seq-len {} is longer than the {} positions of the model", options_.seq_len, longest));
      }
    }
  }

  /// A model that scores texts writes none.
  void check_scored(const EvaluationSubject& subject) const {
    const auto& o = options_;
    const bool writes = o.prompt || !o.prompts.empty() || o.chat || !o.chess.empty() || o.tasks.any();
    const bool is_reward = head_of(subject.config) == HeadKind::reward;
    const auto what = subject.path.string() + (is_reward ? " gives a text one number" : " is a classifier");
    if (writes) throw UsageError(what + ": --prompt, --prompts, --chat, --chess and --tasks need a model that writes");
    if (!o.reference.empty()) throw UsageError(what + ", which needs no --reference");
    if (!o.log_probs.empty() && !is_reward)
      throw UsageError(what + ": --log-probs is for models that write, and for the numbers of a reward model");
  }

  /// Encodes what the model is to go on with, and finds the chat template of a conversation.
  void open_prompts(EvaluationSubject& subject) {
    if (!options_.prompt && options_.prompts.empty() && !options_.chat) return;
    open_subject_tokenizer(subject, options_.prompt ? "--prompt" : !options_.prompts.empty() ? "--prompts" : "--chat");
    auto ends = generation_ends({subject.adapter, subject.path, subject.tokenizer_name});
    auto conversations = options_.conversations;
    conversations.model_template = subject.chat_template;
    if (!options_.prompts.empty()) {
      prompts_ = read_prompts(
          options_.prompts, *subject.tokenizer,
          {options_.chat, options_.system, std::move(conversations), subject.tokenizer_name, std::move(ends)});
      return;
    }
    if (!options_.prompt) {
      chat_.emplace(*subject.tokenizer, subject.tokenizer_name, conversations, std::move(ends));
      return;
    }
    prompt_ = options_.chat ? chat_prompt(*subject.tokenizer, subject.tokenizer_name, conversations,
                                          {*options_.prompt, options_.system}, std::move(ends))
                            : plain_prompt(*subject.tokenizer, *options_.prompt, std::move(ends));
    if (prompt_->ids.empty())
      throw UsageError("--prompt '" + *options_.prompt + "' is empty: at least one token is needed to go on from");
  }

  ExitCode compare_both(const std::vector<Gate>& gates, nlohmann::json& report) {
    std::vector<std::vector<Metric>> metrics;
    for (const char* name : {"a", "b"}) {
      const auto index = metrics.size();
      print(fmt::format("{}  {}", index == 0 ? "A" : "B", subjects_[index].path.string()));
      metrics.push_back(evaluate(index, report[name]));
    }
    const auto comparison = compare(metrics[0], metrics[1], gates);
    report["comparison"] = comparison_to_json(comparison);
    print("");
    for (const auto& line : to_text(comparison, options_.markdown)) print(line);
    return comparison.passed() ? ExitCode::ok : ExitCode::answer_no;
  }

  /// Evaluates one subject. Frees its model before returning, because the next one may need the memory.
  std::vector<Metric> evaluate(std::size_t index, nlohmann::json& report) {
    auto& subject = subjects_[index];
    auto sharding = options_.sharding;
    sharding.lora = subject.lora;
    sharding.quantize = subject.quantize;
    ModelRuntime runtime(world_, subject.config, sharding, device_, 1);
    load_subject(runtime, subject);
    report["checkpoint"] = subject.path.string();
    report["model"] = model_config_to_json(subject.config);
    if (subject.tokenizer != nullptr) report["tokenizer"] = subject.tokenizer_name;
    std::vector<Metric> metrics;
    if (input_ && input_->of_subject[index].reader->has_preferences()) {
      evaluate_preferences(runtime, index, report, metrics);
    } else if (input_ && subject.config.has_scores()) {
      evaluate_labels(runtime, index, report, metrics);
    } else if (input_) {
      evaluate_loss(runtime, index, report, metrics);
      if (!options_.log_probs.empty()) log_probs_of(runtime, index);
    }
    std::optional<ChessEvaluation> games;
    if (!options_.chess.empty()) games = evaluate_games(runtime, subject, report, metrics);
    if (tasks_) evaluate_tasks(runtime, subject, report, metrics);
    if (games) add_task_of_games(*games, report);
    if (prompt_) write_text(runtime, *subject.tokenizer, *prompt_, options_.sampling, !options_.runtime.json, report);
    if (prompts_) write_prompts(runtime, subject, report);
    if (chat_) hold_conversation(runtime, subject, report);
    report["ignored"] = subject.ignored.to_json();
    log_ignored(subject.ignored, log_);
    return metrics;
  }

  void evaluate_loss(ModelRuntime& runtime, std::size_t index, nlohmann::json& report, std::vector<Metric>& metrics) {
    const auto start = std::chrono::steady_clock::now();
    const auto& data = input_->of_subject[index];
    constexpr double kSecondsBetweenLines = 30;
    Progress progress(log_, shows_progress(), kSecondsBetweenLines);
    const ScoreOptions how{data.rows, options_.batch_size, input_->texts ? subjects_[index].tokenizer.get() : nullptr};
    const auto rows = static_cast<std::int64_t>(rows_of_records(*data.reader, data.rows).size());
    const auto scores = score_rows(runtime, *data.reader, how, [&](double done) {
      progress.show_share("loss     ", done,
                          fmt::format("{} of {}", format_count(std::llround(done * static_cast<double>(rows))),
                                      format_count_of(rows, "row")));
    });
    auto result = loss_result(scores);
    result.ids_not_scored = data.ids_not_scored;
    result.seconds = seconds_since(start);
    report["data"] = options_.data;
    if (data.reader->is_packed()) report["packed_rows"] = rows;
    add_to_json(result, report);
    if (!std::isfinite(result.loss.value)) {
      loss_is_finite_ = false;
      if (world_.rank() == 0) {
        log_.warning(subjects_[index].path.string() +
                     ": the loss is not finite: fsdp-ckpt-convert --check tells which weights are not");
      }
    }
    for (const auto& line : to_text(result)) print(line);
    if (const auto left_out = data.reader->samples_left_out(); left_out > 0 && world_.rank() == 0)
      log_.warning(format_count_of(left_out, "answer") + " left out, since the sequence is cut before them",
                   Remedy::of_seq_len);
    if (input_->same_tokens) return add_metrics(result, metrics);
    // Losses per token cannot be compared when the tokens differ.
    metrics.push_back({"bits_per_byte", false, result.bits_per_byte});
  }

  /// Computes the log-probability of each record, and writes them if they are asked for.
  std::vector<double> log_probs_of(ModelRuntime& runtime, std::size_t index) {
    const auto& reader = *input_->of_subject[index].reader;
    constexpr double kSecondsBetweenLines = 30;
    Progress progress(log_, shows_progress(), kSecondsBetweenLines);
    auto log_probs = *sequence_log_probs(runtime, reader, options_.batch_size,
                                         [&](double done) { progress.show_share("log-probs", done, ""); }, {});
    run_agreed(world_, [&] {
      if (!options_.log_probs.empty() && world_.rank() == 0)
        write_log_probs(options_.log_probs, log_probs, digest_of(reader).hash);
    });
    return log_probs;
  }

  void evaluate_preferences(ModelRuntime& runtime, std::size_t index, nlohmann::json& report,
                            std::vector<Metric>& metrics) {
    const auto start = std::chrono::steady_clock::now();
    const auto& data = input_->of_subject[index];
    const auto& reader = *data.reader;
    const auto log_probs = log_probs_of(runtime, index);
    std::vector<double> reference;
    run_agreed(world_, [&] {
      if (!options_.reference.empty())
        reference = read_log_probs(options_.reference, std::ssize(log_probs), digest_of(reader).hash);
    });
    std::vector<double> of_sides, reference_of_sides;
    for (std::int64_t row = 0; row < reader.num_rows(); ++row) {
      for (const auto record : reader.records_of(row)) {
        of_sides.push_back(element(log_probs, record));
        if (!reference.empty()) reference_of_sides.push_back(element(reference, record));
      }
    }
    // The log-probability of a side by a reward model is its reward.
    const bool is_reward = runtime.decoder().config.has_scores();
    auto result = preference_result(of_sides, reference_of_sides, is_reward ? 1 : options_.dpo_beta);
    result.has_log_probs = !is_reward;
    result.seconds = seconds_since(start);
    report["data"] = options_.data;
    if (!options_.log_probs.empty()) report["log_probs"] = options_.log_probs;
    add_to_json(result, report);
    report["preferences_left_out"] = reader.samples_left_out();
    report["ids_not_scored"] = data.ids_not_scored;
    if (world_.rank() == 0 && data.ids_not_scored > 0) {
      log_.warning(fmt::format("{} beyond the longest sequence are not scored; {} left out, since a side has no token "
                               "of its answer there",
                               format_count_of(data.ids_not_scored, "token"),
                               format_count_of(reader.samples_left_out(), "preference")),
                   Remedy::of_seq_len);
    }
    loss_is_finite_ = loss_is_finite_ && std::isfinite(result.margin.value);
    for (const auto& line : to_text(result)) print(line);
    add_metrics(result, metrics);
  }

  void evaluate_labels(ModelRuntime& runtime, std::size_t index, nlohmann::json& report, std::vector<Metric>& metrics) {
    const auto start = std::chrono::steady_clock::now();
    constexpr double kSecondsBetweenLines = 30;
    Progress progress(log_, shows_progress(), kSecondsBetweenLines);
    const auto scores = label_scores(runtime, *input_->of_subject[index].reader, options_.batch_size,
                                     [&](double done) { progress.show_share("labels   ", done, ""); });
    auto result = label_result(scores, subjects_[index].config.labels);
    result.seconds = seconds_since(start);
    report["data"] = options_.data;
    add_to_json(result, report);
    loss_is_finite_ = loss_is_finite_ && std::isfinite(result.loss.value);
    for (const auto& line : to_text(result)) print(line);
    add_metrics(result, metrics);
  }

  ChessEvaluation evaluate_games(ModelRuntime& runtime, const EvaluationSubject& subject, nlohmann::json& report,
                                 std::vector<Metric>& metrics) {
    ChessOptions how;
    how.positions = options_.chess_positions;
    how.seed = options_.sampling.seed;
    how.limit = options_.seq_len;
    for (const auto& s : subjects_) {
      const auto positions = row_positions(s.config, options_.seq_len);
      if (how.limit == 0 || positions < how.limit) how.limit = positions;
    }
    how.batch_size = options_.batch_size;
    how.show_progress = shows_progress();
    ChessGameStream games(world_, options_.chess, options_.data_field, options_.max_rows);
    auto result = evaluate_chess(runtime, *subject.tokenizer, games, how, log_).value();
    add_to_json(result, report);
    report["chess"]["data"] = options_.chess;
    for (const auto& line : to_text(result)) print(line);
    add_metrics(result, metrics);
    return result;
  }

  void evaluate_tasks(ModelRuntime& runtime, const EvaluationSubject& subject, nlohmann::json& report,
                      std::vector<Metric>& metrics) {
    const auto [lines, figures] = tasks_->evaluate(
        runtime, {subject, options_.conversations, options_.system, options_.batch_size, is_alike_, shows_progress()},
        log_, report);
    for (const auto& line : lines) print(line);
    metrics.insert(metrics.end(), figures.begin(), figures.end());
  }

  void write_prompts(ModelRuntime& runtime, EvaluationSubject& subject, nlohmann::json& report) {
    PromptResultsOptions how{options_.output, options_.overwrite, options_.batch_size, options_.sampling, {}, {}};
    how.show_progress = shows_progress();
    const nlohmann::json made_with{{"checkpoint", subject.path.string()},
                                   {"adapter", subject.adapter.string()},
                                   {"model", report["model"]},
                                   {"precision", name_of(kFloatTypeNames, options_.sharding.precision)},
                                   {"quantize", subject.quantize.enabled()},
                                   {"double_quant", subject.quantize.double_quant}};
    how.made_with = printable_json(made_with);
    const auto counts = write_prompt_results(runtime, *subject.tokenizer, prompts_->prompts, how, log_);
    subject.ignored.add(prompts_->ignored);
    report["prompts"] = {{"file", options_.prompts},          {"prompts", prompts_->prompts.size()},
                         {"done_before", counts.done_before}, {"written", counts.written},
                         {"tokens", counts.tokens},           {"seconds", counts.seconds}};
    if (!options_.output.empty()) report["prompts"]["output"] = options_.output;
    if (world_.rank() != 0) return;
    log_.info(fmt::format("prompts   {} written, {} done before   {} in {:.1f} s, {} tok/s",
                          format_count(counts.written), format_count(counts.done_before),
                          format_count_of(counts.tokens, "token"), counts.seconds,
                          format_count(std::llround(static_cast<double>(counts.tokens) / counts.seconds))));
  }

  void hold_conversation(ModelRuntime& runtime, const EvaluationSubject& subject, nlohmann::json& report) {
    auto sampling = options_.sampling;
    if (!options_.bounded) sampling.num_tokens = longest_row(subject.config);
    ChatSession session(runtime, *subject.tokenizer, std::move(*chat_), sampling);
    session.set_system(options_.system);
    converse(world_, session, !options_.runtime.json, log_, report);
  }

  bool shows_progress() const { return world_.rank() == 0 && !options_.runtime.quiet; }
  void print(const std::string& line) const {
    if (world_.rank() == 0 && !options_.runtime.json) std::cout << line << std::endl;
  }

  ProcessGroup& world_;
  const EvaluateOptions& options_;
  const Logger& log_;
  DeviceChoice device_;
  std::vector<EvaluationSubject> subjects_;
  std::optional<EvaluationInput> input_;
  bool is_alike_ = false;  ///< the device's operations are RowwiseOps
  std::optional<TasksJob> tasks_;
  std::optional<Prompt> prompt_;
  std::optional<PromptFile> prompts_;
  std::optional<ChatPrompts> chat_;  ///< of a conversation
  bool loss_is_finite_ = true;       ///< over all subjects with a loss
};

}  // namespace

ExitCode run_evaluate(ProcessGroup& world, const EvaluateOptions& options, const Logger& log, nlohmann::json& report) {
  return EvaluateJob(world, options, log).run(report);
}

}  // namespace fsdp
