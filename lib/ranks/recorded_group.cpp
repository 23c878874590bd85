#include "lib/ranks/recorded_group.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

/// Runs `collective` as an event. \param is_waited_for  from its beginning on
template <typename Collective>
auto recorded(FlightRecorder& recorder, std::uint64_t number, bool is_waited_for, const Collective& collective) {
  struct End {
    FlightRecorder& recorder;
    std::uint64_t number;
    ~End() { recorder.end(number); }  // not of a record that is frozen
  };
  const End end{recorder, is_waited_for ? number : 0};
  try {
    if (is_waited_for) recorder.wait(number);
    return collective();
  } catch (const StuckFailure&) {
    recorder.wait(number);  // it was, if others had to come for it to begin
    recorder.freeze();
    throw;
  }
}

class RecordedWork final : public Work {
 public:
  RecordedWork(std::unique_ptr<Work> work, FlightRecorder& recorder, std::uint64_t number)
      : work_(std::move(work)), recorder_(recorder), number_(number) {}
  RecordedWork(const RecordedWork&) = delete;
  RecordedWork& operator=(const RecordedWork&) = delete;
  ~RecordedWork() override { recorder_.end(number_); }
  void wait() override {
    recorded(recorder_, std::exchange(number_, 0), true, [&] { work_->wait(); });
  }

 private:
  std::unique_ptr<Work> work_;
  FlightRecorder& recorder_;
  std::uint64_t number_;  ///< 0: it has ended
};

template <typename Blocks>
std::uint64_t bytes_of(const Blocks& blocks) {
  std::uint64_t bytes = 0;
  for (const auto& block : blocks) bytes += block.in.size();
  return bytes;
}

std::uint8_t place_of(const ProcessGroup& group, FlightRecorder& recorder) {
  std::vector<int> members;
  for (int member = 0; member < group.size(); ++member) members.push_back(group.world_rank(member));
  return recorder.add_group(members);
}

std::int64_t since_1970_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

RecordedGroup::RecordedGroup(ProcessGroup& group, FlightRecorder& recorder)
    : group_(group), recorder_(recorder), place_(place_of(group, recorder)) {}

RecordedGroup::RecordedGroup(std::unique_ptr<ProcessGroup> group, FlightRecorder& recorder)
    : owner_(std::move(group)), group_(*owner_), recorder_(recorder), place_(place_of(group_, recorder)) {}

void RecordedGroup::barrier() {
  recorded(recorder_, recorder_.begin(FlightKind::barrier, place_, 0), true, [&] { group_.barrier(); });
}

void RecordedGroup::all_reduce(std::span<double> values, Reduce op) {
  recorded(recorder_, recorder_.begin(FlightKind::agreement, place_, values.size_bytes()), true,
           [&] { group_.all_reduce(values, op); });
}

void RecordedGroup::broadcast(std::span<std::byte> bytes, int root) {
  recorded(recorder_, recorder_.begin(FlightKind::broadcast, place_, bytes.size()), true,
           [&] { group_.broadcast(bytes, root); });
}

std::vector<std::string> RecordedGroup::gather(std::string_view text, int root) {
  return recorded(recorder_, recorder_.begin(FlightKind::collection, place_, text.size()), true,
                  [&] { return group_.gather(text, root); });
}

std::unique_ptr<Work> RecordedGroup::all_gather(std::span<const GatherBlock> blocks) {
  const auto number = recorder_.begin(FlightKind::all_gather, place_, bytes_of(blocks));
  return std::make_unique<RecordedWork>(recorded(recorder_, number, false, [&] { return group_.all_gather(blocks); }),
                                        recorder_, number);
}

std::unique_ptr<Work> RecordedGroup::all_to_all(std::span<const ExchangeBlock> blocks) {
  const auto number = recorder_.begin(FlightKind::all_to_all, place_, bytes_of(blocks));
  return std::make_unique<RecordedWork>(recorded(recorder_, number, false, [&] { return group_.all_to_all(blocks); }),
                                        recorder_, number);
}

std::unique_ptr<ProcessGroup> RecordedGroup::split(int color) {
  return std::make_unique<RecordedGroup>(group_.split(color), recorder_);
}

std::unique_ptr<ProcessGroup> RecordedGroup::split_by_node() {
  return std::make_unique<RecordedGroup>(group_.split_by_node(), recorder_);
}

std::unique_ptr<PeerMemory> RecordedGroup::peer_memory(std::size_t size_bytes, std::size_t num_counters) {
  return group_.peer_memory(size_bytes, num_counters);
}

std::int64_t clock_offset_to_rank0_ns(ProcessGroup& world) {
  constexpr std::size_t kTries = 9;
  std::array<double, kTries> difference{};
  for (auto& value : difference) {
    world.barrier();
    const auto local = since_1970_ns();
    std::int64_t first = local;
    world.broadcast(std::as_writable_bytes(std::span(&first, 1)), 0);
    value = static_cast<double>(first - local);
  }
  std::nth_element(difference.begin(), difference.begin() + kTries / 2, difference.end());
  const auto to_rank0 = static_cast<std::int64_t>(difference[kTries / 2]);
  return since_1970_ns() - flight_now_ns() + to_rank0;
}

}  // namespace fsdp
