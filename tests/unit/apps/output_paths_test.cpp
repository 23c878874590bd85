#include "apps/finetune/output_paths.hpp"

#include <doctest/doctest.h>

#include <fstream>

#include "lib/base/types/error.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;

TEST_SUITE("jobs/final_outputs") {
  TEST_CASE("--save-final-adapter is refused before the run when no adapter can be written there") {
    const test::TempDir folder;
    std::ofstream(folder / "file") << "text";
    std::filesystem::create_directories(folder / "model");
    FinalOutputs outputs;
    outputs.run_directory = folder / "run";
    outputs.inputs.emplace_back("the folder of --model", folder / "model");
    outputs.adapter = folder / "file";
    CHECK_THROWS_WITH_AS(check_final_outputs(outputs), doctest::Contains("--save-final-adapter"), UsageError);
    outputs.adapter = folder / "file/below";
    CHECK_THROWS_WITH_AS(check_final_outputs(outputs), doctest::Contains("--save-final-adapter"), IoError);
    outputs.adapter = folder / "model";
    CHECK_THROWS_WITH_AS(check_final_outputs(outputs), doctest::Contains("the folder of --model"), UsageError);
    // A new folder, a folder inside the model's, an existing folder with other files, and the run's own folder are
    // allowed.
    for (const auto& place : {folder / "new/adapter", folder / "model/adapter", folder.path(), folder / "run"}) {
      outputs.adapter = place;
      CHECK_NOTHROW(check_final_outputs(outputs));
    }
    CHECK_FALSE(std::filesystem::exists(folder / "adapter_config.json"));
  }
}
