#pragma once
// Runs CUDA thread blocks as fibers of an OS thread; see emulated_cuda.hpp.
#include <ucontext.h>
#include <array>

#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace emulated {

enum class Order : std::uint8_t { forward, backward, shuffled };
inline constexpr std::array kOrders{Order::forward, Order::backward, Order::shuffled};

struct Fiber {
  std::jmp_buf place{};  ///< position of a fiber that has begun
  ucontext_t context{};
  std::unique_ptr<char[]> stack;
  dim3 thread;
  bool begun = false, done = false;
  int barriers = 0, shuffles = 0;  ///< reached so far: the block's barriers, the warp's shuffles
};

/// Barriers of a block, or shuffles of a warp: no thread passes one before all have reached it.
struct Meeting {
  unsigned threads = 0;  ///< that meet
  unsigned arrived = 0;  ///< at the next one
  int complete = 0;      ///< which all have reached

  /// Counts a thread that has reached the next one. \return true if it is the last
  bool arrive() {
    if (++arrived < threads) return false;
    arrived = 0;
    ++complete;
    return true;
  }
};

struct Block {
  static constexpr std::size_t kStack_bytes = 64 << 10;
  dim3 grid, block, index, thread;
  std::vector<Fiber> fibers;
  Meeting barriers;
  std::vector<Meeting> shuffles;     ///< per warp
  unsigned votes[2] = {};            ///< of this barrier and the one before, which threads may not have read yet
  std::vector<std::uint64_t> lanes;  ///< values of shuffles, double-buffered like votes
  ucontext_t scheduler{};
  std::jmp_buf scheduler_place{};
  unsigned now = 0;
  std::function<void()> body;
  // The order in which the fibers continue, round by round.
  Order order = Order::forward;
  std::mt19937* random = nullptr;
  std::vector<unsigned> turn;
  std::size_t next = 0;    ///< place in `turn`
  bool has_moved = false;  ///< in this round
  std::size_t done = 0;    ///< fibers
};
inline thread_local Block* current = nullptr;

/// True when a fiber can continue: all threads of the block have reached its barrier, and all of the warp its shuffle.
inline bool may_run(const Block& b, unsigned t) {
  const auto& f = b.fibers[t];
  return !f.done && f.barriers <= b.barriers.complete && f.shuffles <= b.shuffles[t / 32].complete;
}

/// Makes the next fiber that can continue the present one. \return false when all are done, or none can continue
inline bool choose_next(Block& b) {
  while (b.done < b.fibers.size()) {
    for (; b.next < b.turn.size(); ++b.next) {
      const unsigned t = b.turn[b.next];
      if (!may_run(b, t)) continue;
      ++b.next;
      b.has_moved = true;
      b.now = t;
      b.thread = b.fibers[t].thread;
      return true;
    }
    if (!std::exchange(b.has_moved, false)) return false;
    b.next = 0;
    if (b.order == Order::shuffled) std::shuffle(b.turn.begin(), b.turn.end(), *b.random);
  }
  return false;
}

#ifdef __SANITIZE_ADDRESS__  // AddressSanitizer learns of other stacks only from these calls
inline void give_way() {
  auto& b = *current;
  auto& from = b.fibers[b.now].context;
  swapcontext(&from, choose_next(b) ? &b.fibers[b.now].context : &b.scheduler);
}
inline void run_fibers(Block& b) { swapcontext(&b.scheduler, &b.fibers[b.now].context); }
#else
// Avoids swapcontext, whose two system calls per switch took half of a test's time.
[[noreturn]] inline void go_on(Fiber& f) {
  if (f.begun) _longjmp(f.place, 1);
  f.begun = true;
  setcontext(&f.context);
  __builtin_unreachable();
}
[[gnu::noinline]] inline void give_way() {
  auto& b = *current;
  const unsigned before = b.now;
  if (!choose_next(b)) {
    if (_setjmp(b.fibers[before].place) == 0) _longjmp(b.scheduler_place, 1);
  } else if (b.now != before && _setjmp(b.fibers[before].place) == 0) {
    go_on(b.fibers[b.now]);
  }
}
[[gnu::noinline]] inline void run_fibers(Block& b) {
  if (_setjmp(b.scheduler_place) == 0) go_on(b.fibers[b.now]);
}
#endif

/// Entry point of a fiber: runs one block's body after another, because fibers are reused.
inline void enter() {
  for (;;) {
    current->body();
    current->fibers[current->now].done = true;
    ++current->done;
    give_way();
  }
}

inline void barrier() {
  auto& b = *current;
  ++b.fibers[b.now].barriers;
  if (b.barriers.arrive()) b.votes[(b.barriers.complete + 1) % 2] = 0;
  give_way();
}

/// The barrier that counts threads. \return those whose vote was true
inline unsigned barrier_with_votes(bool vote) {
  auto& b = *current;
  const int number = b.fibers[b.now].barriers + 1;
  if (vote) ++b.votes[number % 2];
  barrier();
  return current->votes[number % 2];
}

inline void start(Block& b) {
  constexpr std::size_t kApart = 832;  // stacks that begin 64 KiB apart share few places of a processor's cache
  const auto n = b.block.x * b.block.y * b.block.z;
  if (n != b.fibers.size()) b.fibers.clear();  // a context must not be moved
  b.fibers.resize(n);
  b.lanes.assign(std::size_t{2} * n, 0);
  b.barriers = {n};
  b.votes[0] = b.votes[1] = 0;
  b.shuffles.clear();
  for (unsigned first = 0; first < n; first += 32) b.shuffles.push_back({std::min(32u, n - first)});
  for (unsigned t = 0; t < n; ++t) {
    auto& f = b.fibers[t];
    const auto room = Block::kStack_bytes + t % 61 * kApart;
    if (f.stack == nullptr) f.stack = std::make_unique_for_overwrite<char[]>(room);
    f.thread = {t % b.block.x, t / b.block.x % b.block.y, t / b.block.x / b.block.y};
    f.barriers = f.shuffles = 0;
    if (std::exchange(f.done, false)) continue;  // it waits for the next body
    f.begun = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = room;
    f.context.uc_link = nullptr;
    makecontext(&f.context, enter, 0);
  }
}

/// Runs every fiber up to its next barrier or shuffle, in the given order, until all are done. \throws std::logic_error
/// when a barrier or shuffle is not reached by all threads
inline void run_block(Block& b, Order order, std::mt19937& random) {
  current = &b;
  start(b);
  b.order = order;
  b.random = &random;
  b.turn.resize(b.fibers.size());
  std::iota(b.turn.begin(), b.turn.end(), 0u);
  if (order == Order::backward) std::reverse(b.turn.begin(), b.turn.end());
  if (order == Order::shuffled) std::shuffle(b.turn.begin(), b.turn.end(), random);
  b.next = b.done = 0;
  b.has_moved = false;
  if (choose_next(b)) run_fibers(b);
  if (b.done < b.fibers.size()) throw std::logic_error("a barrier or shuffle that not all threads reach");
  current = nullptr;
}

/// Recorded launches with their arguments, in order.
using Steps = std::vector<std::function<void()>>;
/// If not null, receives this thread's launches, which are then not executed.
inline thread_local Steps* tape = nullptr;

class TapeGuard {
 public:
  explicit TapeGuard(Steps& steps) { tape = &steps; }
  TapeGuard(const TapeGuard&) = delete;
  TapeGuard& operator=(const TapeGuard&) = delete;
  ~TapeGuard() { tape = nullptr; }
};

/// Runs a kernel over the grid, or records the launch. \throws std::logic_error as run_block()
template <typename Kernel, typename... Args>
void launch(dim3 grid, dim3 block, Order order, Kernel kernel, Args... args) {
  if (tape != nullptr) {
    tape->push_back([=] { launch(grid, block, order, kernel, args...); });
    return;
  }
  std::mt19937 random(7);
  static thread_local Block b;  // reuses the stacks
  b.grid = grid;
  b.block = block;
  b.body = [&] { kernel(args...); };
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        b.index = {x, y, z};
        run_block(b, order, random);
      }
    }
  }
}

/// Exchanges values between the threads of a warp. \return the values of the warp's lanes
template <typename T>
const std::uint64_t* exchange(unsigned mask, T value) {
  if (mask != 0xffffffffu) throw std::logic_error("only full warps are emulated");
  auto& b = *current;
  const unsigned me = b.now;
  auto& f = b.fibers[me];
  const auto half = static_cast<std::size_t>(f.shuffles % 2) * b.fibers.size();
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  b.lanes[half + me] = word;
  ++f.shuffles;
  b.shuffles[me / 32].arrive();
  give_way();
  return b.lanes.data() + half + me / 32 * 32;
}

}  // namespace emulated
