#include "tests/gpu/stub_stall.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace stub {
namespace {

struct Plan {
  int number = 0, rank = 0;
  std::array<char, 8> how{};
};

Plan read_plan() {
  Plan plan;
  const char* text = std::getenv("FSDP_STUB_STALL");
  if (text != nullptr && std::sscanf(text, "%d:%d:%7s", &plan.number, &plan.rank, plan.how.data()) != 3) std::abort();
  return plan;
}

const Plan& plan() {
  static const Plan the_plan = read_plan();
  return the_plan;
}

std::atomic<int> queued{0};

}  // namespace

void collective_queued() {
  if (++queued != plan().number) return;
  const char* rank = std::getenv("PMI_RANK");
  if (rank == nullptr || std::atoi(rank) != plan().rank) return;
  static_cast<void>(::raise(std::strcmp(plan().how.data(), "kill") == 0 ? SIGKILL : SIGSTOP));
}

bool stalled() { return plan().number > 0 && queued >= plan().number; }

void wait_for_device() {
  while (stalled()) ::pause();
}

}  // namespace stub
