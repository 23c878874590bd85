#include "lib/run/evaluate_job.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lib/base/text_format.hpp"
#include "lib/run/checkpoint_load.hpp"
#include "lib/run/evaluate.hpp"
#include "lib/run/foreign_load.hpp"
#include "lib/run/initialize.hpp"
#include "lib/run/run_plan.hpp"
#include "lib/tensor/host_allocator.hpp"
#include "lib/tokenizer/byte_level_bpe.hpp"
#include "lib/tokenizer/utf8.hpp"

namespace fsdp {
namespace {

/// Prints tokens as they come, never half a character.
class TextPrinter {
 public:
  TextPrinter(const Tokenizer& tokenizer, bool enabled) : tokenizer_(tokenizer), enabled_(enabled) {}
  void add(std::int32_t id) {
    pending_ += tokenizer_.decode_one(id);
    const auto ready = utf8_printable_prefix(pending_);
    print(pending_.substr(0, ready));
    pending_.erase(0, ready);
  }
  void print(const std::string& text) const {
    if (enabled_) std::cout << text << std::flush;
  }
  void end() const { print(pending_ + "\n"); }

 private:
  const Tokenizer& tokenizer_;
  bool enabled_;
  std::string pending_;
};

void write_text(ModelRuntime& runtime, const EvaluateOptions& options, nlohmann::json& report) {
  const auto tokenizer = make_gpt2_tokenizer();
  const bool printing = runtime.world().rank() == 0 && !options.runtime.json;
  TextPrinter printer(*tokenizer, printing);
  printer.print(options.prompt);
  const auto ids = generate(runtime, tokenizer->encode(options.prompt), options.sampling, [&](std::int32_t id) {
    // A model may have more ids than the tokenizer has pieces.
    if (id < tokenizer->vocab_size()) printer.add(id);
  });
  printer.end();
  std::vector<std::int32_t> known;
  for (const auto id : ids) {
    if (id < tokenizer->vocab_size()) known.push_back(id);
  }
  const auto text = tokenizer->decode(known);
  report["prompt"] = options.prompt;
  report["tokens_generated"] = ids;
  report["text"] = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  report["text"] = nlohmann::json::parse(report["text"].get<std::string>());
}

/// What is to be evaluated: its model, and how its weights are read.
struct Evaluated {
  ModelConfig config;
  std::shared_ptr<const ForeignCheckpoint> foreign;
  bool weights = false;  ///< a directory with config.json and safetensors
};

Evaluated open_evaluated(const std::filesystem::path& path, const std::string& model_config) {
  std::error_code error;
  const auto has = [&](const char* name) { return std::filesystem::exists(path / name, error); };
  Evaluated evaluated;
  if (model_config.empty() && has("config.json") && !has("run.json") && !has(".metadata")) {
    evaluated.weights = true;
    evaluated.config = read_model_config(path);
    return evaluated;
  }
  const auto opened = open_checkpoint(path, false);
  evaluated.foreign = opened.foreign;
  if (opened.knows_run()) {
    evaluated.config = opened.manifest.config;
    return evaluated;
  }
  ModelWish wish;
  if (!model_config.empty()) wish.config = read_model_config(model_config);
  evaluated.config = foreign_model(*opened.foreign, wish);
  return evaluated;
}

}  // namespace

ExitCode run_evaluate(ProcessGroup& world, const EvaluateOptions& options, const Logger& log, nlohmann::json& report) {
  if (options.data.empty() && options.prompt.empty()) throw UsageError("nothing to do: give --data, --prompt or both");
  if (options.batch_size < 1)
    throw UsageError(fmt::format("--batch-size is {}, it must be at least 1", options.batch_size));
  install_host_allocator();
  const auto node = world.split_by_node();
  set_threads(node->size());
  const auto device = choose_device(options.runtime.device, node->rank(), node->size());

  std::error_code error;
  const auto path = std::filesystem::weakly_canonical(options.checkpoint, error);
  auto evaluated = open_evaluated(path, options.model_config);
  auto& config = evaluated.config;
  config.dropout = 0;
  std::optional<BatchReader> reader;
  if (options.seq_len > config.block_size) {
    throw UsageError(
        fmt::format("--seq-len {} is longer than the {} positions of the model", options.seq_len, config.block_size));
  }
  if (!options.data.empty()) {
    reader.emplace(options.data, SequenceLimit{options.seq_len, config.block_size}, config.vocab_size);
  }
  ModelRuntime runtime(world, config, options.sharding, device, 1);
  if (evaluated.weights) {
    load_safetensors_parameters(runtime, path);
  } else if (evaluated.foreign != nullptr) {
    load_foreign(runtime, *evaluated.foreign, nullptr, {});
    runtime.engine().publish_parameters();
  } else {
    std::string problem;
    try {
      load_checkpoint_parameters(runtime, path);
    } catch (const FormatError& damage) {
      problem = damage.what();
    }
    fail_together(world, problem);
    runtime.engine().publish_parameters();
  }
  report["checkpoint"] = path.string();
  report["model"] = model_config_to_json(config);
  report["world_size"] = world.size();
  if (reader) {
    const auto result = evaluate_rows(runtime, *reader, options.batch_size);
    report["loss"] = result.loss;
    report["perplexity"] = result.perplexity;
    report["tokens"] = result.tokens;
    report["rows"] = result.rows;
    report["seconds"] = result.seconds;
    report["data"] = options.data;
    const auto line =
        fmt::format("loss {:.6f}   perplexity {:.3f}   {} tokens in {} rows   {} tok/s", result.loss, result.perplexity,
                    format_count(result.tokens), format_count(result.rows),
                    format_count(static_cast<std::int64_t>(static_cast<double>(result.tokens) / result.seconds)));
    if (world.rank() == 0 && !options.runtime.json) std::cout << line << std::endl;
  }
  if (!options.prompt.empty()) write_text(runtime, options, report);
  (void)log;
  return ExitCode::ok;
}

}  // namespace fsdp
