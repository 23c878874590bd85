#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/program_run.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

using Options = std::map<std::string, std::string>;

/// The options of a file that leaves everything out.
const Options kLeftOut{{"lr-schedule", "\"cosine\""}, {"warmup-ratio", "0.03"}, {"weight-decay", "0"},
                       {"precision", "\"bf16\""},     {"batch-size", "1"},      {"seq-len", "512"},
                       {"save-every", "\"1epoch\""},  {"keep-last", "4"},       {"warmup-from", "0"},
                       {"decay-all", "false"}};

class YamlFile {
 public:
  /// Returns what the program prints of the text as its config file, with these arguments.
  ProgramRun run(const std::string& text, const CommandLine& arguments = {},
                 const std::string& program = "fsdp-finetune") {
    std::ofstream(path) << text;
    return run_program(CommandLine{program, "--config", path} + arguments + CommandLine{"--print-config"});
  }
  /// Returns the options that the text sets otherwise than a file that leaves everything out.
  Options options(const std::string& text, const CommandLine& arguments = {}) {
    const auto printed = run(text, arguments);
    INFO(text);
    INFO(printed.err);
    REQUIRE(printed.code == 0);
    auto found = options_in(printed.out, false);
    for (const auto& [name, value] : kLeftOut) {
      if (found.contains(name) && found.at(name) == value) found.erase(name);
    }
    return found;
  }

 private:
  TempDir folder_;

 public:
  const std::string path = folder_ / "run.yaml";
};

/// The keys that a job says it ignores. The job fails, for want of data.
std::string ignored_in(YamlFile& file, const std::string& text) {
  std::ofstream(file.path) << text;
  const auto run = run_program({"fsdp-finetune", "--config", file.path, "--device", "cpu"});
  const auto begin = run.err.find("ignored   " + file.path + ": ");
  if (begin == std::string::npos) return "";
  const auto names = begin + 12 + file.path.size();
  return run.err.substr(names, run.err.find('\n', names) - names);
}

const std::string kLora = "adapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\n";
const std::string kChats = "datasets:\n  - path: a.jsonl\n    type: chat_template\n";

}  // namespace

TEST_SUITE("apps/axolotl_file") {
  TEST_CASE("keys become the options of the same meaning") {
    YamlFile file;
    const Options lora{{"lora-rank", "8"}, {"lora-alpha", "16"}, {"lora-targets", "\"all\""}};
    const auto with = [](Options all, const Options& more) {
      for (const auto& [name, value] : more) all[name] = value;
      return all;
    };
    const std::vector<std::pair<std::string, Options>> cases{
        {"base_model: org/name\n", {{"model", "\"org/name\""}}},
        {"base_model: org/name\nrevision_of_model: main\n", {{"model", "\"org/name@main\""}}},
        {"tokenizer_config: t\n", {{"tokenizer", "\"t\""}}},
        {"learning_rate: 2e-5\n", {{"lr", "2e-5"}}},
        {"learning_rate: 0.000_2\n", {{"lr", "0.0002"}}},
        {"lr_scheduler: linear\nwarmup_steps: 10\n", {{"lr-schedule", "\"linear\""}, {"warmup-steps", "10"}}},
        {"warmup_steps: 1\n", {{"warmup-steps", "2"}}},
        {"lr_scheduler: constant\nwarmup_ratio: 0.1\n",
         {{"lr-schedule", "\"constant\""}, {"warmup-steps", "0"}, {"warmup-ratio", "0"}}},
        {"lr_scheduler: constant_with_warmup\nwarmup_ratio: 0.1\n",
         {{"lr-schedule", "\"constant_with_warmup\""}, {"warmup-ratio", "0.1"}}},
        {"cosine_min_lr_ratio: 0.1\n", {{"min-lr-ratio", "0.1"}}},
        {"num_epochs: 3\nmax_steps: 20\n", {{"max-epochs", "3"}, {"max-steps", "20"}}},
        {"micro_batch_size: 2\ngradient_accumulation_steps: 4\n",
         {{"batch-size", "2"}, {"gradient-accumulation-steps", "4"}}},
        {"sequence_len: 2048\nsample_packing: yes\n", {{"seq-len", "2048"}, {"pack", "true"}}},
        {"optimizer: adamw_bnb_8bit\nweight_decay: 0.1\nadam_beta2: 0.95\nadam_epsilon: 1e-6\nmax_grad_norm: 0.5\n",
         {{"optimizer", "\"adamw_bnb_8bit\""},
          {"weight-decay", "0.1"},
          {"betas", "[0.9, 0.95]"},
          {"eps", "1e-6"},
          {"clip-grad-norm", "0.5"}}},
        {"bf16: auto\n", {}},
        {"bf16: false\n", {{"precision", "\"float32\""}}},
        {"fp16: true\nbf16: auto\n", {{"precision", "\"fp16\""}}},
        {"bf16: true\nfp16: false\n", {}},
        {"tf32: true\n", {{"tf32", "true"}}},
        {"gradient_checkpointing: true\n", {{"activation-checkpointing", "\"all\""}}},
        {"gradient_checkpointing: false\n", {}},
        {"gradient_checkpointing: offload\n",
         {{"activation-checkpointing", "\"all\""}, {"offload-activations", "true"}}},
        {"output_dir: ./out/lora-run/\n", {{"out-dir", "\"out\""}, {"run-name", "\"lora-run\""}}},
        {"output_dir: run\n", {{"out-dir", "\".\""}, {"run-name", "\"run\""}}},
        {"seed: 7\nlogging_steps: 5\nsave_total_limit: 2\n", {{"seed", "7"}, {"log-every", "5"}, {"keep-last", "2"}}},
        {"resume_from_checkpoint: a/step-1\n", {{"restart-checkpoint-file", "\"a/step-1\""}}},
        {"resume_from_checkpoint: true\n", {{"restart-checkpoint-file", "\"latest\""}}},
        {"train_on_inputs: false\n", {{"train-on", "\"answers\""}}},
        {"train_on_inputs: true\n", {{"train-on", "\"all\""}}},
        {"early_stopping_patience: 3\n", {{"patience", "3"}}},
        {kLora, lora},
        {kLora + "load_in_4bit: true\n", with(lora, {{"quantize", "\"nf4\""}, {"double-quant", "true"}})},
        {"adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_alpha: 16\nlora_target_modules: [q_proj, v_proj]\n"
         "lora_dropout: 0.05\nlora_modules_to_save:\n  - embed_tokens\n  - lm_head\n",
         {{"quantize", "\"nf4\""},
          {"double-quant", "true"},
          {"lora-rank", "8"},
          {"lora-alpha", "16"},
          {"lora-targets", "[\"q_proj\", \"v_proj\"]"},
          {"lora-dropout", "0.05"},
          {"modules-to-save", "[\"embed_tokens\", \"lm_head\"]"}}},
        {kLora + "lora_target_modules: [q_proj, down_proj]\n", lora},
        {kLora + "lora_rank_pattern: {q_proj: 4}\npeft_use_dora: true\npeft_layers_to_transform: [0, 1]\n",
         with(lora, {{"lora-rank-pattern", "\"q_proj=4\""}, {"dora", "true"}, {"lora-layers", "[0, 1]"}})},
        {"adapter:\nlora_r: 8\nlora_target_linear: true\n", {}},
        {"fsdp: [full_shard, auto_wrap]\n", {{"sharding", "\"full-shard\""}}},
        {"fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: false\n  offload_params: true\n"
         "  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  state_dict_type: FULL_STATE_DICT\n",
         {{"sharding", "\"grad-shard\""}, {"cpu-offload", "true"}, {"wrap", "\"block\""}}},
        {"fsdp_config: {fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 100}\n",
         {{"wrap", "\"size:100\""}}},
        {"lr: 0.5\nnum-layers: 2\n", {{"lr", "0.5"}, {"num-layers", "2"}}},
        {"{\"lr\": 0.5, \"betas\": [0.8, 0.9]}", {{"lr", "0.5"}, {"betas", "[0.8, 0.9]"}}},
        {"---\n# only a comment\n", {}}};
    for (const auto& [text, options] : cases) {
      INFO(text);
      CHECK(file.options(text) == options);
    }
    CHECK(options_in(file.run("base_model: m\n").out, false) == with(kLeftOut, {{"model", "\"m\""}}));
  }

  TEST_CASE("data") {
    YamlFile file;
    const Options chats{{"train-data", "\"a.jsonl\""}, {"data-form", "\"messages\""}};
    CHECK(file.options(kChats) == chats);
    CHECK(file.options(kChats + "  - path: b.jsonl\n    type: chat_template\n") ==
          Options{{"train-data", "\"a.jsonl,b.jsonl\""}, {"data-form", "\"messages\""}});
    CHECK(file.options(kChats + "    split: train\n    ds_type: json\n    roles_to_train: [assistant]\n") == chats);
    CHECK(file.options("datasets:\n  - path: a.jsonl\n    type: chat_template\n    field_messages: talk\n"
                       "    message_property_mappings: {role: from, content: value}\n"
                       "    roles: {user: [human], assistant: [gpt]}\n    train_on_eos: turn\n") ==
          Options{{"train-data", "\"a.jsonl\""}, {"data-form", "\"messages\""}, {"data-field", "\"talk\""}});
    CHECK(file.options("datasets: [{path: a.parquet, type: completion, field: body}]\n"
                       "test_datasets: [{path: b.parquet, type: completion, field: body}]\n") ==
          Options{{"train-data", "\"a.parquet\""},
                  {"val-data", "\"b.parquet\""},
                  {"data-form", "\"text\""},
                  {"data-field", "\"body\""}});
    CHECK(file.options(kChats + "    split: train[:20]\n") ==
          Options{{"train-data", "\"a.jsonl\""}, {"data-form", "\"messages\""}, {"max-rows", "20"}});
    CHECK(file.options("train_data: pairs.jsonl\npairs: separate\n") ==
          Options{{"train-data", "\"pairs.jsonl\""}, {"pairs", "\"separate\""}});
    CHECK(file.options("chat_template: qwen_25\nval_set_size: 0.05\n") ==
          Options{{"chat-template", "\"qwen2.5\""}, {"val-split", "0.05"}});
    CHECK(file.options("chat_template: jinja\nchat_template_jinja: ./t.jinja\n") ==
          Options{{"chat-template", "\"./t.jinja\""}});
  }

  TEST_CASE("intervals are steps or epochs") {
    YamlFile file;
    const std::vector<std::pair<std::string, std::string>> cases{
        {"eval_steps: 50\n", "50"},
        {"eval_steps: 0.25\nnum_epochs: 2\n", "0.5epoch"},
        {"eval_steps: 0.25\nmax_steps: 101\n", "26"},
        {"evals_per_epoch: 4\n", "0.25epoch"},
        {"evals_per_epoch: 1\nnum_epochs: 3\n", "1epoch"},
        {"evals_per_epoch: 2\nnum_epochs: 2\nmax_steps: 100\n", "25"},
        {"eval_strategy: epoch\n", "1epoch"}};
    for (const auto& [text, value] : cases) {
      INFO(text);
      CHECK(file.options(text).at("eval-every") == (value.ends_with("epoch") ? '"' + value + '"' : value));
    }
    CHECK(file.options("saves_per_epoch: 2\n").at("save-every") == "\"0.5epoch\"");
    CHECK(file.options("save_steps: 100\n").at("save-every") == "100");
    CHECK(file.options("saves_per_epoch: 1\n").empty());  // as axolotl's default
    CHECK(file.options("save_strategy: no\n") == Options{{"save-every", "0"}, {"save-interval-minutes", "0"}});
    CHECK(file.options("evals_per_epoch: 1\n").empty());  // the end of the run
  }

  TEST_CASE("the command line wins, and what it gives is not left out") {
    YamlFile file;
    CHECK(file.options("learning_rate: 1e-3\nlora_target_modules: [q_proj]\nadapter: lora\nlora_r: 2\nlora_alpha: 4\n",
                       {"--learning-rate", "5e-4", "--lora-targets", "v_proj"}) ==
          Options{{"lr", "5e-4"}, {"lora-rank", "2"}, {"lora-alpha", "4"}, {"lora-targets", "\"v_proj\""}});
    CHECK(file.options("seed: 3\n", {"--warmup-steps", "7", "--lr-schedule", "linear", "--total-batch-size", "8"}) ==
          Options{{"seed", "3"}, {"warmup-steps", "7"}, {"lr-schedule", "\"linear\""}, {"total-batch-size", "8"}});
    const auto printed = file.run("seed: 3\n", {"--warmup-steps", "7", "--total-batch-size", "8"});
    for (const char* name : {"warmup-ratio", "batch-size"}) CHECK(!options_in(printed.out, false).contains(name));
  }

  TEST_CASE("what is printed of a file in YAML is the same job") {
    YamlFile file;
    const TempDir folder;
    const std::string ini = folder / "run.ini";
    const auto printed =
        file.run(kLora + kChats + "base_model: m\nlearning_rate: 1e-3\nadam_beta2: 0.95\nbf16: false\n");
    REQUIRE(printed.code == 0);
    std::ofstream(ini) << printed.out;
    CHECK(config_text({"fsdp-finetune", "--config", ini}) == printed.out);
    CHECK(file.run("base_model: m\n", {}, "fsdp-memprobe").code == 0);
  }

  TEST_CASE("what changes nothing is named") {
    YamlFile file;
    CHECK(ignored_in(file, "strict: false\nwandb_project:\nflash_attention: true\nload_in_8bit: false\n") ==
          "flash_attention, load_in_8bit, strict, wandb_project");
    CHECK(ignored_in(file,
                     "special_tokens: {pad_token: x}\nwarmup_ratio: 0.1\nlr_scheduler: constant\n"
                     "plugins: [axolotl.integrations.liger.LigerPlugin]\nrl:\n") ==
          "plugins, rl, special_tokens.pad_token, warmup_ratio");
    CHECK(ignored_in(file, "datasets: [{path: /no/file.jsonl, type: chat_template, split: train}]\n") ==
          "datasets[0].split");
    CHECK(ignored_in(file, "seed: 1\n").empty());
  }

  TEST_CASE("special tokens are the tokenizer's own, or refused") {
    YamlFile file;
    const std::string model = FSDP_FIXTURE_DIR "/tokenizers";
    const auto text = [&](const std::string& end) {
      return "base_model: " + model + "\nspecial_tokens:\n  pad_token: x\n  eos_token: " + end + "\n";
    };
    CHECK(ignored_in(file, text("</s>")) == "special_tokens.eos_token, special_tokens.pad_token");
    expect_refused(file.run(text("<end>")), 2,
                   {"line 4: special_tokens.eos_token: '<end>' is not the tokenizer's own, which is '</s>'"});
    expect_refused(file.run("base_model: no/model\nspecial_tokens: {eos_token: x}\n"), 2,
                   {"special_tokens.eos_token", "no/model"});
  }

  TEST_CASE("every other key is refused by name and line") {
    YamlFile file;
    const std::vector<std::pair<std::string, std::string>> cases{
        {"seed: 1\nbogus_key: 2\n", "line 2: bogus_key"},
        {"micro_batch: 2\n", "micro_batch: has no counterpart here; docs/tutorials.md"},
        {"bogus: {a: 1}\n", "bogus"},
        {"rl: dpo\n", "rl: give --objective dpo"},
        {"load_in_8bit: true\n", "--quantize nf4"},
        {"load_in_4bit: true\n", "give adapter"},
        {"adapter: ia3\n", "'ia3' is neither lora nor qlora"},
        {"adapter: lora\nlora_alpha: 4\nlora_target_linear: true\n", "lora_r is missing"},
        {"adapter: lora\nlora_r: 4\nlora_target_linear: true\n", "lora_alpha is missing"},
        {"adapter: lora\nlora_r: 4\nlora_alpha: 4\n", "line 1: adapter: give lora_target_modules"},
        {"adapter: qlora\nlora_r: 4\nlora_alpha: 4\nlora_target_linear: true\n", "load_in_4bit: true"},
        {kLora + "lora_target_modules: [lm_head]\n", "lora_target_linear on line 4"},
        {kLora + "lora_target_modules: ['a,b']\n", "takes no name with ','"},
        {kLora + "loraplus_lr_ratio: 16\n", "loraplus_lr_ratio"},
        {"bf16: true\nfp16: true\n", "bf16 on line 1"},
        {"bf16: full\n", "'full'"},
        {"gradient_checkpointing: offload_disk\n", "offload_disk"},
        {"batch_size: 8\n", "give micro_batch_size"},
        {"learning_rate: fast\n", "line 1: --lr: 'fast'"},
        {"seed: 1\nmicro_batch_size: 0\n", "line 2: --batch-size"},
        {"lr_scheduler: rex\n", "line 1: --lr-schedule"},
        {"optimizer: came_pytorch\n", "line 1: --optimizer"},
        {"learning_rate: [1, 2]\n", "is a list"},
        {"learning_rate: {a: 1}\n", "a mapping"},
        {"val_set_size: 100\n", "give a share"},
        {"val_set_size: x\n", "'x' is no number"},
        {"output_dir: ..\n", "no folder with a name of its own"},
        {"hub_model_id: me/mine\n", "--save-final-hf"},
        {"deepspeed: zero3.json\n", "--sharding"},
        {"deepspeed: {zero_optimization: 3}\n", "--sharding"},
        {"fsdp_config: {mixed_precision_policy: x}\n", "fsdp_config.mixed_precision_policy: give --param-dtype"},
        {"plugins: [axolotl.integrations.kd.KDPlugin]\n", "KDPlugin"},
        {"special_tokens: {pad_token: a, eos_token: b}\n", "special_tokens.eos_token"},
        {"chat_template: alpaca\n", "'alpaca' is none of chatml"},
        {"chat_template_jinja: '{{ x }}'\n", "write it to a file"},
        {"chat_template: llama3\nchat_template_jinja: t.jinja\n", "chat_template on line 1"},
        {"excess_length_strategy: raise\n", "excess_length_strategy"},
        {"eval_steps: often\n", "'often' is no number"},
        {"save_strategy: best\n", "--keep-best"},
        {"save_steps: 10\nsaves_per_epoch: 2\n", "save_steps on line 1"},
        {"datasets: a.jsonl\n", "datasets: a list is expected"},
        {"datasets: [a.jsonl]\n", "mappings with path and type"},
        {"base_model: [a]\n", "base_model: one value is expected"},
        {"lr_scheduler: {a: 1}\n", "lr_scheduler: one value is expected"},
        {"plugins: kd\n", "plugins: a list is expected"},
        {"special_tokens: x\n", "special_tokens: a mapping is expected"},
        {"fsdp_config: [1]\n", "fsdp_config: a mapping is expected"},
        {kChats + "    field_messages: [a]\n", "field_messages: one value is expected"},
        {kChats + "    roles: [a]\n", "roles: a mapping is expected"},
        {kChats + "    roles: {user: human}\n", "roles.user: a list is expected"},
        {kChats + "    message_property_mappings: [a]\n", "a mapping is expected"},
        {kChats + "  - path: a.jsonl\n    type: chat_template\n", "line 4: datasets[1]: a.jsonl is there twice"},
        {kChats + "  - path: b.jsonl\n    type: completion\n", "line 4: datasets[1]: its type and field must be those"},
        {kChats + "  - path: b.jsonl\n    type: chat_template\n    split: train[:5]\n", "max_rows"},
        {kChats +
             "test_datasets:\n  - path: b.jsonl\n    type: chat_template\n  - path: c.jsonl\n    type: chat_template\n",
         "--val-data takes one data set here"},
        {"datasets: [{type: chat_template}]\n", "path is missing"},
        {"datasets: [{path: a.jsonl}]\n", "type is missing"},
        {"datasets: [{path: a.jsonl, type: alpaca}]\n", "datasets[0].type: 'alpaca': writes words of its own"},
        {"datasets: [{path: a.jsonl, type: sharegpt}]\n", "field_messages: conversations"},
        {"datasets: [{path: a.jsonl, type: {format: x}}]\n", "a mapping"},
        {kChats + "    split: test\n", "line 4: datasets[0].split: 'test'"},
        {kChats + "    split: train[:5%]\n", "'train[:5%]'"},
        {kChats + "    ds_type: parquet\n", "datasets[0].ds_type"},
        {kChats + "    roles: {user: [gpt]}\n", "'gpt' does not become user"},
        {kChats + "    roles_to_train: [user]\n", "datasets[0].roles_to_train"},
        {kChats + "    train_on_eos: all\n", "datasets[0].train_on_eos: 'all'"},
        {kChats + "    message_property_mappings: {content: text}\n", "message_property_mappings.content: 'text'"},
        {kChats + "    shards: 4\n", "datasets[0].shards"},
        {kChats + "test_datasets: [{path: b.jsonl, type: completion}]\n", "test_datasets"},
        {"seed: 1\nseed: 2\n", "line 2: 'seed' is there twice"},
        {"- a\n", "no mapping"},
        {"seed: 1\n---\nseed: 2\n", "line 2"},
        {"config: other.ini\n", "config"},
        {"print_config: true\n", "print"}};
    for (const auto& [text, fact] : cases) {
      INFO(text);
      expect_refused(file.run(text), 2, {"--config " + file.path, "line "});
      const auto refused = file.run(text);
      INFO(refused.err);
      CHECK(refused.err.find(fact) != std::string::npos);
      CHECK(refused.out.empty());
    }
  }

  TEST_CASE("all keys that are refused are in one message, in the order of their lines") {
    YamlFile file;
    const auto refused = file.run("rl: dpo\nseed: 1\nbogus: 3\ndeepspeed: x\n");
    expect_refused(refused, 2, {"3 errors"});
    const auto first = refused.err.find("line 1: rl"), second = refused.err.find("line 3: bogus"),
               third = refused.err.find("line 4: deepspeed");
    CHECK((first < second && second < third && third != std::string::npos));
  }

  TEST_CASE("files of names and values, and other programs, have no YAML") {
    YamlFile file;
    expect_refused(file.run("lr = 1\nlr: 3\n"), 2, {"line 2: 'lr: 3' is YAML: write name=value"});
    std::ofstream(file.path) << "precision: bf16\n";
    expect_refused(run_program({"fsdp-eval", "--config", file.path, "x"}), 2, {"is YAML"});
  }
}
