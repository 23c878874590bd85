#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/program_run.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

const std::vector<std::string> kWithConfigFiles{"fsdp-finetune", "fsdp-memprobe"};

/// Options whose values are neither any text nor known from the table.
const std::map<std::string, CommandLine> kValues{{"--wrap", {"size:1000"}},
                                                 {"--activation-checkpointing", {"every:2"}},
                                                 {"--offload-optimizer", {"cpu"}},
                                                 {"--betas", {"0.8", "0.99"}},
                                                 {"--dpo-loss", {"sigmoid:0.5,hinge"}},
                                                 {"--lora-rank-pattern", {"q_proj=4,mlp\\..*=2"}},
                                                 {"--lora-alpha-pattern", {"q_proj=4.5"}},
                                                 {"--trainable-tokens", {"lm_head:3,new"}},
                                                 {"--time-limit", {"1:30"}},
                                                 {"--nodes", {"2,3"}},
                                                 {"--eval-every", {"0.5epoch"}},
                                                 {"--val-tasks-every", {"0.5epoch"}},
                                                 {"--save-every", {"2epochs"}},
                                                 {"--keep-best", {"web"}},  // CLI11 takes {} for no value
                                                 {"--calibration", {"a b", "c,d", "[e]"}}};
/// Texts that could be confused with the syntax of a config file.
const CommandLine kTrickyTexts{"two words", "a # b, c", "it's",   "say \"x\"", "it's \"x\"", "line\nline\tend ",
                               " \\n ",     "[x, y]",   "",       "true",      "007",        "-",
                               "=",         "{}",       "\"\"\"", "é"};

/// Returns words of a command line that give an option of the table a value other than its default.
/// \param name  its first long name
CommandLine words_for(const nlohmann::json& option, const std::string& name, std::size_t number) {
  const auto default_value = option["default"].get<std::string>();
  if (kValues.contains(name)) return CommandLine{name} + kValues.at(name);
  if (option["flag"]) return {default_value == "true" ? "--no-" + name.substr(2) : name};
  for (const std::string choice : option["choices"]) {
    if (choice != default_value) return {name, choice};
  }
  if (option["type"] == "INT" || option["type"] == "UINT" || option["type"] == "FLOAT") {
    const auto& bounds = option["bounds"];
    const auto end = std::min(bounds.value("to", 100.0), bounds.value("below", 100.0));
    return {name, end <= 1 ? std::string("0.25") : std::to_string(number % static_cast<std::size_t>(end - 3) + 2)};
  }
  return {name, kTrickyTexts[number % kTrickyTexts.size()]};
}

/// Returns the names of the options that `line` gives in the text of --print-config.
std::set<std::string> given_names(const std::string& config) {
  std::set<std::string> names;
  for (const auto& [name, value] : options_in(config, false)) names.insert(name);
  return names;
}

/// Expects that a config file with what `line` prints leads to the same print. Returns the print.
std::string expect_round_trip(const std::string& program, const CommandLine& arguments) {
  const TempDir folder;
  const std::string file = folder / "round-trip.ini";
  const auto first = config_text(CommandLine{program} + arguments);
  std::ofstream(file) << first;
  CHECK(config_text({program, "--config", file}) == first);
  return first;
}

using Names = std::set<std::string>;

}  // namespace

TEST_SUITE("apps/config_file") {
  TEST_CASE("--print-config sets only what was given") {
    for (const auto& program : kWithConfigFiles) {
      CHECK(given_names(config_text({program})).empty());
      CHECK(given_names(config_text({program, "--lr", "0.001", "--no-shuffle"})) == Names{"no-shuffle", "lr"});
      for (const auto* recompute : {"--gradient_checkpointing", "--activation-checkpointing"}) {
        CHECK(given_names(config_text({program, "--no-fsdp", recompute})) ==
              Names{"sharding", "activation-checkpointing"});
      }
    }
  }

  TEST_CASE("every option comes back from a config file") {
    const Names not_in_files{"help",
                             "help-all",
                             "version",
                             "config",
                             "print-config",
                             "no-fsdp",
                             "no-layer-wrap-policy",
                             "gradient-checkpointing",
                             "watch"};
    for (const auto& program : kWithConfigFiles) {
      const auto options = options_in(config_text({program}), true);
      std::vector<std::pair<std::string, nlohmann::json>> in_files;  // by the first long name
      for (const auto& option : described_options({program})) {
        for (const std::string name : option["names"]) {
          INFO(program, " ", name);
          if (!name.starts_with("--")) continue;
          CHECK(options.contains(name.substr(2)) != not_in_files.contains(name.substr(2)));
          // One needs the other, and a run that validates: tests/cli/sweep_test.py.
          if (name.starts_with("--sweep")) break;
          if (options.contains(name.substr(2))) in_files.emplace_back(name, option);
          break;
        }
      }
      for (std::size_t part = 0; part < 4; ++part) {
        CommandLine arguments;
        Names chosen;
        for (auto number = part; number < in_files.size(); number += 4) {
          const auto& [name, option] = in_files[number];
          arguments = arguments + words_for(option, name, number);
          chosen.insert(name.substr(2));
        }
        CHECK(given_names(expect_round_trip(program, arguments)) == chosen);
      }
    }
  }

  TEST_CASE("every text comes back as it was") {
    CHECK(given_names(expect_round_trip("fsdp-memprobe", CommandLine{"--calibration"} + kTrickyTexts)) ==
          Names{"calibration"});
    // A text that survives the round trip must also be the right one: the message names the checkpoint.
    const TempDir folder;
    const std::string file = folder / "text.ini";
    const CommandLine train{"fsdp-finetune", "--device", "cpu", "--out-dir", folder / "runs"};
    for (const std::string text : {"it's \"x\"", "line\nline\tend ", " \\n ", "\"\"\""}) {
      std::ofstream(file) << config_text({"fsdp-finetune", "--restart", "no/" + text});
      const auto wanted = run_program(train + CommandLine{"--restart", "no/" + text});
      expect_refused(wanted, 4, {"no/" + text.substr(0, text.find('\n'))});
      CHECK(run_program(train + CommandLine{"--config", file}).err == wanted.err);
    }
  }

  TEST_CASE("an option of the command line wins over the file's") {
    const TempDir folder;
    const std::string file = folder / "config.ini";
    const auto text =
        expect_round_trip("fsdp-finetune", {"--betas", "0.8", "0.99", "--no-shuffle", "--wrap", "size:1000", "--prompt",
                                            "a # b, c", "--lr", "3e-4", "--activation-checkpointing",
                                            "--no-limit-all-gathers", "--run-name", "my run", "--max-steps", "7"});
    CHECK(options_in(text, false).at("prompt") == "\"a # b, c\"");
    std::ofstream(file) << text;
    CHECK(options_in(config_text({"fsdp-finetune", "--config", file, "--lr", "5e-4"}), false).at("lr") == "5e-4");
  }

  TEST_CASE("defaults that were printed and read again plan the same job") {
    const TempDir folder;
    const std::string file = folder / "defaults.ini";
    std::ofstream(file) << config_text({"fsdp-finetune"});
    const CommandLine job{"--train-data", FSDP_TEST_DATA_DIR "/shakespeare/train.h5",
                          "--out-dir",    folder / "runs",
                          "--num-layers", "1",
                          "--num-heads",  "1",
                          "--embed-size", "8",
                          "--device",     "cpu",
                          "--dry-run"};
    const Environment same_speed(Environment::Variables{{"FSDP_CPU_FLOPS", "1e10"}});
    const auto direct = run_program(CommandLine{"fsdp-finetune"} + job);
    const auto by_file = run_program(CommandLine{"fsdp-finetune", "--config", file} + job);
    INFO(direct.err);
    CHECK(direct.code == 0);
    CHECK(by_file.code == 0);
    CHECK(by_file.err == direct.err);
  }

  TEST_CASE("a word that is no choice is told at once, from the command line and from a file") {
    const TempDir folder;
    const std::string file = folder / "words.ini";
    for (const auto& program : kWithConfigFiles) {
      std::size_t count = 0;
      for (const auto& option : described_options({program})) {
        if (option["choices"].empty()) continue;
        const auto name = option["names"].front().get<std::string>();
        std::ofstream(file) << name.substr(2) << "=wrong\n";
        for (const CommandLine& arguments : {CommandLine{name, "wrong"}, CommandLine{"--config", file}}) {
          const auto run = run_program(CommandLine{program} + arguments + CommandLine{"--print-config"});
          expect_refused(run, 2, {name, "'wrong'"});
          CHECK(run.out.empty());
        }
        ++count;
      }
      CHECK(count > 20);
    }
  }

  TEST_CASE("what is wrong in a file is told with its line") {
    const TempDir folder;
    const std::string file = folder / "wrong.ini";
    const std::vector<std::pair<std::string, std::string>> cases{
        {"\nlr = 1\nprompt = \"x\n", "line 3"},
        {"[training]\n", "sections"},
        {"= 3\n", "name"},
        {"\xEF\xBB\xBFlr = x\n", "line 1: --lr"},
        {"seed=1\nlr: 3\n", "line 2: 'lr: 3' is YAML: write name=value"},
        {"seed=1\nbase_model: 'org/name'\n", "(here model=org/name)"},
        {"seed=1\ntrain_on_inputs: false\n", "(here train-on=answers)"},
        {"seed=1\ndatasets:\n  - path: a.jsonl\n", "give --train-data"},
        {"seed=1\nplugins:\n", "'plugins:' is YAML"},
        {"config = \"other\"\n", "wrong.ini: line 1: config"},
        {"betas = [0.1,\n", "']'"},
        {"prompt = \"\"\"\\q\"\"\"\n", "\\q"},
        {"lr = 0.5\nlog-every 5\n", "line 2"},
        {"lr = 0.5\nlog-every 5\n", "log-every=5"},
        {"no-such-option = 1\n", "no-such-option"}};
    for (const auto& [text, fact] : cases) {
      std::ofstream(file) << text;
      expect_refused(run_program({"fsdp-finetune", "--config", file}), 2, {fact});
    }
    for (const std::string place : {folder / "none.ini", folder.path()})
      expect_refused(run_program({"fsdp-finetune", "--config", place}), 2, {"--config " + place});
  }

  TEST_CASE("files written by hand, with comments, blanks, quotes, lists over lines and a byte order mark") {
    const TempDir folder;
    const std::string file = folder / "hand.ini";
    std::ofstream(file)
        << "; a run\r\nlr = 0.002 # high\r\nbetas = [0.5,  # first\n  0.6]\nno-shuffle\nrun-name = 'a'\n"
           "lr-schedule=cosine\nprompt = 'x \\n \"y\"'\nrun-name = \"b\"\n";
    CHECK(options_in(config_text({"fsdp-finetune", "--config", file}), false) ==
          std::map<std::string, std::string>{{"lr", "0.002"},
                                             {"betas", "[0.5, 0.6]"},
                                             {"no-shuffle", "true"},
                                             {"run-name", "\"b\""},
                                             {"lr-schedule", "\"cosine\""},
                                             {"prompt", "'x \\n \"y\"'"}});
    std::ofstream(file) << "# a run\nlr = 0.002   # high\n\nnum_layers=3\nrun-name = 'it#s'\nbetas = [0.5, 0.6]\n";
    CHECK(options_in(config_text({"fsdp-finetune", "--config", file}), false) ==
          std::map<std::string, std::string>{
              {"lr", "0.002"}, {"num-layers", "3"}, {"run-name", "\"it#s\""}, {"betas", "[0.5, 0.6]"}});
    std::ofstream(file) << "\xEF\xBB\xBFlr = 0.5\r\nno-shuffle = true\r\n";
    CHECK(given_names(config_text({"fsdp-finetune", "--config", file})) == Names{"no-shuffle", "lr"});
  }
}
