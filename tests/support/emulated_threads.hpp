#pragma once
// Runs CUDA thread blocks as fibers of an OS thread; see emulated_cuda.hpp.
#include <ucontext.h>

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

struct Fiber {
  ucontext_t context{};
  std::jmp_buf place{};  ///< position of a fiber that has begun
  std::unique_ptr<char[]> stack;
  bool begun = false, done = false;
  int barriers = 0, shuffles = 0;  ///< reached so far: the block's barriers, the warp's shuffles
  bool in_barrier = false, in_shuffle = false;
};

struct Block {
  static constexpr std::size_t kStack_bytes = 64 << 10;
  dim3 grid, block, index;
  std::vector<Fiber> fibers;
  std::vector<char> votes[2];        ///< double-buffered: a vote may begin before all threads have read the last
  std::vector<std::uint64_t> lanes;  ///< values of shuffles, double-buffered like votes
  std::vector<unsigned> at_barrier;  ///< number of threads that have reached each barrier
  std::vector<std::vector<unsigned>> at_shuffle;  ///< number of threads that have reached each shuffle, per warp
  ucontext_t scheduler{};
  std::jmp_buf scheduler_place{};
  unsigned now = 0;
  std::function<void()> body;
};
inline thread_local Block* current = nullptr;

#ifdef __SANITIZE_ADDRESS__  // AddressSanitizer learns of other stacks only from these calls
inline void give_way() { swapcontext(&current->fibers[current->now].context, &current->scheduler); }
inline void resume(Fiber& f) { swapcontext(&current->scheduler, &f.context); }
#else
// Avoids swapcontext, whose two system calls per switch took half of a test's time.
[[gnu::noinline]] inline void give_way() {
  if (_setjmp(current->fibers[current->now].place) == 0) _longjmp(current->scheduler_place, 1);
}
[[gnu::noinline]] inline void resume(Fiber& f) {
  if (_setjmp(current->scheduler_place) != 0) return;
  if (f.begun) _longjmp(f.place, 1);
  f.begun = true;
  setcontext(&f.context);
}
#endif

/// Entry point of a fiber: runs one block's body after another, because fibers are reused.
inline void enter() {
  for (;;) {
    current->body();
    current->fibers[current->now].done = true;
    give_way();
  }
}

inline void arrive(std::vector<unsigned>& counts, int number) {
  if (counts.size() < static_cast<std::size_t>(number)) counts.resize(static_cast<std::size_t>(number));
  ++counts[static_cast<std::size_t>(number) - 1];
}

inline void barrier() {
  auto& f = current->fibers[current->now];
  arrive(current->at_barrier, ++f.barriers);
  f.in_barrier = true;
  give_way();
}

inline void start(Block& b) {
  const auto n = b.block.x * b.block.y * b.block.z;
  if (n != b.fibers.size()) b.fibers.clear();  // a context must not be moved
  b.fibers.resize(n);
  b.lanes.assign(std::size_t{2} * n, 0);
  b.at_barrier.clear();
  b.at_shuffle.assign((n + 31) / 32, {});
  for (auto& f : b.fibers) {
    if (f.stack == nullptr) f.stack = std::make_unique_for_overwrite<char[]>(Block::kStack_bytes);
    const bool waits_for_next = std::exchange(f.done, false);
    f.in_barrier = f.in_shuffle = false;
    f.barriers = f.shuffles = 0;
    if (waits_for_next) continue;
    f.begun = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = Block::kStack_bytes;
    f.context.uc_link = nullptr;
    makecontext(&f.context, enter, 0);
  }
}

/// True when a fiber can continue: all threads of the block have reached its barrier, or all of the warp its shuffle.
inline bool may_run(const Block& b, std::size_t t) {
  const auto& f = b.fibers[t];
  if (f.done) return false;
  if (f.in_barrier) return b.at_barrier[static_cast<std::size_t>(f.barriers) - 1] == b.fibers.size();
  if (!f.in_shuffle) return true;
  const auto of_warp = std::min<std::size_t>(32, b.fibers.size() - t / 32 * 32);
  return b.at_shuffle[t / 32][static_cast<std::size_t>(f.shuffles) - 1] == of_warp;
}

/// Runs every fiber up to its next barrier or shuffle, in the given order, until all are done. \throws std::logic_error
/// when a barrier or shuffle is not reached by all threads
inline void run_block(Block& b, Order order, std::mt19937& random) {
  current = &b;
  start(b);
  std::vector<unsigned> turn(b.fibers.size());
  std::iota(turn.begin(), turn.end(), 0u);
  if (order == Order::backward) std::reverse(turn.begin(), turn.end());
  for (std::size_t done = 0; done < b.fibers.size();) {
    if (order == Order::shuffled) std::shuffle(turn.begin(), turn.end(), random);
    bool moved = false;
    for (const unsigned t : turn) {
      if (!may_run(b, t)) continue;
      auto& f = b.fibers[t];
      f.in_barrier = f.in_shuffle = false;
      b.now = t;
      resume(f);
      moved = true;
      done += f.done ? 1 : 0;
    }
    if (!moved) throw std::logic_error("a barrier or shuffle that not all threads reach");
  }
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

inline dim3 thread_index() {
  const auto& b = *current;
  return {b.now % b.block.x, b.now / b.block.x % b.block.y, b.now / b.block.x / b.block.y};
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
  arrive(b.at_shuffle[me / 32], ++f.shuffles);
  f.in_shuffle = true;
  give_way();
  return b.lanes.data() + half + me / 32 * 32;
}

}  // namespace emulated
