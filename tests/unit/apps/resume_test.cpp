// Restarts of whole jobs: bit for bit on as many ranks, and close on other numbers of ranks, with every optimizer,
// partial training and adapters.
#include "tests/support/finetune_rig.hpp"

using fsdp::ExitCode;
using fsdp::test::finetune;
using fsdp::test::has_all;
using fsdp::test::Runs;
using fsdp::test::words;

namespace {

// Another order of float32 sums. An optimizer that goes by signs or rounds to few codes moves an element by a whole
// rate where a sum is near zero.
constexpr double kSums = 1e-4, kSigns = 2e-3;
const std::string kMinGpt = "--num-layers 2 --num-heads 2 --embed-size 32 --vocab-size 61 --seq-len 8 --lr 3e-3 ";
const std::string kLlama = "--lr 1e-2 --lr-schedule constant --lora-rank 4 --lora-alpha 8 ";
const std::string kLower = "--freeze transformer.wte,transformer.wpe,transformer.h.0 ";

struct Kind {
  std::string name, options;
  double tolerance = kSums;
  std::string told = "";  ///< what a restart says
};

const std::vector<Kind> kOptimizers{{"adamw", ""},
                                    {"anyprecision", "--kahan --momentum-dtype bf16"},
                                    {"lion", "--lr 3e-4", kSigns},
                                    {"sgd", "--momentum 0.9 --nesterov --lr 0.05"},
                                    {"adamw8bit", "--quantize-all --min-8bit-size 1"},
                                    {"lion8bit", "--lr 3e-4 --quantize-all --min-8bit-size 1", kSigns},
                                    {"torchao-adamw8bit", "--min-8bit-size 1", kSigns},
                                    {"torchao-adamw4bit", "--min-8bit-size 1", kSigns},
                                    {"adafactor", "--lr 0.03"},
                                    {"muon", "--momentum 0.9"}};
const std::vector<Kind> kMethods{
    {"freeze", kLower},
    {"train-only", "--train-only *.mlp.* --train-only transformer.ln_f.weight --optimizer lion --lr 3e-4", kSigns},
    {"child-f", "--child-tuning f --child-tuning-p 0.4"},
    {"child-d", "--child-tuning D --fisher-samples 30"},
    {"both", kLower + "--child-tuning d --fisher-samples 0 --child-tuning-p 0.5"}};
const std::vector<Kind> kAdapters{
    {"lora", ""},
    {"rslora", "--rslora --lora-targets q_proj,v_proj --optimizer lion", 5e-3},
    {"dora", "--dora --lora-dropout 0.1"},
    {"nf4", "--quantize nf4 --precision fp32", kSums, "weights   nf4"},
    // bf16 rounds each activation.
    {"nf4-double", "--quantize nf4 --double-quant --activation-checkpointing", 3e-2, "weights   nf4"},
    {"nf4-products", "--quantize nf4 --double-quant --precision fp32 --compute-dtype bf16 --cpu-offload", 3e-2,
     "weights   nf4"}};

struct Resuming : Runs {
  fsdp::test::FinetuneOutcome start(const std::string& name, int ranks, const std::string& options) {
    const auto outcome = finetune(dir.path(), ranks,
                                  words("--device cpu --no-tensorboard --total-batch-size 6 --batch-size " +
                                        std::to_string(6 / ranks) + " --train-data " + rows.string() + " --out-dir " +
                                        dir.path().string() + " --run-name " + name + " " + options));
    INFO(outcome.error);
    CHECK(outcome.code == ExitCode::ok);
    return outcome;
  }
  std::string go_on(const std::string& name, int ranks) {
    const auto outcome = resume(name, "--max-steps 6 --batch-size " + std::to_string(6 / ranks), ranks);
    INFO(outcome.error);
    CHECK(outcome.code == ExitCode::ok);
    return outcome.log;
  }
};

/// Trains six steps on 2 ranks; then three and, with the options of the checkpoint, three more; then on 3 ranks and 1.
void check_restarts(const Kind& kind, const std::string& options) {
  CAPTURE(kind.name);
  Resuming runs;
  runs.start("whole", 2, options + " --max-steps 6");
  const auto whole = runs.losses("whole");
  CHECK(whole.back() < whole.front());
  runs.start("parts", 2, options + " --max-steps 3");
  const auto log = runs.go_on("parts", 2);
  CHECK(has_all(log, {kind.told}));
  CHECK(log.find("fisher") == std::string::npos);
  CHECK(runs.losses("parts") == whole);
  runs.start("moved", 3, options + " --max-steps 3 --sharding grad-shard");
  runs.go_on("moved", 1);
  const auto moved = runs.losses("moved");
  REQUIRE(moved.size() == 6);
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(std::abs(moved[i] - whole[i]) < kind.tolerance);
}

}  // namespace

TEST_SUITE("jobs/resume") {
  TEST_CASE("every optimizer learns, goes on and moves to other ranks") {
    for (const auto& kind : kOptimizers)
      check_restarts(kind, kMinGpt + "--optimizer " + kind.name + " " + kind.options);
  }
  TEST_CASE("so does partial training, whose measurements are part of a checkpoint") {
    for (const auto& kind : kMethods) check_restarts(kind, kMinGpt + kind.options);
  }
  TEST_CASE("so do adapters, whose base lies where the run recorded") {
    const std::string model = std::string("--model ") + FSDP_FIXTURE_DIR + "/families/mistral_full ";
    for (const auto& kind : kAdapters) check_restarts(kind, model + kLlama + kind.options);
  }
}
