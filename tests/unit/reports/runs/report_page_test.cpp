#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lib/reports/runs/run_summary.hpp"
#include "tests/support/temp_files.hpp"

namespace {

/// Writes a run of `steps` steps whose loss is `last` at its end; returns its folder.
std::filesystem::path write_run(const std::filesystem::path& folder, int steps, const std::string& last) {
  std::filesystem::create_directories(folder);
  std::ofstream metrics(folder / "metrics.jsonl");
  for (int step = 1; step <= steps; ++step) {
    const auto loss = step == steps ? last : step == steps / 2 ? "77.5" : "2.5";
    metrics << R"({"step":)" << step << R"(,"loss":)" << loss << R"(,"tokens":10,"step_seconds":0.5,"grad_norm":1})"
            << "\n";
  }
  metrics << R"({"step":)" << steps / 2 << R"(,"val_loss":2.25})"
          << "\n";
  return folder;
}

nlohmann::json data_of(const std::string& page) {
  const std::string begin = R"(id="data">)";
  const auto at = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(at, page.find("</script>", at) - at));
}

}  // namespace

TEST_SUITE("runs/report_page") {
  TEST_CASE("a long curve keeps its extremes; places are counted in steps, tokens and seconds") {
    const fsdp::test::TempDir folder;
    const auto run = write_run(folder.path() / "long", 50000, "2.5");
    const auto page = fsdp::run_comparison_to_html(fsdp::compare_runs({run}, false));
    const auto curves = data_of(page)["runs"][0]["curves"];

    CHECK(page.size() < 300000);
    CHECK(curves["loss"]["mean"].size() == 2000);
    CHECK(*std::ranges::max_element(curves["loss"]["high"]) == 77.5);
    CHECK(*std::ranges::min_element(curves["loss"]["low"]) == 2.5);
    CHECK(curves["x"]["step"].back() == 50000);
    CHECK(curves["x"]["tokens"].back() == 500000);
    CHECK(curves["x"]["seconds"].back() == 25000);
    CHECK(curves["validation/"]["x"]["step"] == nlohmann::json{25000});
  }

  TEST_CASE("text of others ends neither the script nor a tag") {
    const fsdp::test::TempDir folder;
    const auto run = write_run(folder.path() / "<img src=x>", 3, "2");
    const std::string evil = "</script><script>alert(1)</script><!--";
    std::ofstream(run / "samples.jsonl") << nlohmann::json{{"step", 3}, {"prompt", "p"}, {"text", evil}} << "\n";
    std::ofstream(run / "job.json") << nlohmann::json{{"format", "fsdp-job"}, {"options", {{"lr", evil}}}};
    const auto page = fsdp::run_comparison_to_html(fsdp::compare_runs({run}, false));

    CHECK(page.find("<img src=x>") == page.npos);
    CHECK(page.find("alert(1)</script>") == page.npos);
    const auto data = data_of(page);
    CHECK(data["runs"][0]["samples"][0]["texts"] == nlohmann::json{{3, evil}});
    CHECK(data["options"]["alike"][0][1] == evil);
  }

  TEST_CASE("a diverged run is to be resumed from the newest checkpoint before its first loss that is none") {
    const fsdp::test::TempDir folder;
    const auto run = write_run(folder.path() / "it's", 8, "null");
    for (const char* step : {"step-00000002", "step-00000004", "step-00000008"})
      std::filesystem::create_directories(run / "checkpoints" / step);
    const auto data = data_of(fsdp::run_comparison_to_html(fsdp::compare_runs({run}, false)));

    REQUIRE(data["problems"].size() == 1);
    CHECK(data["problems"][0]["what"] == "The loss is no number since step 8.");
    const auto command = data["problems"][0]["command"].get<std::string>();
    CHECK(command.find(R"(--run-name 'it'\''s')") != command.npos);
    CHECK(command.find("checkpoints/step-00000004'") != command.npos);
    const auto& all = data["runs"][0]["checkpoints"]["all"];
    REQUIRE(all.size() == 3);
    CHECK(all[1]["best"] == true);  // the only one with a validation
    CHECK(all[1]["validation"] == 2.25);
    CHECK(all[2]["latest"] == true);
  }

  TEST_CASE("of pooled runs each that is not done is named with its own step and checkpoints") {
    const fsdp::test::TempDir folder;
    const std::string settings = R"({"format":"fsdp-job","options":{"lr":"1"},"outcome":"done"})";
    std::vector<std::filesystem::path> runs;
    const auto add = [&](const std::string& name, int steps, const std::string& last) {
      runs.push_back(write_run(folder.path() / name, steps, last));
      std::ofstream(runs.back() / "job.json") << settings;
      std::filesystem::create_directories(runs.back() / "checkpoints" / "step-00000002");
    };
    add("empty", 0, "");
    add("good", 10, "2");
    add("bad", 4, "null");
    const auto data = data_of(fsdp::run_comparison_to_html(fsdp::compare_runs(runs, true)));

    REQUIRE(data["runs"].size() == 1);
    REQUIRE(data["problems"].size() == 1);
    CHECK(data["problems"][0]["what"] == "bad: The loss is no number since step 4.");
    CHECK(data["problems"][0]["command"].get<std::string>().find("--run-name bad ") != std::string::npos);
  }

  TEST_CASE("steps and tokens are exact; a loss has four decimals") {
    const fsdp::test::TempDir folder;
    std::ofstream(folder.path() / "metrics.jsonl") << R"({"step":100001,"loss":10.82834,"tokens":1234567})"
                                                   << "\n"
                                                   << R"({"step":100002,"loss":0.000123456,"tokens":1})"
                                                   << "\n"
                                                   << R"({"step":100002,"val_loss":12.34567})"
                                                   << "\n";
    const auto data = data_of(fsdp::run_comparison_to_html(fsdp::compare_runs({folder.path()}, false)));
    const auto& curves = data["runs"][0]["curves"];

    CHECK(curves["x"]["step"] == nlohmann::json{100001, 100002});
    CHECK(curves["x"]["tokens"] == nlohmann::json{1234567, 1234568});
    CHECK(curves["loss"]["mean"] == nlohmann::json{10.8283, 0.00012346});
    CHECK(curves["validation/"]["mean"] == nlohmann::json{12.3457});
  }

  TEST_CASE("the command for a checkpoint reads the data as the run did") {
    const fsdp::test::TempDir folder;
    const auto run = write_run(folder.path() / "run", 4, "2");
    std::filesystem::create_directories(run / "checkpoints" / "step-00000004");
    const auto use = [&](const nlohmann::json& options) {
      std::ofstream(run / "job.json") << nlohmann::json{{"format", "fsdp-job"}, {"options", options}};
      const auto data = data_of(fsdp::run_comparison_to_html(fsdp::compare_runs({run}, false)));
      const auto command = data["runs"][0]["checkpoints"]["use"].get<std::string>();
      return command.substr(command.find(" --"));
    };
    CHECK(use({{"val-data", "a=x,y.jsonl,b=z"}, {"data-form", "auto"}, {"seq-len", "0"}}) == " --data x,y.jsonl");
    CHECK(use({{"val-data", "v=1/x"}}) == " --data 1/x");
    CHECK(use({{"val-data", "v.jsonl"}, {"data-field", "story"}, {"seq-len", "64"}, {"train-on", "all"}}) ==
          " --data v.jsonl --data-field story --train-on all --seq-len 64");
  }

  TEST_CASE("a checkpoint is called the best only where a link or a validation says so") {
    const fsdp::test::TempDir folder;
    const auto run = write_run(folder.path() / "run", 0, "");  // its validation is of step 0
    for (const char* step : {"step-00000002", "step-00000004"})
      std::filesystem::create_directories(run / "checkpoints" / step);
    const auto best = [&] {
      const auto data = data_of(fsdp::run_comparison_to_html(fsdp::compare_runs({run}, false)));
      const auto& all = data["runs"][0]["checkpoints"]["all"];
      return std::pair(all[0]["best"].get<bool>(), all[1]["best"].get<bool>());
    };
    CHECK(best() == std::pair(false, false));
    std::filesystem::create_symlink("step-00000002", run / "checkpoints" / "best");
    CHECK(best() == std::pair(true, false));
  }

  TEST_CASE("samples.jsonl that is a FIFO is passed over") {
    const fsdp::test::TempDir folder;
    const auto run = write_run(folder.path() / "run", 4, "2");
    REQUIRE(::mkfifo((run / "samples.jsonl").c_str(), 0600) == 0);
    const auto data = data_of(fsdp::run_comparison_to_html(fsdp::compare_runs({run}, false)));
    CHECK(data["runs"][0]["samples"].empty());
  }
}
