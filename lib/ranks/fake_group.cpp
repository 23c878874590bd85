#include "lib/ranks/fake_group.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/ranks/heap_peer_memory.hpp"

namespace fsdp {
namespace {

/// A transfer that is complete at once; wait() records the wait in the work log.
class LoggedWork final : public Work {
 public:
  LoggedWork(std::shared_ptr<WorkLog> log, int id) : log_(std::move(log)), id_(id) {}
  void wait() override {
    if (log_ != nullptr) log_->wait(id_);
  }

 private:
  std::shared_ptr<WorkLog> log_;
  int id_;
};

/// Peer memory whose counters never make this rank wait. Without a region, its addresses must not be accessed.
class FakePeerMemory final : public PeerMemory {
 public:
  FakePeerMemory(std::size_t size_bytes, std::size_t num_counters, std::unique_ptr<detail::HeapRegion> region)
      : size_bytes_(size_bytes), counters_(num_counters), region_(std::move(region)) {
    // Any value that is waited for has been reached by the other ranks.
    for (auto& counter : counters_) counter.value = std::numeric_limits<std::uint64_t>::max();
  }
  std::byte* data() override {
    return region_ != nullptr ? region_->data() : reinterpret_cast<std::byte*>(std::uintptr_t{1} << 61);
  }
  std::size_t size_bytes() const override { return size_bytes_; }
  SharedCounter& counter(std::size_t index) override { return counters_.at(index); }
  void forget(std::size_t, std::size_t) override {}

 private:
  std::size_t size_bytes_;
  std::vector<SharedCounter> counters_;
  std::unique_ptr<detail::HeapRegion> region_;
};

/// The arguments of each rank in its n-th split and reduction of the rehearsal.
struct Script {
  std::vector<std::vector<int>> colors;                  ///< [call][world rank]
  std::vector<std::vector<std::vector<double>>> values;  ///< [call][world rank]
};

/// State shared by all groups of one rank.
struct FakeJobState {
  FakeJob job;
  Script script;
  bool rehearsing = true;
  bool real_memory = false;
  std::shared_ptr<WorkLog> work;  ///< null: transfers are not logged
  std::size_t next_split = 0;
  std::size_t next_agreement = 0;
};

class FakeGroup final : public ProcessGroup {
 public:
  FakeGroup(std::shared_ptr<FakeJobState> shared, std::vector<int> members)
      : shared_(std::move(shared)), members_(std::move(members)) {
    rank_ = static_cast<int>(std::find(members_.begin(), members_.end(), shared_->job.rank) - members_.begin());
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  void barrier() override {}
  using ProcessGroup::all_reduce;
  void all_reduce(std::span<double> values, Reduce op) override {
    auto& script = shared_->script;
    const auto call = shared_->next_agreement++;
    if (shared_->rehearsing) {
      if (script.values.size() <= call) script.values.resize(call + 1);
      script.values[call].resize(static_cast<std::size_t>(shared_->job.ranks));
      element(script.values[call], shared_->job.rank).assign(values.begin(), values.end());
      return;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double local = values[i];
      double total = 0;
      for (std::size_t m = 0; m < members_.size(); ++m) {
        const double value = other_value(call, members_[m], i, local);
        total = m == 0 ? value : combine(total, value, op);
      }
      values[i] = total;
    }
  }
  void broadcast(std::span<std::byte>, int) override {}
  std::vector<std::string> gather(std::string_view text, int root) override {
    return rank_ == root ? std::vector<std::string>(members_.size(), std::string(text)) : std::vector<std::string>();
  }
  std::unique_ptr<Work> all_gather(std::span<const GatherBlock> blocks) override {
    if (shared_->real_memory) {
      for (const auto& block : blocks) take_own_part(block.out, block.in, to_index(rank_));
    }
    double bytes = 0;
    for (const auto& block : blocks) bytes += static_cast<double>(block.out.size());
    return start(bytes);
  }
  std::unique_ptr<Work> all_to_all(std::span<const ExchangeBlock> blocks) override {
    if (shared_->real_memory) {
      for (const auto& block : blocks) {
        const auto slice = block.out.size() / members_.size();
        take_own_part(block.out, block.in.subspan(static_cast<std::size_t>(rank_) * slice, slice),
                      static_cast<std::size_t>(rank_));
      }
    }
    double bytes = 0;
    for (const auto& block : blocks) bytes += static_cast<double>(block.out.size());
    return start(bytes);
  }

  std::unique_ptr<ProcessGroup> split(int color) override {
    auto& script = shared_->script;
    const auto call = shared_->next_split++;
    if (shared_->rehearsing) {
      if (script.colors.size() <= call) script.colors.resize(call + 1);
      script.colors[call].resize(static_cast<std::size_t>(shared_->job.ranks), -1);
      element(script.colors[call], shared_->job.rank) = color;
      return std::make_unique<FakeGroup>(shared_, std::vector<int>{shared_->job.rank});
    }
    if (call >= script.colors.size()) throw std::logic_error("a group was split beyond its rehearsal");
    std::vector<int> members;
    for (const int other : members_) {
      if (element(script.colors[call], other) == color) members.push_back(other);
    }
    return std::make_unique<FakeGroup>(shared_, std::move(members));
  }
  std::unique_ptr<ProcessGroup> split_by_node() override {
    std::vector<int> members;
    for (const int other : members_) {
      if (node_of(other) == node_of(shared_->job.rank)) members.push_back(other);
    }
    return std::make_unique<FakeGroup>(shared_, std::move(members));
  }
  std::unique_ptr<PeerMemory> peer_memory(std::size_t size_bytes, std::size_t num_counters) override {
    for (const int other : members_) {
      if (node_of(other) != node_of(shared_->job.rank)) return nullptr;
    }
    auto region = shared_->real_memory ? std::make_unique<detail::HeapRegion>(size_bytes, std::size_t{0}) : nullptr;
    return std::make_unique<FakePeerMemory>(size_bytes, num_counters, std::move(region));
  }
  std::chrono::milliseconds timeout() const override { return std::chrono::hours(24); }
  int world_rank(int member) const override { return element(members_, member); }

  TransferWork place() const {
    std::set<int> nodes;
    for (const int member : members_) nodes.insert(node_of(member));
    const auto& job = shared_->job;
    const int node = node_of(job.rank);
    const auto here = std::count_if(members_.begin(), members_.end(), [&](int m) { return node_of(m) == node; });
    const int on_node = std::min(job.ranks_per_node, job.ranks - node * job.ranks_per_node);
    TransferWork place;
    place.ranks = size();
    place.nodes = static_cast<int>(nodes.size());
    place.groups_at_once = std::max(1, on_node / static_cast<int>(std::max<std::ptrdiff_t>(1, here)));
    return place;
  }

 private:
  std::unique_ptr<Work> start(double bytes) {
    if (shared_->work == nullptr) return std::make_unique<LoggedWork>(nullptr, 0);
    auto transfer = place();
    transfer.bytes = bytes;
    return std::make_unique<LoggedWork>(shared_->work, shared_->work->start(transfer));
  }

  int node_of(int world_rank) const { return world_rank / shared_->job.ranks_per_node; }
  double other_value(std::size_t call, int world_rank, std::size_t i, double local) const {
    if (call >= shared_->script.values.size()) return local;
    const auto& said = element(shared_->script.values[call], world_rank);
    return i < said.size() ? said[i] : local;
  }
  /// Writes `part` to slice `place` of `out` and zeros elsewhere. `part` may already be in that slice.
  static void take_own_part(std::span<std::byte> out, std::span<const std::byte> part, std::size_t place) {
    const auto begin = place * part.size();
    if (part.empty()) return;
    std::memmove(out.data() + begin, part.data(), part.size());
    std::memset(out.data(), 0, begin);
    std::memset(out.data() + begin + part.size(), 0, out.size() - begin - part.size());
  }
  static double combine(double a, double b, Reduce op) {
    if (op == Reduce::sum) return a + b;
    return op == Reduce::max ? std::max(a, b) : std::min(a, b);
  }

  std::shared_ptr<FakeJobState> shared_;
  std::vector<int> members_;  ///< world ranks
  int rank_ = 0;
};

std::unique_ptr<ProcessGroup> make_world(const FakeJob& job, const std::function<void(ProcessGroup&)>& rehearsal,
                                         bool real_memory, std::shared_ptr<WorkLog> work) {
  if (job.ranks < 1 || job.ranks_per_node < 1 || job.rank < 0 || job.rank >= job.ranks) {
    throw RequestError("rank " + std::to_string(job.rank) + " of " + std::to_string(job.ranks) + " ranks, " +
                       std::to_string(job.ranks_per_node) + " per node, is no job");
  }
  std::vector<int> everyone(static_cast<std::size_t>(job.ranks));
  for (int r = 0; r < job.ranks; ++r) element(everyone, r) = r;
  const auto shared = std::make_shared<FakeJobState>();
  shared->job = job;
  for (int r = 0; r < job.ranks; ++r) {
    shared->job.rank = r;
    shared->next_split = shared->next_agreement = 0;
    FakeGroup world(shared, everyone);
    rehearsal(world);
  }
  shared->job.rank = job.rank;
  shared->next_split = shared->next_agreement = 0;
  shared->rehearsing = false;
  shared->real_memory = real_memory;
  shared->work = std::move(work);
  return std::make_unique<FakeGroup>(shared, everyone);
}

}  // namespace

TransferWork placement_of(const ProcessGroup& group) {
  if (const auto* fake = dynamic_cast<const FakeGroup*>(&group)) return fake->place();
  TransferWork place;
  place.ranks = group.size();
  return place;
}

std::unique_ptr<ProcessGroup> make_fake_world(const FakeJob& job, const std::function<void(ProcessGroup&)>& rehearsal,
                                              std::shared_ptr<WorkLog> work) {
  return make_world(job, rehearsal, false, std::move(work));
}

std::unique_ptr<ProcessGroup> make_lone_rank(const FakeJob& job, const std::function<void(ProcessGroup&)>& rehearsal) {
  return make_world(job, rehearsal, true, nullptr);
}

}  // namespace fsdp
