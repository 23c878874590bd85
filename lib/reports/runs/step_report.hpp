#pragma once
// The numbers of a training step, and one table of how each is reduced over ranks and what metrics.jsonl and
// TensorBoard call it. A metric is a field and a row here, and its value where the trainer computes it.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace fsdp {

struct StepReport {
  std::int64_t step = 0;  ///< counted from 1
  double loss = 0;        ///< mean over `weight`, before the update; 0 where that is 0
  double grad_norm = 0;   ///< before clipping
  double lr = 0;
  std::int64_t tokens = 0;        ///< targets of the step, all ranks
  double weight = 0;              ///< what `loss` is a mean over, all ranks: the tokens, if each of them weighs 1
  std::int64_t first_sample = 0;  ///< its place in the data order, counted from 0
  std::int64_t samples = 0;
  double seconds = 0;
  double data_wait_seconds = 0;
  double device_gap_seconds = 0;  ///< from the end of the step before to the first work, on the device; 0: none before
  std::int64_t peak_memory_bytes = 0;
  std::int64_t peak_rss_bytes = 0;                                 ///< resident set so far, libraries included
  std::int64_t reserved_bytes = 0;                                 ///< CUDA
  std::int64_t alloc_retries = 0;                                  ///< CUDA, since the start
  std::int64_t num_ooms = 0;                                       ///< CUDA, likewise
  std::int64_t longest_row = 0;                                    ///< tokens of a sequence of the longest micro-batch
  double update_seconds = 0;                                       ///< of the optimizer
  std::int64_t update_bytes = 0;                                   ///< moved to and from a disk meanwhile, this rank's
  double offload_wait_seconds = 0;                                 ///< stood still for a disk
  std::int64_t offload_bytes_read = 0, offload_bytes_written = 0;  ///< this rank's
  // Since the start:
  std::int64_t graphs = 0;  ///< micro-batches launched as one CUDA graph
  std::int64_t shard_all_gathers = 0, shard_reduce_scatters = 0, shard_bytes = 0;
  std::int64_t replicate_all_reduces = 0, replicate_bytes = 0;

  bool skipped = false;   ///< loss or gradient norm is not finite on some rank: nothing was updated
  bool overflow = false;  ///< skipped for a loss scale of fp16 that was too large, and is smaller now
  bool stopped = false;   ///< asked to stop during the step: nothing was updated

  /// A sum that the objective or a layer adds to beside the loss, divided by `weight`; of entropies by `tokens`. Those
  /// that are not a number are left out: the step has no row that they are of.
  struct Mean {
    std::string name;
    double value = 0;
  };
  std::vector<Mean> means;
  /// The part of a source in a step of a mixture, over all ranks.
  struct SourcePart {
    std::string name;
    double loss = 0;    ///< mean over the source's weight; 0 where that is 0
    double weight = 0;  ///< the source's part of `weight`
  };
  std::vector<SourcePart> sources;  ///< none where the data have one source

  // The run's log adds:
  double tokens_per_second = 0;
  double mfu = 0;         ///< part of the peak of FLOP/s that is used
  double loss_scale = 0;  ///< fp16, after the step

  /// A step whose samples have no targets has none.
  bool has_loss() const { return weight > 0; }
};

struct StepMetric {
  /// The steps that have the metric.
  enum class In { all, on_gpu, with_offload, with_known_peak, with_loss_scale };
  using Field = std::variant<double StepReport::*, std::int64_t StepReport::*>;

  std::string_view key;  ///< in metrics.jsonl, a slash before the key within an object; "": not written
  Field field;
  std::string_view tag = {};    ///< TensorBoard's; "": not shown
  bool worst_of_ranks = false;  ///< the largest value of any rank counts; else the first rank's, or all ranks agree
  In in = In::all;

  double value(const StepReport& report) const {
    return std::visit([&](auto member) { return static_cast<double>(report.*member); }, field);
  }
  void set(StepReport& report, double value) const {
    std::visit([&](auto member) { report.*member = static_cast<std::decay_t<decltype(report.*member)>>(value); },
               field);
  }
};

/// Object of metrics.jsonl with what a step had of each source of a mixture, by the sources' names, {"samples",
/// "tokens", "loss", "epochs"}: epochs of the source so far; and begins of the tags.
inline constexpr const char* kSourcesKey = "sources";
inline constexpr std::string_view kSourceLossTag = "train/loss_of/", kSourceEpochsTag = "train/epochs_of/";

/// Object of metrics.jsonl with StepReport::means by their names, where there are any, and begin of their tags.
inline constexpr const char* kMeansKey = "means";
inline constexpr std::string_view kMeansTag = "train/";
/// The same of a validation.
inline constexpr const char* kValMeansKey = "val_means";
inline constexpr std::string_view kValMeansTag = "eval/";
/// The share of preferences whose chosen side has the higher reward.
inline constexpr const char* kRewardAccuracy = "reward_accuracy";
/// True for the mean that says how often a model is right: of preferences, or of labels.
inline bool is_accuracy(std::string_view mean) { return mean.ends_with("_accuracy"); }

inline constexpr std::array kStepMetrics{
    StepMetric{.key = "step", .field = &StepReport::step},
    StepMetric{.key = "loss", .field = &StepReport::loss, .tag = "train/loss"},
    StepMetric{.key = "grad_norm", .field = &StepReport::grad_norm, .tag = "train/grad_norm"},
    StepMetric{.key = "lr", .field = &StepReport::lr, .tag = "train/lr"},
    StepMetric{.key = "tokens", .field = &StepReport::tokens},
    StepMetric{.key = "tokens_per_second", .field = &StepReport::tokens_per_second, .tag = "train/tokens_per_second"},
    StepMetric{.key = "step_seconds", .field = &StepReport::seconds, .tag = "train/step_seconds"},
    StepMetric{.key = "data_wait_seconds",
               .field = &StepReport::data_wait_seconds,
               .tag = "train/data_wait_seconds",
               .worst_of_ranks = true},
    StepMetric{.key = "device_gap_seconds",
               .field = &StepReport::device_gap_seconds,
               .tag = "train/device_gap_seconds",
               .worst_of_ranks = true,
               .in = StepMetric::In::on_gpu},
    StepMetric{.key = "mfu", .field = &StepReport::mfu, .tag = "train/mfu", .in = StepMetric::In::with_known_peak},
    StepMetric{.key = "loss_scale",
               .field = &StepReport::loss_scale,
               .tag = "train/loss_scale",
               .in = StepMetric::In::with_loss_scale},
    StepMetric{.key = "peak_memory_bytes",
               .field = &StepReport::peak_memory_bytes,
               .tag = "memory/peak_bytes",
               .worst_of_ranks = true},
    StepMetric{.key = "peak_rss_bytes",
               .field = &StepReport::peak_rss_bytes,
               .tag = "memory/peak_resident_bytes",
               .worst_of_ranks = true},
    StepMetric{.key = "reserved_memory_bytes",
               .field = &StepReport::reserved_bytes,
               .tag = "memory/reserved_bytes",
               .worst_of_ranks = true,
               .in = StepMetric::In::on_gpu},
    StepMetric{.key = "alloc_retries",
               .field = &StepReport::alloc_retries,
               .tag = "memory/alloc_retries",
               .worst_of_ranks = true,
               .in = StepMetric::In::on_gpu},
    StepMetric{.key = "", .field = &StepReport::num_ooms, .worst_of_ranks = true},
    StepMetric{.key = "", .field = &StepReport::longest_row, .worst_of_ranks = true},
    StepMetric{.key = "cuda_graphs", .field = &StepReport::graphs, .in = StepMetric::In::on_gpu},
    StepMetric{.key = "collectives/shard/all_gathers", .field = &StepReport::shard_all_gathers},
    StepMetric{.key = "collectives/shard/reduce_scatters", .field = &StepReport::shard_reduce_scatters},
    StepMetric{.key = "collectives/shard/bytes", .field = &StepReport::shard_bytes},
    StepMetric{.key = "collectives/replicate/all_reduces", .field = &StepReport::replicate_all_reduces},
    StepMetric{.key = "collectives/replicate/bytes", .field = &StepReport::replicate_bytes},
    StepMetric{.key = "update_seconds",
               .field = &StepReport::update_seconds,
               .worst_of_ranks = true,
               .in = StepMetric::In::with_offload},
    StepMetric{.key = "offload/wait_seconds",
               .field = &StepReport::offload_wait_seconds,
               .worst_of_ranks = true,
               .in = StepMetric::In::with_offload},
    StepMetric{
        .key = "offload/bytes_read", .field = &StepReport::offload_bytes_read, .in = StepMetric::In::with_offload},
    StepMetric{.key = "offload/bytes_written",
               .field = &StepReport::offload_bytes_written,
               .in = StepMetric::In::with_offload},
};

/// Key of a field of StepReport in metrics.jsonl.
template <class T>
consteval const char* key_of(T StepReport::*field) {
  for (const auto& metric : kStepMetrics) {
    // Not by get_if(), whose comparison with null GCC 12 does not compute at compile time with UBSan.
    if (std::holds_alternative<T StepReport::*>(metric.field) && std::get<T StepReport::*>(metric.field) == field)
      return metric.key.data();
  }
  throw "metrics.jsonl does not have this field";
}

/// Object of a line of metrics.jsonl that compares the ranks in an interval of steps (lib/flight/straggler.hpp), and
/// its number for the share of time in which they waited for the slowest one.
inline constexpr const char* kRanksKey = "ranks";
inline constexpr const char* kWaitShareKey = "wait_share";

/// Objects of a line of metrics.jsonl with the figures of benchmarks, {"TASK.METRIC": {"value", "stderr",
/// "higher_is_better"}}: of those that were asked for, and of those within groups; and begin of their tags.
inline constexpr const char* kTasksKey = "tasks";
inline constexpr const char* kSubtasksKey = "subtasks";
inline constexpr std::string_view kTasksTag = "tasks/";

/// A result of a validation, as metrics.jsonl and TensorBoard call it.
struct EvalMetric {
  const char* key;
  std::string_view tag;
  bool of_games = false;
};
inline constexpr std::array kEvalMetrics{
    EvalMetric{.key = "val_loss", .tag = "validation/loss"},
    EvalMetric{.key = "val_perplexity", .tag = "validation/perplexity"},
    EvalMetric{.key = "chess_accuracy", .tag = "validation/chess_accuracy", .of_games = true},
    EvalMetric{.key = "chess_legal", .tag = "validation/chess_legal", .of_games = true},
    EvalMetric{.key = "chess_result", .tag = "validation/chess_result", .of_games = true}};

}  // namespace fsdp
