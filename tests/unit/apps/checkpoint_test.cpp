// Checkpoints of whole jobs: resuming on the same and on other ranks, options that a resume restores, housekeeping.
#include "tests/support/finetune_rig.hpp"

using fsdp::ExitCode;
using fsdp::test::has_all;
using fsdp::test::Runs;
using fsdp::test::Words;
namespace fs = std::filesystem;

namespace {

using CheckpointNames = std::set<std::string>;
const std::string kBatch =
    " --total-batch-size 12 --lr 3e-3 --lr-schedule cosine --warmup-steps 3 --schedule-steps 12 --batch-size ";

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

std::map<std::string, std::string> tensor_files(const fs::path& checkpoint) {
  std::map<std::string, std::string> found;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    if (entry.path().extension() == ".distcp") found[entry.path().filename()] = fsdp::read_text_file(entry.path());
  }
  return found;
}

}  // namespace

TEST_SUITE("jobs/checkpoint") {
  TEST_CASE("a resume on the same ranks is equal bit for bit") {
    struct Way {
      int ranks, batch;
      std::string job, saved;  // the options of each start, and those that the run restores
    };
    for (const auto& [ranks, batch, job, saved] :
         {Way{1, 12, "", ""}, Way{2, 3, "", ""}, Way{3, 4, "", " --dropout 0.1"},
          Way{2, 6, " --sharding grad-shard", " --precision bf16"}, Way{2, 6, "", " --precision fp16"}}) {
      CAPTURE(ranks);
      CAPTURE(job);
      Runs runs;
      const auto given = kBatch + std::to_string(batch) + job + saved;
      runs.train("whole", "--max-steps 8" + given, ranks);
      runs.train("parts", "--max-steps 3" + given, ranks);
      runs.resume("parts", "--max-steps 8 --batch-size " + std::to_string(batch) + job, ranks);
      CHECK(runs.losses("whole").size() == 8);
      CHECK(runs.losses("parts") == runs.losses("whole"));
      const auto whole = tensor_files(runs.folder("whole") / "checkpoints/step-00000008");
      CHECK(whole.size() == static_cast<std::size_t>(ranks));
      CHECK(tensor_files(runs.folder("parts") / "checkpoints/step-00000008") == whole);
    }
  }

  TEST_CASE("other ranks and strategies continue, also where they do not divide the batch") {
    Runs runs;
    runs.train("whole", "--max-steps 9" + kBatch + "12");
    runs.train("moved", "--max-steps 3" + kBatch + "3", 4);
    runs.resume("moved", "--max-steps 6 --batch-size 6 --sharding no-shard", 2);
    runs.resume("moved", "--max-steps 9 --batch-size 4 --sharding grad-shard --wrap none", 3);
    CHECK(largest_difference(runs.losses("moved"), runs.losses("whole")) < 2e-5);
    runs.train("even", "--max-steps 6 --total-batch-size 8 --batch-size 8");
    runs.train("odd", "--max-steps 3 --total-batch-size 8 --batch-size 2", 2);
    runs.resume("odd", "--max-steps 6 --batch-size 2", 3);
    CHECK(largest_difference(runs.losses("odd"), runs.losses("even")) < 2e-5);
    CHECK(has_all(runs.resume("odd", "--max-steps 7 --batch-size 16").log,
                  {"--batch-size 16 does not fit the run's 8 rows a step on 1 rank: 8 are taken"}));
    for (const auto& record : runs.records("odd")) CHECK(record["tokens"] == 8 * 8);
  }

  TEST_CASE("a resume takes the saved options, unless the command line has others") {
    Runs runs;
    const auto spaced = runs.dir / "with space.h5";
    fs::copy(runs.rows, spaced);
    Words given = fsdp::test::words(
        "--lr 0.5 --lr 0.004 --weight-decay 0.3 --betas 0.7 0.8 --seed 5 --clip-grad-norm 0.5 --decay-all "
        "--lr-schedule linear --warmup-steps 2 --schedule-steps 20 --train-data");
    given.push_back(spaced);
    const auto until = [&](const char* steps) {
      auto all = given;
      all.insert(all.end(), {"--max-steps", steps});
      return all;
    };
    runs.run("whole", 1, until("6"));
    runs.run("saved", 1, until("3"));
    CHECK(runs.resume("saved", "--max-steps 6 --batch-size 6").code == ExitCode::ok);
    CHECK(runs.losses("saved") == runs.losses("whole"));
    CHECK(runs.resume("saved", "--max-steps 7 --lr 0.1 --lr-schedule constant").code == ExitCode::ok);
    CHECK(runs.records("saved").back()["lr"] == 0.1);
  }

  TEST_CASE("a resume saves and samples as before, and names what it leaves") {
    Runs runs;
    runs.run("kept", 1,
             {"--vocab-size",
              "50257",
              "--tokenizer",
              "gpt2",
              "--save-every",
              "2",
              "--keep-last",
              "2",
              "--sample-prompt",
              "two words",
              "--sample-prompt",
              "[a, 'b']",
              "--sample-tokens",
              "3",
              "--eval-every",
              "2",
              "--val-data",
              runs.noise,
              "--max-steps",
              "2",
              "--batch-size",
              "2",
              "--total-batch-size",
              "8",
              "--gradient-checkpointing"});
    const auto resumed = runs.resume("kept", "--max-steps 7");
    CHECK(resumed.code == ExitCode::ok);
    CHECK(runs.checkpoints("kept") == CheckpointNames{"latest -> step-00000007", "step-00000006", "step-00000007"});
    std::set<std::pair<int, std::string>> samples;
    std::ifstream lines(runs.folder("kept") / "samples.jsonl");
    for (std::string line; std::getline(lines, line);) {
      const auto sample = nlohmann::json::parse(line);
      if (sample["step"] > 2) samples.emplace(sample["step"], sample["prompt"]);
    }
    CHECK(samples ==
          std::set<std::pair<int, std::string>>{
              {4, "two words"}, {4, "[a, 'b']"}, {6, "two words"}, {6, "[a, 'b']"}, {7, "two words"}, {7, "[a, 'b']"}});
    const auto begin = resumed.log.find("\noptions ") + 1;
    const auto told = resumed.log.substr(begin, resumed.log.find('\n', begin) - begin);
    CHECK(has_all(told, {"--batch-size 2", "--activation-checkpointing"}));
    for (const char* taken :
         {"--save-every", "--sample-prompt", "--total-batch-size", "--tokenizer", "--vocab-size", "--run-name"})
      CHECK(told.find(taken) == std::string::npos);
    CHECK(runs.resume("kept", "--max-steps 8").log.find("options   the run") == std::string::npos);
    // Evaluation alone makes no samples, but the run's sample options are no reason to refuse.
    CHECK(runs.resume("kept", "--max-epochs -1").code == ExitCode::ok);
  }

  TEST_CASE("latest falls back to a checkpoint with its optimizer's state, or says what can be done without one") {
    Runs runs;
    for (const char* file : {"run.json", "__0_0.distcp"}) {
      CAPTURE(file);
      const auto damage = [&](const std::string& name) {
        const auto path = runs.folder(name) / "checkpoints/step-00000006" / file;
        fs::resize_file(path, fs::file_size(path) / 2);
      };
      fs::remove_all(runs.folder("two"));
      runs.train("two", "--max-steps 6 --save-every 2 --keep-optimizer 2");
      damage("two");
      const auto resumed = runs.resume("two", "--max-steps 7");
      CHECK(resumed.code == ExitCode::ok);
      CHECK(has_all(resumed.log, {"restart   " + (runs.folder("two") / "checkpoints/step-00000004").string()}));

      fs::remove_all(runs.folder("one"));
      runs.train("one", "--max-steps 6 --save-every 2 --keep-optimizer 1");
      damage("one");
      const auto refused = runs.resume("one", "--max-steps 7");
      CHECK(refused.code == ExitCode::bad_input);
      CHECK(has_all(refused.error, {file, "step-00000006", "step-00000004 DIR --to hf"}));
      CHECK(refused.error.find("step-00000002") == std::string::npos);
    }
  }

  TEST_CASE("a resume cuts metrics to the checkpoint") {
    Runs runs;
    runs.train("cut", "--max-steps 8 --save-every 3 --eval-every 4 --val-data " + runs.noise.string());
    const auto before = runs.records("cut");
    // A line that a killed run left.
    std::ofstream(runs.folder("cut") / "metrics.jsonl", std::ios::app) << R"({"step": 9, "lo)";
    const auto third = runs.folder("cut") / "checkpoints/step-00000003";
    runs.resume("cut", "--max-steps 5 --batch-size 6 --restart " + third.string());
    const auto after = runs.records("cut");
    CHECK(std::equal(before.begin(), before.begin() + 3, after.begin()));
    const auto losses = runs.losses("cut");
    CHECK(losses.size() == 5);
    const auto fifth = std::find_if(before.begin(), before.end(),
                                    [](const auto& record) { return record["step"] == 5 && record.contains("loss"); });
    CHECK(losses[4] == (*fifth)["loss"]);
    const auto validated = runs.validated("cut");
    CHECK(validated.size() == 2);  // --eval-every is the checkpoint's
    CHECK(validated.contains(4));
    CHECK(validated.contains(5));
  }

  TEST_CASE("latest is a relative link and a restart path; a finished run restarts into nothing") {
    Runs runs;
    runs.train("link", "--max-steps 4 --save-every 2");
    CHECK(runs.checkpoints("link") == CheckpointNames{"latest -> step-00000004", "step-00000002", "step-00000004"});
    const auto before = runs.losses("link");
    const auto finished = runs.train("link", "--max-steps 4 --restart latest", 2);
    CHECK(finished.report["steps"] == 4);
    CHECK(fs::path(finished.report["checkpoint"].get<std::string>()).filename() == "step-00000004");
    CHECK(runs.losses("link") == before);
    const auto moved = runs.dir / "moved-elsewhere";
    fs::copy(runs.folder("link"), moved, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    runs.train("other", "--max-steps 6 --restart " + (moved / "checkpoints/latest").string(), 2);
    const auto others = runs.records("other");
    CHECK(others.size() == 2);
    CHECK(others.front()["step"] == 5);
    CHECK(others.back()["step"] == 6);
    runs.train("link", "--max-steps 6 --restart " + (runs.folder("link") / "checkpoints/latest").string());
    CHECK(runs.checkpoints("link").contains("latest -> step-00000006"));
  }

  TEST_CASE("--keep-last, --save-interval-minutes, and leftovers of a killed run") {
    Runs runs;
    runs.train("keep", "--max-steps 9 --save-every 2 --keep-last 2", 2);
    CHECK(runs.checkpoints("keep") == CheckpointNames{"latest -> step-00000009", "step-00000008", "step-00000009"});
    runs.train("all", "--max-steps 5 --save-every 2");
    CHECK(runs.checkpoints("all") ==
          CheckpointNames{"latest -> step-00000005", "step-00000002", "step-00000004", "step-00000005"});
    runs.train("interval", "--max-steps 6 --save-interval-minutes 0.000001");
    CHECK(runs.checkpoints("interval").size() == 6 + 1);
    const auto folder = runs.folder("all") / "checkpoints";
    fs::create_directory(folder / ".step-00000006.tmp");
    std::ofstream(folder / ".step-00000006.tmp/__0_0.distcp") << "half";
    fs::rename(folder / "step-00000005", folder / ".step-00000005.old");  // killed between the renames of a second save
    CHECK(runs.train("all", "--max-steps 7 --save-every 0 --restart latest").code == ExitCode::ok);
    CHECK(runs.checkpoints("all") == CheckpointNames{"latest -> step-00000007", "step-00000002", "step-00000004",
                                                     "step-00000005", "step-00000007"});
    CHECK(runs.losses("all").size() == 7);
  }

  TEST_CASE("another model than the checkpoint's is refused") {
    Runs runs;
    runs.train("model", "--max-steps 2");
    for (const auto& [option, value, has] :
         std::vector<std::tuple<std::string, std::string, std::string>>{{"--num-layers", "3", "1"},
                                                                        {"--embed-size", "64", "8"},
                                                                        {"--vocab-size", "98", "61"},
                                                                        {"--num-heads", "4", "2"},
                                                                        {"--ffn-hidden-size", "64", "32"},
                                                                        {"--seq-len", "64", "8"}}) {
      const auto refused =
          runs.train("model", "--restart latest --max-steps 4 " + option + " " + value, option == "--seq-len" ? 1 : 2);
      CHECK(refused.code == ExitCode::usage);
      CHECK(has_all(refused.error, {option, value, has}));
      if (option != "--seq-len") CHECK(has_all(refused.error, {"step-00000002"}));
    }
    CHECK(runs.losses("model").size() == 2);
  }
}
