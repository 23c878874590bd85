#include "tests/gpu/stub_stall.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

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

std::atomic<int> queued{0}, communicators{0}, blocked_threads{0};

struct Queues {
  std::mutex mutex;
  std::map<const void*, int> entries;  ///< of each stream, since the stall
};
Queues& queues() {
  static auto* const the_queues = new Queues;  // never destroyed: launches may come during static destruction
  return *the_queues;
}

}  // namespace

void collective_queued() {
  if (++queued != plan().number) return;
  const char* rank = std::getenv("PMI_RANK");
  if (rank == nullptr || std::atoi(rank) != plan().rank) return;
  static_cast<void>(::raise(std::strcmp(plan().how.data(), "kill") == 0 ? SIGKILL : SIGSTOP));
}

void communicator_made() { ++communicators; }
void communicator_ended() { --communicators; }

bool stalled() { return plan().number > 0 && queued >= plan().number && communicators > 0; }

void wait_for_device() {
  while (stalled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void queue_entry(const void* stream) {
  if (!stalled()) return;
  constexpr int kRoom = 1000;
  {
    const std::scoped_lock lock(queues().mutex);
    if (++queues().entries[stream] <= kRoom) return;
  }
  ++blocked_threads;
  wait_for_device();
  --blocked_threads;
}

void pass_blocked_threads() {
  if (blocked_threads > 0) wait_for_device();
}

}  // namespace stub
