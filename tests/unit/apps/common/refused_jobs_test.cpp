// Jobs that are refused before their first step.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/program_run.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// A folder for runs, and fsdp-finetune on a tiny model.
struct TinyJob {
  TempDir folder;

  CommandLine line(const CommandLine& more) const {
    const CommandLine tiny{"fsdp-finetune",
                           "--train-data",
                           FSDP_TEST_DATA_DIR "/shakespeare/train.h5",
                           "--out-dir",
                           folder / "runs",
                           "--device",
                           "cpu",
                           "--num-layers",
                           "2",
                           "--num-heads",
                           "2",
                           "--embed-size",
                           "32",
                           "--seq-len",
                           "32",
                           "--max-steps",
                           "1"};
    return tiny + more;
  }
  void refuse(int code, const CommandLine& more, const std::vector<std::string>& facts) const {
    expect_refused(run_program(line(more)), code, facts);
  }
};

struct Refusal {
  CommandLine options;
  std::vector<std::string> facts;
};

}  // namespace

TEST_SUITE("apps/refused jobs") {
  TEST_CASE("shapes of models that cannot be") {
    const TinyJob job;
    for (const auto& [options, facts] : std::vector<Refusal>{{{"--embed-size", "33"}, {"embed-size 33", "--num-heads"}},
                                                             {{"--num-heads", "5"}, {"32", "5"}},
                                                             {{"--num-heads", "0"}, {"0"}},
                                                             {{"--num-layers", "0"}, {"0"}},
                                                             {{"--embed-size", "-4"}, {"-4"}},
                                                             {{"--vocab-size", "0"}, {"0"}},
                                                             {{"--seq-len", "-1"}, {"-1"}},
                                                             {{"--dropout", "1.5"}, {"1.5"}},
                                                             {{"--ffn-hidden-size", "-1"}, {"-1"}},
                                                             {{"--num-layers", "1000000000000"}, {"1000000000000"}},
                                                             {{"--embed-size", "1099511627776"}, {"1099511627776"}}})
      job.refuse(2, options, facts);
  }

  TEST_CASE("batch sizes and numbers of the optimizer that cannot be") {
    const TinyJob job;
    for (const auto& [options, facts] :
         std::vector<Refusal>{{{"--batch-size", "0"}, {"--batch-size", "0"}},
                              {{"--batch-size", "-3"}, {"--batch-size", "-3"}},
                              {{"--batch-size", "4611686018427387904"}, {"--batch-size"}},
                              {{"--total-batch-size", "7", "--batch-size", "2"}, {"--total-batch-size", "7", "6 or 8"}},
                              {{"--total-batch-size", "-8"}, {"--total-batch-size"}},
                              {{"--gradient-accumulation-steps", "-1"}, {"--gradient-accumulation-steps"}},
                              {{"--total-batch-size", "16", "--gradient-accumulation-steps", "3"},
                               {"--gradient-accumulation-steps", "3", "4"}},
                              {{"--betas", "0.9", "1.0"}, {"--betas"}},
                              {{"--offload-optimizer", "disk"}, {"--offload-optimizer", "none, cpu, nvme:DIR"}},
                              {{"--offload-optimizer", "nvme"}, {"--offload-optimizer", "none, cpu, nvme:DIR"}},
                              {{"--offload-optimizer", "nvme:"}, {"--offload-optimizer", "none, cpu, nvme:DIR"}},
                              {{"--offload-optimizer", ""}, {"--offload-optimizer", "none, cpu, nvme:DIR"}}})
      job.refuse(2, options, facts);
  }

  TEST_CASE("options of optimizers that do not go together") {
    const TinyJob job;
    for (const auto& [options, facts] : std::vector<Refusal>{
             {{"--optimizer", "adam"},
              {"--optimizer is 'adam'", "adamw", "adamw8bit", "torchao-adamw8bit", "torchao-adamw4bit", "anyprecision",
               "adafactor", "lion", "lion8bit", "muon", "sgd"}},
             {{"--momentum", "0.9"}, {"--momentum", "--optimizer sgd", "adamw"}},
             {{"--optimizer", "sgd", "--nesterov"}, {"--nesterov", "momentum"}},
             {{"--optimizer", "sgd", "--momentum", "1"}, {"--momentum", "1 is", "less than 1"}},
             {{"--optimizer", "lion", "--kahan"}, {"--kahan", "--optimizer anyprecision"}},
             {{"--master-dtype", "bf16"}, {"--master-dtype bf16", "--optimizer anyprecision"}},
             {{"--optimizer", "anyprecision", "--master-dtype", "bf16"}, {"--master-dtype bf16", "--precision bf16"}},
             {{"--optimizer", "anyprecision", "--variance-dtype", "fp16"}, {"--variance-dtype", "fp16", "bf16"}}})
      job.refuse(2, options, facts);
  }

  TEST_CASE("choices of what is trained that cannot be, in a dry run, too") {
    const TinyJob job;
    for (const auto& [options, facts] : std::vector<Refusal>{
             {{"--freeze", "transformer.h.9"}, {"'transformer.h.9'", "(--freeze)", "transformer.wte.weight"}},
             {{"--train-only", "a,b"}, {"'a'", "(--train-only)"}},
             {{"--freeze", "*"}, {"no parameter to train"}},
             {{"--child-tuning", "x"}, {"--child-tuning is 'x'", "off, f, d"}},
             {{"--child-tuning-p", "0.5"}, {"--child-tuning-p needs --child-tuning"}},
             {{"--child-tuning", "f", "--child-tuning-p", "0"},
              {"--child-tuning-p", "0 is", "more than 0 and at most 1"}},
             {{"--child-tuning", "f", "--child-tuning-p", "1.5"}, {"--child-tuning-p", "1.5"}},
             {{"--child-tuning", "f", "--fisher-samples", "5"}, {"--fisher-samples", "--child-tuning d"}}}) {
      job.refuse(2, options, facts);
      job.refuse(2, options + CommandLine{"--dry-run"}, facts);
    }
    CHECK(!std::filesystem::exists(job.folder / "runs" / "mingpt" / "checkpoints"));
  }

  TEST_CASE("predictions that cannot be made") {
    const TempDir folder;
    const std::string broken = folder / "broken.json";
    std::ofstream(broken) << "{\"model_type\": \"llama\"";
    for (const auto& [options, facts] : std::vector<Refusal>{
             {{"--gpu", "a1000"}, {"--gpu", "a100-40g"}},
             {{"--nodes", "2", "--gpu", "t4"}, {"--ranks-per-node"}},
             {{"--nodes", "2"}, {"--ranks-per-node 4"}},
             {{"--nodes", "2", "--ranks", "4", "--gpu", "t4"}, {"--nodes", "--ranks"}},
             {{"--alone"}, {"--measure"}},
             {{"--measure", "--ranks", "4"}, {"--ranks", "4"}},
             {{"--sharding", "half", "--gpu", "t4"}, {"--sharding", "half"}},
             {{"--total-batch-size", "7", "--ranks", "2", "--gpu", "t4", "--search"}, {"--total-batch-size"}},
             {{"--plot", "x.gif", "--gpu", "t4"}, {"--plot"}},
             {{"--collectives", "host-staged", "--gpu", "t4"}, {"--collectives"}},
             {{"--memory", "lots"}, {"--memory"}},
             {{"--ranks", "8,16"}, {"--ranks", "8,16", "list", "--nodes"}},
             {{"--ranks", "2", "--batch-size", "4,8"}, {"list", "--search"}},
             {{"--ranks", "2", "--max-batch", "4,8"}, {"--max-batch", "list"}},
             {{"--ranks", "2", "--ranks-per-node", "two"}, {"'two' is no whole number"}},
             {{"--ranks", "2", "--search", "width"}, {"choose from batch, model"}},
             {{"--ranks", "2", "--search", "plan.toml"}, {"choose from batch, model", "--plan"}},
             {{"--ranks", "2", "--search", "largest"}, {"--plan-for"}},
             {{"--ranks", "2", "--search", "--plan"}, {"--plan needs a value"}},
             {{"--ranks", "2", "--search", "--memory", "1GiB", "--total-batch-size", "7"}, {"multiple of 2"}}})
      expect_refused(run_program(CommandLine{"fsdp-memprobe"} + options), 2, facts);
    expect_refused(run_program({"fsdp-memprobe", "--model", "nowhere/none"}), 4,
                   {"nowhere/none", "fsdp-download nowhere/none --include config.json"});
    expect_refused(run_program({"fsdp-memprobe", "--model", broken}), 4, {broken});
    const std::string nowhere = folder / "none" / "plan.toml";
    expect_refused(run_program({"fsdp-memprobe", "--ranks", "2", "--search", "--plan", nowhere}), 1,
                   {"--plan", "none"});
  }

  TEST_CASE("predictions of sizes beyond any computer") {
    const auto predict = [](const CommandLine& options) {
      return run_program(CommandLine{"fsdp-memprobe", "--num-layers", "2", "--num-heads", "1"} + options);
    };
    const CommandLine wide{"--embed-size", "1048576", "--seq-len", "16777216", "--batch-size", "1000000"};
    for (const CommandLine& where : {CommandLine{"--gpu", "t4"}, CommandLine{"--device", "cpu"}}) {
      expect_refused(predict(CommandLine{"--embed-size", "64", "--batch-size", "1000000000"} + where), 2,
                     {"--batch-size", "1000000"});
      expect_refused(predict(wide + where), 2, {"--batch-size", "--seq-len"});
    }
    for (const auto& [nodes, ranks] :
         std::vector<std::pair<std::string, std::string>>{{"65536", "65536"}, {"65536", "32768"}, {"2", "65536"}})
      expect_refused(predict({"--embed-size", "64", "--nodes", nodes, "--ranks-per-node", ranks}), 2,
                     {"--nodes", "65536"});
    CHECK(predict({"--embed-size", "64", "--seq-len", "16777216", "--batch-size", "1000000"}).code == 3);
    const CommandLine huge{"--embed-size", "1048576", "--ffn-hidden-size", "16777216", "--gpu", "t4"};
    expect_refused(predict(huge + CommandLine{"--num-layers", "16384"}), 2, {"--num-layers", "--embed-size"});
    // Its bytes do not fit into 63 bits.
    expect_refused(predict(huge + CommandLine{"--vocab-size", "16777216", "--seq-len", "16777216", "--batch-size",
                                              "100000", "--ranks", "1"}),
                   2, {"--batch-size"});
  }

  TEST_CASE("what is missing is named") {
    const TempDir folder;
    const std::string here = folder.path();
    expect_refused(run_program({"fsdp-finetune", "--device", "cpu"}), 2, {"--train-data"});
    expect_refused(run_program({"fsdp-finetune", "--device", "cpu", "--max-epochs", "-1"}), 2, {"--val-data"});
    expect_refused(run_program({"fsdp-eval"}), 2, {"checkpoint"});
    expect_refused(run_program({"fsdp-eval", here}), 2, {"--data", "--prompt"});
    if (std::filesystem::exists("/dev/nvidia0")) return;
    expect_refused(run_program({"fsdp-eval", here, "--prompt", "a", "--device", "cuda"}), 2, {"--device cuda", ":"});
  }

  TEST_CASE("names of runs stay below --out-dir") {
    const TinyJob job;
    const std::string outside = job.folder / "outside";
    for (const std::string name : {outside.c_str(), "../outside", "a/../../outside", "..", ".", "a/.."}) {
      for (const CommandLine& more : {CommandLine{}, CommandLine{"--restart", "latest"}})
        job.refuse(2, CommandLine{"--run-name", name} + more, {"--run-name", name});
    }
    CHECK(!std::filesystem::exists(outside));
  }

  TEST_CASE("checkpoints that are not there") {
    const TinyJob job;
    for (const auto& path : {(job.folder / "no-such").string(), (job.folder / "no").string() + "/latest"})
      job.refuse(4, {"--restart-checkpoint-file", path}, {path});
    job.refuse(4, {"--restart-checkpoint-file", "latest"}, {"latest"});
    const std::string empty = job.folder / "empty";
    std::filesystem::create_directory(empty);
    job.refuse(4, {"--restart-checkpoint-file", empty}, {"run.json"});
    const std::string data = FSDP_TEST_DATA_DIR "/shakespeare/validation.h5";
    expect_refused(run_program({"fsdp-eval", empty, "--data", data, "--device", "cpu"}), 4, {"run.json"});
    expect_refused(run_program({"fsdp-eval", job.folder / "no-such", "--data", data, "--device", "cpu"}), 4, {});
  }

  TEST_CASE("places that cannot be written to") {
    const TinyJob job;
    const std::string file = job.folder / "a-file";
    std::ofstream(file) << "in the way";
    for (const auto& out : {file, file + "/below"}) job.refuse(1, {"--out-dir", out}, {out, "--out-dir"});
    if (std::filesystem::exists("/proc/self")) job.refuse(1, {"--out-dir", "/proc/runs"}, {"/proc/runs"});
  }
}
