#include "lib/reports/runs/run_summary.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lib/base/types/error.hpp"
#include "lib/reports/runs/watch.hpp"
#include "tests/support/temp_files.hpp"

namespace {

namespace fs = std::filesystem;

void write_text(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

std::string step(int number, int job_step, double rate, const std::string& more = "") {
  return R"({"step":)" + std::to_string(number) + R"(,"job_step":)" + std::to_string(job_step) + R"(,"loss":)" +
         std::to_string(5.0 - 0.1 * number) + R"(,"tokens":100,"step_seconds":)" + std::to_string(100 / rate) +
         R"(,"tokens_per_second":)" + std::to_string(rate) + R"(,"peak_memory_bytes":1000)" + more + "}\n";
}

std::vector<double> rates(const std::vector<fsdp::SpeedSample>& steps) {
  std::vector<double> all;
  for (const auto& s : steps) all.push_back(std::round(s.tokens_per_second));
  return all;
}

}  // namespace

TEST_SUITE("runs/run_summary") {
  TEST_CASE("quartiles equal those of numpy.percentile") {
    const auto spread = fsdp::spread_of({4, 1, 3, 2, 10, 7});

    CHECK(spread.median == 3.5);  // numpy.percentile([4, 1, 3, 2, 10, 7], [50, 25, 75]): 3.5, 2.25, 6.25
    CHECK(spread.low_quartile == 2.25);
    CHECK(spread.high_quartile == 6.25);
    CHECK(spread.half_width() == 2);
    CHECK(std::isnan(fsdp::spread_of({}).median));
  }

  TEST_CASE("speed counts the undisturbed steps of each job of a run") {
    const fsdp::test::TempDir folder;
    const auto run = folder.path() / "run";
    write_text(run / "metrics.jsonl", step(1, 1, 10) + step(2, 2, 20) + step(3, 3, 100) +
                                          step(4, 4, 50, R"(,"saving":true)") + step(5, 5, 101) +
                                          R"({"step":5,"val_loss":4.5})" + "\n" + step(6, 6, 60) + step(7, 7, 102) +
                                          step(8, 1, 11) + step(9, 2, 21) + step(10, 3, 103));
    const auto files = fsdp::read_run(run);

    CHECK(files.steps.size() == 10);
    CHECK(files.evals.size() == 1);
    CHECK(rates(fsdp::steps_for_speed(files.steps)) == std::vector<double>{100, 101, 102, 103});
    // With too few steps, all of them count.
    CHECK(rates(fsdp::steps_for_speed({files.steps.begin(), files.steps.begin() + 3})) == std::vector<double>{20, 100});
    CHECK(rates(fsdp::steps_for_speed({files.steps[0]})) == std::vector<double>{10});
  }

  TEST_CASE("an incomplete last line is not a bad line; older files mark jobs by the collectives' counter") {
    const fsdp::test::TempDir folder;
    const auto run = folder.path() / "run";
    const auto line = [](int number, int received) {
      return R"({"step":)" + std::to_string(number) +
             R"(,"loss":null,"step_seconds":1,"collectives":{"shard":{"bytes":)" + std::to_string(received) + "}}}\n";
    };
    write_text(run / "metrics.jsonl",
               line(1, 10) + "no JSON\n" + line(2, 20) + line(3, 10) + line(4, 22) + R"({"step":5,"lo)");
    const auto files = fsdp::read_run(run);

    CHECK(files.bad_lines == 1);
    REQUIRE(files.steps.size() == 4);
    CHECK(files.steps[2].job_step == 1);
    CHECK(files.steps[3].job_step == 2);
    CHECK(files.steps[3].received_bytes == 12);
    CHECK(std::isnan(files.steps[0].loss));
  }

  TEST_CASE("steps without targets have no loss and are ignored for a run's loss") {
    const fsdp::test::TempDir folder;
    const auto run = folder.path() / "run";
    const std::string nothing = R"(,"loss":null,"tokens":0,"step_seconds":1})"
                                "\n";
    write_text(run / "metrics.jsonl",
               R"({"step":1)" + nothing + step(2, 2, 10) + step(3, 3, 10) + R"({"step":4)" + nothing);
    const auto summary = fsdp::compare_runs({run}, false).runs.front();
    CHECK(summary.first_loss == doctest::Approx(4.8));
    CHECK(summary.last_loss == doctest::Approx(4.7));
  }

  TEST_CASE("runs of a folder are sorted by the value of their numbers; an empty folder is an error with its path") {
    const fsdp::test::TempDir folder;
    for (const char* name : {"batch-10", "batch-2", "batch-1"})
      write_text(folder.path() / name / "metrics.jsonl", step(1, 1, 10));
    fs::create_directories(folder.path() / "empty");

    const auto found = fsdp::find_runs({folder.path().string(), (folder.path() / "batch-2").string()});
    REQUIRE(found.size() == 3);
    CHECK(found[1].filename() == "batch-2");
    CHECK(found[2].filename() == "batch-10");
    CHECK_THROWS_WITH_AS(fsdp::find_runs({(folder.path() / "empty").string()}),
                         doctest::Contains("empty: holds no run"), fsdp::MissingInput);
  }

  TEST_CASE("pooled: runs with equal settings become one run with the steps of all") {
    const fsdp::test::TempDir folder;
    for (const char* name : {"a", "b", "c"}) {
      const std::string sharding = *name == 'c' ? "no-shard" : "full-shard";
      write_text(folder.path() / name / "metrics.jsonl",
                 step(1, 1, 1) + step(2, 2, 1) + step(3, 3, 100) + step(4, 4, 104) + step(5, 5, 108));
      write_text(folder.path() / name / "job.json", R"({"format":"fsdp-job","total_steps":5,"world_size":2,"options":)"
                                                    R"({"sharding":")" +
                                                        sharding + R"(","run-name":")" + name + R"("}})");
    }
    const auto apart = fsdp::compare_runs(fsdp::find_runs({folder.path().string()}), false);
    const auto pooled = fsdp::compare_runs(fsdp::find_runs({folder.path().string()}), true);

    CHECK(apart.runs.size() == 3);
    CHECK(apart.differ == std::vector<std::string>{"sharding"});
    REQUIRE(pooled.runs.size() == 2);
    CHECK(pooled.runs[0].runs == 2);
    CHECK(pooled.runs[0].tokens_per_second.count == 6);
  }

  TEST_CASE("validation sets are separate and keep their order; NaN is never the best") {
    const fsdp::test::TempDir folder;
    const auto run = folder.path() / "run";
    const auto eval = [](int number, const std::string& set, const std::string& loss) {
      return R"({"step":)" + std::to_string(number) + R"(,"val_set":")" + set + R"(","val_loss":)" + loss + "}\n";
    };
    write_text(run / "metrics.jsonl", step(1, 1, 10) + eval(1, "b", "4.5") + eval(1, "a", "null") + step(2, 2, 10) +
                                          eval(2, "b", "null") + eval(2, "a", "3.25"));
    write_text(run / "job.json", R"({"format":"fsdp-job","outcome":"done","total_steps":9,"ended_early":"no better"})");
    const auto summary = fsdp::compare_runs({run}, false).runs.front();

    REQUIRE(summary.validation.size() == 2);
    CHECK(summary.validation[0].set == "b");
    CHECK(summary.validation[0].best == 4.5);
    CHECK(summary.validation[0].best_step == 1);
    CHECK(std::isnan(summary.validation[0].last));
    CHECK(summary.validation[1].best == 3.25);
    const auto view = fsdp::run_view(summary, 100);
    CHECK(view.find("eval a ") != std::string::npos);
    CHECK(view.find("early     no better") != std::string::npos);
  }

  TEST_CASE("a table starts with state and losses, then settings; it can be sorted by any column") {
    const fsdp::test::TempDir folder;
    const auto make = [&](const std::string& name, int steps, const std::string& more, const std::string& end,
                          const std::string& parameters) {
      std::string text;
      for (int i = 1; i <= steps; ++i) text += step(i, i, 10.0 * steps);
      write_text(folder.path() / name / "metrics.jsonl", text + end);
      write_text(folder.path() / name / "job.json",
                 R"({"format":"fsdp-job","outcome":"done","total_steps":9,"parameters":)" + parameters +
                     R"(,"options":{"activation-checkpointing":"all",)" + more + "}}");
    };
    make("a", 4, R"("adam-beta1":"0.9","batch-size":"8","lr":"1e-3","sharding":"full-shard")", "", "16100000");
    make("b", 7, R"("adam-beta1":"0.8","batch-size":"16","lr":"2e-4","sharding":"no-shard")", "", "7000000000");
    make("c", 3, R"("adam-beta1":"0.9","batch-size":"8","lr":"1e-2","sharding":"full-shard")",
         R"({"step":4,"job_step":4,"loss":null,"step_seconds":1})"
         "\n",
         "16100000");
    auto comparison = fsdp::compare_runs(fsdp::find_runs({folder.path().string()}), false);
    CHECK(comparison.differ == std::vector<std::string>{"lr", "batch-size", "sharding", "adam-beta1"});
    CHECK(comparison.runs[0].files.state == fsdp::RunStatus::done);
    CHECK(comparison.runs[2].files.state == fsdp::RunStatus::failed);
    const auto words_of = [](const std::string& text, std::size_t line) {
      std::istringstream lines(text);
      std::string found;
      for (std::size_t i = 0; i <= line; ++i) std::getline(lines, found);
      std::istringstream words(found);
      return std::vector<std::string>{std::istream_iterator<std::string>(words), {}};
    };
    const auto title = words_of(fsdp::run_comparison_to_text(comparison), 0);
    REQUIRE(title.size() > 9);
    CHECK(std::vector<std::string>(title.begin(), title.begin() + 9) ==
          std::vector<std::string>{"run", "state", "last", "loss", "lr", "parameters", "batch-size", "sharding",
                                   "adam-beta1"});
    CHECK(fsdp::run_comparison_to_text(comparison).find("7.00 B") != std::string::npos);

    const auto order = [&](const std::string& column) {
      fsdp::sort_runs(comparison, column);
      const auto text = fsdp::run_comparison_to_text(comparison);
      CHECK(text.find("Against a: ") != std::string::npos);
      std::string names;
      for (std::size_t i = 1; i <= 3; ++i) names += words_of(text, i).front();
      return names;
    };
    CHECK(order("last-loss") == "bac");  // a run without a loss comes last
    CHECK(order("lr") == "bac");
    CHECK(order("Last Loss") == "bac");
    CHECK(order("tokens/s") == "bac");
    CHECK(order("s/step") == "bac");
    CHECK(order("parameters") == "acb");
    CHECK(order("batch-size") == "acb");
    CHECK(order("state") == "abc");
    CHECK(fsdp::run_comparison_to_json(comparison)["runs"][2]["name"] == "c");
    std::filesystem::remove(folder.path() / "a" / "job.json");  // its settings are not known any more
    comparison = fsdp::compare_runs(fsdp::find_runs({folder.path().string()}), false);
    CHECK(order("sharding") == "cba");
    CHECK(order("lr") == "bca");
    CHECK_THROWS_WITH_AS(fsdp::sort_runs(comparison, "loss"), doctest::Contains("last-loss, lr"), fsdp::RequestError);
  }

  TEST_CASE("a job that resumes a run has the run's model and adapters, not its own options' defaults") {
    const fsdp::test::TempDir folder;
    const auto read = [&](const char* job) {
      write_text(folder / "metrics.jsonl", step(1, 1, 1));
      write_text(folder / "job.json", job);
      return fsdp::read_run(folder.path()).settings;
    };
    auto settings =
        read(R"({"format":"fsdp-job","options":{"model":"mingpt","num-layers":"12","lora-rank":"0","quantize":"none"},)"
             R"("model":{"num_hidden_layers":4,"num_attention_heads":8,"hidden_size":128,"vocab_size":1000},)"
             R"("data":{"weights":"/models/ll","adapter":{"r":2},"quantize":{"type":"nf4"}}})");
    const std::map<std::string, std::string> expected{
        {"model", "/models/ll"}, {"num-layers", "4"}, {"num-heads", "8"}, {"embed-size", "128"},
        {"vocab-size", "1000"},  {"lora-rank", "2"},  {"quantize", "nf4"}};
    CHECK(settings == expected);
    settings =
        read(R"({"format":"fsdp-job","options":{"model":"mingpt","num-layers":"12"},"model":{"n_layer":1},"data":3})");
    CHECK(settings == std::map<std::string, std::string>{{"model", "mingpt"}, {"num-layers", "1"}});
    CHECK(read(R"({"format":"fsdp-job","model":"a","data":{"adapter":1}})").empty());
  }

  TEST_CASE("the best run in validation comes first, with its distance to the next") {
    const fsdp::test::TempDir folder;
    const auto make = [&](const std::string& name, const std::string& options, const std::vector<double>& losses) {
      std::string text;
      for (std::size_t i = 0; i < losses.size(); ++i)
        text += step(static_cast<int>(i) + 1, static_cast<int>(i) + 1, 100) + R"({"step":)" + std::to_string(i + 1) +
                R"(,"val_loss":)" + std::to_string(losses[i]) + "}\n";
      write_text(folder.path() / name / "metrics.jsonl", text);
      write_text(folder.path() / name / "job.json", R"({"format":"fsdp-job","options":{)" + options + "}}");
    };
    const auto first = [&] {
      return fsdp::comparison_sentences(fsdp::compare_runs(fsdp::find_runs({folder.path().string()}), false)).at(0);
    };
    make("low", R"("lr":"1e-4","val-data":"data/v.txt")", {3, 2.75});
    make("high", R"("lr":"1e-2","val-data":"/home/x/data/v.txt")", {2.5, 2.9});
    CHECK(first() == "Best validation: high, 2.5000 at step 1; next low, 0.2500 higher.");
    make("last", R"("lr":"1e-3","val-data":"./data/v.txt")", {2.50001});
    CHECK(first() == "Best validation: high, 2.5000 at step 1; last is as good.");
    make("other", R"("lr":"1e-3","val-data":"data/w.txt")", {1});
    CHECK(first().starts_with("Against high: "));
  }

  TEST_CASE("where nothing was validated the best run has the lowest last loss in training; a pruned run says so") {
    const fsdp::test::TempDir folder;
    const auto read = [&] { return fsdp::compare_runs(fsdp::find_runs({folder.path().string()}), false); };
    write_text(folder.path() / "short" / "metrics.jsonl", step(1, 1, 100));
    write_text(folder.path() / "short" / "job.json",
               R"({"format":"fsdp-job","options":{"lr":"1"},"outcome":"pruned","total_steps":9})");
    auto comparison = read();
    CHECK(comparison.runs[0].files.state == fsdp::RunStatus::pruned);
    auto best = fsdp::best_run(comparison);
    REQUIRE(best);
    CHECK(best->next == nullptr);
    CHECK(fsdp::best_run_sentence(*best) == "Best last loss in training: short, 4.9000 at step 1.");
    write_text(folder.path() / "long" / "metrics.jsonl", step(1, 1, 100) + step(2, 2, 100));
    comparison = read();
    best = fsdp::best_run(comparison);
    REQUIRE(best);
    CHECK_FALSE(best->by_validation);
    CHECK(fsdp::best_run_sentence(*best) ==
          "Best last loss in training: long, 4.8000 at step 2; next short, 0.1000 higher.");
    for (const auto& sentence : fsdp::comparison_sentences(comparison)) CHECK_FALSE(sentence.starts_with("Best "));
    write_text(folder.path() / "short" / "metrics.jsonl", "");
    write_text(folder.path() / "long" / "metrics.jsonl", "");
    CHECK_FALSE(fsdp::best_run(read()));
  }

  TEST_CASE("the best run is also named at the length that all runs have, in steps or in epochs") {
    const fsdp::test::TempDir folder;
    // Validation losses at each step of a run that is done, whose last job was given `options`.
    const auto make = [&](const std::string& name, const std::string& options, const std::vector<double>& losses,
                          const std::string& more = "") {
      std::string text;
      for (std::size_t i = 0; i < losses.size(); ++i) {
        const auto number = std::to_string(i + 1);
        text += step(static_cast<int>(i) + 1, static_cast<int>(i) + 1, 100);
        text += R"({"step":)" + number + R"(,"val_loss":)" + std::to_string(losses[i]) + "}\n";
      }
      write_text(folder.path() / name / "metrics.jsonl", text);
      write_text(folder.path() / name / "job.json", R"({"format":"fsdp-job","outcome":"done","total_steps":)" +
                                                        std::to_string(losses.size()) + more + R"(,"options":{)" +
                                                        options + "}}");
    };
    const auto sentence = [&] {
      return fsdp::equal_length_sentence(fsdp::compare_runs(fsdp::find_runs({folder.path().string()}), false));
    };
    make("a", R"("lr":"1","max-steps":"2")", {3, 2.5});
    make("b", R"("lr":"2","max-steps":"2")", {3, 2.75});
    CHECK(sentence().empty());
    make("b", R"("lr":"2","max-steps":"4")", {3, 2.75, 2, 1});
    CHECK(sentence() == "At equal length, 2 steps: a, 2.5000 at step 2; next b, 0.2500 higher.");
    // A run that --patience ended is not the length of the others.
    make("c", R"("lr":"3","max-steps":"4")", {2.6}, R"(,"ended_early":"no better")");
    CHECK(sentence() == "At equal length, 2 steps: a, 2.5000 at step 2; next c, 0.1000 higher.");
    // An epoch of larger batches has fewer steps.
    make("a", R"("lr":"1","max-steps":"0","max-epochs":"1")", {3, 2.5});
    make("b", R"("lr":"1","max-steps":"0","max-epochs":"1")", {3, 2.8, 2.7, 2.6});
    make("c", R"("lr":"1","max-steps":"0","max-epochs":"1")", {3, 2.9});
    CHECK(sentence().empty());
    make("b", R"("lr":"1","max-steps":"0","max-epochs":"2")", {3, 2.8, 2.7, 2.6, 2, 2, 2, 1});
    CHECK(sentence() == "At equal length, 1 epochs: a, 2.5000 at step 2; next b, 0.1000 higher.");
  }

  TEST_CASE("a path from the root and the path that it ends with are one setting") {
    const fsdp::test::TempDir folder;
    const auto differ = [&](const std::string& a, const std::string& b) {
      for (const auto& [name, path] : {std::pair("a", a), std::pair("b", b)}) {
        write_text(folder.path() / name / "metrics.jsonl", step(1, 1, 1));
        write_text(folder.path() / name / "job.json",
                   R"({"format":"fsdp-job","options":{"train-data":")" + path + R"("}})");
      }
      return fsdp::compare_runs(fsdp::find_runs({folder.path().string()}), false).differ.size();
    };
    CHECK(differ("data/a.h5", "/scratch/data/a.h5") == 0);
    CHECK(differ("/scratch/./data/a.h5", "./data/a.h5") == 0);
    CHECK(differ("/other/a.h5", "/scratch/a.h5") == 1);
    CHECK(differ("a.h5", "/scratch/ba.h5") == 1);
    CHECK(differ("../a.h5", "/scratch/a.h5") == 1);
  }

  TEST_CASE("sentences mention a difference only if it exceeds both spreads") {
    const fsdp::test::TempDir folder;
    const auto make = [&](const char* name, std::vector<double> speeds, const char* received) {
      std::string text = step(1, 1, 1) + step(2, 2, 1);
      for (std::size_t i = 0; i < speeds.size(); ++i)
        text += step(static_cast<int>(i) + 3, static_cast<int>(i) + 3, speeds[i]);
      write_text(folder.path() / name / "metrics.jsonl", text);
      write_text(folder.path() / name / "memory.json",
                 std::string(R"({"predicted_bytes":1000,"measured_bytes":)") + received + "}");
    };
    make("a", {100, 110, 120}, "1000");
    make("b", {104, 112, 118}, "500");
    make("c", {200, 210, 220}, "1005");
    const auto sentences =
        fsdp::comparison_sentences(fsdp::compare_runs(fsdp::find_runs({folder.path().string()}), false));

    REQUIRE(sentences.size() == 2);
    CHECK(sentences[0] ==
          "Against a: b is as fast within the spread and needs 0.50 times as much memory; c is 1.9 times as fast.");
    CHECK(sentences[1] == "Their last losses are equal, 4.5000.");
    write_text(folder.path() / "apart" / "lower" / "metrics.jsonl", step(5, 1, 100, R"(,"loss":3.0)"));
    write_text(folder.path() / "apart" / "other" / "metrics.jsonl", step(5, 1, 100));
    CHECK(fsdp::comparison_sentences(fsdp::compare_runs(fsdp::find_runs({(folder.path() / "apart").string()}), false))
              .back() == "Their last losses lie 1.5 apart.");
    std::filesystem::remove_all(folder.path() / "apart");

    write_text(folder.path() / "0" / "metrics.jsonl", "");
    CHECK(fsdp::comparison_sentences(fsdp::compare_runs(fsdp::find_runs({folder.path().string()}), false)).at(0) ==
          "Against a: 0 has made no step; b is as fast within the spread and needs 0.50 times as much memory; c is 1.9 "
          "times as fast.");
  }

  TEST_CASE("a reader parses appended records, completes an incomplete line, and restarts when the file is replaced") {
    const fsdp::test::TempDir folder;
    const auto file = folder.path() / "metrics.jsonl";
    const auto append = [&](const std::string& text) { std::ofstream(file, std::ios::app) << text; };
    fsdp::RunReader reader(folder.path());
    CHECK(reader.read().steps.empty());

    append(step(1, 1, 10) + R"({"step":1,"val_loss":4.5})" + "\n" + R"({"step":2,"lo)");
    CHECK(reader.read().steps.size() == 1);
    append(R"(ss":4})");  // a record without the end of its line
    CHECK(reader.read().steps.size() == 2);
    CHECK(reader.read().steps.size() == 2);
    append("\nno JSON\n" + step(3, 3, 10));
    const auto run = reader.read();
    REQUIRE(run.steps.size() == 3);
    CHECK(run.steps[1].loss == 4);
    CHECK(run.steps[1].after_a_break);
    CHECK(run.bad_lines == 1);
    CHECK(run.evals.size() == 1);

    // Longer than before and in the same inode, but with different content.
    write_text(file, step(11, 1, 10) + step(12, 2, 10) + step(13, 3, 10) + step(14, 4, 10));
    CHECK(reader.read().steps.size() == 4);
    write_text(file, step(1, 1, 10));
    CHECK(reader.read().steps.size() == 1);
    fs::remove(file);
    CHECK(reader.read().steps.empty());
    write_text(file, step(1, 1, 10));
    CHECK(reader.read().steps.size() == 1);
  }

  TEST_CASE("untrusted text is escaped for the terminal, and absurd figures are ignored") {
    const fsdp::test::TempDir folder;
    for (const std::string name : {"a", "b\x1b[2J"}) {
      const auto run = folder.path() / name;
      write_text(run / "metrics.jsonl", step(1, 1, 10) + R"({"step":2,"loss":1e308,"step_seconds":0})" + "\n" +
                                            R"({"step":3,"loss":-1e308,"step_seconds":-1,"tokens_per_second":1e300})" +
                                            "\n");
      write_text(run / "job.json", R"({"format":"fsdp-job","total_steps":5,"options":{"bell\u0007":")" +
                                       name.substr(0, 1) +
                                       R"(","activation-checkpointing":"\u001b]0;x","ranks":"\u001b[3"}})");
    }
    auto comparison = fsdp::compare_runs(fsdp::find_runs({folder.path().string()}), false);
    for (auto& run : comparison.runs) run.files.state = fsdp::RunStatus::running;
    REQUIRE(comparison.differ.size() == 1);

    const auto text = fsdp::run_comparison_to_text(comparison) + fsdp::run_comparison_to_markdown(comparison) +
                      fsdp::run_view(comparison.runs[1], 200);
    CHECK(text.find_first_of("\x1b\x07") == std::string::npos);
    CHECK(text.find("bell\\x07") != std::string::npos);
    CHECK(text.find("Against a: b\\x1b[2J") != std::string::npos);

    auto run = comparison.runs[0];
    run.tokens_per_second = run.step_seconds = {};
    const auto view = fsdp::run_view(run, 200);
    CHECK(view.find("- ± - tok/s   - s/step   last step - tok/s") != std::string::npos);
    CHECK(fsdp::count_text(-1234.4) == "-1,234");
    CHECK(fsdp::count_text(std::nan("")) == "-");
  }
}

TEST_SUITE("runs/watch") {
  TEST_CASE("a sparkline has one block per stretch; the range's ends get the lowest and highest block") {
    CHECK(fsdp::detail::sparkline({1, 2, 3, 4, 5, 6, 7, 8}, 8) == "▁▂▃▄▅▆▇█");
    CHECK(fsdp::detail::sparkline({8, 8, 1, 1}, 2) == "█▁");
    CHECK(fsdp::detail::sparkline({2, std::nan(""), 2}, 3) == "▁ ▁");
    CHECK(fsdp::detail::sparkline({}, 5).empty());
    CHECK(fsdp::detail::sparkline({1e308, -1e308}, 2) == "█▁");
  }

  TEST_CASE("a screen has at most the terminal's rows minus one, with running jobs first") {
    std::vector<fsdp::RunSummary> runs(6);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      runs[i].label = "run-" + std::to_string(i);
      runs[i].files.state = i == 4 ? fsdp::RunStatus::running : fsdp::RunStatus::done;
      runs[i].files.steps.resize(3);
    }
    const auto view_lines = [&](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
    const auto whole = view_lines(fsdp::run_view(runs[0], 80));
    for (int rows = 4; rows < 40; ++rows) {
      const auto text = fsdp::detail::screen_of(runs, 80, rows);
      CHECK(view_lines(text) <= rows - 1);
      if (rows > 4) CHECK(text.starts_with("run-4   "));
      CHECK((text.find("and ") != std::string::npos) == (rows < 7));
    }
    CHECK(view_lines(fsdp::detail::screen_of(runs, 80, 1000)) == 6 * whole + 5);
    CHECK(fsdp::detail::screen_of(runs, 80, 5).ends_with("and 3 more\n"));
  }
}
