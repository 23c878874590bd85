// fsdp-eval: computes the loss, chess scores and generated text of one checkpoint, or compares two checkpoints.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/common/runs_options.hpp"
#include "apps/common/shared_options.hpp"
#include "apps/common/torch_main.hpp"
#include "apps/eval/evaluate_job.hpp"
#include "apps/eval/results_table.hpp"
#include "lib/base/process/signal_thread.hpp"
#include "lib/hub/snapshot_store.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"

namespace {

using fsdp::PathKind;

void add_loss_options(fsdp::OptionTable& t, fsdp::EvaluateOptions& o) {
  t.section("What is evaluated");
  t.add_option("checkpoint", o.checkpoint,
               "checkpoint to evaluate: a directory (step-NNNNNNNN, latest, or PyTorch's), a .pt or safetensors file, "
               "a directory with config.json and safetensors files, or ORG/NAME in the Hugging Face cache");
  t.add("compare", o.compare, "two checkpoints A and B to compare on the same data, in place of one checkpoint",
        {.path = PathKind::file})
      ->expected(2);
  t.add("gate", o.gates,
        "METRIC:LIMIT; exit with 3 if B is worse than A by more than LIMIT (0.01, or 1% of A's value); may be "
        "repeated. METRIC: loss, perplexity, bits_per_byte, chess_accuracy, chess_legal, chess_result, "
        "reward_accuracy, reward_margin, label_accuracy, label_loss, or of a task "
        "TASK.METRIC, such as hellaswag.acc_norm")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  t.add("model-config", o.model_config,
        "config.json, or its directory, for a checkpoint that does not describe its model", {.path = PathKind::file});
  t.add("adapter", o.adapter, "adapter in peft's format that is applied to a directory of weights",
        {.path = PathKind::file});
  t.add("tokenizer", o.tokenizer,
        "tokenizer: gpt2, a directory, or ORG/NAME in the Hugging Face cache; default: the checkpoint's or its run's "
        "(gpt2 for minGPT)",
        {.path = PathKind::model});
  t.section("Loss");
  t.add("data", o.data,
        "data to compute the loss on: a token file (HDF5), or text data as JSON Lines, Parquet, CSV or plain text: a "
        "file, "
        "a directory, or a data set ORG/NAME in the Hugging Face cache",
        {.path = PathKind::file});
  t.add("data-field", o.data_field,
        "key or column that holds the texts, games or messages; default: text, or Moves in Parquet files without text");
  fsdp::add_conversation_options(t, o.conversations, "data-form");
  fsdp::add_layout_options(t, o.stream, o.documents);
  fsdp::add_token_dtype(t, o.token_type);
  t.add("max-rows", o.max_rows, "rows, texts or games to read, from the first on; 0: all");
  t.add("seq-len,seq-length,max-seq-length", o.seq_len,
        "longest sequence in tokens; 0: the model's own, at most 512 for texts", {.unit = "tokens"});
  t.add("batch-size", o.batch_size, "sequences or games per rank at once; changes speed and memory, not the result",
        {.unit = "sequences"});
  t.add("pack", o.pack,
        "pack several texts or documents into each row instead of padding: faster, with the same losses and counts; "
        "--batch-size then counts rows");
  t.add("log-probs", o.log_probs,
        "file that receives the log-probability of each text's or answer's tokens as a NumPy array (.npy): the "
        "--reference of fsdp-finetune --objective dpo",
        {.path = PathKind::file});
  t.add("reference", o.reference,
        "file of --log-probs by another model, with which the rewards of preferences are computed; default: none",
        {.path = PathKind::file});
  t.add("dpo-beta", o.dpo_beta, "factor of log-probabilities in the rewards of preferences", {.range = {.above = 0}});
  t.add("cache-dir", o.cache_dir,
        "directory that keeps the token IDs of text data for the next time, shared by all nodes; default: a temporary "
        "folder",
        {.path = PathKind::folder});
}

void add_chess_and_text_options(fsdp::OptionTable& t, fsdp::EvaluateOptions& o) {
  t.section("Chess");
  t.add("chess", o.chess,
        "games in UCI notation, 'e2e4 e7e5 ... 1-0', one a line or in JSON Lines, Parquet or CSV: a file, a directory "
        "or ORG/NAME; measures how often the next move is the game's and how often the model's own move is legal",
        {.path = PathKind::file});
  t.add("chess-positions", o.chess_positions,
        "positions at which the model's move is checked against the rules; 0: none");
  t.section("Text");
  t.add("prompt", o.prompt, "text to generate from, up to the model's EOS token");
  t.add(
      "prompts", o.prompts,
      "JSON Lines with many texts to generate from, {\"prompt\": TEXT} or {\"messages\": [...]}, perhaps with \"id\", "
      "--batch-size of them per rank at once",
      {.path = PathKind::file});
  t.add("output", o.output,
        "with --prompts: file to which each result is written as it ends; those that are there already are kept and "
        "not computed again; default: stdout",
        {.path = PathKind::file});
  t.add("overwrite", o.overwrite, "begin the file of --output anew");
  t.add(
      "chat", o.chat,
      "take the prompt as a user's message in the --chat-template (default: the run's, else the tokenizer's own), and "
      "generate up to the end of the turn; without --prompt and --prompts: a conversation, each line of stdin a "
      "message");
  t.add_parsed("system", [&o](const std::string& text) { o.system = text; },
               "with --chat: the system message before the prompt, perhaps ''; with --tasks: text before a task's "
               "description",
               {});
  t.add_parsed<std::int64_t>(
      "num-tokens,max-new-tokens",
      [&o](const std::int64_t& count) {
        o.sampling.num_tokens = count;
        o.bounded = true;
      },
      "most tokens to generate; default: 50, in a conversation all that the model has positions for",
      {.default_text = "", .unit = "tokens"});
  t.add("stop", o.sampling.stops,
        "text that ends what is generated and does not belong to it, wherever tokens begin and end; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  t.add("temperature", o.sampling.temperature, "temperature of sampling; 0: the most likely token each time");
  t.add("top-k", o.sampling.top_k, "sample from the k most likely tokens; 0: from all");
  t.add("top-p", o.sampling.top_p,
        "sample from the most likely tokens whose probabilities add up to this, above 0 and at most 1");
  t.add("seed", o.sampling.seed, "seed of sampling and of the choice of chess positions");
  t.add("no-cache", o.sampling.no_cache,
        "compute the whole sequence for every token, without the key-value cache (a check; slow)");
}

void add_task_options(fsdp::OptionTable& t, fsdp::TaskOptions& o) {
  t.section("Benchmarks");
  fsdp::add_task_names(
      t, o.choice.names, o.choice.include_paths,
      "benchmarks to run: names of shipped tasks, groups and tags (hellaswag mmlu), task files of lm-eval's kind (YAML "
      "or JSON), or folders of these; list: prints the names");
  t.add_parsed<double>("limit", [&o](const double& limit) { o.choice.limit = limit; },
                       "ask only so many of the rows of each task, or this share of them if it is below 1; for tests",
                       {.default_text = ""});
  t.add_parsed<std::int64_t>("num-fewshot", [&o](const std::int64_t& count) { o.choice.num_fewshot = count; },
                             "examples with answers before each question; default: the task's. A task that says 0 "
                             "keeps 0",
                             {.default_text = ""});
  t.add("fewshot-seed,fewshot-random-seed", o.choice.seed, "seed of the choice of these examples");
  t.add("bootstrap-iters", o.bootstrap_iters,
        "samples for the standard errors of perplexity, f1 and mcc, in thousands; 0: these have none");
  t.add("apply-chat-template", o.apply_chat_template,
        "write questions as conversations by the --chat-template (default: the run's, else the tokenizer's own)");
  t.add("fewshot-as-multiturn", o.fewshot_as_multiturn,
        "with --apply-chat-template: each example is a turn of its own; false: all are in the user's one message");
  t.add("results", o.results,
        "files that --tasks --json printed, or of lm-eval: prints one table with a column for each, and evaluates "
        "nothing",
        {.path = PathKind::file})
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  t.add("log-samples", o.log_samples,
        "file in JSON Lines for each question with its requests, answers and metrics, as lm-eval logs them",
        {.path = PathKind::file});
}

void add_options(fsdp::OptionTable& t, fsdp::EvaluateOptions& o) {
  add_loss_options(t, o);
  add_task_options(t, o.tasks);
  add_chess_and_text_options(t, o);
  t.section("Sharding, precision");
  t.add_choice("precision", fsdp::kFloatTypeNames, o.sharding.precision,
               "type of gathered parameters and of activations: float32, bf16 or fp16");
  t.add_choice(
      "sharding", fsdp::kShardingNames, o.sharding.sharding,
      "sharding strategy: full-shard, grad-shard, optimizer-shard, no-shard, hybrid-full-shard (also hybrid-shard) or "
      "hybrid-grad-shard");
  fsdp::add_quantize_options(
      t, o.sharding.quantize,
      "keep the matrices of the blocks in 4-bit form: nf4 or none; weights that are stored so stay in 4-bit form");
  fsdp::add_runtime_options(t, o.runtime);
  t.add_config("file to read options from");
  t.set_version_flag("--version", [] { return fsdp::torch_version_text("fsdp-eval"); });
}

void check_subjects(const fsdp::EvaluateOptions& o) {
  if (o.checkpoint.empty() && o.compare.empty())
    throw fsdp::UsageError("a checkpoint is missing: name one, or two with --compare A B");
  if (!o.compare.empty() && o.compare.size() != 2) throw fsdp::UsageError("--compare takes two checkpoints, A and B");
  if (!o.checkpoint.empty() && !o.compare.empty())
    throw fsdp::UsageError("'" + o.checkpoint + "' is one checkpoint too many beside --compare A B");
}

/// Replaces names of hub repositories by their directories in the cache.
void resolve_names(fsdp::EvaluateOptions& o) {
  const auto settings = fsdp::hub_settings(fsdp::process_environment());
  const auto resolve = [&](std::string& name, fsdp::RepoType type) {
    if (!name.empty()) name = fsdp::find_snapshot(name, type, settings);
  };
  const auto resolve_model = [&](std::string& name) {
    const auto asked = name;
    resolve(name, fsdp::RepoType::model);
    if (!name.empty()) fsdp::refuse_config_alone(asked, name);
  };
  resolve_model(o.checkpoint);
  for (auto& name : o.compare) resolve_model(name);
  if (o.tokenizer != fsdp::kBuiltInTokenizer) resolve(o.tokenizer, fsdp::RepoType::model);
  resolve(o.data, fsdp::RepoType::dataset);
  resolve(o.chess, fsdp::RepoType::dataset);
}

/// Refuses options of an evaluation beside one that looks at runs. \param what  "--runs reads what runs have written"
void refuse_evaluation(const CLI::App& app, const char* what) {
  for (const char* name :
       {"checkpoint", "--compare", "--data", "--tasks", "--chess", "--prompt", "--prompts", "--chat"}) {
    if (app.get_option(name)->count() > 0)
      throw fsdp::UsageError(fmt::format("{} and evaluates nothing: it goes without {}", what, name));
  }
}

int show(const CLI::App& app, const fsdp::RunsArguments& runs, const fsdp::EvaluateOptions& o) {
  const bool asks_why = !runs.why.empty();
  const int code = fsdp::run_alone([&] {
    refuse_evaluation(app, asks_why ? "--why says what a run does" : "--runs reads what runs have written");
    if (!asks_why) return;
    if (!runs.runs.empty()) throw fsdp::UsageError("--why names its run itself: it goes without --runs");
    fsdp::require_runs(app);
  });
  if (code != 0) return code;
  return asks_why ? fsdp::show_why(runs, o.runtime) : fsdp::show_runs(runs, o.runtime);
}

}  // namespace

int main(int argc, char** argv) {
  const fsdp::SignalThread signals;
  fsdp::OptionTable app{
      "Evaluates a checkpoint (loss with its uncertainty, chess moves, text from prompts, conversations), or compares "
      "two of them.\n"
      "Model and tokenizer come from the checkpoint; any number of ranks gives the same numbers.\n\n"
      "  fsdp-eval runs/big/checkpoints/latest --data validation.jsonl\n"
      "  mpiexec -n 4 fsdp-eval codellama/CodeLlama-7b-hf --chess games.parquet --max-rows 1000 --precision bf16\n"
      "  fsdp-eval --compare before after --data validation.jsonl --gate loss:1%\n"
      "  fsdp-eval runs/chess/checkpoints/latest --prompt 'e2e4 e7e5' --temperature 0\n"
      "  fsdp-eval runs/chat --chat\n"
      "  fsdp-eval runs/chat --prompts questions.jsonl --output answers.jsonl --batch-size 32\n"
      "  fsdp-eval --runs runs/a runs/b --html runs.html\n"
      "  fsdp-eval --why runs/big\n\n"
      "Exit codes: 0 done, 1 failed, 2 usage, 3 a gate of --compare failed or the run of --why is stuck, 4 bad input.",
      "fsdp-eval"};
  fsdp::EvaluateOptions options;
  add_options(app, options);
  fsdp::RunsArguments runs;
  fsdp::add_runs_options(app, runs);
  app.set_short_help({{"--data DATA", "data to compute loss and perplexity on"},
                      {"--tasks NAME...", "benchmarks: hellaswag, mmlu, ..., or task files; list prints the names"},
                      {"--prompt TEXT", "text to go on from; --temperature, --top-p, --num-tokens, --stop"},
                      {"--prompts FILE", "generate for many prompts in batches, resumable; --output FILE"},
                      {"--chat", "talk to the model; --system TEXT"},
                      {"--runs DIR...", "compare runs of fsdp-finetune; --html FILE, --watch"},
                      {"--why RUN", "say why a run does not go on: which rank, in which collective, doing what"},
                      {"--compare A B", "compare two checkpoints on the same data"},
                      {"--precision TYPE", "float32, bf16 or fp16"},
                      {"--json", "print the result as JSON"}});
  if (const int code = fsdp::parse(app, argc, argv); code >= 0) return code;
  if (!runs.why.empty() || !runs.runs.empty()) return show(app, runs, options);
  if (!options.tasks.results.empty()) {
    return fsdp::run_alone([&] {
      refuse_evaluation(app, "--results shows what evaluations have written");
      for (const auto& line : fsdp::results_table(options.tasks.results)) fmt::print("{}\n", line);
    });
  }
  if (options.tasks.choice.names == std::vector<std::string>{"list"}) {
    return fsdp::run_alone([&] {
      for (const auto& line : fsdp::list_tasks(options.tasks)) fmt::print("{}\n", line);
    });
  }
  options.markdown = runs.markdown;
  const bool has_table = !options.compare.empty() || options.tasks.any();
  if (const int code = fsdp::run_alone([&] { fsdp::require_runs(app, has_table); }); code != 0) return code;
  return fsdp::run_torch_job(options.runtime,
                             [&](fsdp::ProcessGroup& world, const fsdp::Logger& log, nlohmann::json& report) {
                               check_subjects(options);
                               fsdp::require_same_options(world, app);
                               resolve_names(options);
                               return fsdp::run_evaluate(world, options, log, report);
                             });
}
