#pragma once
// Compares what the ranks' time goes into, names a rank for which the others wait, and what slows it down
// (lib/flight/straggler.hpp).
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "lib/base/messages/log.hpp"
#include "lib/base/messages/progress.hpp"
#include "lib/base/process/process_strain.hpp"
#include "lib/compute/device/nvml.hpp"
#include "lib/engine/collectives/device_backend.hpp"
#include "lib/flight/straggler.hpp"
#include "lib/flight/time_use.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/training/run/step_observer.hpp"

namespace fsdp::detail {

/// Now and then all ranks exchange 13 numbers. How many steps lie between follows from the numbers themselves, which
/// are the same on all ranks. A job of one rank, or without a record of its ranks' time, compares nothing.
class PaceObserver final : public StepObserver {
 public:
  /// All of them must outlive the observer.
  struct Input {
    ProcessGroup& world;
    const DeviceBackend* backend;  ///< null: the ranks have no GPU
    int device;
    Progress& progress;
    const Logger& log;
    std::function<void(const nlohmann::json&)> add_metrics;  ///< adds a line of metrics.jsonl
    double every_seconds;                                    ///< between comparisons, about; 0: there are none
    std::filesystem::path exclude_file;                      ///< see exclude_file.hpp; empty: none
  };

  /// Collective.
  explicit PaceObserver(Input input);

  void after_step(const StepReport& step, bool last) override;
  /// The last step was made: says for which rank the others have waited, if it was long, and excludes slow nodes.
  void end();

 private:
  /// Counts since the start of the process or the boot.
  struct Reading {
    std::chrono::steady_clock::time_point time;
    TimeUse use;
    ProcessStrain strain;
    NvmlReading gpu;
  };
  Reading read() const;
  void compare(std::int64_t step);

  Input input_;
  bool is_on_;
  std::unique_ptr<NvmlGpu> gpu_;
  StragglerWatch watch_;
  Reading begin_{};  ///< of the interval
  std::int64_t num_steps_ = 0, interval_steps_ = 1;
  bool has_begun_ = false;  ///< the first step, which prepares much, is past
};

}  // namespace fsdp::detail
