#include "lib/planning/memory/profile.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

constexpr std::int64_t kMinBlock_bytes = 512;
constexpr std::int64_t kSmall_bytes = std::int64_t{1} << 20;  // the largest request that counts as small
constexpr std::int64_t kSmallSegment_bytes = std::int64_t{2} << 20;
constexpr std::int64_t kLargeSegment_bytes = std::int64_t{20} << 20;
constexpr std::int64_t kMinOwnSegment_bytes = std::int64_t{10} << 20;
constexpr std::int64_t kRoundLarge_bytes = std::int64_t{2} << 20;

std::int64_t round_up(std::int64_t n, std::int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

std::int64_t segment_bytes(std::int64_t size) {
  if (size <= kSmall_bytes) return kSmallSegment_bytes;
  if (size < kMinOwnSegment_bytes) return kLargeSegment_bytes;
  return round_up(size, kRoundLarge_bytes);
}

/// Bytes allocated so far, by category; activations of the current phase are counted separately.
struct Running {
  MemoryBytes bytes{};
  std::int64_t total = 0;
  std::int64_t host = 0;
  std::int64_t fresh = 0;  ///< live activations that the current phase allocated
};

/// Counts live activations of the current phase as workspace: at a peak, results cannot be told from temporaries, and
/// both are needed only by this phase.
MemoryBytes with_workspace(const Running& now) {
  auto bytes = now.bytes;
  element(bytes, MemoryCategory::activations) -= now.fresh;
  element(bytes, MemoryCategory::workspace) += now.fresh;
  return bytes;
}

}  // namespace

/// A piece of a segment. The pieces of one segment form a list in order of addresses.
struct CachingAllocatorModel::Block {
  std::int64_t size;
  /// breaks ties between blocks of equal size, as real addresses do; segments get ascending addresses
  std::int64_t address;
  Pool* pool;
  bool allocated = false;
  Block* previous = nullptr;
  Block* next = nullptr;
};

struct CachingAllocatorModel::Pool {
  struct Smaller {
    bool operator()(const Block* a, const Block* b) const {
      return a->size != b->size ? a->size < b->size : a->address < b->address;
    }
  };
  explicit Pool(bool is_small) : small(is_small) {}
  bool small;
  std::set<Block*, Smaller> free;
};

struct CachingAllocatorModel::State {
  Pool small{true};
  Pool large{false};
  Pool private_small{true};
  Pool private_large{false};
  bool in_private = false;
  std::unordered_map<std::int64_t, Block*> in_use;
  std::int64_t next_address = 0;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    for (auto* pool : {&small, &large, &private_small, &private_large}) {
      for (const auto* block : pool->free) delete block;
    }
    for (const auto& [id, block] : in_use) delete block;
  }
};

CachingAllocatorModel::CachingAllocatorModel(std::int64_t capacity_bytes)
    : capacity_bytes_(capacity_bytes), state_(std::make_unique<State>()) {}
CachingAllocatorModel::~CachingAllocatorModel() = default;

CachingAllocatorModel::Block* CachingAllocatorModel::take_free(Pool& pool, std::int64_t size) {
  Block key{size, -1, &pool};
  const auto it = pool.free.lower_bound(&key);
  if (it == pool.free.end()) return nullptr;
  Block* block = *it;
  pool.free.erase(it);
  return block;
}

CachingAllocatorModel::Block* CachingAllocatorModel::new_segment(Pool& pool, std::int64_t size) {
  const auto bytes = segment_bytes(size);
  if (stats_.reserved_bytes + bytes > capacity_bytes_) {
    ++stats_.num_alloc_retries;
    release_free_segments();
    if (stats_.reserved_bytes + bytes > capacity_bytes_) ++stats_.num_ooms;
  }
  stats_.reserved_bytes += bytes;
  stats_.reserved_peak_bytes = std::max(stats_.reserved_peak_bytes, stats_.reserved_bytes);
  auto* block = new Block{bytes, state_->next_address, &pool};
  state_->next_address += bytes;
  return block;
}

void CachingAllocatorModel::release_free_segments() {
  for (auto* pool : {&state_->large, &state_->small}) {
    for (auto it = pool->free.begin(); it != pool->free.end();) {
      const Block* block = *it;
      if (block->previous != nullptr || block->next != nullptr) {
        ++it;
        continue;
      }
      stats_.reserved_bytes -= block->size;
      it = pool->free.erase(it);
      delete block;
    }
  }
}

void CachingAllocatorModel::use_private_pool(bool yes) { state_->in_private = yes; }

void CachingAllocatorModel::allocate(std::int64_t id, std::int64_t bytes) {
  if (bytes == 0) return;
  const auto size = std::max(kMinBlock_bytes, round_up(bytes, kMinBlock_bytes));
  auto& s = *state_;
  auto& pool =
      size <= kSmall_bytes ? (s.in_private ? s.private_small : s.small) : (s.in_private ? s.private_large : s.large);
  Block* block = take_free(pool, size);
  if (block == nullptr) block = new_segment(pool, size);
  const auto rest = block->size - size;
  if (pool.small ? rest >= kMinBlock_bytes : rest > kSmall_bytes) {
    auto* remaining = new Block{rest, block->address + size, &pool, false, block, block->next};
    if (remaining->next != nullptr) remaining->next->previous = remaining;
    block->next = remaining;
    block->size = size;
    pool.free.insert(remaining);
  }
  block->allocated = true;
  if (!state_->in_use.emplace(id, block).second) throw std::logic_error("a block number is in use");
  stats_.allocated_bytes += block->size;
  stats_.allocated_peak_bytes = std::max(stats_.allocated_peak_bytes, stats_.allocated_bytes);
}

void CachingAllocatorModel::merge(Pool& pool, Block* block, Block* neighbour) {
  if (neighbour == nullptr || neighbour->allocated) return;
  pool.free.erase(neighbour);
  if (block->previous == neighbour) {
    block->address = neighbour->address;
    block->previous = neighbour->previous;
    if (block->previous != nullptr) block->previous->next = block;
  } else {
    block->next = neighbour->next;
    if (block->next != nullptr) block->next->previous = block;
  }
  block->size += neighbour->size;
  delete neighbour;
}

void CachingAllocatorModel::free(std::int64_t id) {
  const auto it = state_->in_use.find(id);
  if (it == state_->in_use.end()) return;  // a request of 0 bytes has no block
  Block* block = it->second;
  state_->in_use.erase(it);
  block->allocated = false;
  stats_.allocated_bytes -= block->size;
  auto& pool = *block->pool;
  merge(pool, block, block->previous);
  merge(pool, block, block->next);
  pool.free.insert(block);
}

MemoryProfile profile_memory(const MemoryLog& log, const std::vector<std::int32_t>& first_phases) {
  MemoryProfile profile;
  Running now;
  std::vector<std::int32_t> born;  // by block
  std::int32_t phase = -1;
  const auto last_step = first_phases.empty() ? 0 : first_phases.back();
  MemoryPhase current;
  const auto look = [&] {
    if (now.total > current.peak_bytes || current.peak_bytes == 0) {
      current.peak_bytes = now.total;
      current.at_peak = with_workspace(now);
    }
    if (now.total <= profile.peak_bytes) return;
    profile.peak_bytes = now.total;
    profile.at_peak = with_workspace(now);
    profile.phase = element(log.phases, phase);
    profile.step =
        static_cast<int>(std::upper_bound(first_phases.begin(), first_phases.end(), phase) - first_phases.begin());
  };
  const auto enter = [&](std::int32_t to) {
    // Phases without any allocation are part of the timeline, too.
    for (; phase < to; ++phase) {
      if (phase >= last_step && phase >= 0) profile.timeline.push_back(current);
      current = {log.phases[to_index(phase) + 1], now.bytes, now.total};
      now.fresh = 0;
    }
  };
  for (const auto& record : log.records) {
    if (record.phase != phase) enter(record.phase);
    if (record.on_host) {
      now.host += record.bytes;
      profile.host_bytes = std::max(profile.host_bytes, now.host);
      continue;
    }
    now.total += record.bytes;
    element(now.bytes, record.category) += record.bytes;
    if (record.category == MemoryCategory::activations && record.block >= 0) {
      const auto block = to_index(record.block);
      if (born.size() <= block) born.resize(block + 1, -1);
      if (record.bytes > 0) born[block] = record.phase;
      if (born[block] == record.phase) now.fresh += record.bytes;
    }
    look();
  }
  if (phase >= 0) {
    enter(static_cast<std::int32_t>(log.phases.size()) - 1);
    profile.timeline.push_back(current);
  }
  profile.steady_bytes = now.total;
  return profile;
}

CachingAllocatorStats simulate_caching_allocator(const MemoryLog& log, std::int64_t capacity_bytes) {
  CachingAllocatorModel allocator(capacity_bytes);
  auto mark = log.marks.begin();
  for (std::size_t i = 0; i < log.records.size(); ++i) {
    for (; mark != log.marks.end() && mark->record == i; ++mark) {
      if (mark->kind == AllocatorMark::Kind::empty_cache) {
        allocator.empty_cache();
      } else {
        allocator.use_private_pool(mark->kind == AllocatorMark::Kind::begin_private);
      }
    }
    const auto& record = log.records[i];
    if (record.on_host || record.block < 0) continue;
    if (record.bytes > 0) {
      allocator.allocate(record.block, record.bytes);
    } else {
      allocator.free(record.block);
    }
  }
  return allocator.stats();
}

}  // namespace fsdp
