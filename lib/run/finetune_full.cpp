// --save-final-full: the whole run in one file, made from a distributed checkpoint by all ranks together.
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/base/text_format.hpp"
#include "lib/run/finetune_job.hpp"
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

}  // namespace

/// Before hours of training, not after them.
void FinetuneJob::check_full_output() {
  const std::filesystem::path file = options_.save_final_full;
  const auto suffix = file.extension();
  if (suffix != ".pt" && suffix != ".pth" && suffix != ".bin" && !is_safetensors(file)) {
    throw UsageError(
        fmt::format("--save-final-full {}: end the name with .pt, .pth, .bin or .safetensors", file.string()));
  }
  if (options_.max_epochs < 0 && options_.max_steps == 0)
    throw UsageError("--save-final-full is written at the end of training, --max-epochs -1 does not train");
  std::string problem;
  if (world_.rank() == 0) {
    try {
      const auto folder = std::filesystem::absolute(file).parent_path();
      std::filesystem::create_directories(folder);
      const auto probe = folder / ("." + file.filename().string() + ".writable");
      replace_file(probe, "");
      std::filesystem::remove(probe);
      if (std::filesystem::is_directory(file)) problem = file.string() + ": is a directory";
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  problem = world_.broadcast_text(problem, 0);
  if (!problem.empty()) throw IoError("--save-final-full cannot be written: " + problem);
}

/// False when it was asked to stop; nothing is under the file's name then.
/// \param checkpoint  holds the state as it is now; empty: there is none (--no-save), so one is made for the time being
bool FinetuneJob::save_full(std::filesystem::path checkpoint) {
  const auto start = Clock::now();
  const TemporaryDirectory temporary(directory_ / ".final-full", world_.rank() == 0);
  world_.barrier();
  if (checkpoint.empty()) {
    CheckpointSaver saver(*runtime_, trainer_->optimizer(), temporary.path(), 0);
    saver.start(manifest(), current_lr());
    const auto result = saver.finish();
    if (!result.saved) throw IoError("--save-final-full could not be written: " + result.error);
    checkpoint = result.path;
  }
  CopyOptions options;
  options.overwrite = true;
  options.sync = true;
  options.stop = [this] { return signal_.received() != 0; };
  try {
    const auto copied = write_full(checkpoint, options_.save_final_full, options, world_);
    world_.barrier();  // before the temporary checkpoint goes
    log_.info(fmt::format("full      {}   {} in {:.1f} s", options_.save_final_full,
                          format_bytes(static_cast<double>(copied.bytes_written)), seconds_since(start)));
    return true;
  } catch (const Stopped& stopped) {
    log_.warning(fmt::format("--save-final-full {}: {}", options_.save_final_full, stopped.what()));
    return false;
  }
}

}  // namespace fsdp::detail
