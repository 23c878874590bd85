#include "lib/ranks/thread_group.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "lib/base/process/usable_resources.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/ranks/heap_peer_memory.hpp"

namespace fsdp {
namespace {

/// State shared by all threads: the rank that failed first.
struct World {
  std::mutex mutex;
  std::exception_ptr first_error;
  std::atomic<bool> failed{false};
  std::chrono::milliseconds timeout;
};

/// Exchanges a pointer per rank. Every rank sees all pointers, and no rank returns before all have read them.
class Meeting {
 public:
  Meeting(const std::vector<int>& world_ranks, World& world)
      : world_ranks_(world_ranks), pointers_(world_ranks.size()), here_(world_ranks.size(), false), world_(world) {}

  /// \return the pointers by rank, valid until the next call by this rank
  const std::vector<void*>& meet(int rank, void* pointer) {
    std::unique_lock lock(mutex_);
    element(pointers_, rank) = pointer;
    arrive(rank, lock);
    return pointers_;
  }
  void leave(int rank) {
    std::unique_lock lock(mutex_);
    arrive(rank, lock);
  }

 private:
  void arrive(int rank, std::unique_lock<std::mutex>& lock) {
    const auto round = round_;
    element(here_, rank) = true;
    if (std::find(here_.begin(), here_.end(), false) == here_.end()) {
      here_.assign(here_.size(), false);
      ++round_;
      changed_.notify_all();
      return;
    }
    const auto deadline = std::chrono::steady_clock::now() + world_.timeout;
    while (round_ == round) {
      changed_.wait_for(lock, std::chrono::milliseconds(20));
      if (world_.failed) throw RuntimeFailure("another rank failed");
      if (std::chrono::steady_clock::now() > deadline) throw StuckFailure("did not arrive in time: rank " + missing());
    }
  }

  std::string missing() const {
    std::string text;
    for (std::size_t r = 0; r < here_.size(); ++r) {
      if (!here_[r]) text += (text.empty() ? "" : ", ") + std::to_string(world_ranks_[r]);
    }
    return text;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> world_ranks_;
  std::vector<void*> pointers_;
  std::vector<bool> here_;
  World& world_;
  std::uint64_t round_ = 0;
};

/// State shared by the threads of one group.
struct ThreadGroupState {
  ThreadGroupState(std::vector<int> members, World& the_world)
      : world_ranks(std::move(members)), meeting(world_ranks, the_world), world(the_world) {}
  std::vector<int> world_ranks;
  Meeting meeting;
  World& world;
};

class ThreadGroup final : public ProcessGroup {
 public:
  ThreadGroup(std::shared_ptr<ThreadGroupState> shared, int rank, int ranks_per_node)
      : shared_(std::move(shared)), rank_(rank), ranks_per_node_(ranks_per_node) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(shared_->world_ranks.size()); }
  std::chrono::milliseconds timeout() const override {
    // After a rank has failed, waits on counters of peer memory must end, too.
    return shared_->world.failed ? std::chrono::milliseconds(0) : shared_->world.timeout;
  }
  int world_rank(int member) const override { return element(shared_->world_ranks, member); }

  void barrier() override { shared_->meeting.leave(rank_); }

  void all_reduce(std::span<double> values, Reduce op) override {
    const auto& all = shared_->meeting.meet(rank_, values.data());
    std::vector<double> result(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      double total = static_cast<const double*>(all[0])[i];
      for (std::size_t r = 1; r < all.size(); ++r) total = combine(total, static_cast<const double*>(all[r])[i], op);
      result[i] = total;
    }
    shared_->meeting.leave(rank_);
    std::copy(result.begin(), result.end(), values.begin());
  }

  void broadcast(std::span<std::byte> bytes, int root) override {
    const auto& all = shared_->meeting.meet(rank_, bytes.data());
    const void* source = element(all, root);
    if (rank_ != root && !bytes.empty()) std::memcpy(bytes.data(), source, bytes.size());
    shared_->meeting.leave(rank_);
  }

  std::vector<std::string> gather(std::string_view text, int root) override {
    std::vector<std::string> texts;
    const auto& all = shared_->meeting.meet(rank_, &text);
    if (rank_ == root) {
      for (void* other : all) texts.emplace_back(*static_cast<std::string_view*>(other));
    }
    shared_->meeting.leave(rank_);
    return texts;
  }

  std::unique_ptr<Work> all_gather(std::span<const GatherBlock> blocks) override {
    const auto& all = shared_->meeting.meet(rank_, &blocks);
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      std::byte* out = blocks[b].out.data();
      for (void* other : all) {
        const auto& in = (*static_cast<std::span<const GatherBlock>*>(other))[b].in;
        // In an in-place gather, this rank's slice is already there, and other ranks may be reading it.
        if (!in.empty() && in.data() != out) std::memcpy(out, in.data(), in.size());
        out += in.size();
      }
    }
    shared_->meeting.leave(rank_);
    return std::make_unique<DoneWork>();
  }

  std::unique_ptr<Work> all_to_all(std::span<const ExchangeBlock> blocks) override {
    const auto& all = shared_->meeting.meet(rank_, &blocks);
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const std::size_t slice = blocks[b].out.size() / all.size();
      std::byte* out = blocks[b].out.data();
      for (void* other : all) {
        const auto& in = (*static_cast<std::span<const ExchangeBlock>*>(other))[b].in;
        if (slice != 0) std::memcpy(out, in.data() + static_cast<std::size_t>(rank_) * slice, slice);
        out += slice;
      }
    }
    shared_->meeting.leave(rank_);
    return std::make_unique<DoneWork>();
  }

  std::unique_ptr<ProcessGroup> split(int color) override {
    auto colors = all_colors(color);
    std::vector<int> members;
    int new_rank = 0;
    int leader = -1;
    for (int r = 0; r < size(); ++r) {
      if (element(colors, r) != color) continue;
      if (leader < 0) leader = r;
      if (r == rank_) new_rank = static_cast<int>(members.size());
      members.push_back(world_rank(r));
    }
    // The first member creates the shared state; the others take a reference before any rank continues.
    std::shared_ptr<ThreadGroupState> made;
    if (rank_ == leader) made = std::make_shared<ThreadGroupState>(members, shared_->world);
    const auto& all = shared_->meeting.meet(rank_, &made);
    auto shared = *static_cast<std::shared_ptr<ThreadGroupState>*>(element(all, leader));
    shared_->meeting.leave(rank_);
    return std::make_unique<ThreadGroup>(shared, new_rank, ranks_per_node_);
  }

  std::unique_ptr<ProcessGroup> split_by_node() override { return split(world_rank(rank_) / ranks_per_node_); }

  std::unique_ptr<PeerMemory> peer_memory(std::size_t size_bytes, std::size_t num_counters) override {
    for (const int other : shared_->world_ranks) {
      if (other / ranks_per_node_ != world_rank(rank_) / ranks_per_node_) return nullptr;
    }
    std::shared_ptr<detail::HeapRegion> made;
    if (rank_ == 0) made = std::make_shared<detail::HeapRegion>(size_bytes, num_counters);
    const auto& all = shared_->meeting.meet(rank_, &made);
    auto shared = *static_cast<std::shared_ptr<detail::HeapRegion>*>(all[0]);
    shared_->meeting.leave(rank_);
    return std::make_unique<detail::HeapPeerMemory>(shared);
  }

 private:
  static double combine(double a, double b, Reduce op) {
    if (op == Reduce::sum) return a + b;
    return op == Reduce::max ? std::max(a, b) : std::min(a, b);
  }

  std::vector<int> all_colors(int color) {
    const auto& all = shared_->meeting.meet(rank_, &color);
    std::vector<int> colors;
    for (void* other : all) colors.push_back(*static_cast<int*>(other));
    shared_->meeting.leave(rank_);
    return colors;
  }

  std::shared_ptr<ThreadGroupState> shared_;
  int rank_;
  int ranks_per_node_;
};

}  // namespace

void run_thread_ranks(int num_ranks, int ranks_per_node, const std::function<void(ProcessGroup&)>& body,
                      std::chrono::milliseconds timeout) {
  World world;
  world.timeout = timeout;
  std::vector<int> everyone(static_cast<std::size_t>(num_ranks));
  for (int r = 0; r < num_ranks; ++r) element(everyone, r) = r;
  const auto shared = std::make_shared<ThreadGroupState>(everyone, world);
  std::vector<std::thread> threads;
  const auto guarded = [&](const auto& work) {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(world.mutex);
      if (!world.first_error) world.first_error = std::current_exception();
      world.failed = true;
    }
  };
  guarded([&] {
    start_thread("is a rank", [&] {
      for (int r = 0; r < num_ranks; ++r) {
        threads.emplace_back([&, r] {
          guarded([&] {
            ThreadGroup group(shared, r, ranks_per_node);
            body(group);
          });
        });
      }
    });
  });
  for (auto& thread : threads) thread.join();
  if (world.first_error) std::rethrow_exception(world.first_error);
}

}  // namespace fsdp
