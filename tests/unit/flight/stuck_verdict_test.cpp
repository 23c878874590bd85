#include "lib/flight/stuck_verdict.hpp"

#include <doctest/doctest.h>

#include <algorithm>

using namespace fsdp;

namespace {

constexpr double kNow = 1'000'000;
constexpr std::uint64_t kWorld = 1, kLow = 2, kHigh = 3;

/// A rank of a job on one host, which has begun `rounds` collectives of the world.
RankFlight rank_at(int rank, std::uint32_t rounds, int ranks = 4) {
  RankFlight flight;
  flight.rank = rank;
  flight.ranks = ranks;
  flight.host = "node7";
  flight.pid = 4710 + rank;
  flight.state = 'S';
  flight.seen = kNow;
  flight.groups.push_back({.identity = kWorld, .size = ranks, .rounds = rounds});
  return flight;
}

FlightNote collective(FlightKind kind, const char* name, std::uint32_t round, std::uint64_t bytes) {
  return {.kind = kind,
          .name = name,
          .group = 0,
          .bytes = bytes,
          .step = 212,
          .micro_batch = 2,
          .round = round,
          .peer = -1,
          .begin = kNow - 41,
          .wait = 0,
          .end = 0};
}

RankFlight waiting(int rank, FlightNote note, int ranks = 4) {
  auto flight = rank_at(rank, note.round, ranks);
  note.wait = kNow - 40;
  flight.open.push_back(note);
  return flight;
}

RankFlight working(int rank, std::uint32_t rounds, const char* work, double seconds) {
  auto flight = rank_at(rank, rounds);
  flight.open.push_back({.kind = FlightKind::work, .name = work, .step = 212, .begin = kNow - seconds});
  return flight;
}

/// An expression for CHECK, which shows the text.
bool says(const Verdict& verdict, const char* words) {
  const bool found = verdict.text.find(words) != std::string::npos;
  if (!found) MESSAGE(verdict.text);
  return found;
}

const auto kAgreement = collective(FlightKind::agreement, "", 9, 8);
const auto kGather = collective(FlightKind::all_gather, "gather block 5", 17, 1024);

}  // namespace

TEST_SUITE("flight/stuck_verdict") {
  TEST_CASE("a node of which nothing was heard, since its last look at the record") {
    std::vector flights{waiting(0, kAgreement), waiting(1, kAgreement), waiting(2, kAgreement),
                        working(3, 8, "read tokens", 41)};
    for (auto& flight : flights) flight.every_seconds = 5;
    flights[3].seen = kNow - 14;
    CHECK(says(verdict_of(flights, 5), "it has been in \"read tokens\" for 0:27"));
    flights[3].seen = kNow - 16;
    CHECK(says(verdict_of(flights, 5), "nothing was heard of its node since"));
    CHECK(says(verdict_of(flights, 5), ", when it was in \"read tokens\"; ranks 0-2 wait"));
    flights[3].every_seconds = 0;  // read just now, by a clock that differs
    CHECK(says(verdict_of(flights, 5), "it has been in \"read tokens\" for 0:25"));
  }

  TEST_CASE("a rank that reads samples while the others agree on the step's tokens") {
    const std::vector flights{waiting(0, kAgreement), waiting(1, kAgreement), waiting(2, kAgreement),
                              working(3, 8, "read tokens", 41)};
    const auto verdict = verdict_of(flights, 5);
    CHECK(verdict.is_stuck);
    CHECK(verdict.ranks == std::vector{3});
    CHECK(verdict.waiting == std::vector{0, 1, 2});
    CHECK(says(verdict,
               "rank 3 (process 4713 on node7) has not entered agreement 9, 8 bytes (step 212, micro-batch 2): it "
               "has been in \"read tokens\" for 0:41; ranks 0-2 wait since "));
  }

  TEST_CASE("what the kernel says of a rank comes with its work") {
    auto culprit = working(1, 16, "finish save", 60);
    SUBCASE("stopped") {
      culprit.state = 'T';
      CHECK(says(verdict_of(std::vector{waiting(0, kGather), culprit}, 5), "it is stopped (state T; kill -CONT 4711"));
    }
    SUBCASE("in the file system") {
      culprit.state = 'D';
      culprit.blocked = "fsync of /scratch/step-8/0.distcp";
      CHECK(says(verdict_of(std::vector{waiting(0, kGather), culprit}, 5),
                 "the kernel does not let it go on: fsync of /scratch/step-8/0.distcp"));
    }
    SUBCASE("uninterruptible, and nothing else is known") {
      culprit.state = 'D';
      CHECK(says(verdict_of(std::vector{waiting(0, kGather), culprit}, 5), "uninterruptible, state D"));
    }
    SUBCASE("ended") {
      culprit.state = 'X';
      CHECK(says(verdict_of(std::vector{waiting(0, kGather), culprit}, 5), "its process has ended"));
    }
    SUBCASE("killed for memory") {
      culprit.state = 'X';
      culprit.was_killed_for_memory = true;
      CHECK(
          says(verdict_of(std::vector{waiting(0, kGather), culprit}, 5), "the kernel has killed it, since its memory"));
    }
  }

  TEST_CASE("a rank that was stopped in a wait of its own is named, though it waits as well") {
    auto stopped = waiting(2, kGather);
    stopped.state = 'T';
    const auto verdict = verdict_of(std::vector{waiting(0, kGather), waiting(1, kGather), stopped}, 5);
    CHECK(verdict.ranks == std::vector{2});
    CHECK(verdict.waiting == std::vector{0, 1});
    CHECK(says(verdict,
               "has entered all-gather 17, \"gather block 5\", 1 KiB (step 212, micro-batch 2) and does not go on: "
               "it is stopped"));
  }

  TEST_CASE("a counter in shared memory names whom it waits for") {
    FlightNote counter{.kind = FlightKind::counter,
                       .name = "the gather of block 5",
                       .step = 3,
                       .round = 8,
                       .peer = 2,
                       .begin = kNow - 30,
                       .wait = kNow - 30};
    auto waits = rank_at(0, 4);
    waits.open.push_back(counter);
    const auto verdict = verdict_of(std::vector{waits, rank_at(1, 4), working(2, 4, "backward block 6", 31)}, 5);
    CHECK(verdict.ranks == std::vector{2});
    CHECK(says(verdict,
               "rank 2 (process 4712 on node7) has not come to \"the gather of block 5\" (step 3): it has been "
               "in \"backward block 6\" for 0:31; rank 0 waits since "));
  }

  TEST_CASE("in a chain of groups only its end is named") {
    // Ranks 0 and 2 wait for 1 and 3 in their own groups; 1 waits for 3 in the other one.
    auto in_group = [](int rank, std::uint64_t identity, std::uint32_t rounds) {
      auto flight = rank_at(rank, 5);
      flight.groups.push_back({.identity = identity, .size = 2, .rounds = rounds});
      return flight;
    };
    auto note = collective(FlightKind::all_gather, "gather block 1", 7, 64);
    note.group = 1;
    note.wait = kNow - 20;
    auto zero = in_group(0, kLow, 7), one = in_group(1, kLow, 6), two = in_group(2, kHigh, 7),
         three = in_group(3, kHigh, 6);
    zero.open.push_back(note);
    two.open.push_back(note);
    auto agreement = collective(FlightKind::agreement, "", 6, 8);
    agreement.wait = kNow - 25;
    one.groups[0].rounds = 6;
    one.open.push_back(agreement);
    three.open.push_back({.kind = FlightKind::work, .name = "read tokens", .begin = kNow - 26});
    CHECK(verdict_of(std::vector{zero, one, two, three}, 5).ranks == std::vector{3});
  }

  TEST_CASE("ranks that disagree are named with both entries, from the first that differs") {
    // Rank 2 left out the gather of block 5: its list is one ahead from round 17 on.
    std::vector<RankFlight> flights;
    for (int rank = 0; rank < 3; ++rank) {
      auto flight = rank_at(rank, 19);
      const int ahead = rank == 2 ? 1 : 0;
      for (int round = 15; round < 19; ++round) {
        const int block = round - 12 + (round >= 17 ? ahead : 0);
        auto done = collective(FlightKind::all_gather, ("gather block " + std::to_string(block)).c_str(),
                               static_cast<std::uint32_t>(round), 1024);
        done.wait = kNow - 50;
        done.end = kNow - 49;
        flight.ended.push_back(done);
      }
      auto last = rank == 2 ? collective(FlightKind::agreement, "", 19, 8)
                            : collective(FlightKind::all_gather, "gather block 7", 19, 1024);
      last.wait = kNow - 40;
      flight.open.push_back(last);
      flights.push_back(flight);
    }
    const auto verdict = verdict_of(flights, 5);
    CHECK(verdict.is_stuck);
    CHECK(verdict.ranks == std::vector{2});
    CHECK(says(verdict,
               "the ranks disagree about what is next: ranks 0, 1 entered all-gather 17, \"gather block 5\", 1 "
               "KiB (step 212, micro-batch 2), but rank 2 (process 4712 on node7) entered all-gather 17, "
               "\"gather block 6\""));
  }

  TEST_CASE("another size is a disagreement, a text of another length is none") {
    auto larger = kGather;
    larger.bytes = 2048;
    CHECK(says(verdict_of(std::vector{waiting(0, kGather), waiting(1, larger), waiting(2, kGather)}, 5), "2 KiB"));
    auto text = collective(FlightKind::collection, "", 9, 3), longer = text;
    longer.bytes = 300;
    CHECK_FALSE(says(verdict_of(std::vector{waiting(0, text), waiting(1, longer)}, 5), "disagree"));
  }

  TEST_CASE("ranks of which nothing is known are told, and a transport that does not go on") {
    const auto unknown = verdict_of(std::vector{waiting(0, kGather), waiting(1, kGather)}, 5);
    CHECK(unknown.ranks == std::vector{2, 3});
    CHECK(says(unknown, "nothing is known of ranks 2, 3"));
    const auto transport = verdict_of(std::vector{waiting(0, kGather, 2), waiting(1, kGather, 2)}, 5);
    CHECK(transport.is_stuck);
    CHECK(transport.ranks.empty());
    CHECK(says(transport, "what carries it between them does not go on"));
  }

  TEST_CASE("a job that works is not stuck, nor one whose waits are short") {
    const auto works =
        verdict_of(std::vector{working(0, 8, "forward block 1", 0.1), working(1, 8, "validate", 300)}, 5);
    CHECK_FALSE(works.is_stuck);
    CHECK(says(works, "rank 1 (process 4711 on node7): it has been in \"validate\" for"));
    auto brief = kAgreement;
    brief.wait = kNow - 1;
    auto rank0 = rank_at(0, 9);
    rank0.open.push_back(brief);
    CHECK_FALSE(verdict_of(std::vector{rank0, working(1, 8, "read tokens", 2)}, 5).is_stuck);
    CHECK(verdict_of(std::vector{rank0, working(1, 8, "read tokens", 2)}, 0).is_stuck);
    CHECK_FALSE(verdict_of({}, 5).is_stuck);
  }

  TEST_CASE("lists of ranks") {
    CHECK(rank_list({}) == "");
    CHECK(rank_list({7, 0, 1, 2}) == "0-2, 7");
    CHECK(rank_list({4, 3}) == "3, 4");
  }
}
