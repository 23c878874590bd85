#pragma once
// Thread blocks of CUDA's as fibers of an OS thread: see emulated_cuda.hpp.
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace emulated {

enum class Order : std::uint8_t { forward, backward, shuffled };

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<char[]> stack;
  bool done = false;
  int barriers = 0, shuffles = 0;  ///< reached so far: of the block, of the warp
  bool in_barrier = false, in_shuffle = false;
};

struct Block {
  static constexpr std::size_t kStack_bytes = 64 << 10;
  dim3 grid, block, index;
  std::vector<Fiber> fibers;
  std::vector<char> votes[2];        ///< of barriers that ask all threads: the next may begin before all have read
  std::vector<std::uint64_t> lanes;  ///< what shuffles exchange, twice: the next one may begin before all have read
  ucontext_t scheduler{};
  unsigned now = 0;
  std::function<void()> body;
};
inline thread_local Block* current = nullptr;

inline void give_way() { swapcontext(&current->fibers[current->now].context, &current->scheduler); }

inline void enter() {
  current->body();
  current->fibers[current->now].done = true;
  give_way();
}

inline void start(Block& b) {
  const auto n = b.block.x * b.block.y * b.block.z;
  b.fibers.resize(n);
  b.lanes.assign(std::size_t{2} * n, 0);
  for (auto& f : b.fibers) {
    if (f.stack == nullptr) f.stack = std::make_unique_for_overwrite<char[]>(Block::kStack_bytes);
    f.done = f.in_barrier = f.in_shuffle = false;
    f.barriers = f.shuffles = 0;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = Block::kStack_bytes;
    f.context.uc_link = nullptr;
    makecontext(&f.context, enter, 0);
  }
}

/// Whether a fiber may go on: all threads of the block have reached its barrier, all of the warp its shuffle.
inline bool may_run(const Block& b, std::size_t t) {
  const auto& f = b.fibers[t];
  if (f.done) return false;
  if (f.in_barrier)
    return std::all_of(b.fibers.begin(), b.fibers.end(), [&](const Fiber& g) { return g.barriers >= f.barriers; });
  if (!f.in_shuffle) return true;
  const auto first = static_cast<std::ptrdiff_t>(t / 32 * 32);
  const auto last = std::min(first + 32, static_cast<std::ptrdiff_t>(b.fibers.size()));
  return std::all_of(b.fibers.begin() + first, b.fibers.begin() + last,
                     [&](const Fiber& g) { return g.shuffles >= f.shuffles; });
}

/// Runs every fiber up to its next barrier or shuffle, in the order wished for, until all are done.
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
      swapcontext(&b.scheduler, &f.context);
      moved = true;
      done += f.done ? 1 : 0;
    }
    if (!moved) throw std::logic_error("a barrier or shuffle that not all threads reach");
  }
  current = nullptr;
}

/// Launches in their order, with the arguments that they were given.
using Steps = std::vector<std::function<void()>>;
/// Where this thread's launches are written down instead of done; null: they are done.
inline thread_local Steps* tape = nullptr;

class TapeGuard {
 public:
  explicit TapeGuard(Steps& steps) { tape = &steps; }
  TapeGuard(const TapeGuard&) = delete;
  TapeGuard& operator=(const TapeGuard&) = delete;
  ~TapeGuard() { tape = nullptr; }
};

/// \throws std::logic_error as above
template <typename Kernel, typename... Args>
void launch(dim3 grid, dim3 block, Order order, Kernel kernel, Args... args) {
  if (tape != nullptr) {
    tape->push_back([=] { launch(grid, block, order, kernel, args...); });
    return;
  }
  std::mt19937 random(7);
  static thread_local Block b;  // its stacks serve again
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

/// Gives a warp's threads each other's values. \return those of the warp's lanes
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
  f.in_shuffle = true;
  give_way();
  return b.lanes.data() + half + me / 32 * 32;
}

}  // namespace emulated
