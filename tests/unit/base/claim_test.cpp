#include "lib/base/files/claim.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "lib/base/types/error.hpp"
#include "tests/unit/hub/hub_test_support.hpp"

using namespace fsdp;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

/// A clock that stands still until a test moves it. Copies share their time.
class HandClock {
 public:
  std::chrono::steady_clock::time_point operator()() const { return *now_; }
  void advance(std::chrono::milliseconds time) const { *now_ += time; }

 private:
  std::shared_ptr<std::chrono::steady_clock::time_point> now_ =
      std::make_shared<std::chrono::steady_clock::time_point>();
};

}  // namespace

TEST_SUITE("base/claim") {
  TEST_CASE("ProcessIdentity: identifies itself, a dead process and an unknown one") {
    const auto own = ProcessIdentity::own();
    CHECK(own.pid == ::getpid());
    CHECK_FALSE(own.surely_gone());
    const auto copy = ProcessIdentity::from_json(own.to_json());
    CHECK(copy.words() == own.words());
    CHECK_FALSE(copy.surely_gone());
    CHECK(test::ended().surely_gone());
    CHECK_FALSE(test::elsewhere().surely_gone());
    auto in_a_job = test::elsewhere();
    in_a_job.job = "Slurm job 42";
    in_a_job.since = "2026-11-22 10:15:00 UTC";
    CHECK(ProcessIdentity::from_json(in_a_job.to_json()).words() ==
          "process 7 on far (Slurm job 42), since 2026-11-22 10:15:00 UTC");
    // The format of older versions, without job and start time.
    CHECK(ProcessIdentity::from_json(R"({"host":"a","boot_id":"b","pid_namespace":"c","pid":1,"start_ticks":2})")
              .words() == "process 1 on a");
    for (const auto* text : {"", "{}", "[1]", "released", "{\"host\":1}"}) {
      CHECK_THROWS(ProcessIdentity::from_json(text));
    }
  }

  TEST_CASE("ClaimWatch: one owner at a time, the next after a release, each with its own number") {
    const test::TempDir directory;
    ClaimWatch first(directory / "a", 1h), second(directory / "a", 1h);
    const auto generation = first.try_take();
    REQUIRE(generation == 1);
    {
      const Claim claim(directory / "a", *generation);
      CHECK_FALSE(second.try_take());
      CHECK(second.holder().starts_with("process " + std::to_string(::getpid()) + " on "));
      CHECK_FALSE(second.owner_lives());  // no heartbeat has been seen yet
      CHECK(owner_state(directory / "a", 1) == OwnerState::silent);
    }
    CHECK(owner_state(directory / "a", 1) == OwnerState::gone);
    CHECK(second.try_take() == 2);
    CHECK_FALSE(first.try_take());
  }

  TEST_CASE("ClaimWatch: the last sixteen old claims stay, so that a stale directory listing gives nobody ownership") {
    const test::TempDir directory;
    for (std::uint64_t expected = 1; expected <= 40; ++expected) {
      const auto generation = ClaimWatch(directory.path(), 1h).try_take();
      REQUIRE(generation == expected);
      const Claim released(directory.path(), *generation);
    }
    for (const int gone : {1, 23, 24}) CHECK_FALSE(fs::exists(directory / ("claim." + std::to_string(gone))));
    for (const int kept : {25, 39, 40}) CHECK(fs::exists(directory / ("claim." + std::to_string(kept))));
    // A planted huge number neither stops the counting nor makes removal take forever.
    test::write_file(directory / "claim.18446744073709551615", "x");
    const auto next = ClaimWatch(directory.path(), 1h).try_take();
    REQUIRE(next == 41);
    Claim(directory.path(), *next).end();
    CHECK_FALSE(fs::exists(directory / "claim.41"));
  }

  TEST_CASE("ClaimWatch: while owners remove the folder, others make it again: one owner at a time, and no error") {
    const test::TempDir directory;
    std::atomic<int> owners{0}, most{0}, errors{0};
    const auto work = [&] {
      ClaimWatch watch(directory / "a", 1h);
      for (int taken = 0; taken < 500;) {
        try {
          const auto generation = watch.try_take();
          if (!generation) continue;
          ++taken;
          Claim claim(directory / "a", *generation);
          most = std::max<int>(most, ++owners);
          --owners;
          claim.end();
        } catch (const Error&) {
          ++errors;
        }
      }
    };
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 4; ++i) threads.emplace_back(work);
    }
    CHECK(most == 1);
    CHECK(errors == 0);
  }

  TEST_CASE("ClaimWatch: the claim of a process that ended is taken over at once") {
    const test::TempDir directory;
    test::write_file(directory / "claim.4", test::ended().to_json());
    CHECK(ClaimWatch(directory.path(), 1h).try_take() == 5);
  }

  TEST_CASE("ClaimWatch: another host's claim holds while its heartbeat continues, and then until the timeout") {
    const test::TempDir directory;
    test::write_file(directory / "claim.1", test::elsewhere().to_json());
    const HandClock clock;
    ClaimWatch watch(directory.path(), 300ms, clock);
    const auto first_beat = fs::file_time_type::clock::now();
    for (int i = 0; i < 5; ++i) {
      clock.advance(100ms);
      fs::last_write_time(directory / "claim.1", first_beat + i * 100ms);
      REQUIRE_FALSE(watch.try_take());
      CHECK(watch.owner_lives() == (i > 0));
    }
    CHECK(watch.holder() == "process 7 on far");
    clock.advance(299ms);
    CHECK_FALSE(watch.try_take());
    clock.advance(1ms);
    CHECK(watch.try_take() == 2);
  }

  TEST_CASE("ClaimWatch: a claim without a recent heartbeat is watched for half the timeout") {
    const test::TempDir directory;
    test::write_file(directory / "claim.1", test::elsewhere().to_json());
    const auto beat = [&](auto age) {
      fs::last_write_time(directory / "claim.1", fs::file_time_type::clock::now() - age);
    };
    beat(1h);  // an hour old, or written by a clock that is an hour slow
    ClaimWatch watch(directory.path(), 1s), lively(directory.path(), 1s);
    REQUIRE_FALSE(watch.try_take());
    REQUIRE_FALSE(lively.try_take());
    beat(1h - 1s);
    CHECK_FALSE(lively.try_take());
    CHECK(lively.owner_lives());
    const HandClock clock;
    ClaimWatch quiet(directory.path(), 1s, clock);
    REQUIRE_FALSE(quiet.try_take());
    clock.advance(499ms);
    CHECK_FALSE(quiet.try_take());
    clock.advance(1ms);
    CHECK(quiet.try_take() == 2);
  }

  TEST_CASE("ClaimWatch: an unreadable claim counts as a claim of an unknown process") {
    const test::TempDir directory;
    test::write_file(directory / "claim.1", "");
    const HandClock clock;
    ClaimWatch watch(directory.path(), 200ms, clock);
    CHECK_FALSE(watch.try_take());
    CHECK(watch.holder() == "an unknown process");
    clock.advance(199ms);
    CHECK_FALSE(watch.try_take());
    clock.advance(1ms);
    CHECK(watch.try_take() == 2);
  }

  TEST_CASE("ClaimWatch: of many simultaneous attempts exactly one wins, every time") {
    std::uint64_t start_in_thread = 0;
    std::jthread([&] { start_in_thread = ProcessIdentity::own().start_ticks; }).join();
    if (start_in_thread != ProcessIdentity::own().start_ticks) {
      MESSAGE(
          "skipped: /proc/self/stat gives each thread a start of its own here, as qemu's emulation of a process does");
      return;
    }
    const test::TempDir directory;
    for (std::uint64_t round = 1; round <= 20; ++round) {
      std::atomic<int> winners{0};
      {
        std::vector<std::jthread> threads;
        for (int i = 0; i < 8; ++i) {
          threads.emplace_back([&] {
            const auto generation = ClaimWatch(directory.path(), 1h).try_take();
            if (generation) ++winners;
            if (generation) CHECK(*generation == round);
          });
        }
      }
      REQUIRE(winners == 1);
      Claim(directory.path(), round);  // released at once
    }
  }

  TEST_CASE("Claim: detects that it was taken over or that its folder is gone; end() removes everything") {
    const test::TempDir directory;
    const auto folder = directory / "hash";
    {
      Claim claim(folder, ClaimWatch(folder, 1h).try_take().value());
      claim.beat();
      CHECK_FALSE(claim.lost());
      test::write_file(folder / "claim.2", test::elsewhere().to_json());
      claim.beat();
      CHECK(claim.lost());
    }
    CHECK(owner_state(folder, 1) == OwnerState::silent);  // a lost claim is not released
    fs::remove(folder / "claim.2");
    test::write_file(folder / "claim.1", "released");
    Claim claim(folder, ClaimWatch(folder, 1h).try_take().value());
    test::write_file(folder / "part.1" / "data", "x");
    claim.end();
    CHECK_FALSE(fs::exists(folder));
    Claim orphan(folder, 1);
    orphan.beat();
    CHECK(orphan.lost());
  }

  TEST_CASE("Heartbeat: keeps claims fresh and forgets claims that ended") {
    const test::TempDir directory;
    auto claim = std::make_shared<Claim>(directory.path(), ClaimWatch(directory.path(), 1h).try_take().value());
    const auto file = directory / "claim.1";
    fs::last_write_time(file, fs::file_time_type::clock::now() - 1h);
    Heartbeat heartbeat(20ms);
    heartbeat.add(claim);
    const auto is_fresh = [&] { return fs::file_time_type::clock::now() - fs::last_write_time(file) < 30min; };
    for (int i = 0; i < 500 && !is_fresh(); ++i) std::this_thread::sleep_for(10ms);
    CHECK(is_fresh());
    claim.reset();
    for (int i = 0; i < 500 && owner_state(directory.path(), 1) != OwnerState::gone; ++i)
      std::this_thread::sleep_for(10ms);
    CHECK(owner_state(directory.path(), 1) == OwnerState::gone);
  }
}
