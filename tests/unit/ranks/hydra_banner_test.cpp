#include "lib/ranks/hydra_banner.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace {

using fsdp::HydraBanner;

const std::string rule(83, '=');

/// Returns the box that hydra prints, including the newline before it.
std::string box(const std::string& host = "node-7.cluster", const std::string& code = "9") {
  return "\n" + rule + "\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 4711 RUNNING AT " + host +
         "\n=   EXIT CODE: " + code +
         "\n=   CLEANING UP REMAINING PROCESSES\n=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES\n" + rule + "\n";
}
const std::string last_words =
    "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"
    "This typically refers to a problem with your application.\n"
    "Please see the FAQ page for debugging suggestions\n";

std::string filtered(const std::vector<std::string>& pieces, bool dropped) {
  HydraBanner banner;
  std::string out;
  for (const auto& piece : pieces) out += banner.pass(piece);
  out += banner.finish();
  CHECK(banner.dropped() == dropped);
  return out;
}

/// Filters the text whole, split in two at every position, and byte by byte.
void check_in_any_pieces(const std::string& text, const std::string& expected, bool dropped) {
  CAPTURE(text);
  CHECK(filtered({text}, dropped) == expected);
  for (std::size_t at = 0; at <= text.size(); ++at) {
    if (filtered({text.substr(0, at), text.substr(at)}, dropped) != expected) FAIL("split at ", at);
  }
  std::vector<std::string> bytes;
  for (const char byte : text) bytes.emplace_back(1, byte);
  CHECK(filtered(bytes, dropped) == expected);
}
void check_unchanged(const std::string& text) { check_in_any_pieces(text, text, false); }

}  // namespace

TEST_CASE("a box is removed, and the newline before it stays") {
  check_in_any_pieces("step 1\n" + box() + last_words, "step 1\n\n", true);
  check_in_any_pieces("no line end" + box("vm", "139") + last_words, "no line end\n", true);
  check_in_any_pieces(box(), "\n", true);  // the last words may be missing
  check_in_any_pieces("a rank prints a rule\n" + rule + box() + last_words, "a rank prints a rule\n" + rule + "\n",
                      true);
}

TEST_CASE("output of ranks between boxes, and between a box and hydra's last words, passes") {
  check_in_any_pieces("a" + box() + "b" + box("other") + "c\nd" + last_words, "a\nb\nc\nd", true);
  check_in_any_pieces(box() + "Y" + last_words, "\nY", true);
  check_in_any_pieces(box() + last_words + last_words, "\n" + last_words, true);
  check_in_any_pieces(box() + last_words + "more\n", "\n" + last_words + "more\n", true);
}

TEST_CASE("text that is not a box passes unchanged") {
  check_unchanged("");
  check_unchanged("one line\n");
  check_unchanged("\n" + rule + "\na heading\n" + rule + "\n");
  check_unchanged("=\n==\n\n= A title =\n" + rule + "=\n");
  check_unchanged(last_words);                       // no box came before
  check_unchanged("[0] " + box().substr(1));         // not at the beginning of a line
  check_unchanged(box("two words").substr(0, 170));  // cut off
  check_unchanged(box().substr(0, box().size() - 1));
  check_unchanged(box(std::string(600, 'h')));
  auto other = box();
  other.replace(other.find("CLEANING"), 8, "cleaning");
  check_unchanged(other);
  std::string binary;
  for (int i = 0; i < 1024; ++i) binary += static_cast<char>(i % 256);
  check_unchanged(binary + "\n=" + std::string(3, '\0') + rule);
}

TEST_CASE("a byte that cannot belong to a box passes at once") {
  HydraBanner banner;
  for (const char byte : std::string("ROMEO:\n\nY = 1\n")) CHECK(banner.pass({&byte, 1}) == std::string(1, byte));
  CHECK(banner.pass("=") == "");
  CHECK(banner.pass(" ") == "= ");
  CHECK(banner.pass("\n" + rule) == "\n");
  CHECK(banner.pass("=") == rule + "=");
}
