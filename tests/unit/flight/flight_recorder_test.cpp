#include "lib/flight/flight_recorder.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "lib/flight/rank_flight.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;

namespace {

const FlightRecorder::Rank kRank{.rank = 3, .ranks = 8, .clock_offset_ns = 1'000'000'000'000};

}  // namespace

TEST_SUITE("flight/recorder") {
  TEST_CASE("what goes on and what has ended, as a reader sees it") {
    FlightRecorder recorder(kRank, "");
    CHECK(recorder.problem() == "");
    const std::vector world{0, 1, 2, 3, 4, 5, 6, 7};
    const auto group = recorder.add_group(world);
    recorder.set_place(212, 2);
    recorder.begin_work("forward block 5");
    recorder.begin_work("gather block 6", std::nullopt);
    const auto first = recorder.begin(FlightKind::all_gather, group, 1024);
    recorder.end_work();
    recorder.wait(first);
    recorder.end(first);
    const auto second = recorder.begin(FlightKind::barrier, group, 0);
    const auto flight = read_flight(recorder.map(), 10);
    CHECK(flight.rank == 3);
    CHECK(flight.ranks == 8);
    CHECK(flight.pid == ::getpid());
    CHECK(flight.groups.at(0).size == 8);
    CHECK(flight.groups.at(0).rounds == 2);
    REQUIRE(flight.ended.size() == 1);
    const auto& gather = flight.ended.front();
    CHECK(gather.name == "gather block 6");
    CHECK(gather.kind == FlightKind::all_gather);
    CHECK(gather.round == 1);
    CHECK(gather.bytes == 1024);
    CHECK(gather.step == 212);
    CHECK(gather.micro_batch == 2);
    CHECK(gather.begin > 1000);
    CHECK(gather.begin <= gather.wait);
    CHECK(gather.wait <= gather.end);
    REQUIRE(flight.open.size() == 2);
    REQUIRE(flight.works_on() != nullptr);
    CHECK(flight.works_on()->name == "forward block 5");
    CHECK(flight.waits_for() == nullptr);  // begun, not waited for
    recorder.wait(second);
    const auto later = read_flight(recorder.map(), 10);
    REQUIRE(later.waits_for() != nullptr);
    CHECK(later.waits_for()->kind == FlightKind::barrier);
    CHECK(later.waits_for()->name == "forward block 5");
  }

  TEST_CASE("ranks with the same collectives have the same number, others have another") {
    struct One {
      FlightKind kind;
      const char* name;
      std::uint64_t bytes;
    };
    using enum FlightKind;
    const std::vector<One> usual{
        {all_gather, "gather block 1", 64}, {agreement, "read tokens", 8}, {collection, "", 7}};
    const auto number_of = [](const std::vector<One>& made) {
      FlightRecorder recorder(kRank, "");
      const auto group = recorder.add_group(std::vector{0, 1}), other = recorder.add_group(std::vector{0, 2});
      for (const auto& [kind, name, bytes] : made) {
        recorder.begin_work(name);
        recorder.end(recorder.begin(kind, group, bytes));
        recorder.end_work();
      }
      CHECK(recorder.collectives_of(other) == 0);
      return recorder.collectives_of(group);
    };
    CHECK(number_of(usual) == number_of(usual));
    auto changed = usual;
    changed[2].bytes = 300;             // a text of this rank
    changed[1].name = "write samples";  // ranks agree in the midst of different work
    CHECK(number_of(changed) == number_of(usual));
    for (const auto& first : {One{all_gather, "gather block 1", 32}, One{all_gather, "gather block 2", 64},
                              One{all_to_all, "gather block 1", 64}}) {
      changed = usual;
      changed[0] = first;
      CHECK(number_of(changed) != number_of(usual));
    }
    CHECK(number_of({usual[1], usual[0], usual[2]}) != number_of(usual));
    CHECK(number_of({usual[0], usual[1]}) != number_of(usual));
  }

  TEST_CASE("what a rank's time goes into") {
    FlightRecorder recorder(kRank, "");
    const auto group = recorder.add_group(std::vector{0, 1});
    const auto pass = [] {
      const auto end = flight_now_ns() + 2'000'000;
      while (flight_now_ns() < end) {
      }
    };
    const auto grown = [&](const TimeUse& before) {
      const auto now = recorder.time_use();
      return TimeUse{
          now.wait_ns - before.wait_ns,
          {now.of(WorkKind::compute) - before.of(WorkKind::compute), now.of(WorkKind::read) - before.of(WorkKind::read),
           now.of(WorkKind::write) - before.of(WorkKind::write)}};
    };
    const auto start = recorder.time_use();
    recorder.begin_work("read tokens", WorkKind::read);
    pass();
    recorder.begin_work("gather", std::nullopt);  // has no kind of its own
    pass();
    recorder.end_work();
    const auto number = recorder.begin(FlightKind::barrier, group, 0);
    recorder.wait(number);
    pass();
    const auto counter = recorder.begin_counter("arrivals", 1, 1);  // a wait within a wait counts once
    pass();
    recorder.end(counter);
    recorder.end(number);
    recorder.end_work();
    const auto use = grown(start);
    CHECK(use.of(WorkKind::read) >= 4'000'000);
    CHECK(use.wait_ns >= 4'000'000);
    CHECK(use.of(WorkKind::write) == 0);
    const auto middle = recorder.time_use();
    {
      const FlightWork work(&recorder, "save", WorkKind::write);
      pass();
    }
    pass();
    const auto rest = grown(middle);
    CHECK(rest.of(WorkKind::write) >= 2'000'000);
    CHECK(rest.of(WorkKind::compute) >= 2'000'000);
    CHECK(rest.wait_ns == 0);
    CHECK(rest.of(WorkKind::read) == 0);
  }

  TEST_CASE("the record of a rank that was killed") {
    const fsdp::test::TempDir folder;
    const auto file = flight_file(folder.path() / "run", 3, folder.path());
    const pid_t child = ::fork();
    if (child == 0) {
      auto rank = kRank;
      rank.run = folder.path();
      FlightRecorder recorder(rank, file);
      rank.run = folder.path() / "gone";
      FlightRecorder other(rank, folder.path() / "fsdp-flight-gone");
      recorder.begin_work("read tokens");
      ::raise(SIGKILL);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    const auto flights = HostFlights(folder.path() / "run" / "", folder.path()).read(10);
    REQUIRE(flights.size() == 1);
    CHECK(flights[0].has_ended());
    CHECK_FALSE(flights[0].was_killed_for_memory);
    REQUIRE(flights[0].works_on() != nullptr);
    CHECK(flights[0].works_on()->name == "read tokens");
    const FlightRecorder alive(kRank, folder.path() / "fsdp-flight-alive");
    std::ofstream(folder.path() / "fsdp-flight-other") << "somebody's";
    const auto now = std::filesystem::file_time_type::clock::now();
    remove_old_flights(now - std::chrono::hours(1), folder.path());
    CHECK(std::filesystem::exists(file));
    CHECK_FALSE(std::filesystem::exists(folder.path() / "fsdp-flight-gone"));
    const auto copy = folder.path() / "fsdp-flight-copy";
    std::filesystem::copy_file(file, copy);
    std::filesystem::last_write_time(copy, now - std::chrono::hours(3));
    for (const char* name : {"fsdp-flight-alive", "fsdp-flight-other"})
      std::filesystem::last_write_time(folder.path() / name, now - std::chrono::hours(3));
    remove_old_flights(now - std::chrono::hours(2), folder.path());
    CHECK_FALSE(std::filesystem::exists(copy));
    for (const char* name : {"fsdp-flight-alive", "fsdp-flight-other"})
      CHECK(std::filesystem::exists(folder.path() / name));
    {
      const FlightRecorder next(kRank, file);  // of the job that goes on
      CHECK(next.problem() == "");
      CHECK(read_flight_file(file, 10)->open.empty());
    }
    CHECK_FALSE(std::filesystem::exists(file));
  }

  TEST_CASE("a file that is no record is kept, and no record is read from it") {
    const fsdp::test::TempDir folder;
    const auto file = folder.path() / "other";
    std::ofstream(file) << "somebody's";
    const FlightRecorder recorder(kRank, file);
    CHECK(recorder.problem().find("other: File exists") != std::string::npos);
    CHECK(std::filesystem::file_size(file) == 10);
    CHECK_FALSE(read_flight_file(file, 10));
    CHECK_FALSE(read_flight_file(folder.path() / "missing", 10));
    std::filesystem::resize_file(file, sizeof(FlightMap));  // of the right size
    CHECK_FALSE(read_flight_file(file, 10));
    const FlightRecorder nowhere(kRank, folder.path() / "missing" / "file");
    CHECK(nowhere.problem() != "");
    CHECK(read_flight(nowhere.map(), 1).rank == 3);
  }

  TEST_CASE("more events, works and names than there are places") {
    FlightRecorder recorder(kRank, "");
    const auto group = recorder.add_group(std::vector{3});
    for (int i = 0; i < 5000; ++i) {
      recorder.begin_work("work " + std::to_string(i));
      recorder.end(recorder.begin(FlightKind::agreement, group, 8));
      recorder.end_work();
    }
    const auto flight = read_flight(recorder.map(), 100'000);
    CHECK(flight.ended.size() == FlightMap::kEvents);
    CHECK(flight.ended.back().name == "");  // there are 2,047 names
    CHECK(flight.groups.at(0).rounds == 5000);
    for (int i = 0; i < 100; ++i) recorder.begin_work("deep");
    CHECK(read_flight(recorder.map(), 0).open.size() == FlightMap::kOpen);
    for (int i = 0; i < 101; ++i) recorder.end_work();
    CHECK(read_flight(recorder.map(), 0).open.empty());
    for (int i = 0; i < 100; ++i) CHECK(recorder.add_group(std::vector{i}) < FlightMap::kGroups);
  }

  TEST_CASE("a frozen record stays as it was") {
    FlightRecorder recorder(kRank, "");
    const auto group = recorder.add_group(std::vector{3});
    const auto number = recorder.begin(FlightKind::barrier, group, 0);
    recorder.wait(number);
    recorder.freeze();
    recorder.end(number);
    recorder.begin_work("tell the error");
    const auto flight = read_flight(recorder.map(), 10);
    REQUIRE(flight.waits_for() != nullptr);
    CHECK(flight.works_on() == nullptr);
  }

  TEST_CASE("a reader beside the writer sees whole events") {
    FlightRecorder recorder(kRank, "");
    const auto group = recorder.add_group(std::vector{3});
    std::atomic<bool> done = false;
    std::thread writer([&] {
      for (std::uint64_t i = 1; i <= 50'000; ++i) {
        const auto number = recorder.begin(FlightKind::all_gather, group, i);
        recorder.wait(number);
        recorder.end(number);
      }
      done = true;
    });
    int seen = 0;
    while (!done) {
      const auto flight = read_flight(recorder.map(), 64);
      for (const auto* notes : {&flight.open, &flight.ended}) {
        for (const auto& note : *notes) {
          REQUIRE(note.bytes == note.round);
          ++seen;
        }
      }
    }
    writer.join();
    CHECK(seen > 0);
  }

  TEST_CASE("JSON and back, and JSON that is something else") {
    FlightRecorder recorder(kRank, "");
    const auto group = recorder.add_group(std::vector{2, 3});
    recorder.set_blocked("fsync of /scratch/x");
    recorder.begin_work("save");
    recorder.end(recorder.begin(FlightKind::all_to_all, group, 77));
    const auto flight = read_flight(recorder.map(), 10);
    CHECK(flight.blocked == "fsync of /scratch/x");
    const auto json = flight_to_json(flight);
    const auto again = flight_from_json(json);
    REQUIRE(again);
    CHECK(flight_to_json(*again) == json);
    CHECK(again->ended.at(0).bytes == 77);
    for (const char* key : {"rank", "groups", "open", "state", "seen"}) {
      auto without = json;
      without.erase(key);
      CHECK_FALSE(flight_from_json(without));
      without[key] = "text";
      if (std::string(key) != "state") CHECK_FALSE(flight_from_json(without));
    }
    auto other = json;
    other["open"][0]["kind"] = "dance";
    CHECK_FALSE(flight_from_json(other));
    CHECK_FALSE(flight_from_json(nlohmann::json::array()));
  }
}
