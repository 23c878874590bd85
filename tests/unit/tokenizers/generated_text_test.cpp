#include "lib/tokenizers/vocabulary/generated_text.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

#include "lib/tokenizers/bpe/byte_level_bpe.hpp"
#include "lib/tokenizers/sentencepiece/sentencepiece_tokenizer.hpp"

namespace {

using Ids = std::vector<std::int32_t>;

const fsdp::Tokenizer& llama() {
  static const auto tokenizer = fsdp::make_sentencepiece_tokenizer(FSDP_FIXTURE_DIR "/tokenizers/tokenizer.model");
  return *tokenizer;
}

std::int32_t id_of(char byte) {
  for (std::int32_t id = 0; id < llama().vocab_size(); ++id) {
    if (llama().is_byte(id) && llama().decode_one(id) == std::string(1, byte)) return id;
  }
  return -1;
}

Ids ids_of(const std::string& bytes) {
  Ids ids;
  for (const char byte : bytes) ids.push_back(id_of(byte));
  return ids;
}

Ids joined(std::initializer_list<Ids> parts) {
  Ids all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

const std::string kMark = "\xEF\xBF\xBD";

}  // namespace

TEST_SUITE("tokenizer/generated_text") {
  TEST_CASE("a run of bytes is text as a whole, or a mark for each of its bytes") {
    const auto word = llama().encode("be");
    REQUIRE(llama().decode_one(word.front()).starts_with(' '));
    CHECK(continuation(llama(), ids_of("\xE6\x97\xA5\n\xC3\xA9")) == "\xE6\x97\xA5\n\xC3\xA9");
    // One byte that is no UTF-8 takes the valid ones of its run along, and no others.
    CHECK(continuation(llama(), joined({ids_of("\xE6\x97\xA5"), word, ids_of("\nA\xE6"), word})) ==
          "\xE6\x97\xA5 be" + kMark + kMark + kMark + " be");
    CHECK(continuation(llama(), ids_of("\xE6\x97")) == kMark + kMark);
    // Marks, and ids that the vocabulary has not, are no part of a text and end no run.
    CHECK(continuation(llama(), joined({ids_of("\xC3"), {1, 5000, -1}, ids_of("\xA9")})) == "\xC3\xA9");
    CHECK(continuation(llama(), {}).empty());
  }

  TEST_CASE("add() gives what is complete, and what a run is only behind it") {
    const auto word = llama().encode("be");
    fsdp::GeneratedText text(llama());
    CHECK(text.add(word.front()) == llama().decode_one(word.front()));
    for (const auto id : ids_of("\xC3\xA9")) CHECK(text.add(id).empty());
    CHECK(text.add(word.front()) == "\xC3\xA9" + llama().decode_one(word.front()));
    CHECK(text.add(id_of('\xC3')).empty());
    CHECK(text.end() == kMark);
    CHECK(text.end().empty());

    const auto gpt2 = fsdp::make_gpt2_tokenizer();
    fsdp::GeneratedText bytes(*gpt2);
    std::string printed;
    for (const auto id : gpt2->encode("a\xF0\x9F\xA5\xB8z")) {
      const auto ready = bytes.add(id);
      CHECK((ready.empty() || ready == "a" || ready.ends_with('z') || ready == "\xF0\x9F\xA5\xB8"));
      printed += ready;
    }
    CHECK(printed + bytes.end() == "a\xF0\x9F\xA5\xB8z");
  }

  TEST_CASE("time grows with the run, not with its square") {
    Ids ids(1 << 20, id_of('a'));
    ids.push_back(id_of('\xFF'));
    const auto start = std::chrono::steady_clock::now();
    CHECK(continuation(llama(), ids).size() == 3 * ids.size());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    CHECK(seconds.count() < 20);  // quadratic would be minutes
  }
}
