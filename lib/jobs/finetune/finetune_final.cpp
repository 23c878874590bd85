// --save-final-full and --save-final-hf: the run in one file, and the model as transformers opens it. Both are made
// from a distributed checkpoint by all ranks together.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "lib/base/path_below.hpp"
#include "lib/base/text_format.hpp"
#include "lib/convert/convert_job_output.hpp"
#include "lib/formats/safetensors.hpp"
#include "lib/jobs/finetune/final_outputs.hpp"
#include "lib/jobs/finetune/finetune_job.hpp"
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
  const SafetensorsModel model(directory);
  for (const auto& [name, entry] : model.tensors()) bytes[entry.dtype] += entry.end - entry.begin;
  auto most = DType::f32;
  for (const auto& [dtype, count] : bytes) {
    if (count > bytes[most]) most = dtype;
  }
  return std::string(torch_name(most));
}

}  // namespace

/// Before hours of training, not after them.
void FinetuneJob::check_final_outputs() {
  FinalOutputs outputs;
  const auto& full = outputs.full = options_.save_final_full;
  if (full.empty() && options_.save_final_hf.empty()) return;
  // "out/" and "out" are the same directory.
  if (!options_.save_final_hf.empty()) outputs.hf = (std::filesystem::path(options_.save_final_hf) / "").parent_path();
  const auto suffix = full.extension();
  if (!full.empty() && suffix != ".pt" && suffix != ".pth" && suffix != ".bin" && !is_safetensors(full)) {
    throw UsageError(
        fmt::format("--save-final-full {}: end the name with .pt, .pth, .bin or .safetensors", full.string()));
  }
  const char* option = full.empty() ? "--save-final-hf" : "--save-final-full";
  if (options_.max_epochs < 0 && options_.max_steps == 0) {
    throw UsageError(std::string(option) + " is written at the end of training, --max-epochs -1 does not train");
  }
  outputs.run_directory = directory_;
  const auto add = [&](const char* name, const std::filesystem::path& input) {
    if (!input.empty()) outputs.inputs.emplace_back(name, input);
  };
  add("the folder of --model", options_.model.directory);
  add("the data of --train-data", options_.train_data);
  add("the data of --val-data", options_.val_data);
  add("the folder of --tokenizer", options_.model.tokenizer == "gpt2" ? "" : options_.model.tokenizer);
  if (restart_) {
    // A chain may go on from its one file and write it again.
    const auto& checkpoint = restart_->candidates.front();
    if (full.empty() || !path_below(checkpoint, full)) add("the checkpoint", checkpoint);
    if (restart_->knows_run()) {
      add("the model that the run began with", restart_->manifest.data.value("weights", std::string()));
    }
  }
  run_agreed(world_, [&] {
    if (world_.rank() == 0) fsdp::check_final_outputs(outputs);
  });
}

/// Writes what was asked for. False when it was asked to stop; nothing is under the outputs' names then.
/// \param checkpoint  holds the state as it is now; empty: there is none (--no-save), so one is made for the time being
bool FinetuneJob::save_final(const std::filesystem::path& checkpoint) {
  if (options_.save_final_full.empty() && options_.save_final_hf.empty()) return true;
  const TemporaryDirectory temporary(directory_ / ".final-full", world_.rank() == 0);
  world_.barrier();
  const auto source = state_for_final(checkpoint, temporary.path());
  const bool done =
      (options_.save_final_full.empty() || save_full(source)) && (options_.save_final_hf.empty() || save_hf(source));
  world_.barrier();  // before the temporary checkpoint goes
  return done;
}

std::filesystem::path FinetuneJob::state_for_final(std::filesystem::path checkpoint,
                                                   const std::filesystem::path& temporary) {
  if (!checkpoint.empty()) return checkpoint;
  CheckpointSaver saver(*runtime_, trainer_->optimizer(), temporary, 0);
  saver.start(manifest(), current_lr());
  const auto result = saver.finish();
  if (!result.saved) throw IoError("the state at the end could not be written: " + result.error);
  return result.path;
}

bool FinetuneJob::save_full(const std::filesystem::path& checkpoint) {
  const auto start = Clock::now();
  CopyOptions options;
  options.overwrite = true;
  options.sync = true;
  options.stop = [this] { return signal_.received() != 0; };
  try {
    const auto copied = write_full(checkpoint, options_.save_final_full, options, world_);
    log_.info(fmt::format("full      {}   {} in {:.1f} s", options_.save_final_full,
                          format_bytes(static_cast<double>(copied.bytes_written)), seconds_since(start)));
    return true;
  } catch (const Stopped& stopped) {
    log_.warning(fmt::format("--save-final-full {}: {}", options_.save_final_full, stopped.what()));
    return false;
  }
}

/// In the type of the weights that the run began with; with their config and tokenizer beside.
bool FinetuneJob::save_hf(const std::filesystem::path& checkpoint) {
  const auto start = Clock::now();
  ConvertOptions options;
  options.paths = {checkpoint.string(), options_.save_final_hf};
  options.to = "hf";
  options.overwrite = true;
  options.sync = true;
  options.tokenizer = tokenizer_name_;
  options.job.quiet = true;
  options.job.json = true;  // nothing on stdout
  auto weights = options_.model.directory;
  if (weights.empty() && restart_ && restart_->knows_run()) {
    weights = restart_->manifest.data.value("weights", std::string());
  }
  std::error_code error;
  if (!weights.empty() && std::filesystem::exists(std::filesystem::path(weights) / "config.json", error)) {
    options.config_from = weights;
    options.input.dtype = stored_dtype(weights);
  }
  nlohmann::json report;
  try {
    run_conversion(world_, options, Logger(world_.rank(), LogLevel::warning), report);
  } catch (const Stopped& stopped) {
    log_.warning(fmt::format("--save-final-hf {}: {}", options_.save_final_hf, stopped.what()));
    return false;
  }
  log_.info(fmt::format("hf        {}   {} in {:.1f} s", options_.save_final_hf,
                        format_bytes(report.value("bytes", 0.0)), seconds_since(start)));
  return true;
}

}  // namespace fsdp::detail
