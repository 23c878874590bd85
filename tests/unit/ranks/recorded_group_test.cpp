#include "lib/ranks/recorded_group.hpp"

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/flight/stuck_verdict.hpp"
#include "lib/ranks/thread_group.hpp"

using namespace fsdp;

namespace {

/// Runs `body` on thread ranks that are recorded. \return the verdict when a rank gave up, else an empty one
Verdict verdict_of_ranks(int ranks, const std::function<void(ProcessGroup&, FlightRecorder&)>& body) {
  std::vector<std::unique_ptr<FlightRecorder>> recorders;
  for (int rank = 0; rank < ranks; ++rank)
    recorders.push_back(std::make_unique<FlightRecorder>(FlightRecorder::Rank{.rank = rank, .ranks = ranks}, ""));
  std::mutex mutex;
  Verdict verdict;
  const auto look = [&] {
    const std::lock_guard lock(mutex);
    if (verdict.is_stuck) return;
    std::vector<RankFlight> flights;
    for (const auto& recorder : recorders) flights.push_back(read_flight(recorder->map(), FlightMap::kEvents));
    verdict = verdict_of(flights, 0);
  };
  try {
    run_thread_ranks(
        ranks, ranks,
        [&](ProcessGroup& world) {
          auto& recorder = *recorders.at(static_cast<std::size_t>(world.rank()));
          RecordedGroup recorded(world, recorder);
          try {
            body(recorded, recorder);
          } catch (const StuckFailure&) {
            look();
            throw;
          }
        },
        std::chrono::milliseconds(300));
  } catch (const RuntimeFailure&) {
  }
  return verdict;
}

void gather(ProcessGroup& group, FlightRecorder& recorder, const char* name, std::size_t bytes) {
  std::vector<std::byte> in(bytes), out(bytes * static_cast<std::size_t>(group.size()));
  const GatherBlock block{in, out};
  recorder.begin_work(name, std::nullopt);
  auto work = group.all_gather(std::span(&block, 1));
  recorder.end_work();
  work->wait();
}

}  // namespace

TEST_SUITE("mpi/recorded group") {
  TEST_CASE("results are those of the group, and a job that ends in order leaves no wait") {
    const auto verdict = verdict_of_ranks(4, [](ProcessGroup& world, FlightRecorder& recorder) {
      CHECK(world.all_reduce(world.rank(), Reduce::sum) == 6);
      CHECK(world.broadcast_text("from 0", 0) == "from 0");
      const auto half = world.split(world.rank() / 2);
      CHECK(half->size() == 2);
      CHECK(half->recorder() == &recorder);
      CHECK(half->world_rank(1) == world.rank() / 2 * 2 + 1);
      const auto texts = half->gather(std::to_string(world.rank()), 0);
      if (half->rank() == 0) CHECK(texts.at(1) == std::to_string(world.rank() + 1));
      gather(*half, recorder, "gather block 0", 16);
      world.barrier();
      const auto flight = read_flight(recorder.map(), 100);
      CHECK(flight.open.empty());
      CHECK(flight.groups.size() == 2);
      CHECK(flight.groups.at(1).rounds == 2);
      CHECK(flight.groups.at(1).identity != flight.groups.at(0).identity);
    });
    CHECK(verdict.text == "");
  }

  TEST_CASE("a rank that leaves out a gather is named with what it entered instead") {
    const auto verdict = verdict_of_ranks(3, [](ProcessGroup& world, FlightRecorder& recorder) {
      for (int block = 0; block < 6; ++block) {
        if (world.rank() == 2 && block == 3) continue;
        gather(world, recorder, ("gather block " + std::to_string(block)).c_str(), 16);
      }
      recorder.begin_work("update");
      while (world.rank() == 2 && world.timeout().count() > 0) std::this_thread::yield();  // until others give up
    });
    CHECK(verdict.is_stuck);
    CHECK(verdict.ranks == std::vector{2});
    INFO(verdict.text);
    CHECK(verdict.text.find("\"gather block 3\"") != std::string::npos);
    CHECK(verdict.text.find("\"gather block 4\"") != std::string::npos);
  }

  TEST_CASE("a rank that works on is named with its work") {
    const auto verdict = verdict_of_ranks(4, [](ProcessGroup& world, FlightRecorder& recorder) {
      world.barrier();
      if (world.rank() != 1) return world.barrier();
      recorder.begin_work("read tokens");
      std::this_thread::sleep_for(std::chrono::milliseconds(40));
      while (world.timeout().count() > 0) std::this_thread::yield();  // until another rank gives up
    });
    CHECK(verdict.ranks == std::vector{1});
    INFO(verdict.text);
    CHECK(verdict.text.find("has not entered barrier 2: it has been in \"read tokens\"") != std::string::npos);
  }

  TEST_CASE("clocks of one host agree") {
    run_thread_ranks(3, 3, [](ProcessGroup& world) {
      const auto offset = static_cast<double>(clock_offset_to_rank0_ns(world));
      const double lowest = world.all_reduce(offset, Reduce::min), highest = world.all_reduce(offset, Reduce::max);
      CHECK(highest - lowest < 1e9);  // threads may wait for a core for as long as a tenth of a second
    });
  }
}
