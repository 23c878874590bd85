#include "lib/hub/nearby_paths.hpp"

#include <doctest/doctest.h>

#include "tests/unit/hub/hub_test_support.hpp"

using namespace fsdp;
namespace fs = std::filesystem;

TEST_SUITE("hub/nearby_paths") {
  TEST_CASE("a missing path is answered with the nearest folder, else with the runs that are there") {
    const test::TempDir directory;
    CHECK(nearby_words(directory / "nosuch" / "a").empty());
    CHECK(nearby_words(directory / "tiny-lama").empty());
    fs::create_directories(directory / "tiny-llama");
    CHECK(nearby_words(directory / "tiny-lama") == "; did you mean " + (directory / "tiny-llama").string() + "?");
    CHECK(nearby_words(directory / "codellama").empty());
    CHECK_FALSE(is_among_runs(directory / "a"));
    for (const char* name : {"second", "first"}) {
      fs::create_directories(directory / name);
      test::write_file(directory / name / "job.json", "{}");
    }
    CHECK(is_among_runs(directory / "a"));
    CHECK(nearby_words(directory / "quite-other") == "; " + directory.path().string() + " has the runs first, second");
  }
}
