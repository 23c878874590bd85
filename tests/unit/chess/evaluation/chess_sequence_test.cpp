#include "lib/chess/evaluation/games.hpp"
#include "lib/engine/runtime/model_text.hpp"

#include <doctest/doctest.h>

#include <filesystem>

#include "lib/base/types/error.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "tests/support/temp_files.hpp"

namespace {

const std::string kGame = "e2e4 c7c5 g1f3 d7d5 e4d5 e7e8q 1/2-1/2";
const std::vector<std::string> kWords{"e2e4", "c7c5", "g1f3", "d7d5", "e4d5", "e7e8q", "1/2-1/2"};

/// A directory with only the fixture's SentencePiece vocabulary.
std::shared_ptr<const fsdp::Tokenizer> sentencepiece(const fsdp::test::TempDir& dir) {
  std::filesystem::copy(FSDP_FIXTURE_DIR "/tokenizers/tokenizer.model", dir / "tokenizer.model");
  return fsdp::open_tokenizer(dir.path().string());
}

/// A tokenizer with one given piece of text per id, even across words: "ab c".
class PieceTokenizer : public fsdp::Tokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  std::vector<std::int32_t> encode(std::string_view) const override {
    std::vector<std::int32_t> ids;
    for (std::size_t i = 0; i < pieces_.size(); ++i) ids.push_back(static_cast<std::int32_t>(i));
    return ids;
  }
  std::vector<std::int32_t> encode_document(std::string_view text, const fsdp::StopTest&) const override {
    return encode(text);
  }
  std::string decode(std::span<const std::int32_t>) const override { return {}; }
  std::string decode_one(std::int32_t id) const override { return pieces_[static_cast<std::size_t>(id)]; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(pieces_.size()); }
  std::optional<std::int32_t> bos_id() const override { return {}; }
  std::optional<std::int32_t> eos_id() const override { return {}; }
  fsdp::AlignedIds encode_marked(std::string_view text, std::span<const fsdp::TextRange>) const override {
    return {encode(text), {}};
  }
  std::optional<std::int32_t> named_id(std::string_view) const override { return {}; }
  const fsdp::DocumentMarks& document_marks() const override { return marks_; }
  fsdp::VocabularyForm form() const override { return fsdp::VocabularyForm::sentencepiece; }
  std::string description() const override { return "pieces"; }

 private:
  std::vector<std::string> pieces_;
  fsdp::DocumentMarks marks_;
};

}  // namespace

TEST_SUITE("eval/chess_sequence") {
  TEST_CASE("encode_game: the ids of each word spell it, whatever the vocabulary") {
    const fsdp::test::TempDir dir;
    for (const auto& tokenizer : {fsdp::open_tokenizer("gpt2"), sentencepiece(dir)}) {
      CAPTURE(tokenizer->description());
      const auto game = fsdp::encode_game(*tokenizer, kGame);

      CHECK(game.ids == tokenizer->encode_document(kGame));
      REQUIRE(game.words.size() == kWords.size());
      for (std::size_t w = 0; w < kWords.size(); ++w) {
        std::string text;
        for (auto i = game.words[w].first; i < game.words[w].end; ++i) text += tokenizer->decode_one(game.ids[i]);
        CHECK(text.substr(text.starts_with(' ') ? 1 : 0) == kWords[w]);
        if (w > 0) CHECK(game.words[w].first == game.words[w - 1].end);
        // The ids before a word must be those of the text before it, because generation starts from that text.
        const auto before = kGame.substr(0, kGame.find(kWords[w]) - (w > 0 ? 1 : 0));
        CHECK(std::vector(game.ids.begin(), game.ids.begin() + static_cast<std::ptrdiff_t>(game.words[w].first)) ==
              fsdp::prompt_ids(*tokenizer, before));
      }
      CHECK(game.words.back().end == game.ids.size());
    }
  }

  TEST_CASE("encode_game: rejects a piece that spans the end of a word, and a text that does not round-trip") {
    CHECK(fsdp::encode_game(PieceTokenizer({"e2", "e4", " e7e5"}), "e2e4 e7e5").words.size() == 2);
    CHECK(fsdp::encode_game(PieceTokenizer({" e2", "e4", " ", "e7e5"}), "e2e4 e7e5").words[1].first == 2);
    CHECK_THROWS_WITH_AS(fsdp::encode_game(PieceTokenizer({"e2e", "4 e7", "e5"}), "e2e4 e7e5"),
                         doctest::Contains("moves cannot be told apart"), fsdp::FormatError);
    CHECK_THROWS_WITH_AS(fsdp::encode_game(PieceTokenizer({"e2e4", " e7"}), "e2e4 e7e5"),
                         doctest::Contains("does not give back"), fsdp::FormatError);
    CHECK_THROWS_AS(fsdp::encode_game(PieceTokenizer({"xe2e4"}), "e2e4"), fsdp::FormatError);
  }

  TEST_CASE("WordEnds: white space, the end-of-text id and unknown ids") {
    const fsdp::test::TempDir dir;
    const auto tokenizer = sentencepiece(dir);
    const fsdp::WordEnds ends(*tokenizer, 1016);
    const auto space = tokenizer->encode("a b")[1];

    CHECK(tokenizer->decode_one(space).starts_with(' '));
    CHECK((ends.begins_with_space(space) && ends.ends_word(space) && !ends.is_end_mark(space)));
    CHECK((ends.is_end_mark(2) && ends.ends_word(2)));
    CHECK(ends.is_end_mark(1015));
    CHECK_FALSE(ends.ends_word(tokenizer->encode("e2e4").back()));
  }
}
