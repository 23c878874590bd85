#pragma once
// Tells a rank's record of the engine's phases.
#include <cstdint>
#include <optional>
#include <string_view>

#include "lib/compute/device/observer.hpp"
#include "lib/flight/flight_recorder.hpp"

namespace fsdp {

class FlightObserver final : public EngineObserver {
 public:
  /// \param recorder  null: there is no record
  explicit FlightObserver(FlightRecorder* recorder) : recorder_(recorder) {}
  /// Phases of category "schedule" give names to the collectives in them and are not recorded themselves.
  void begin(std::string_view what, std::string_view category) override {
    if (recorder_ == nullptr) return;
    const auto kind = category == "input" ? WorkKind::read : WorkKind::compute;
    recorder_->begin_work(what, category == "schedule" ? std::nullopt : std::optional(kind));
  }
  void end() override {
    if (recorder_ != nullptr) recorder_->end_work();
  }
  void place(std::int64_t step, std::int64_t micro_batch) override {
    if (recorder_ != nullptr) recorder_->set_place(step, micro_batch);
  }

 private:
  FlightRecorder* recorder_;
};

}  // namespace fsdp
