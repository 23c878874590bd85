#include "apps/finetune/final_exports.hpp"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/common/remedies.hpp"
#include "apps/finetune/output_paths.hpp"
#include "lib/base/files/file.hpp"
#include "lib/base/files/output_file.hpp"
#include "lib/base/files/temporary_directory.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/conversion/convert.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/programs/hf/safetensors_target.hpp"
#include "lib/checkpoints/programs/torch_save/torch_target.hpp"
#include "lib/checkpoints/source/main_dtype.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/checkpoints/target/copy.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/training/state/adapter_files.hpp"
#include "lib/training/state/best.hpp"
#include "lib/training/state/checkpoint.hpp"
#include "lib/training/state/checkpoint_names.hpp"
#include "lib/training/state/checkpoint_saver.hpp"
#include "lib/training/state/load/load.hpp"

namespace fsdp::detail {
namespace {

bool is_safetensors(const std::filesystem::path& file) { return file.extension() == ".safetensors"; }

CopyReport write_full(const std::filesystem::path& checkpoint, const std::filesystem::path& file, CopyOptions options,
                      ProcessGroup& world) {
  const auto source = open_source(checkpoint);
  if (is_safetensors(file)) {
    SafetensorsTarget target(file);
    return copy(*source, target, file, options, world);
  }
  TorchTarget target(file);
  return copy(*source, target, file, options, world);
}

/// Returns the folder of the weights that the run began with; empty when unknown or gone.
std::filesystem::path first_weights(const RunSetup& setup) {
  std::filesystem::path weights = setup.options.model.directory;
  if (weights.empty() && setup.restart && setup.restart->knows_run)
    weights = setup.restart->manifest.data.value("weights", std::string());
  std::error_code error;
  return std::filesystem::exists(weights / "config.json", error) ? weights : std::filesystem::path();
}

/// Returns the outputs at the end that the newest job in the run's folder named.
std::vector<std::filesystem::path> outputs_of_last_job(const RunSetup& setup) {
  constexpr std::uint64_t kMostBytes = 16u << 20;
  std::vector<std::filesystem::path> outputs;
  try {
    const auto file = setup.directory / "job.json";
    const auto options = parse_json(read_text_file(file, kMostBytes), file.string()).at("options");
    for (const char* name : {"save-final-full", "save-final-adapter"}) {
      if (const auto path = options.value(name, std::string()); !path.empty()) outputs.emplace_back(path);
    }
  } catch (const nlohmann::json::exception&) {
    // An older program's file: the outputs count as others'.
  } catch (const Error&) {
    // There is no job.json, or it cannot be read.
  }
  return outputs;
}

/// Decides on rank 0 whether there is a best checkpoint to export. \return why there is none; empty when there is one
std::string what_is_missing(const RunContext& context, const std::filesystem::path& path) {
  const auto& best = context.trainer.state().validation;
  if (best.best_step < 0) return "no validation of this run had a finite " + context.setup.deciding.metric;
  if (best.best_step == context.trainer.state().step) return "";
  if (holds_best(context.setup.checkpoints(), best)) return "";
  return fmt::format("{} is not there, or is not the one with the best {} of this run, {:.4f}", path.string(),
                     best.metric, best.best_value);
}

}  // namespace

void check_final_exports(ProcessGroup& world, const RunSetup& setup) {
  const auto& options = setup.options;
  FinalOutputs outputs;
  // "out/" and "out" are the same directory.
  const auto directory = [](const std::string& name) {
    return name.empty() ? std::filesystem::path() : (std::filesystem::path(name) / "").parent_path();
  };
  const auto& full = outputs.full = options.save_final_full;
  outputs.hf = directory(options.save_final_hf);
  outputs.adapter = directory(options.save_final_adapter);
  const char* option = !full.empty()              ? "--save-final-full"
                       : !outputs.hf.empty()      ? "--save-final-hf"
                       : !outputs.adapter.empty() ? "--save-final-adapter"
                                                  : nullptr;
  if (option == nullptr) return;
  const auto suffix = full.extension();
  if (!full.empty() && suffix != ".pt" && suffix != ".pth" && suffix != ".bin" && !is_safetensors(full)) {
    throw UsageError(
        fmt::format("--save-final-full {}: end the name with .pt, .pth, .bin or .safetensors", full.string()));
  }
  if (!trains(options)) {
    throw UsageError(std::string(option) + " is written at the end of training, --max-epochs -1 does not train");
  }
  outputs.run_directory = setup.directory;
  const auto add = [&](const char* name, const std::filesystem::path& input) {
    if (!input.empty()) outputs.inputs.emplace_back(name, input);
  };
  add("the folder of --model", setup.options.model.directory);
  for (const auto& source : setup.options.sources) add("the data of --train-data", source.path);
  for (const auto& set : setup.options.val_sets) add("the data of --val-data", set.path);
  add("the games of --val-chess", setup.options.validation.games.data);
  add("the folder of --tokenizer",
      setup.options.model.tokenizer == kBuiltInTokenizer ? "" : setup.options.model.tokenizer);
  outputs.overwrite = options.overwrite;
  outputs.continues = !begins_a_run(setup, setup.restart);
  if (setup.restart) {
    outputs.own = outputs_of_last_job(setup);
    outputs.own.push_back(setup.restart->candidates.front());
    // A chain of jobs may restart from its --save-final-full file and write it again.
    const auto& checkpoint = setup.restart->candidates.front();
    if (full.empty() || !path_below(checkpoint, full)) add("the checkpoint", checkpoint);
    if (setup.restart->knows_run) {
      add("the model that the run began with", setup.restart->manifest.data.value("weights", std::string()));
    }
  }
  run_agreed(world, [&] {
    if (world.rank() == 0) check_final_outputs(outputs);
  });
}

std::string export_dtype(const RunSetup& setup) {
  // A folder may hold only config.json, with the weights in a checkpoint.
  const auto weights = first_weights(setup);
  if (!weights.empty() && holds_checkpoint(weights))
    return main_dtype(*open_weights(weights), [](const SourceTensor& tensor) { return tensor.stored_bytes; });
  if (!setup.restart) return "";
  if (setup.restart->knows_run) return setup.restart->manifest.data.value("weights_dtype", std::string());
  const auto& checkpoint = *setup.restart->checkpoint;
  std::set<std::string> names;
  for (const auto& name : checkpoint.model_names()) {
    if (const auto tensor = checkpoint.parameter(name)) names.insert(checkpoint.source().tensors()[*tensor].name);
  }
  return main_dtype(checkpoint.source(), [&](const SourceTensor& tensor) {
    return names.empty() || names.contains(tensor.name) ? tensor.stored_bytes : 0;
  });
}

bool FinalExports::write(const std::filesystem::path& checkpoint) {
  if (!exports_at_the_end(context_.setup.options)) return true;
  // Also a run without a step left exports the tokenizer.
  if (const auto& tokenizer = context_.setup.new_tokenizer) run_agreed(context_.world, [&] { tokenizer->keep(); });
  const TemporaryDirectory temporary(context_.setup.directory / ".final-full", context_.world.rank() == 0);
  temporary.remove();
  context_.world.barrier();
  const bool done = context_.runtime.has_adapters() ? save_merged(temporary.path())
                                                    : save_model(state_for_final(checkpoint, temporary.path()));
  context_.world.barrier();  // before the temporary checkpoint is removed
  return done;
}

bool FinalExports::save_model(const std::filesystem::path& checkpoint) {
  return (context_.setup.options.save_final_full.empty() || save_full(checkpoint)) &&
         (context_.setup.options.save_final_hf.empty() || save_hf(of_checkpoint(checkpoint)));
}

/// Exports the base weights and the adapters as one merged model, in the type of the base weights, or quantized to 4
/// bits again when the run's weights were.
bool FinalExports::save_merged(const std::filesystem::path& temporary) {
  const auto adapter = temporary / "adapter";
  const auto& base = context_.runtime.base().directory;
  save_adapter(context_.runtime, adapter, base);
  context_.world.barrier();
  Conversion conversion;
  conversion.input = base;
  conversion.changes.merge_adapter = adapter.string();
  conversion.changes.quantize = context_.runtime.decoder().options.quantize;
  if (const auto& model = context_.setup.config; model.has_scores()) {
    // Neither the base nor peft's files know the labels.
    conversion.changes.model_config = (temporary / "config.json").string();
    run_agreed(context_.world, [&] {
      if (context_.world.rank() == 0)
        replace_file(conversion.changes.model_config, json_text(model_config_to_json(model)) + "\n");
    });
  }
  return save_hf(std::move(conversion));
}

std::filesystem::path FinalExports::state_for_final(std::filesystem::path checkpoint,
                                                    const std::filesystem::path& temporary) {
  if (!checkpoint.empty()) return checkpoint;
  CheckpointSaver saver(context_.runtime, context_.trainer.optimizer(), temporary, 0);
  saver.start(context_.manifest(), context_.current_lr());
  const auto result = saver.finish([] {});
  if (!result.saved) throw IoError("the state at the end could not be written: " + result.error);
  return result.path;
}

bool FinalExports::save_full(const std::filesystem::path& checkpoint) {
  const auto start = std::chrono::steady_clock::now();
  CopyOptions options;
  options.overwrite = true;
  options.sync = true;
  options.stop = [this] { return stopped_(); };
  try {
    const auto copied = write_full(checkpoint, context_.setup.options.save_final_full, options, context_.world);
    context_.log.info(fmt::format("full      {}   {} in {:.1f} s", context_.setup.options.save_final_full,
                                  format_bytes(static_cast<double>(copied.bytes_written)), seconds_since(start)));
    return true;
  } catch (const Stopped& stopped) {
    context_.log.warning(
        fmt::format("--save-final-full {}: {}", context_.setup.options.save_final_full, stopped.what()));
    return false;
  }
}

/// Converts with the config and the tokenizer of the weights that the run began with.
Conversion FinalExports::of_checkpoint(const std::filesystem::path& checkpoint) const {
  Conversion conversion;
  conversion.input = checkpoint.string();
  conversion.config_from = first_weights(context_.setup).string();
  if (const auto& dtype = context_.setup.export_dtype; !dtype.empty())
    conversion.changes.dtype = dtype_from_torch(dtype);
  return conversion;
}

bool FinalExports::save_hf(Conversion conversion) {
  const auto start = std::chrono::steady_clock::now();
  const auto& text = context_.setup.template_text;
  conversion.output = std::filesystem::path(context_.setup.options.save_final_hf + "/").parent_path();
  conversion.writer = find_writer("hf");
  conversion.tokenizer = context_.setup.tokenizer.name;
  conversion.chat_template = text;
  conversion.overwrite = true;  // check_final_exports() saw whose it is
  // relative() of a relative path that does not exist yet is empty.
  const auto run = std::filesystem::absolute(context_.setup.directory);
  conversion.made_by = std::filesystem::relative(run, std::filesystem::absolute(conversion.output)).string();
  conversion.sync = true;
  CopyReport copied;
  try {
    const auto plan = plan_conversion(conversion, Logger(context_.world.rank(), LogLevel::warning, words_of_advice));
    copied = write_conversion(context_.world, conversion, plan, {}, stopped_);
  } catch (const Stopped& stopped) {
    context_.log.warning(fmt::format("--save-final-hf {}: {}", context_.setup.options.save_final_hf, stopped.what()));
    return false;
  }
  context_.log.info(fmt::format("hf        {}   {} in {:.1f} s{}", context_.setup.options.save_final_hf,
                                format_bytes(static_cast<double>(copied.bytes_written)), seconds_since(start),
                                text.empty() ? "" : "   with the chat template " + context_.setup.chat_template));
  return true;
}

std::optional<std::filesystem::path> load_best(const RunContext& context) {
  const auto& state = context.trainer.state();
  const auto path = context.setup.checkpoints() / checkpoint_name(state.validation.best_step);
  const auto missing = text_of_root(context.world, [&] { return what_is_missing(context, path); });
  if (!missing.empty()) {
    if (context.world.rank() == 0)
      context.log.warning("--final best: " + missing + ": what follows has the weights of the last step");
    return std::nullopt;
  }
  if (state.validation.best_step != state.step) {
    std::shared_ptr<const Checkpoint> checkpoint;
    run_agreed(context.world, [&] { checkpoint = open_checkpoint(path, /*ours_only=*/true); });
    load_checkpoint(context.runtime, nullptr, *checkpoint);
  }
  context.log.info(fmt::format("best      {}   {} {:.4f}: what follows has these weights", path.string(),
                               state.validation.metric, state.validation.best_value));
  return path;
}

}  // namespace fsdp::detail
