#include "apps/common/remedies.hpp"

#include <doctest/doctest.h>

#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/base/types/remedy.hpp"
#include "tests/support/captured_stderr.hpp"
#include "tests/support/program_run.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// The long options of a program, those of its subcommand included.
const std::set<std::string>& options_of(const std::string& program) {
  static std::map<std::string, std::set<std::string>> known;
  auto& options = known[program];
  if (!options.empty()) return options;
  std::vector<CommandLine> lines{{program}};
  if (program == "fsdp-download") lines.push_back({program, "tokens"});
  for (const auto& line : lines) {
    for (const auto& option : described_options(line))
      for (const auto& name : option["names"]) options.insert(name.get<std::string>());
  }
  return options;
}

/// The options that a text names and each program that must have them. A program's name in the text stands before its
/// own options; others are those of the row's programs.
std::vector<std::pair<std::string, std::string>> named_options(const RemedyRow& row) {
  static const std::regex kProgram("fsdp-[a-z0-9-]+"), kWord("fsdp-[a-z0-9-]+|--[a-z][a-z0-9-]*");
  const std::string programs(row.programs), text(row.text);
  std::vector<std::string> owners;
  for (std::sregex_iterator at(programs.begin(), programs.end(), kProgram), end; at != end; ++at)
    owners.push_back(at->str());
  std::vector<std::pair<std::string, std::string>> found;
  bool begins = true;
  for (std::sregex_iterator at(text.begin(), text.end(), kWord), end; at != end; ++at) {
    const auto word = at->str();
    if (word.starts_with("--")) {
      for (const auto& owner : owners) found.emplace_back(owner, word);
      begins = true;
    } else {
      if (begins) owners.clear();
      owners.push_back(word);
      begins = false;
    }
  }
  return found;
}

}  // namespace

TEST_SUITE("apps/remedies") {
  TEST_CASE("each option that a row names exists in the program that shows it") {
    for (const auto& row : remedy_rows()) {
      const auto named = named_options(row);
      INFO(row.text);
      for (const auto& [program, option] : named) {
        INFO(program, " ", option);
        CHECK(options_of(program).contains(option));
      }
    }
  }

  TEST_CASE("each remedy has one row") {
    std::set<int> seen;
    for (const auto& row : remedy_rows()) CHECK(seen.insert(static_cast<int>(row.remedy)).second);
    CHECK(*seen.begin() == 1);  // none has none
    CHECK(*seen.rbegin() == static_cast<int>(seen.size()));
    CHECK(*seen.rbegin() == static_cast<int>(Remedy::last));
  }

  TEST_CASE("a log line is followed by the words of its program, if it has any") {
    const TempDir folder;
    CapturedStderr captured(folder / "stderr");
    Logger(0, LogLevel::info, words_of_advice).warning("x", Remedy::overwrite);
    Logger(0, LogLevel::info).warning("y", Remedy::overwrite);
    CHECK(captured.text() == "warning: x; choose another name or add --overwrite\nwarning: y\n");
  }

  TEST_CASE("a message is followed by the sentence for its remedy, with the subject") {
    CHECK(told(RequestError("x: exists")) == "x: exists");
    CHECK(told(RequestError("x", Remedy::overwrite)) == "x; choose another name or add --overwrite");
    CHECK(told(FormatError("x", {Remedy::exclude, "a {} b"})) == "x; leave it out with --exclude 'a {} b'");
  }
}
