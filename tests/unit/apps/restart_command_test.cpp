#include "lib/training/run/restart_command.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/environment.hpp"
#include "tests/support/temp_files.hpp"

#include "lib/training/run/saved_path.hpp"

using namespace fsdp;

TEST_SUITE("jobs/restart_command") {
  TEST_CASE("saved_path() names the original of a copy that a job script made on the node") {
    const test::Environment environment(test::Environment::Variables{{"FSDP_STAGED", "/local/stage"}});
    CHECK(saved_path("/local/stage/data/train.h5") == "/data/train.h5");
    CHECK(saved_path("/local/stage2/train.h5") == "/local/stage2/train.h5");
    CHECK(saved_path("/data/train.h5") == "/data/train.h5");
  }

  TEST_CASE("restart_command() names the folder by its absolute path and the run, quoted for a shell") {
    const auto here = std::filesystem::current_path().string();
    TrainOptions options;
    options.model.model = "org/some-model@main";
    CHECK(fsdp::detail::restart_command(options, 1) ==
          "fsdp-finetune --out-dir " + here + "/runs --run-name some-model --restart-checkpoint-file latest");
    options.out_dir = "/data/my runs";
    options.run_name = "it's";
    CHECK(fsdp::detail::restart_command(options, 1) ==
          R"(fsdp-finetune --out-dir '/data/my runs' --run-name 'it'\''s' --restart-checkpoint-file latest)");
    options.out_dir = "./runs/";
    options.run_name = "a";
    CHECK(fsdp::detail::restart_command(options, 3) ==
          "mpiexec -n 3 fsdp-finetune --out-dir " + here + "/runs --run-name a --restart-checkpoint-file latest");
  }

  TEST_CASE("restart_command() has the program as it was started, the mpiexec beside it, and the job's own options") {
    const test::TempDir dir;
    const auto end = " --out-dir /runs --run-name a --restart-checkpoint-file latest --cpu-offload --batch-size 2";
    TrainOptions options;
    options.out_dir = "/runs";
    options.run_name = "a";
    options.repeated = {"--cpu-offload", "--batch-size 2"};
    options.program = dir / "fsdp-finetune";
    CHECK(fsdp::detail::restart_command(options, 1) == options.program + end);
    CHECK(fsdp::detail::restart_command(options, 2) == "mpiexec -n 2 " + options.program + end);
    std::ofstream(dir / "mpiexec").put('\n');
    CHECK(fsdp::detail::restart_command(options, 2) == (dir / "mpiexec").string() + " -n 2 " + options.program + end);
    options.program = "bin/fsdp-finetune";
    CHECK(fsdp::detail::restart_command(options, 1) ==
          (std::filesystem::current_path() / "bin/fsdp-finetune").string() + end);
  }
}
