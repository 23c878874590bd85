// The cost of a rank's record: nanoseconds per piece of work and per collective, with the record in /dev/shm and
// without one. Divide by the time of a step: a block has about ten works and four collectives per micro-batch.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <span>
#include <vector>

#include "lib/flight/flight_recorder.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/ranks/recorded_group.hpp"

namespace {

using namespace fsdp;

constexpr int kCalls = 200'000, kTurns = 9;

double nanoseconds(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) body();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / kCalls;
}

void print(const char* name, const std::function<void()>& body) {
  std::vector<double> turns;
  for (int i = 0; i < kTurns; ++i) turns.push_back(nanoseconds(body));
  std::sort(turns.begin(), turns.end());
  std::printf("%-36s %7.1f ns (%.1f to %.1f)\n", name, turns[kTurns / 2], turns.front(), turns.back());
}

}  // namespace

int main() {
  FlightRecorder recorder({}, flight_file("bench", 0));
  if (!recorder.problem().empty()) std::printf("in this process's memory alone: %s\n", recorder.problem().c_str());
  const auto group = make_single_group();
  RecordedGroup recorded(*group, recorder);
  double value = 1;
  recorder.begin_work("step");
  print("a piece of work", [&] { const FlightWork work(&recorder, "forward block 5"); });
  print("a name without work", [&] {
    recorder.begin_work("gather block 5", std::nullopt);
    recorder.end_work();
  });
  print("an agreement, not recorded", [&] { group->all_reduce(std::span(&value, 1), Reduce::max); });
  print("an agreement, recorded", [&] { recorded.all_reduce(std::span(&value, 1), Reduce::max); });
}
