#include "lib/checkpoints/conversion/convert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/conversion/conversion_input.hpp"
#include "lib/checkpoints/model/base_weights.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
#include "lib/checkpoints/programs/gguf/gguf.hpp"
#include "lib/checkpoints/programs/gguf/gguf_weights.hpp"
#include "lib/checkpoints/programs/hf/hf_export.hpp"
#include "lib/checkpoints/programs/hf/hf_names.hpp"
#include "lib/checkpoints/transform/model_tensors.hpp"
#include "lib/checkpoints/transform/select.hpp"
#include "lib/models/config/adapter_config.hpp"

namespace fsdp {
namespace {

/// A second model, such as an average of the weights, is not what --model-only means by optimizer and counters.
void tell_other_models(const Source& source, const Logger& log) {
  for (const auto& [container, tensors] : containers_left_out(source))
    log.info(
        fmt::format("left out: {} of '{}', which is beside the model", format_count_of(tensors, "tensor"), container));
}

/// Warns of remarks on what was opened, and of an adapter beside the weights that has no effect.
void warn_of_remarks(const Conversion& options, const Source& original, const Source& source, const Logger& log) {
  log.warnings_of_all(source.info().remarks);
  const bool is_adapter = !original.info().adapter.empty() || !std::filesystem::is_directory(options.input);
  if (is_adapter || !options.changes.merge_adapter.empty()) return;
  log.warnings_of_all(adapter_left_out(options.input));
}

/// \throws FormatError naming the first tensor of a type that the output cannot hold
void refuse_other_types(const Source& source) {
  const bool is_gguf = source.info().format == kGgufMagic;
  for (const auto& tensor : source.tensors())
    if (tensor.other)
      throw FormatError(
          fmt::format("{}: tensor \"{}\" is of type {}, which only {} can hold", source.info().directory.string(),
                      tensor.name, tensor.other->name, is_gguf ? "GGUF" : "safetensors"),
          is_gguf ? Remedy::numbers_of_gguf : Remedy::safetensors_for_type);
}

/// \throws RequestError for a checkpoint of a run with adapters, which has no weights: they need those of their base
void refuse_adapters_alone(const Conversion& options) {
  const auto run = adapters_of_run(options.input);
  if (run.is_null() || !options.changes.merge_adapter.empty()) return;
  const auto base = run.value("weights", nlohmann::json());
  throw RequestError(fmt::format("{}: its run trained adapters for {}, so this checkpoint has no weights of a model",
                                 options.input, base.is_string() ? base.get<std::string>() : "a model"),
                     {Remedy::merge_run, options.input});
}

/// The model whose names the output has; nothing where none is known here.
std::optional<ModelConfig> model_of_output(const Conversion& options, const Source& original) {
  auto known = known_model(original, options.changes);
  if (known) return known;
  const auto file = config_of(carried_beside(options, original));
  // A multimodal model has names of its own.
  if (!file || file->json.value("model_type", nlohmann::json()) == "gemma3") return std::nullopt;
  try {
    return model_config_from_json(file->json, file->name);
  } catch (const Error&) {  // of a model that is not known here
    return std::nullopt;
  }
}

/// A GGUF file keeps llama.cpp's names, except where the output is a model of others.
std::shared_ptr<const Source> model_of_gguf(std::shared_ptr<const Source> gguf, const Conversion& options) {
  if (options.writer->name == "gguf")
    throw RequestError(fmt::format("{}: is a GGUF file already", options.input),
                       {Remedy::model_of_gguf, options.input});
  const bool is_model = options.writer->writes_model && options.changes.map != NameMap::none;
  return is_model ? gguf_as_model(std::move(gguf)) : std::move(gguf);
}

}  // namespace

ConversionPlan plan_conversion(const Conversion& options, const Logger& log) {
  const auto& writer = *options.writer;
  if (writer.takes_config) refuse_adapters_alone(options);
  auto changes = options.changes;
  const std::filesystem::path named = options.config_from;
  if (!named.empty() && std::filesystem::is_regular_file(named / "config.json"))
    changes.config_from = options.config_from;
  ConversionPlan plan;
  plan.input = std::make_shared<TrackedSource>(open_input(options.input, changes, true));
  std::shared_ptr<const Source> original = plan.input;
  refuse_nothing(*original, *original, options.input);
  if (is_gguf_source(*original)) original = model_of_gguf(std::move(original), options);
  const auto names =
      writer.writes_model && changes.map != NameMap::none ? model_of_output(options, *original) : std::nullopt;
  if (names) refuse_adapters_inside(*original);
  // Patterns are for the names that are stored.
  const bool has_patterns = changes.select.has_patterns();
  if (names && !has_patterns) original = with_model_names(std::move(original), *names);
  if (writer.adapt != nullptr) writer.adapt(*original, options, changes, log);
  // Optimizer state belongs to the weights before the merge.
  if (!changes.merge_adapter.empty()) keep_model_alone(*original, log, changes, "merging changes the weights");
  if (changes.select.model_only) tell_other_models(*original, log);
  const auto made = [&](const SourceChanges& how) {
    auto source = transformed(original, how);
    const bool is_named = !has_patterns || how.as_megatron;
    return names && !is_named ? with_model_names(std::move(source), *names) : source;
  };
  plan.source = made(changes);
  refuse_nothing(*plan.source, *original, options.input);
  auto numbers = plan.source;
  if (changes.quantize.enabled()) {
    auto how = changes;
    how.quantize = {};
    numbers = made(how);
  }
  if (!writer.takes_other_types) refuse_other_types(*plan.source);
  WriteRequest request{options, changes, *original, plan.source, std::move(numbers), log};
  plan.target = writer.make(request);
  plan.source = std::move(request.source);
  log.info(fmt::format("{}: {}, {}, {} -> {} ({})", options.input, original->info().format,
                       format_count_of(std::ssize(original->tensors()), "tensor"),
                       format_count_of(std::ssize(original->values()), "value"), options.output.string(), writer.name));
  warn_of_remarks(options, *original, *plan.source, log);
  return plan;
}

CopyReport write_conversion(ProcessGroup& world, const Conversion& options, const ConversionPlan& plan,
                            std::function<void(const CopyProgress&)> progress, std::function<bool()> stop) {
  if (!options.changes.merge_adapter.empty()) require_base_weights(world, options.changes.merge_adapter, options.input);
  CopyOptions how;
  how.jobs = options.jobs;
  how.sync = options.sync;
  how.overwrite = options.overwrite;
  how.made_by = options.made_by;
  how.progress = std::move(progress);
  how.stop = std::move(stop);
  return copy(*plan.source, *plan.target, options.output, how, world);
}

Ignored left_out_by(ProcessGroup& world, const Conversion& options, const ConversionPlan& plan) {
  Ignored ignored;
  ignored.add(options.input, plan.input->unread(world));
  // Folders of trainers and of ranks have files of which their readers tell.
  const auto& info = plan.input->info();
  if (info.format != "safetensors" || !info.trainer.empty()) return ignored;
  auto used = files_read(info);
  if (!info.adapter.empty()) used.insert(kAdapterConfig);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options.output, error))
    used.insert(entry.path().filename().string());  // a file of the same name was carried along, or made
  ignored.add_files(options.input, used);
  return ignored;
}

}  // namespace fsdp
