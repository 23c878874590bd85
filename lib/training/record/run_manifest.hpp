#pragma once
// run.json: what a checkpoint directory is beyond its tensors. Free of LibTorch.
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include "lib/models/config/model_config.hpp"

namespace fsdp {

/// Results of a run's validations that later decisions need.
struct ValidationState {
  std::int64_t step = -1;       ///< of the last one; -1: there was none
  std::string metric = "loss";  ///< that decides; "chess_legal", ...
  std::string set;              ///< the name of the data that decide, "" where they have none; of games what they are
  std::int64_t count = 0;       ///< of the tokens, moves, positions or games that it is the mean of
  double best_value = std::numeric_limits<double>::quiet_NaN();      ///< of checkpoints/best; NaN: there is none
  std::int64_t best_step = -1;                                       ///< likewise; -1: there is none
  double patience_value = std::numeric_limits<double>::quiet_NaN();  ///< that --patience compares with; NaN: none yet
  std::int64_t without_improvement = 0;  ///< validations in a row, as --patience counts them
};

/// True if the values of both are of one metric on the same data, so that they compare.
bool measure_alike(const ValidationState& a, const ValidationState& b);

/// Where a run stands after `step` optimizer steps.
struct RunState {
  std::int64_t step = 0;
  std::int64_t samples = 0;          ///< stream positions consumed: the next step starts here
  std::int64_t optimizer_steps = 0;  ///< fewer than step when fp16 skipped some
  double loss_scale = 1.0;           ///< fp16
  std::int64_t good_steps = 0;       ///< since the scale last changed
  std::int64_t fisher_batches = 0;   ///< that Child-Tuning's D has measured before its first step
  ValidationState validation = {};
  bool validation_due = false;  ///< one falls on this step, and is not made yet
};

struct FileInfo {
  std::uint64_t size_bytes = 0;
  std::uint32_t crc32 = 0;
};

struct RunManifest {
  ModelConfig config;
  RunState state;
  nlohmann::json options = nlohmann::json::object();  ///< training options by long name, as text; resuming reads them
  nlohmann::json data = nlohmann::json::object();     ///< token file, rows
  int world_size = 1;
  std::string products;  ///< how matrices were multiplied, RunContext::products; "" in older checkpoints
  std::map<std::string, FileInfo> files;  ///< data files and .metadata
  bool passing = false;  ///< of no use when another one is checkpoints/best, or newer; "only_as_best" in run.json
  bool weights_alone =
      false;  ///< the optimizer's state was taken out (lib/checkpoints/programs/fsdp_finetune/weights_alone.hpp)
};

/// The part of a manifest that belongs to the run rather than to one directory: everything but `files`. Checkpoints
/// carry it as python values under "run" too, so that it outlives a conversion to a format without run.json.
nlohmann::json run_manifest_to_json(const RunManifest& manifest);
/// \throws FormatError naming `source` and the field that is missing or wrong
RunManifest run_manifest_from_json(const nlohmann::json& json, const std::string& source);

/// Atomically replaces DIR/run.json; the text carries its own checksum.
void write_run_manifest(const std::filesystem::path& directory, const RunManifest& manifest);

/// \throws FormatError when run.json is damaged, or a file is missing, has another size or (for .metadata) another
///         checksum than it was saved with; IoError when there is no run.json
RunManifest read_run_manifest(const std::filesystem::path& directory);

/// CRC-32 of a whole file.
FileInfo describe_file(const std::filesystem::path& path);

// Consequences of a validation for the run: whether it is the best so far, and whether the run continues.

/// The decisions that validations make.
struct ValidationRules {
  bool keeps_best = false;        ///< the best checkpoint
  std::int64_t patience = 0;      ///< validations in a row without improvement that end the run; 0: none do
  double min_delta = 0;           ///< by how much a value must be better to be an improvement, for `patience`
  bool higher_is_better = false;  ///< a share of what was right, not a loss

  bool decide() const { return keeps_best || patience > 0; }
};

/// A value of the deciding metric; see ValidationState.
struct DecidingValue {
  std::int64_t step = 0;
  std::string set;
  std::int64_t count = 0;
  double value = 0;
  bool may_be_best = true;  ///< false: the model is not to be saved as it is
  std::string metric = ValidationState().metric;
};

struct ValidationVerdict {
  bool is_best = false;     ///< better than all before: to be kept
  bool began_anew = false;  ///< something else has decided until now: what that came to is forgotten
};

/// Takes a validation into account. A value that is not finite is never the best, and no improvement; one of a step
/// that was validated before (a restart does that) is not counted once more.
ValidationVerdict judge_validation(ValidationState& state, const ValidationRules& rules, const DecidingValue& found);

/// True after `patience` validations without improvement.
bool out_of_patience(const ValidationState& state, const ValidationRules& rules);

}  // namespace fsdp
