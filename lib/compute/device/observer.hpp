#pragma once
// Who wants to know what a run is doing: the trace, and the recorder of memory.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  /// \param category  "input", "compute", "collective", "optimizer", or "schedule": an action that only starts or ends
  ///                  something that goes on beside
  virtual void begin(std::string_view what, std::string_view category) = 0;
  /// Of what began last.
  virtual void end() = 0;
};

/// Those of one engine, in the order in which they came; they must outlive it. Costs nothing when there are none.
class EngineObservers {
 public:
  void add(EngineObserver& observer) { observers_.push_back(&observer); }

  /// Tells them from construction to destruction. `what()` is asked for only where somebody listens.
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
