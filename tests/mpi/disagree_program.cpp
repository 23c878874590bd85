// Three ranks gather blocks; then rank 1 leaves a gather out, or gathers another size. The first ends the job with the
// two entries that differ, by rank, where MPI alone would hang. MPI takes the second without an error: the lists of
// collectives differ, which --verify-every compares.
//
//     mpi_disagree skip|size FOLDER     exits with 85 if that is what came
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "lib/flight/flight_recorder.hpp"
#include "lib/flight/stuck_verdict.hpp"
#include "lib/ranks/mpi_environment.hpp"
#include "lib/ranks/recorded_group.hpp"
#include "lib/reports/runs/job_flights.hpp"

using namespace fsdp;

namespace {

void gather(RecordedGroup& ranks, FlightRecorder& recorder, int block, std::size_t bytes) {
  recorder.begin_work(fmt::format("gather block {}", block), std::nullopt);
  std::vector<std::byte> in(bytes), out(bytes * static_cast<std::size_t>(ranks.size()));
  const GatherBlock one{in, out};
  ranks.all_gather(std::span(&one, 1))->wait();
  recorder.end_work();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const bool skips = std::string_view(argv[1]) == "skip";
  int code = 1;
  try {
    MpiEnvironment environment({.collective_timeout = std::chrono::seconds(3)});
    const auto world = environment.world();
    const std::filesystem::path run = argv[2];
    FlightRecorder recorder({world->rank(), world->size(), 0, run.string()}, flight_file(run, world->rank()));
    RecordedGroup ranks(*world, recorder);
    constexpr std::size_t kBytes = 256 << 10;
    const bool is_other = ranks.rank() == 1;
    try {
      for (int block = 0; block < 8; ++block) {
        if (is_other && skips && block == 5) continue;
        gather(ranks, recorder, block, is_other && !skips && block == 5 ? kBytes / 2 : kBytes);
      }
      ranks.barrier();
      std::array<double, 3> lists{};
      lists.at(static_cast<std::size_t>(ranks.rank())) =
          static_cast<double>(recorder.collectives_of(ranks.recorded_as()) >> 11);
      world->all_reduce(lists, Reduce::sum);
      if (!skips && lists[0] == lists[2] && lists[0] != lists[1]) code = 85;
    } catch (const StuckFailure& failure) {
      const auto verdict = verdict_of(flights_of_run(run, FlightMap::kEvents), 0);
      std::fprintf(stderr, "rank %d: %s; why: %s\n", ranks.rank(), failure.what(), verdict.text.c_str());
      const bool is_right = verdict.is_stuck && verdict.disagree && verdict.ranks == std::vector{1} &&
                            verdict.text.find("entered all-gather 6, \"gather block 5\"") != std::string::npos &&
                            verdict.text.find("rank 1 (") < verdict.text.find("\"gather block 6\"");
      // An MPI that notices the size ends the gather with an error.
      const bool has_size = verdict.disagree && verdict.text.find("128 KiB") != std::string::npos;
      if (skips ? is_right : has_size) code = 85;
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));  // the others read this rank's record
    std::filesystem::remove(flight_file(run, ranks.rank()));
    MpiEnvironment::abort(code);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return code;
}
