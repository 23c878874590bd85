#pragma once
// Observers of an engine's phases: the trace and the memory recorder.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  /// \param category  "input", "compute", "collective", "optimizer", or "schedule": an action that only
  ///                  starts or ends asynchronous work
  virtual void begin(std::string_view what, std::string_view category) = 0;
  /// Ends the phase that began last.
  virtual void end() = 0;
  /// Later phases belong to this micro-batch. \param step  0: to none
  virtual void place([[maybe_unused]] std::int64_t step, [[maybe_unused]] std::int64_t micro_batch) {}
};

/// The observers of one engine, in order of registration. Observers must outlive the engine.
class EngineObservers {
 public:
  void add(EngineObserver& observer) { observers_.push_back(&observer); }
  void place(std::int64_t step, std::int64_t micro_batch) const {
    for (auto* observer : observers_) observer->place(step, micro_batch);
  }

  /// Reports a phase from construction to destruction. `what()` is called only if there are observers.
  class Scope {
   public:
    Scope(const EngineObservers& observers, const std::function<std::string()>& what, std::string_view category)
        : observers_(observers) {
      if (observers_.observers_.empty()) return;
      const auto name = what();
      for (auto* observer : observers_.observers_) observer->begin(name, category);
    }
    Scope(const EngineObservers& observers, const char* what, std::string_view category) : observers_(observers) {
      for (auto* observer : observers_.observers_) observer->begin(what, category);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      for (auto* observer : observers_.observers_) observer->end();
    }

   private:
    const EngineObservers& observers_;
  };

 private:
  std::vector<EngineObserver*> observers_;
};

}  // namespace fsdp
