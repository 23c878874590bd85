// Restarts of whole jobs: bit for bit on as many ranks, and close on other numbers of ranks, with every optimizer,
// partial training and adapters.
#include "tests/support/finetune_rig.hpp"

#include <fmt/format.h>

using fsdp::ExitCode;
using fsdp::test::finetune;
using fsdp::test::has_all;
using fsdp::test::Runs;
using fsdp::test::tries;
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
    {"patterns",
     "--lora-targets q_proj,mlp.up_proj,down_proj,lm_head --lora-exclude 0.mlp.up_proj "
     "--lora-rank-pattern down_proj=2,lm_head=1 --lora-alpha-pattern layers.1.mlp.up_proj=3"},
    {"biases", "--lora-bias --lora-targets q_proj,down_proj"},
    {"whole", "--modules-to-save lm_head,model.norm --lora-targets embed_tokens,v_proj --lora-layers 0"},
    {"rows",
     "--trainable-tokens embed_tokens:3,embed_tokens:7,lm_head:5 --lora-dropout 0.1 --lora-targets lm_head,o_proj"},
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

/// Every `every`-th kind; all in long.unit.jobs.
template <class OptionsOf>
void check_shares(const std::vector<Kind>& kinds, int every, const OptionsOf& options_of) {
  for (int number = 0; const auto& kind : kinds) {
    if (tries(number++, every)) check_restarts(kind, options_of(kind));
  }
}

}  // namespace

TEST_SUITE("jobs/resume") {
  TEST_CASE("every optimizer learns, goes on and moves to other ranks") {
    check_shares(kOptimizers, 3,
                 [](const Kind& kind) { return kMinGpt + "--optimizer " + kind.name + " " + kind.options; });
  }
  TEST_CASE("so does partial training, whose measurements are part of a checkpoint") {
    check_shares(kMethods, 2, [](const Kind& kind) { return kMinGpt + kind.options; });
  }
  TEST_CASE("so do adapters, whose base lies where the run recorded") {
    const std::string model = std::string("--model ") + FSDP_FIXTURE_DIR + "/families/mistral_full ";
    check_shares(kAdapters, 3, [&](const Kind& kind) { return model + kLlama + kind.options; });
  }
  TEST_CASE("--restart-epoch says where a checkpoint of another program stands, and none of ours") {
    Resuming runs;
    const auto file = std::string(FSDP_FIXTURE_DIR) + "/checkpoints/pt_t211_minimal_fsdp_vars/ckpt.pt";
    const std::string restart = "--num-heads 2 --seq-len 8 --restart " + file;  // its epoch_number is 4
    const auto state_after = [&](const std::string& name, const std::string& options) {
      runs.start(name, 2, restart + options);
      return runs.state(name);
    };
    CHECK(state_after("said", " --max-epochs 5").step == 25);  // 5 epochs of 30 rows, 6 a step
    CHECK(runs.records("said").empty());
    CHECK(state_after("third", " --restart-epoch 3 --max-epochs 4").samples == 120);
    CHECK(runs.records("third").front().at("step") == 16);
    CHECK(runs.records("third").size() == 5);
    CHECK(state_after("anew", " --restart-epoch 0 --max-epochs 1").step == 5);
    const auto again = runs.resume("third", "--restart-epoch 3 --batch-size 3 --max-epochs 5", 2);
    CHECK(again.code == ExitCode::usage);
    CHECK(has_all(again.error, {"--restart-epoch 3", "120"}));
    CHECK(runs.resume("third", "--restart-epoch 4 --batch-size 3 --max-epochs 5", 2).code == ExitCode::ok);
    const auto alone = runs.train("alone", "--restart-epoch 3 --max-epochs 4");
    CHECK(alone.code == ExitCode::usage);
    CHECK(has_all(alone.error, {"--restart-epoch", "--restart-checkpoint-file"}));
  }
  TEST_CASE("every schedule goes on in its middle at the rate of the undisturbed run") {
    int number = 0;
    for (const std::string schedule :
         {"constant --warmup-steps 4", "linear --warmup-steps 4 --warmup-from 0", "cosine --min-lr 1e-4",
          "cosine-restarts --schedule-value 2", "cosine-times-warmup --warmup-steps 4 --schedule-steps 9",
          "polynomial --schedule-value 2 --min-lr-ratio 0.1", "inverse-sqrt --warmup-steps 2",
          "wsd --warmup-steps 2 --warmup-shape cosine --decay-steps 3 --decay-shape 1-sqrt --min-lr 1e-4"}) {
      if (!tries(number++, 3)) continue;
      CAPTURE(schedule);
      Resuming runs;
      const auto rates = [&](const std::string& name) {
        std::vector<std::pair<double, double>> found;
        for (const auto& record : runs.records(name)) {
          if (record.contains("loss")) found.emplace_back(record.at("lr"), record.at("loss"));
        }
        return found;
      };
      const auto options = kMinGpt + "--lr-schedule " + schedule;
      runs.start("whole", 1, options + " --max-steps 6");
      runs.start("parts", 1, options + " --max-steps 6 --save-every 1");
      for (const int step : {1, 3, 5}) {
        const auto from = runs.folder("parts") / "checkpoints" / fmt::format("step-{:08}", step);
        runs.start("parts", 1, "--restart " + from.string());
        CHECK(rates("parts") == rates("whole"));
      }
    }
  }

  TEST_CASE("a cooldown begins at any checkpoint of the stable part") {
    Resuming runs;
    runs.start("stable", 1,
               kMinGpt + "--lr-schedule wsd --warmup-steps 2 --decay-steps 4 --max-steps 12 --save-every 3");
    for (const auto& [step, name] : {std::pair{3, "early"}, std::pair{6, "late"}}) {
      const auto from = runs.folder("stable") / "checkpoints" / fmt::format("step-{:08}", step);
      const auto steps = std::to_string(step + 4);
      runs.start(name, 1, "--restart " + from.string() + " --max-steps " + steps);
      std::vector<double> rates;
      for (const auto& record : runs.records(name)) {
        if (record.contains("lr")) rates.push_back(record["lr"]);
      }
      REQUIRE(rates.size() == 4);
      for (std::size_t i = 0; i < 4; ++i) CHECK(rates[i] == doctest::Approx(3e-3 * static_cast<double>(4 - i) / 4));
    }
    // From a run at a constant rate, too.
    runs.start("constant", 1, kMinGpt + "--lr-schedule constant --max-steps 3");
    runs.start("constant", 1, "--restart latest --lr-schedule wsd --decay-steps 2 --max-steps 5");
    CHECK(runs.losses("constant").size() == 5);
    CHECK(runs.records("constant")[4].at("lr").get<double>() == doctest::Approx(1.5e-3));
    // Too long a decay, and a restart that leaves the schedule.
    const auto refused = runs.resume("stable", "--max-steps 13 --decay-steps 12 --batch-size 6");
    CHECK(refused.code == ExitCode::usage);
    CHECK(has_all(refused.error, {"--decay-steps", "12", "13"}));
    CHECK(runs.resume("stable", "--max-steps 13 --lr-schedule cosine --batch-size 6").code == ExitCode::ok);
  }
}
