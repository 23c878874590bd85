#pragma once
// Parts of a run that do nothing, for tests of the loop and the executor.
#include <string>

#include "lib/base/types/error.hpp"
#include "lib/training/run/run_parts.hpp"

namespace fsdp::test {

class IdleRun final : public RunFolder, public RunValidation, public RunOutputs {
 public:
  bool is_open() const override { return is_open_; }
  SettledBest open() override {
    is_open_ = true;
    return {};
  }
  void check_owner(bool) override {}
  void start_save(bool) override {}
  std::optional<bool> finish_save(bool, const std::function<void()>& appeared) override {
    appeared();
    return true;
  }
  double seconds_since_save() const override { return 0; }
  const std::string& save_error() const override { return no_error_; }
  std::optional<bool> amend_checkpoint() override { return true; }
  bool prune(std::int64_t) override { return false; }
  void strip(std::int64_t, bool) override {}
  void keep_for_good(std::int64_t) override {}
  bool make_link(const RunAction&, const RunLife&) override { return true; }
  [[noreturn]] void give_up(const std::string& why, const RunLife&) override { throw RuntimeFailure(why); }
  bool run(const std::function<void()>& poll) override {
    poll();
    return true;
  }
  std::optional<DecidingValue> deciding_value() const override { return std::nullopt; }
  bool falls_behind() const override { return false; }
  void tell(const RunLife&) override {}
  double probe_loss() override { return 0; }
  void write_adapter() override {}
  bool export_files(bool) override { return true; }

 private:
  bool is_open_ = false;
  std::string no_error_;
};

}  // namespace fsdp::test
