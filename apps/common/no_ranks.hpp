#pragma once
#include <chrono>
#include <cstdlib>
#include <memory>

#include "lib/ranks/process_group.hpp"
#include "lib/ranks/rank_environment.hpp"

namespace fsdp {

/// For programs that run as a single process. When a launcher starts several, they do not communicate.
class NoRanks : public RankEnvironment {
 public:
  std::unique_ptr<ProcessGroup> world() override { return make_single_group(); }
  bool everyone_failed(std::chrono::milliseconds) override { return true; }
  void set_exit(int, std::chrono::milliseconds) override {}
  [[noreturn]] void abort_job(int exit_code) override { std::exit(exit_code); }
};

}  // namespace fsdp
