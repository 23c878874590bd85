#include "lib/jobs/finetune/final_exports.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "lib/base/elapsed.hpp"
#include "lib/base/error.hpp"
#include "lib/base/path_below.hpp"
#include "lib/base/text_format.hpp"
#include "lib/checkpoint/adapter_files.hpp"
#include "lib/checkpoint/save.hpp"
#include "lib/convert/convert_job_output.hpp"
#include "lib/jobs/finetune/final_outputs.hpp"
#include "lib/mpi/agree.hpp"
#include "lib/source/source.hpp"
#include "lib/target/copy.hpp"
#include "lib/target/safetensors_target.hpp"
#include "lib/target/torch_target.hpp"

namespace fsdp::detail {
namespace {

bool is_safetensors(const std::filesystem::path& file) { return file.extension() == ".safetensors"; }

/// Removed when it goes out of scope, by the rank that made it.
class TemporaryDirectory {
 public:
  TemporaryDirectory(std::filesystem::path path, bool mine) : path_(std::move(path)), mine_(mine) { remove(); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() { remove(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  void remove() const {
    std::error_code ignored;
    if (mine_) std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path path_;
  bool mine_;
};

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

/// The floating-point type that most of a model's bytes have.
std::string stored_dtype(const std::filesystem::path& directory) {
  std::map<DType, std::uint64_t> bytes;
  const auto source = open_source(directory);
  for (const auto& tensor : source->tensors()) bytes[tensor.dtype] += tensor.stored_bytes;
  auto most = DType::f32;
  for (const auto& [dtype, count] : bytes) {
    if (count > bytes[most]) most = dtype;
  }
  return std::string(torch_name(most));
}

}  // namespace

void check_final_exports(ProcessGroup& world, const RunSetup& setup) {
  FinalOutputs outputs;
  const auto& full = outputs.full = setup.options.save_final_full;
  if (!exports_at_the_end(setup.options)) return;
  // "out/" and "out" are the same directory.
  if (!setup.options.save_final_hf.empty())
    outputs.hf = (std::filesystem::path(setup.options.save_final_hf) / "").parent_path();
  const auto suffix = full.extension();
  if (!full.empty() && suffix != ".pt" && suffix != ".pth" && suffix != ".bin" && !is_safetensors(full)) {
    throw UsageError(
        fmt::format("--save-final-full {}: end the name with .pt, .pth, .bin or .safetensors", full.string()));
  }
  const char* option = full.empty() ? "--save-final-hf" : "--save-final-full";
  if (!trains(setup.options)) {
    throw UsageError(std::string(option) + " is written at the end of training, --max-epochs -1 does not train");
  }
  outputs.run_directory = setup.directory;
  const auto add = [&](const char* name, const std::filesystem::path& input) {
    if (!input.empty()) outputs.inputs.emplace_back(name, input);
  };
  add("the folder of --model", setup.options.model.directory);
  add("the data of --train-data", setup.options.train_data);
  for (const auto& set : setup.options.val_sets) add("the data of --val-data", set.path);
  add("the games of --val-chess", setup.options.validation.games.data);
  add("the folder of --tokenizer", setup.options.model.tokenizer == "gpt2" ? "" : setup.options.model.tokenizer);
  if (setup.restart) {
    // A chain may go on from its one file and write it again.
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

bool FinalExports::write(const std::filesystem::path& checkpoint) {
  if (!exports_at_the_end(context_.setup.options)) return true;
  const TemporaryDirectory temporary(context_.setup.directory / ".final-full", context_.world.rank() == 0);
  context_.world.barrier();
  const bool done = context_.runtime.has_adapters() ? save_merged(temporary.path())
                                                    : save_model(state_for_final(checkpoint, temporary.path()));
  context_.world.barrier();  // before the temporary checkpoint goes
  return done;
}

bool FinalExports::save_model(const std::filesystem::path& checkpoint) {
  return (context_.setup.options.save_final_full.empty() || save_full(checkpoint)) &&
         (context_.setup.options.save_final_hf.empty() || save_hf(of_checkpoint(checkpoint)));
}

/// The weights that adapters were trained beside, and the adapters, as one model: in the type that these weights have,
/// or in 4 bits again where the run had them so.
bool FinalExports::save_merged(const std::filesystem::path& temporary) {
  const auto adapter = temporary / "adapter";
  const auto& base = context_.runtime.base().directory;
  save_adapter(context_.runtime, adapter, base);
  context_.world.barrier();
  ConvertOptions options;
  options.paths = {base, context_.setup.options.save_final_hf};
  options.input.merge_adapter = adapter.string();
  options.input.quantize = context_.runtime.decoder().options.quantize;
  return save_hf(std::move(options));
}

std::filesystem::path FinalExports::state_for_final(std::filesystem::path checkpoint,
                                                    const std::filesystem::path& temporary) {
  if (!checkpoint.empty()) return checkpoint;
  CheckpointSaver saver(context_.runtime, context_.trainer.optimizer(), temporary, 0);
  saver.start(context_.manifest(), context_.current_lr());
  const auto result = saver.finish();
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

/// In the type of the weights that the run began with; with their config and tokenizer beside.
ConvertOptions FinalExports::of_checkpoint(const std::filesystem::path& checkpoint) const {
  ConvertOptions options;
  options.paths = {checkpoint.string(), context_.setup.options.save_final_hf};
  options.tokenizer = context_.setup.tokenizer.name;
  auto weights = context_.setup.options.model.directory;
  if (weights.empty() && taken_ && taken_->knows_run) {
    weights = taken_->manifest.data.value("weights", std::string());
  }
  std::error_code error;
  if (!weights.empty() && std::filesystem::exists(std::filesystem::path(weights) / "config.json", error)) {
    options.config_from = weights;
    options.input.dtype = stored_dtype(weights);
  }
  return options;
}

bool FinalExports::save_hf(ConvertOptions options) {
  const auto start = std::chrono::steady_clock::now();
  options.to = "hf";
  options.overwrite = true;
  options.sync = true;
  options.job.quiet = true;
  options.job.json = true;  // nothing on stdout
  nlohmann::json report;
  try {
    run_conversion(context_.world, options, Logger(context_.world.rank(), LogLevel::warning), report);
  } catch (const Stopped& stopped) {
    context_.log.warning(fmt::format("--save-final-hf {}: {}", context_.setup.options.save_final_hf, stopped.what()));
    return false;
  }
  context_.log.info(fmt::format("hf        {}   {} in {:.1f} s", context_.setup.options.save_final_hf,
                                format_bytes(report.value("bytes", 0.0)), seconds_since(start)));
  return true;
}

}  // namespace fsdp::detail
