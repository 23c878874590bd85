#include "lib/ranks/process_group.hpp"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <ctime>
#include <limits>
#include <thread>

#include "lib/base/types/error.hpp"
#include "lib/flight/flight_recorder.hpp"
#include "lib/ranks/heap_peer_memory.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fsdp {
namespace {

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

/// The half of a counter that changes with each step of one, which the kernel compares.
std::uint32_t* low_word(std::atomic<std::uint64_t>& value) {
  return reinterpret_cast<std::uint32_t*>(&value) + (std::endian::native == std::endian::big ? 1 : 0);
}

/// Sleeps until the counter changes, for 20 ms at most: a rank that died raises nothing, and timeouts are checked.
void sleep_until_raised(SharedCounter& counter, std::uint64_t value) {
  constexpr timespec longest{0, 20'000'000};
  counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const auto seen = counter.value.load(std::memory_order_seq_cst);
  if (seen < value)
    ::syscall(SYS_futex, low_word(counter.value), FUTEX_WAIT, static_cast<std::uint32_t>(seen), &longest, nullptr, 0);
  counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

class SingleGroup final : public ProcessGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void barrier() override {}
  void all_reduce(std::span<double>, Reduce) override {}
  void broadcast(std::span<std::byte>, int) override {}
  std::vector<std::string> gather(std::string_view text, int) override { return {std::string(text)}; }
  std::unique_ptr<Work> all_gather(std::span<const GatherBlock> blocks) override {
    for (const auto& block : blocks) std::memcpy(block.out.data(), block.in.data(), block.in.size());
    return std::make_unique<DoneWork>();
  }
  std::unique_ptr<Work> all_to_all(std::span<const ExchangeBlock> blocks) override {
    for (const auto& block : blocks) std::memcpy(block.out.data(), block.in.data(), block.in.size());
    return std::make_unique<DoneWork>();
  }
  std::unique_ptr<ProcessGroup> split(int) override { return std::make_unique<SingleGroup>(); }
  std::unique_ptr<ProcessGroup> split_by_node() override { return std::make_unique<SingleGroup>(); }
  std::unique_ptr<PeerMemory> peer_memory(std::size_t size_bytes, std::size_t num_counters) override {
    return std::make_unique<detail::HeapPeerMemory>(std::make_shared<detail::HeapRegion>(size_bytes, num_counters));
  }
  std::chrono::milliseconds timeout() const override { return std::chrono::hours(24); }
  int world_rank(int) const override { return 0; }
};

}  // namespace

double ProcessGroup::all_reduce(double value, Reduce op) {
  all_reduce(std::span(&value, 1), op);
  return value;
}

std::string ProcessGroup::broadcast_text(std::string_view text, int root) {
  std::uint64_t length = text.size();
  broadcast(std::as_writable_bytes(std::span(&length, 1)), root);
  std::string copy(length, '\0');
  if (rank() == root) copy = text;
  broadcast(std::as_writable_bytes(std::span(copy.data(), copy.size())), root);
  return copy;
}

void SharedCounter::raise(std::uint64_t to) {
  // A sleeper counts itself before it looks at the value for the last time: one of the two sees the other.
  value.store(to, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0)
    ::syscall(SYS_futex, low_word(value), FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

void wait_for_counter(const ProcessGroup& group, SharedCounter& counter, std::uint64_t value, int member,
                      std::string_view what) {
  using Clock = std::chrono::steady_clock;
  const auto reached = [&] { return counter.value.load(std::memory_order_acquire) >= value; };
  for (int i = 0; i < 4000; ++i) {
    if (reached()) return;
    relax();
  }
  const auto start = Clock::now();
  auto* recorder = group.recorder();
  const auto number =
      recorder != nullptr ? recorder->begin_counter(what, group.world_rank(member), value) : std::uint64_t{0};
  while (!reached()) {
    const auto waited = Clock::now() - start;
    // Ranks that share a core, and other programs, make progress only when the waiting rank leaves it to them. Waking
    // takes 50 us, which is little after a longer wait.
    if (waited < std::chrono::microseconds(500)) {
      std::this_thread::yield();
    } else {
      sleep_until_raised(counter, value);
      try {
        group.check_wait();
      } catch (const StuckFailure&) {
        if (recorder != nullptr) recorder->freeze();
        throw;
      }
    }
    if (waited > group.timeout()) {
      if (recorder != nullptr) recorder->freeze();
      throw StuckFailure(fmt::format(
          "rank {} did not arrive at {} within {} s (--collective-timeout): it failed, hangs or is far slower; look "
          "for its message above or on its node",
          group.world_rank(member), what, std::chrono::duration_cast<std::chrono::seconds>(group.timeout()).count()));
    }
  }
  if (recorder != nullptr) recorder->end(number);
}

std::unique_ptr<ProcessGroup> make_single_group() { return std::make_unique<SingleGroup>(); }

}  // namespace fsdp
