#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/environment.hpp"
#include "tests/support/program_run.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Job scripts rely on these options: adding to the lists is fine, removing is not.
const char* const kOfFinetune = R"(
activation-checkpointing activation-checkpoints backward-prefetch batch-size betas buffer-dtype clip-grad-norm
collective-timeout collectives config cpu-offload decay-all device dropout dry-run embed-size eps eval-every
ffn-hidden-size forward-prefetch gradient-accumulation-steps help init-timeout json keep-last limit-all-gathers log-every
lr lr-schedule max-epochs max-steps meta-init model no-limit-all-gathers no-save no-shuffle num-heads num-layers
num-tokens offload-optimizer out-dir param-dtype precision print-config prompt quiet reduce-dtype
reduce-every-micro-batch restart restart-checkpoint-file run-name save-every save-interval-minutes schedule-steps seed
seq-len seq-length shard-group-size sharding time-limit total-batch-size trace train-data val-data version vocab-size
warmup-steps weight-decay wrap)";
const char* const kOfEval = R"(
batch-size cache-dir chess chess-positions collective-timeout compare config data data-field device gate help init-timeout
json max-rows max-seq-length model-config no-cache num-tokens precision prompt quiet seed seq-len seq-length sharding
temperature tokenizer top-k top-p version)";

/// The options of the tutorials' scripts, with values that are not the defaults; "": a flag.
const std::vector<std::pair<std::string, std::string>> kOfTutorials{{"environment", "pbs"},
                                                                    {"model", "mingpt"},
                                                                    {"run_name", "both"},
                                                                    {"vocab_size", "98"},
                                                                    {"seq_len", "16"},
                                                                    {"seq_length", "16"},
                                                                    {"num_heads", "4"},
                                                                    {"num_layers", "1"},
                                                                    {"embed_size", "48"},
                                                                    {"ffn_hidden_size", "64"},
                                                                    {"restart_checkpoint_file", "latest"},
                                                                    {"sharding", "grad-shard"},
                                                                    {"precision", "bf16"},
                                                                    {"cpu_offload", ""},
                                                                    {"activation_checkpoints", ""},
                                                                    {"activation_checkpointing", ""},
                                                                    {"meta_init", ""},
                                                                    {"train_data", "a.h5"},
                                                                    {"val_data", "b.h5"},
                                                                    {"max_epochs", "-1"},
                                                                    {"lr", "0.25"},
                                                                    {"dropout", "0.5"},
                                                                    {"batch_size", "3"},
                                                                    {"prompt", "O Romeo"},
                                                                    {"num_tokens", "7"}};

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string underscored(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// Returns what --help-all says, without its line breaks.
std::string help_of(const CommandLine& program) {
  const auto run = run_program(program + CommandLine{"--help-all"});
  CHECK(run.code == 0);
  CHECK(run.err.empty());
  return std::regex_replace(run.out, std::regex("\\s+"), " ");
}

}  // namespace

TEST_SUITE("apps/app_main") {
  TEST_CASE("the options of the tutorials' scripts work in both spellings") {
    CommandLine with_dashes{"fsdp-finetune"}, with_underscores{"fsdp-finetune"};
    for (const auto& [name, value] : kOfTutorials) {
      with_underscores.push_back("--" + name);
      with_dashes.push_back("--" + dashed(name));
      for (auto* line : {&with_dashes, &with_underscores}) {
        if (!value.empty()) line->push_back(value);
      }
    }
    const auto given = options_in(config_text(with_underscores), true);
    CHECK(options_in(config_text(with_dashes), true) == given);
    const auto defaults = options_in(config_text({"fsdp-finetune"}), true);
    for (const auto& [name, value] : kOfTutorials) {
      auto key = dashed(name);
      if (key == "seq-length") key = "seq-len";
      if (key == "activation-checkpoints") key = "activation-checkpointing";
      INFO(key);
      const auto expected = !value.empty() ? value : key == "activation-checkpointing" ? "all" : "true";
      CHECK((given.at(key) == expected || given.at(key) == '"' + expected + '"'));
      if (key != "model") CHECK(given.at(key) != defaults.at(key));  // minGPT is the only model with a name
    }
  }

  TEST_CASE("no option of the job scripts has disappeared, in either spelling") {
    for (const auto& [program, names] :
         std::map<std::string, const char*>{{"fsdp-finetune", kOfFinetune}, {"fsdp-eval", kOfEval}}) {
      std::set<std::string> listed;
      for (const auto& option : described_options({program}))
        listed.insert(option["names"].begin(), option["names"].end());
      std::istringstream words(names);
      for (std::string name; words >> name;) {
        INFO(program, " --", name);
        CHECK(listed.contains("--" + name));
        if (name != "no-limit-all-gathers") CHECK(listed.contains("--" + underscored(name)));
      }
    }
  }

  TEST_CASE("the last value of an option counts") {
    const auto text =
        config_text({"fsdp-finetune", "--lr", "1", "--betas", "0.1", "0.2", "--num-layers", "5", "--lr", "2", "--betas",
                     "0.3", "0.4", "--num_layers", "6", "--limit-all-gathers", "--no-limit-all-gathers"});
    const auto config = options_in(text, false);
    CHECK(config.at("lr") == "2");
    CHECK(config.at("betas") == "[0.3, 0.4]");
    CHECK(config.at("num-layers") == "6");
    CHECK(config.at("limit-all-gathers") == "false");
  }

  TEST_CASE("help tells the defaults of fine-tuning") {
    const auto text = help_of({"fsdp-finetune"});
    for (const auto& [option, value] :
         {std::pair{"lr", "1e-5"}, std::pair{"lr-schedule", "linear"}, std::pair{"warmup-ratio", "0.1"},
          std::pair{"weight-decay", "0.01"}, std::pair{"betas", "0.9 0.999"}, std::pair{"decay-all", "on"},
          std::pair{"seed", "42"}}) {
      INFO(option);
      const std::string begin = std::string(" --") + option;
      auto at = std::min(text.find(begin + " "), text.find(begin + ","));
      REQUIRE(at != std::string::npos);
      auto end = at + begin.size();
      while (text[end] == ',') end = std::min(text.find(' ', end), text.size());  // further spellings
      const auto of_option = text.substr(at, text.find("\n  --", end) - at);
      const auto fine_tuning = of_option.find("(fine-tuning");
      REQUIRE(fine_tuning != std::string::npos);
      CHECK(of_option.substr(fine_tuning).find(std::string(": ") + value + ")") != std::string::npos);
    }
  }

  TEST_CASE("help, version and errors are printed by the first rank alone") {
    for (const std::string program : {"fsdp-finetune", "fsdp-eval"}) {
      const auto version = run_program({program, "--version"});
      CHECK(version.code == 0);
      for (const auto& word : CommandLine{program, "LibTorch", "MPI", "back ends: cpu"})
        CHECK(version.out.find(word) != std::string::npos);
      CHECK(!help_of({program}).empty());
      const Environment second_rank({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
      for (const std::string option : {"--help", "--version"}) {
        const auto run = run_program({program, option});
        CHECK(run.code == 0);
        CHECK(run.out + run.err == "");
      }
      const auto wrong = run_program({program, "--no-such-option"});
      CHECK(wrong.code == 2);
      CHECK(wrong.out + wrong.err == "");
    }
    const Environment second_rank({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
    for (const CommandLine& option :
         {CommandLine{"--lr", "fast"}, CommandLine{"--wrap", "layer"}, CommandLine{"--config", "none.ini"}}) {
      const auto wrong = run_program(CommandLine{"fsdp-finetune"} + option);
      CHECK(wrong.code == 2);
      CHECK(wrong.out + wrong.err == "");
    }
    CHECK(run_program({"fsdp-finetune", "--lr", "1", "--print-config"}).out == "");
  }

  TEST_CASE("a value of the wrong kind is refused with the option's name") {
    const CommandLine train{"fsdp-finetune", "--device", "cpu", "--train-data",
                            FSDP_TEST_DATA_DIR "/shakespeare/train.h5"};
    for (const std::string option : {"--lr", "--num-layers", "--betas"}) {
      const auto* value = option == "--lr" ? "fast" : option == "--num-layers" ? "2.5" : "0.9";  // --betas takes two
      expect_refused(run_program(train + CommandLine{option, value}), 2, {option});
    }
  }

  TEST_CASE("a word that is no choice is refused with the choices") {
    const std::vector<std::vector<std::string>> cases{{"sharding", "full", "grad-shard"},
                                                      {"precision", "fp8", "bf16"},
                                                      {"backward-prefetch", "soon", "post"},
                                                      {"wrap", "layer", "block"},
                                                      {"lr-schedule", "step", "cosine"},
                                                      {"device", "tpu", "cuda"},
                                                      {"activation-checkpointing", "some", "every:N"},
                                                      {"time-limit", "soon", "M:S"},
                                                      {"eval-every", "0.5", "expected a whole number", "0.25epoch"},
                                                      {"save-every", "-1epoch", "expected a whole number", "1epoch"},
                                                      {"collectives", "gloo", "host-staged"}};
    for (const auto& words : cases)
      expect_refused(run_program({"fsdp-finetune", "--" + words[0], words[1], "--dry-run"}), 2, words);
    const CommandLine model{"fsdp-finetune", "--model", "bert", "--train-data", "x", "--dry-run"};
    expect_refused(run_program(model), 4, {"model", "bert", "mingpt"});
    expect_refused(run_program({"fsdp-finetune", "--gpus", "4"}), 2, {"--gpus", "mpiexec"});
  }

  TEST_CASE("an unknown option is answered with the nearest that there is") {
    const CommandLine tokens{"fsdp-download", "tokens", "--input", "a", "--tokenizer", "gpt2", "--output", "b"};
    const std::vector<std::vector<CommandLine>> cases{
        {{"fsdp-finetune"}, {"--lerning-rate", "1"}, {"--learning-rate"}},
        {{"fsdp-finetune"}, {"--batch_sizes=3"}, {"--batch-size"}},
        {{"fsdp-finetune"}, {"--field", "x"}, {"--data-field"}},
        {{"fsdp-finetune"}, {"--max-epoch", "3"}, {"--max-epochs"}},
        {{"fsdp-finetune"}, {"--restart-checkpoint", "x"}, {"--restart-checkpoint-file"}},
        {{"fsdp-memprobe"}, {"--serch"}, {"--search"}},
        {{"fsdp-memprobe"}, {"--gradient-checkpoint"}, {"--gradient-checkpointing"}},
        {{"fsdp-eval", "x"}, {"--chess-position", "3"}, {"--chess-positions"}},
        {{"fsdp-ckpt-convert", "a", "b"}, {"--overwite"}, {"--overwrite"}},
        {{"fsdp-download", "a/b"}, {"--revison", "x"}, {"--revision"}},
        {tokens, {"--document"}, {"--documents"}},
        {{"fsdp-bf16check"}, {"--quik"}, {"--quick"}}};
    for (const auto& parts : cases) {
      const auto& wrong = parts[1][0];
      expect_refused(run_program(parts[0] + parts[1]), 2,
                     {wrong.substr(0, wrong.find('=')), "did you mean " + parts[2][0] + "?"});
    }
  }

  TEST_CASE("names of other trainers are taken where they mean the same") {
    const std::vector<std::pair<CommandLine, CommandLine>> cases{
        {{"--epochs", "3"}, {"--max-epochs", "3"}},
        {{"--num_train_epochs=2.5"}, {"--max-epochs", "2.5"}},
        {{"--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "4"},
         {"--batch-size", "2", "--gradient-accumulation-steps", "4"}},
        {{"--training.local_batch_size", "2", "--training.seq_len", "64"}, {"--batch-size", "2", "--seq-len", "64"}},
        {{"--max_iters", "9", "--grad_clip", "0.5"}, {"--max-steps", "9", "--clip-grad-norm", "0.5"}},
        {{"--bf16"}, {"--precision", "bf16"}},
        {{"--bf16", "True", "--tf32", "True"}, {"--precision", "bf16", "--tf32"}},
        {{"--bf16", "--lr", "1"}, {"--precision", "bf16", "--lr", "1"}},
        {{"--fp16", "False", "--bf16=true"}, {"--precision", "bf16"}},
        {{"--gradient_checkpointing", "True"}, {"--activation-checkpointing", "all", "--gradient-checkpointing"}},
        {{"--resume"}, {"--restart", "latest"}},
        {{"--resume_from_checkpoint", "True"}, {"--restart", "latest"}},
        {{"--resume_from_checkpoint", "runs/a"}, {"--restart", "runs/a"}},
        {{"--report_to", "none"}, {"--no-tensorboard"}},
        {{"--report_to", "tensorboard"}, {}},
        {{"--optim", "adamw_torch"}, {"--optimizer", "adamw_torch"}},
        {{"--lr_scheduler_type", "cosine_with_min_lr"}, {"--lr-schedule", "cosine_with_min_lr"}},
        {{"--n_layer", "3", "--n_head", "3", "--n_embd", "48", "--block_size", "32"},
         {"--num-layers", "3", "--num-heads", "3", "--embed-size", "48", "--seq-len", "32"}},
        {{"--load_in_4bit", "--lora_r", "8"}, {"--quantize", "nf4", "--lora-rank", "8"}},
        {{"--packing", "True"}, {"--pack"}}};
    for (const auto& [theirs, ours] : cases) {
      CAPTURE(theirs.front());
      CHECK(options_in(config_text(CommandLine{"fsdp-finetune"} + theirs), false) ==
            options_in(config_text(CommandLine{"fsdp-finetune"} + ours), false));
    }
    CHECK(options_in(config_text({"fsdp-memprobe", "--micro_batch_size", "2"}), false).at("batch-size") == "2");
    // A flag that is taken back.
    CHECK(!options_in(config_text({"fsdp-finetune", "--gradient_checkpointing", "False"}), false)
               .contains("activation-checkpointing"));
  }

  TEST_CASE("names of other trainers for something else are answered with what is here") {
    const std::vector<std::pair<CommandLine, std::vector<std::string>>> cases{
        {{"--report_to", "wandb"}, {"--report_to", "metrics.jsonl", "--no-tensorboard"}},
        {{"--output_dir", "x"}, {"--output_dir", "--out-dir", "--run-name"}},
        {{"--adam_beta1=0.9"}, {"--adam_beta1", "--betas"}},
        {{"--deepspeed", "ds.json"}, {"--deepspeed", "--sharding", "optimizer-shard"}},
        {{"--nproc_per_node", "4"}, {"--nproc_per_node", "mpiexec"}},
        {{"--bf16", "maybe"}, {"--bf16", "--precision"}},
        {{"--save_strategy", "epoch"}, {"--save_strategy", "--save-every"}},
        {{"--torch_compile"}, {"--torch_compile", "leave it out"}},
        {{"--epochs", "many"}, {"--max-epochs", "many"}}};
    for (const auto& [theirs, facts] : cases)
      expect_refused(run_program(CommandLine{"fsdp-finetune"} + theirs), 2, facts);
  }

  TEST_CASE("an unknown word that is like no option is refused alone") {
    for (const CommandLine& line :
         {CommandLine{"fsdp-finetune", "--zzzzzz"}, {"fsdp-eval", "x", "--zzzzzz"}, {"fsdp-finetune", "a-word"}}) {
      const auto run = run_program(line);
      expect_refused(run, 2, {});
      CHECK(run.err.find("did you mean") == std::string::npos);
    }
  }

  TEST_CASE("an error in a config file is told with the file and the line") {
    const TempDir folder;
    const std::string file = folder / "config.ini";
    for (const std::string program : {"fsdp-finetune", "fsdp-memprobe"}) {
      std::ofstream(file) << "# a comment\n\nlearning-rat = 1\n";
      expect_refused(run_program({program, "--config", file}), 2, {file, "line 3", "did you mean learning-rate?"});
    }
    std::ofstream(file) << "seq-len = 3\n\nbatch-siz = 1\n";
    expect_refused(run_program({"fsdp-eval", "x", "--config", file}), 2, {file, "line 3", "did you mean batch-size?"});
    const std::vector<std::vector<std::string>> cases{{"seed = 1\nlr = abc\n", "line 2: ", "--lr", "abc"},
                                                      {"\nprecision = fp9\n", "line 2: ", "--precision", "fp9"},
                                                      {"lr = 1\n[model]\n", "line 2: ", "sections"},
                                                      {"out-dir = 'x\n", "line 1: ", "closing"}};
    for (const auto& words : cases) {
      std::ofstream(file) << words[0];
      expect_refused(run_program({"fsdp-finetune", "--config", file}), 2, {file});
      expect_refused(run_program({"fsdp-finetune", "--config", file}), 2, {words.begin() + 1, words.end()});
    }
    // An error in an option of the command line is not the file's.
    std::ofstream(file) << "lr = 1\n";
    const auto run = run_program({"fsdp-finetune", "--config", file, "--lr", "abc"});
    expect_refused(run, 2, {"--lr"});
    CHECK(run.err.find("line") == std::string::npos);
  }
}
