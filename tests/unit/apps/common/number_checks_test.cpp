#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
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

const std::vector<std::string> kWrongNumbers{"nan", "inf", "-1", "1e400", "99999999999999999999"};

/// The programs, and the arguments that each needs before its options.
const std::vector<std::pair<CommandLine, CommandLine>> kPrograms{
    {{"fsdp-finetune"}, {}},
    {{"fsdp-memprobe"}, {}},
    {{"fsdp-eval"}, {"x"}},
    {{"fsdp-ckpt-convert"}, {FSDP_FIXTURE_DIR "/checkpoints/st_zoo", "b"}},
    {{"fsdp-download"}, {"me/model"}},
    {{"fsdp-download", "tokens"}, {"--input", "a", "--tokenizer", "gpt2", "--output", "b"}},
    {{"fsdp-bf16check"}, {}}};

/// Expects that the program refuses the value in one message that names the option.
void expect_refused_number(const CommandLine& program, const std::string& option, const std::string& value) {
  auto line = program + CommandLine{option, value};
  if (option == "--betas") line.emplace_back("0.9");  // takes two numbers
  INFO(program[0], " ", option, " ", value);
  expect_refused(run_program(line), 2, {option});
}

/// Returns the options of the program that take a number, with the kind of number: INT, UINT or FLOAT.
std::map<std::string, std::string> number_options(const CommandLine& program) {
  std::map<std::string, std::string> found;
  for (const auto& option : described_options(program)) {
    const auto kind = option["type"].get<std::string>();
    const auto& names = option["names"];
    const auto name = std::find_if(names.begin(), names.end(),
                                   [](const auto& n) { return n.template get<std::string>().starts_with("--"); });
    if (name != names.end() && (kind == "INT" || kind == "UINT" || kind == "FLOAT")) found[*name] = kind;
  }
  return found;
}

}  // namespace

TEST_SUITE("apps/number_checks") {
  TEST_CASE("every number of every program: values that are no number of its kind are refused with the option's name") {
    std::size_t count = 0;
    for (const auto& [program, arguments] : kPrograms) {
      const auto options = number_options(program);
      CHECK((program[0] == "fsdp-bf16check" || !options.empty()));
      for (const auto& [option, kind] : options) {
        for (const auto& value : kWrongNumbers) {
          if (kind == "FLOAT" && value.starts_with("99")) continue;  // a FLOAT may be huge
          if (option == "--max-epochs" && value == "-1") continue;   // evaluates only
          expect_refused_number(program + arguments, option, value);
          ++count;
        }
      }
    }
    CHECK(count > 300);
  }

  TEST_CASE("every range of every program: the numbers beyond its ends are refused with the option and the range") {
    std::size_t count = 0;
    for (const auto& [program, arguments] : kPrograms) {
      for (const auto& option : described_options(program)) {
        std::vector<std::string> beyond;
        for (const auto& [bound, number] : option["bounds"].items()) {
          const auto value = number.get<double>();
          if (bound == "from" && value > 0) beyond.push_back(fmt::format("{}", value >= 1 ? value - 1 : value / 2));
          if (bound == "above" || bound == "below") beyond.push_back(fmt::format("{}", value));
          if (bound == "to") beyond.push_back(fmt::format("{}", value + 1));
        }
        if (beyond.empty()) continue;
        const auto name = option["names"].front().get<std::string>();
        const auto range = option["range"].get<std::string>();
        for (const auto& value : beyond) {
          auto line = program + arguments + CommandLine{name, value};
          if (name == "--betas") line.emplace_back("0.9");  // takes two numbers
          INFO(program[0], " ", name, " ", value, " (", range, ")");
          expect_refused(run_program(line), 2, {name, range});
          ++count;
        }
      }
    }
    CHECK(count > 40);
  }

  TEST_CASE("numbers in texts, with units and in clock times, are checked, too") {
    const std::vector<std::pair<CommandLine, std::string>> texts{
        {{"fsdp-finetune"}, "--time-limit"},
        {{"fsdp-memprobe"}, "--memory"},
        {{"fsdp-memprobe", "--search"}, "--margin"},
        {{"fsdp-memprobe", "--gpu", "l4"}, "--cuda-context"},
        {{"fsdp-memprobe", "--gpu", "l4"}, "--nccl-buffers"},
        {{"fsdp-memprobe"}, "--time-limit"},
        {kPrograms[3].first + kPrograms[3].second + CommandLine{"--to", "hf"}, "--max-shard-size"}};
    for (const auto& [program, option] : texts) {
      for (const auto& value : kWrongNumbers) expect_refused_number(program, option, value);
    }
    for (const auto& value : kWrongNumbers) expect_refused_number({"fsdp-finetune"}, "--time-limit", "1:" + value);
  }

  TEST_CASE("numbers in config files and in lists are checked, too") {
    const TempDir folder;
    const auto file = folder / "wrong.ini";
    const std::vector<std::pair<std::string, std::string>> lines{{"lr=nan", "--lr"},
                                                                 {"betas=[0.9, inf]", "--betas"},
                                                                 {"save-every=-1", "--save-every"},
                                                                 {"seed=\"\"", "--seed"},
                                                                 {"max-steps=18446744073709551616", "--max-steps"},
                                                                 {"num_layers=2.5", "--num-layers"}};
    for (const auto& [line, option] : lines) {
      std::ofstream(file) << line << "\n";
      INFO(line);
      expect_refused(run_program({"fsdp-finetune", "--config", file}), 2, {option});
    }
    expect_refused_number({"fsdp-memprobe", "--ranks-per-node", "1"}, "--nodes", "1,-2");
    expect_refused_number({"fsdp-finetune"}, "--max-epochs", "1e300");
  }

  TEST_CASE("numbers with a sign, leading zeros and exponents mean what they say") {
    const CommandLine train{"fsdp-finetune",
                            "--train-data",
                            FSDP_TEST_DATA_DIR "/shakespeare/train.h5",
                            "--num-layers",
                            "1",
                            "--num-heads",
                            "1",
                            "--embed-size",
                            "8",
                            "--device",
                            "cpu",
                            "--dry-run"};
    const auto run = run_program(train + CommandLine{"--max-steps", "+2", "--batch-size", "010", "--seed",
                                                     "18446744073709551615", "--lr", ".5e-3", "--eps", "1e-8"});
    INFO(run.err);
    CHECK(run.code == 0);
    CHECK(run.err.find("10 rows per step") != std::string::npos);
    CHECK(run.err.find("2 steps") != std::string::npos);
    CHECK(run_program(train +
                      CommandLine{"--max-epochs", "-1", "--val-data", FSDP_TEST_DATA_DIR "/shakespeare/validation.h5"})
              .code == 0);
  }
}
