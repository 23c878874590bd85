#include "lib/tokenizers/files/new_tokens.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lib/base/types/error.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;

namespace {

std::vector<AddedToken> tokens_in(const std::string& name, const std::string& text) {
  const test::TempDir folder;
  std::ofstream(folder / name) << text;
  return read_new_tokens(folder / name);
}

std::shared_ptr<const Tokenizer> written(const GrownTokenizer& grown, const test::TempDir& folder) {
  for (const auto& [name, text] : grown.files) std::ofstream(folder / name) << text;
  return open_tokenizer(folder.path());
}

}  // namespace

TEST_SUITE("tokenizer/new tokens") {
  TEST_CASE("lists of names, and of objects with flags") {
    const auto plain = tokens_in("new.txt", "<|a|>\r\n\n<b>\n");
    REQUIRE(plain.size() == 2);
    CHECK(plain[0].text == "<|a|>");
    CHECK(!plain[0].special);
    CHECK(plain[0].normalized);
    const auto rich = tokens_in("new.json", R"([{"content": "<|a|>", "special": true}, "[b]"])");
    REQUIRE(rich.size() == 2);
    CHECK(rich[0].special);
    CHECK(!rich[0].normalized);
    CHECK(rich[1].text == "[b]");
    for (const char* wrong : {"", "\n\n", "a\na\n", "\xff\n"})
      CHECK_THROWS_AS(tokens_in("new.txt", wrong), FormatError);
    for (const char* wrong : {"[5]", "[{}]", "[", R"([{"content": "a", "special": 5}])"})
      CHECK_THROWS_AS(tokens_in("new.json", wrong), FormatError);
  }

  TEST_CASE("GPT-2's tokenizer grows, keeps its ids, and has no token twice") {
    const auto before = open_tokenizer(kBuiltInTokenizer);
    const auto grown = grow_tokenizer(kBuiltInTokenizer, tokens_in("new.txt", "<|think|>\n<|endoftext|>\n<|tool|>\n"));
    REQUIRE(grown.added.size() == 2);
    CHECK(grown.added[0].id == 50257);
    CHECK(grown.added[1].id == 50258);
    const test::TempDir folder;
    const auto after = written(grown, folder);
    CHECK(after->vocab_size() == 50259);
    CHECK(after->required_rows() == 50259);
    CHECK(after->encode("Plain text") == before->encode("Plain text"));
    CHECK(after->encode("a<|think|>b") == std::vector<std::int32_t>{64, 50257, 65});
    CHECK(grow_tokenizer(folder.path(), tokens_in("new.txt", "<|think|>\n")).added.empty());
  }
}
