// A run's folder belongs to one job: a second job learns the owner, a silent owner on another host is followed, and a
// new run leaves an older run of the same name alone until it has made a step.
#include "tests/support/finetune_rig.hpp"

#include <unistd.h>

#include "lib/training/run/run_start.hpp"

using fsdp::ExitCode;
using fsdp::test::has_all;
using fsdp::test::Runs;
using fsdp::test::Words;
namespace fs = std::filesystem;

namespace {

struct OwnedRuns : Runs {
  /// Claims the run for process 7 of the host `far`.
  fs::path claim_of_another_host(const std::string& name) const {
    const auto claim = folder(name) / ".owner/claim.1";
    fs::create_directories(claim.parent_path());
    const nlohmann::json content{
        {"host", "far"},    {"boot_id", "b"},       {"pid_namespace", "pid:[1]"},        {"pid", 7},
        {"start_ticks", 9}, {"job", "Slurm job 5"}, {"since", "2026-01-01 00:00:00 UTC"}};
    std::ofstream(claim) << content.dump();
    return claim;
  }
  /// Files of the run with their bytes, but for those of its owners.
  std::map<std::string, std::string> contents(const std::string& name, const std::string& part = "") const {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder(name) / part)) {
      const auto path = entry.path().lexically_relative(folder(name) / part).string();
      if (!entry.is_symlink() && entry.is_regular_file() && path.find(".owner") == std::string::npos)
        found[path] = fsdp::read_text_file(entry.path());
    }
    return found;
  }
};

}  // namespace

TEST_SUITE("jobs/run_owner") {
  TEST_CASE("a second job is told who is first; reading needs no ownership") {
    OwnedRuns runs;
    runs.train("twice", "--max-steps 1");
    {
      const auto world = fsdp::make_single_group();
      const auto owner = fsdp::RunOwner::take(
          *world, {.run = runs.folder("twice"), .takeover_after = std::chrono::seconds(6), .stop = {}},
          fsdp::Logger(0, fsdp::LogLevel::error));
      for (const char* more : {"", " --restart latest"}) {
        for (const int ranks : {1, 2}) {
          const auto second = runs.train("twice", "--max-steps 3 --takeover-after 6" + std::string(more), ranks);
          CHECK(second.code == ExitCode::bad_input);
          char host[256] = {};
          ::gethostname(host, sizeof host - 1);
          CHECK(has_all(second.error, {runs.folder("twice").string(), host, "since 20", "--run-name"}));
        }
      }
      CHECK(runs.losses("twice").size() == 1);
      CHECK(runs.train("twice", "--max-steps 3 --dry-run").code == ExitCode::ok);
      CHECK(runs.train("twice", "--max-epochs -1 --restart latest --val-data " + runs.noise.string()).code ==
            ExitCode::ok);
    }
    CHECK(runs.train("twice", "--max-steps 3 --restart latest").code == ExitCode::ok);
    CHECK(runs.losses("twice").size() == 3);
    CHECK_FALSE(fs::exists(runs.folder("twice") / "previous-1"));
  }

  TEST_CASE("an owner on another host is believed while its claim is touched, and waited for when it is silent") {
    OwnedRuns runs;
    runs.claim_of_another_host("silent");
    const auto silent = runs.train("silent", "--max-steps 2 --takeover-after 2", 2);
    CHECK(silent.code == ExitCode::ok);
    CHECK(has_all(silent.log, {"process 7 on far (Slurm job 5)", "since 2026-01-01 00:00:00 UTC"}));
    CHECK(runs.checkpoints("silent") == std::set<std::string>{"latest -> step-00000002", "step-00000002"});
    const auto claim = runs.claim_of_another_host("beating");
    std::atomic<bool> done = false;
    std::thread heart([&] {
      for (; !done; std::this_thread::sleep_for(std::chrono::milliseconds(20)))
        fs::last_write_time(claim, fs::file_time_type::clock::now());
    });
    const auto refused = runs.train("beating", "--max-steps 2 --takeover-after 20", 2);
    done = true;
    heart.join();
    CHECK(refused.code == ExitCode::bad_input);
    CHECK(has_all(refused.error, {"process 7 on far (Slurm job 5)"}));
    CHECK(std::distance(fs::directory_iterator(runs.folder("beating")), fs::directory_iterator()) == 1);
  }

  TEST_CASE("a start that fails leaves no folder") {
    OwnedRuns runs;
    CHECK(runs.train("nothing", "--train-data " + (runs.dir / "absent.h5").string(), 2).code == ExitCode::bad_input);
    CHECK_FALSE(fs::exists(runs.folder("nothing")));
  }

  TEST_CASE("a new run moves the older one aside after its first step, not before") {
    OwnedRuns runs;
    runs.train("again", "--max-steps 3");
    const auto before = runs.contents("again");
    const auto stopped = runs.train("again", "--max-steps 5 --time-limit 0:01", 2);
    CHECK(stopped.code == ExitCode::stopped_early);
    CHECK(has_all(stopped.log, {runs.folder("again").string(), "as it was"}));
    CHECK(runs.contents("again") == before);
    CHECK(runs.train("again", "--max-steps 5 --vocab-size 50", 2).code == ExitCode::bad_input);
    CHECK(runs.contents("again") == before);
    const auto moved = runs.train("again", "--max-steps 2 --no-save", 2);
    CHECK(moved.code == ExitCode::ok);
    CHECK(has_all(moved.log, {"previous-1"}));
    CHECK(runs.contents("again", "previous-1") == before);
    // A user who looks for the moved run is told where it is.
    const auto lost = runs.train("again", "--max-steps 5 --restart latest");
    CHECK(lost.code == ExitCode::bad_input);
    CHECK(has_all(lost.error, {"previous-1/checkpoints/latest"}));
    const auto latest = (runs.folder("again") / "previous-1/checkpoints/latest").string();
    runs.train("again", "--max-steps 5 --restart " + latest);
    std::vector<int> steps;
    for (const auto& record : runs.records("again")) steps.push_back(record["step"]);
    CHECK(steps == std::vector{1, 2, 4, 5});
  }

  TEST_CASE("restarts at step 0 keep the only checkpoint") {
    OwnedRuns runs;
    const std::string limit = "--max-steps 5 --time-limit 0:01";
    CHECK(runs.train("zero", limit).code == ExitCode::stopped_early);
    for (int i = 0; i < 3; ++i) {
      CHECK(runs.train("zero", limit + " --restart latest").code == ExitCode::stopped_early);
      CHECK(runs.checkpoints("zero") == std::set<std::string>{"latest -> step-00000000", "step-00000000"});
    }
    runs.train("zero", "--max-steps 3 --restart latest");
    CHECK_FALSE(fs::exists(runs.folder("zero") / "previous-1"));
    CHECK(runs.losses("zero").size() == 3);
  }
}
