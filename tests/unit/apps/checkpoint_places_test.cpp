// Checkpoints in difficult places: something else lies there, links cannot be made, or the folder disappears.
#include "tests/support/finetune_rig.hpp"

using fsdp::ExitCode;
using fsdp::test::has_all;
using fsdp::test::Runs;
namespace fs = std::filesystem;

TEST_SUITE("jobs/checkpoint_places") {
  TEST_CASE("--keep-last removes what this program saved, and after a run went back its own steps only") {
    Runs runs;
    runs.train("others", "--max-steps 8 --save-every 1 --keep-last 8");
    const auto folder = runs.folder("others") / "checkpoints";
    std::ofstream(folder / "step-00000001/notes.txt") << "mine";
    fs::create_directory(folder / "step-00000099");
    fs::remove(folder / "step-00000003/run.json");
    runs.train("others", "--max-steps 6 --save-every 1 --keep-last 2 --restart " + (folder / "step-00000004").string());
    CHECK(runs.checkpoints("others") == std::set<std::string>{"latest -> step-00000006", "step-00000001",
                                                              "step-00000003", "step-00000005", "step-00000006",
                                                              "step-00000007", "step-00000008", "step-00000099"});
    CHECK(fsdp::read_text_file(folder / "step-00000001/notes.txt") == "mine");
  }

  TEST_CASE("a checkpoint is complete even if `latest` cannot be made") {
    Runs runs;
    runs.train("linkless", "--max-steps 1");
    const auto latest = runs.folder("linkless") / "checkpoints/latest";
    fs::remove(latest);
    fs::create_directories(latest / "in-the-way");
    const auto told = runs.train("linkless", "--max-steps 4 --save-every 1 --keep-last 2 --restart latest").log;
    CHECK(has_all(told, {"cannot link"}));
    CHECK(told.find("cannot link") == told.rfind("cannot link"));  // once
    CHECK(runs.checkpoints("linkless") == std::set<std::string>{"latest", "step-00000003", "step-00000004"});
    CHECK(has_all(runs.train("linkless", "--max-steps 5 --restart latest").log, {"step-00000004"}));
    CHECK(runs.losses("linkless").size() == 5);
  }

  TEST_CASE("a copied run, whose `latest` is a folder, goes on from its newest checkpoint") {
    Runs runs;
    runs.train("here", "--max-steps 3 --save-every 1");
    fs::copy(runs.folder("here"), runs.folder("copied"), fs::copy_options::recursive);  // follows links
    const auto folder = runs.folder("copied") / "checkpoints";
    REQUIRE_FALSE(fs::is_symlink(folder / "latest"));
    const auto first = runs.train("copied", "--max-steps 5 --save-every 1 --restart latest").log;
    CHECK(has_all(first, {"cannot link", "take the newest step-N", "remove it"}));
    const auto written = fs::last_write_time(folder / "step-00000004");
    const auto told = runs.train("copied", "--max-steps 6 --save-every 1 --restart latest").log;
    CHECK(has_all(told, {"step-00000005", "   step 5,"}));
    CHECK(fs::last_write_time(folder / "step-00000004") == written);
    CHECK(fs::is_regular_file(folder / "latest/run.json"));  // a folder that no run made is not removed
    runs.train("here", "--max-steps 6 --restart latest");
    const auto truth = runs.evaluate(runs.folder("here") / "checkpoints/latest", runs.rows);
    for (const auto& path : {folder / "latest", folder, runs.folder("copied")})
      CHECK(runs.evaluate(path, runs.rows) == truth);
  }

  TEST_CASE("a run folder that is renamed") {
    Runs runs;
    std::thread mover([&] {
      while (!fs::exists(runs.folder("renamed") / "metrics.jsonl"))
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      fs::rename(runs.folder("renamed"), runs.dir / "elsewhere");
    });
    const auto ended = runs.train("renamed", "--max-steps 1000000 --log-every 1000000");
    mover.join();
    CHECK(ended.code == ExitCode::failed);
    CHECK(has_all(ended.error, {"the run's folder is gone"}));
    CHECK(ended.error.find("taken over") == std::string::npos);
  }
}
