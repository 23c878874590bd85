#pragma once
// A checkpoint that training goes on from: one of ours with its run.json, or what PyTorch programs write (distributed
// checkpoints, full .pt files, minimal_fsdp's restart file), safetensors, and ours after a conversion. Finds the model,
// its optimizer and where the run stood.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/messages/ignored.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/training/record/run_manifest.hpp"

namespace fsdp {

class TrackedSource;

/// A checkpoint open for reading: headers, names and a few numbers are in memory, no tensors.
/// Names are compared without the parts that wrappers add (module, _fsdp_wrapped_module, _orig_mod, ...).
class Checkpoint {
 public:
  /// \param config  config.json of the model or its directory, which tells what args of Megatron-core do not; may be
  /// empty \throws FormatError when it is no checkpoint, or holds neither minGPT nor Llama; IoError
  explicit Checkpoint(const std::filesystem::path& path, const std::filesystem::path& config = {});
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  ~Checkpoint();

  const std::filesystem::path& path() const { return path_; }
  const Source& source() const;
  /// The tensors and values that no rank has read so far. Collective.
  Ignored ignored(ProcessGroup& ranks) const;

  /// The tensor of this name in the model's state dict.
  std::optional<std::size_t> parameter(const std::string& name) const;
  /// Names in the model's state dict, buffers too.
  std::vector<std::string> model_names() const;
  /// The tensor of this name in the whole checkpoint.
  std::optional<std::size_t> tensor(const std::string& name) const;
  bool has_value(const std::string& name) const { return values_.contains(name); }
  /// Names of all tensors, in order.
  const std::map<std::string, std::size_t>& tensors() const { return tensors_; }
  /// A number: a python value, or a tensor with one element. Nothing when there is none of that name.
  std::optional<double> number(const std::string& name) const;
  /// A list of python values, which may be stored as one value or one by one; empty: there is none of that name.
  nlohmann::json list(const std::string& name) const;
  /// An entry of `args` (dict or argparse.Namespace), the first of these names that is a whole number.
  std::optional<std::int64_t> argument(const std::vector<std::string>& names) const;

  /// A directory with run.json: whole as it was saved, with AdamW state of every parameter.
  bool is_ours() const { return is_ours_; }
  /// It holds adapters alone: of ours, by a run with --lora-rank.
  bool has_adapters_only() const;
  /// Everything about the run, when fsdp-finetune wrote it: run.json, or "run" in a checkpoint that was converted.
  const std::optional<RunManifest>& run() const { return run_; }
  /// Optimizer steps, as the checkpoint itself counts them: the name under which, and how many.
  const std::optional<std::pair<std::string, std::int64_t>>& step() const { return step_; }
  /// Tokens that the run has read, as its trainer counts them; nothing where it does not count.
  std::optional<std::int64_t> tokens_seen() const;
  /// The learning rate that its schedule starts from, else the present one, if all parameter groups have one.
  std::optional<double> learning_rate() const;
  /// The prefix that a module around the model gives its parameters' names ("net."), under which its optimizer may have
  /// them; "" none.
  const std::string& module_prefix() const { return module_prefix_; }
  /// Epochs that are finished (minimal_fsdp's epoch_number is the last finished one, counted from 0).
  const std::optional<std::int64_t>& epochs_done() const { return epochs_done_; }

 private:
  /// The prefixes in front of any of these names.
  std::vector<std::string> prefixes_of(std::span<const std::string_view> marks) const;
  void find_model();
  void find_run();
  void find_progress();
  /// A number of steps or tokens. \throws FormatError for a negative number or a fraction
  std::optional<std::int64_t> count(const std::string& name) const;

  std::filesystem::path path_;
  std::unique_ptr<TrackedSource> source_;
  std::map<std::string, std::size_t> tensors_;  // by name without wrappers' parts
  std::map<std::string, std::size_t> values_;
  std::string model_prefix_, module_prefix_;
  bool is_ours_ = false;
  std::optional<RunManifest> run_;
  std::optional<std::pair<std::string, std::int64_t>> step_;
  std::optional<std::int64_t> epochs_done_;
};

// Which checkpoint is meant.

/// True when `text` is the word "latest", a path that ends in it, or the folder of a run or of its checkpoints, which
/// stands for the latest of them.
bool names_latest(const std::string& text);

/// Checkpoints to try, best first: the one at `text` (a directory, a file or a link to one), and for "latest" (the
/// word, a path that ends in it, or a run's folder) the older ones after it. \param checkpoints  OUT/RUN/checkpoints,
/// where the words "latest" and "best" look \throws IoError when there is nothing at `text`
std::vector<std::filesystem::path> checkpoint_candidates(const std::string& text,
                                                         const std::filesystem::path& checkpoints);

/// A checkpoint of any program whose headers are sound.
/// \param ours_only  it must be a directory of ours: whatever "latest" leads to
/// \param config  as in Checkpoint
/// \throws FormatError saying what it is not; MissingInput
std::shared_ptr<const Checkpoint> open_checkpoint(const std::filesystem::path& path, bool ours_only,
                                                  const std::filesystem::path& config = {});

}  // namespace fsdp
