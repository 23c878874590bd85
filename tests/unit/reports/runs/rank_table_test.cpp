// The files of RUN/status tell what ranks use; their table is in the view of a run.
#include "lib/reports/runs/rank_table.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>

#include "lib/reports/runs/watch.hpp"
#include "tests/support/temp_files.hpp"

namespace {

using Lines = std::vector<std::string>;
constexpr int kAnyRows = std::numeric_limits<int>::max();
constexpr double kGiB = 1024.0 * 1024 * 1024;

fsdp::RankStatus gpu_rank(int rank) {
  fsdp::RankStatus status;
  status.rank = rank;
  status.step = 140;
  status.step_age_seconds = 0.25;
  status.cores = 1.02;
  status.resident_bytes = 2 * kGiB;
  status.peak_resident_bytes = 3 * kGiB;
  status.gpu_bytes = 31 * kGiB;
  status.peak_gpu_bytes = 33 * kGiB;
  status.gpu_use = 0.9 + 0.01 * rank;
  status.card_bytes = 36 * kGiB;
  status.watts = 312.5;
  status.celsius = 61;
  return status;
}

fsdp::NodeStatus node_of(const std::string& host, int first, int count) {
  fsdp::NodeStatus node{.host = host, .every_seconds = 5, .age_seconds = 2, .ranks = {}};
  for (int rank = first; rank < first + count; ++rank) node.ranks.push_back(gpu_rank(rank));
  return node;
}

}  // namespace

TEST_SUITE("runs/rank_table") {
  TEST_CASE("a row per rank, with what the ranks tell") {
    CHECK(fsdp::rank_table({node_of("n1", 0, 2)}, 120, kAnyRows) ==
          Lines{"ranks     rank   gpu     memory       peak       card  power  temp  cores  resident      peak",
                "             0  90 %  31.00 GiB  33.00 GiB  36.00 GiB  312 W  61 C   1.02  2.00 GiB  3.00 GiB",
                "             1  91 %  31.00 GiB  33.00 GiB  36.00 GiB  312 W  61 C   1.02  2.00 GiB  3.00 GiB"});
    fsdp::NodeStatus cpu{.host = "n1", .every_seconds = 5, .age_seconds = 2, .ranks = {{}, {}}};
    cpu.ranks[0].cores = 1.984;
    cpu.ranks[0].resident_bytes = 457 << 20;
    cpu.ranks[1].rank = 1;
    CHECK(fsdp::rank_table({cpu}, 80, kAnyRows) == Lines{"ranks     rank  cores  resident",  //
                                                         "             0   1.98   457 MiB",  //
                                                         "             1      -         -"});
    CHECK(fsdp::rank_table({}, 80, kAnyRows).empty());
  }

  TEST_CASE("a narrow terminal has the first columns") {
    CHECK(fsdp::rank_table({node_of("n1", 7, 1)}, 34, kAnyRows) ==
          Lines{"ranks     rank   gpu     memory", "             7  97 %  31.00 GiB"});
    for (int width = 0; width < 130; ++width) {
      for (const auto& line : fsdp::rank_table({node_of("n1", 0, 3)}, width, kAnyRows))
        CHECK(line.size() <= static_cast<std::size_t>(std::max(width, 10)));
    }
  }

  TEST_CASE("where the ranks do not fit, the extremes and the median of each column do") {
    const std::vector nodes{node_of("n1", 0, 4), node_of("n2", 4, 4)};
    CHECK(fsdp::rank_table(nodes, 45, 9).size() == 9);
    CHECK(fsdp::rank_table(nodes, 45, 8) == Lines{"ranks        rank   gpu     memory       peak   of 8 ranks",
                                                  "           lowest  90 %  31.00 GiB  33.00 GiB",
                                                  "           median  94 %  31.00 GiB  33.00 GiB",
                                                  "          highest  97 %  31.00 GiB  33.00 GiB"});
    CHECK(fsdp::rank_table(nodes, 45, 3).empty());
    CHECK(fsdp::rank_table(nodes, 45, 0).empty());
  }

  TEST_CASE("of several nodes the names are told, and which of them are silent") {
    std::vector nodes{node_of("n1", 0, 1), node_of("n2", 1, 1)};
    CHECK(fsdp::rank_table(nodes, 120, kAnyRows)[2].ends_with("  n2"));
    nodes[1].age_seconds = 130;
    CHECK(fsdp::rank_table(nodes, 30, kAnyRows) == Lines{"ranks     rank     heard   gpu",  //
                                                         "             0  0:02 ago  90 %",  //
                                                         "             1  2:10 ago  91 %"});
    nodes[1].every_seconds = 50;  // of a large job: 150 s are no silence
    CHECK(fsdp::rank_table(nodes, 31, kAnyRows)[0] == "ranks     rank   gpu     memory");
  }

  TEST_CASE("what is written is read, by ranks; what is no record is left out") {
    const fsdp::test::TempDir folder;
    const auto status = folder.path() / fsdp::kStatusFolder;
    CHECK(fsdp::read_node_status(folder.path()).empty());
    std::filesystem::create_directories(status);
    for (const int first : {8, 0}) {
      auto node = node_of("node-" + std::to_string(first), first, 8);
      node.ranks[1].watts = fsdp::RankStatus::kUnknown;
      const auto text = fsdp::to_json_text(node);
      CHECK(text.size() < 8 * 300);
      std::ofstream(status / fsdp::status_file_name(first)) << text;
    }
    std::filesystem::last_write_time(status / fsdp::status_file_name(8),
                                     std::filesystem::file_time_type::clock::now() - std::chrono::seconds(100));
    for (const char* text :
         {"", "{", "[]", "{}", R"({"format":"fsdp-status"})", R"({"format":"fsdp-status","ranks":3})",
          R"({"format":"fsdp-status","ranks":[1,{"rank":"x"}]})"})
      std::ofstream(status / ("ranks-9" + std::to_string(std::string(text).size()) + ".json")) << text;
    std::ofstream(status / ".ranks-0.json") << fsdp::to_json_text(node_of("half", 0, 1));

    const auto nodes = fsdp::read_node_status(folder.path());
    REQUIRE(nodes.size() == 2);
    CHECK(nodes[0].host == "node-0");
    CHECK(nodes[0].every_seconds == 5);
    CHECK(nodes[0].age_seconds < 50);
    CHECK(nodes[1].age_seconds >= 100);
    REQUIRE(nodes[1].ranks.size() == 8);
    const auto& second = nodes[1].ranks[1];
    CHECK(second.rank == 9);
    CHECK(std::isnan(second.watts));
    CHECK(second.gpu_use == doctest::Approx(0.99));
    CHECK(second.gpu_bytes == 31 * kGiB);
    CHECK(second.step_age_seconds == 0.25);
  }

  TEST_CASE("the view of a run that goes on tells its last step, its next save and its ranks") {
    fsdp::RunSummary run;
    run.label = "run";
    auto& f = run.files;
    f.state = fsdp::RunStatus::running;
    f.total_steps = 300;
    f.steps.resize(1);
    f.steps[0].step = 140;
    run.step_seconds.count = 1;
    run.step_seconds.median = 2;
    f.step_age_seconds = 3;
    f.nodes = {node_of("n1", 0, 2)};
    const auto line_of = [&](const std::string& begin) {
      const auto view = "\n" + fsdp::run_view(run, 100);
      const auto at = view.find("\n" + begin);
      return at == std::string::npos ? "" : view.substr(at + 1, view.find('\n', at + 1) - at - 1);
    };
    CHECK(line_of("last step") == "last step 0:03 ago");  // an older job does not tell when it saves
    f.save_every = 0;
    CHECK(line_of("last step") == "last step 0:03 ago   no further save");
    f.saves_at_the_end = true;
    CHECK(line_of("last step") == "last step 0:03 ago   next save at the end (5:20)");
    f.save_every = 50;
    CHECK(line_of("last step") == "last step 0:03 ago   next save in 10 steps (0:20)");
    f.save_interval_seconds = 100;
    f.last_save_time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() - 40;
    CHECK(line_of("last step").starts_with("last step 0:03 ago   next save in 10 steps (0:20) or in 1:0"));
    f.save_every = 0;
    f.save_interval_seconds = 1000;  // the end is earlier
    CHECK(line_of("last step") == "last step 0:03 ago   next save at the end (5:20)");
    CHECK(line_of("ranks").starts_with("ranks     rank   gpu"));

    const auto plain = fsdp::run_view(run, 100, 0);
    const auto lines = [](const std::string& text) {
      return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
    };
    CHECK(plain.find("ranks     rank") == std::string::npos);
    for (int rows = 4; rows < 40; ++rows) {
      const auto screen = fsdp::detail::screen_of({run, run}, 100, rows);
      CHECK(lines(screen) <= rows - 1);
      // Both runs are shown whole, if they fit, before the ranks of the first are.
      int left = rows - 1 - 2 - (lines(plain) - 1);
      if (left >= lines(plain)) left -= lines(plain);
      CHECK((screen.find("ranks     rank") != std::string::npos) == (left >= 3));
    }
    f.state = fsdp::RunStatus::done;
    CHECK(line_of("last step").empty());
    CHECK(line_of("ranks").empty());
    f.state = fsdp::RunStatus::ended;
    CHECK_FALSE(line_of("ranks").empty());
  }
}
