#include "lib/chess/evaluation/evaluate_games.hpp"

#include "tests/support/engine_params.hpp"
#include "tests/support/torch_doctest.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lib/engine/optim/optimizer.hpp"
#include "lib/ranks/thread_group.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/training/step/initialize.hpp"
#include "tests/support/temp_files.hpp"

namespace {

using namespace fsdp;

constexpr std::int64_t kLimit = 100;

ModelConfig small(Architecture architecture, std::int64_t vocab) {
  ModelConfig config;
  config.architecture = architecture;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = architecture == Architecture::llama ? 2 : 0;
  config.embed_size = 32;
  config.ffn_hidden_size = 64;
  config.vocab_size = vocab;
  config.block_size = 128;
  return config;
}

/// Openings of the games in data/, of different lengths, some with a result; the last one exceeds the limit.
std::vector<std::string> some_games() {
  std::ifstream file(FSDP_TEST_DATA_DIR "/chess/train.jsonl");
  std::vector<std::string> games;
  for (std::string line; games.size() < 6 && std::getline(file, line);) {
    const auto text = nlohmann::json::parse(line)["text"].get<std::string>();
    const auto moves = games.size() == 5 ? 40 : 5 + 3 * games.size();
    std::size_t end = 0;
    for (std::size_t m = 0; m < moves; ++m) end = text.find(' ', end + 1);
    games.push_back(text.substr(0, end) + (games.size() % 2 == 0 ? " 1-0" : ""));
  }
  return games;
}

MicroBatch training_batch(const ChessSequence& game) {
  const auto length = std::min<std::int64_t>(static_cast<std::int64_t>(game.ids.size()) - 1, kLimit);
  MicroBatch batch;
  batch.rows = 1;
  batch.length = length;
  batch.ids_N = at::full({length}, 0, at::kInt);
  batch.targets_N = at::full({length}, 0, at::kInt);
  std::copy_n(game.ids.begin(), length, batch.ids_N.data_ptr<std::int32_t>());
  std::copy_n(game.ids.begin() + 1, length, batch.targets_N.data_ptr<std::int32_t>());
  return batch;
}

/// Trains on part of the games until some words are right and some wrong. Every rank trains on the same games.
void learn(ModelRuntime& runtime, const std::vector<ChessSequence>& games, int rounds) {
  auto& engine = runtime.engine();
  const auto optimizer = make_optimizer({host_ops(), fsdp::test::engine_params(engine, false), {}});
  for (int round = 0; round < rounds; ++round) {
    for (const auto& game : games) {
      const auto batch = training_batch(game);
      engine.forward_backward(batch, {}, 1.0 / static_cast<double>(batch.length));
      std::vector<at::Tensor> gradients;
      for (std::size_t i = 0; i < engine.num_parameters(); ++i) gradients.push_back(engine.gradient(i));
      optimizer->step(gradients, 3e-3, static_cast<double>(runtime.world().size()));
      engine.sync_parameters();
    }
  }
}

struct Tally {
  int right = 0, wrong = 0, no_context = 0, beyond = 0;
};

/// Checks for every word of every game that it is right exactly when greedy generation writes it.
Tally check_words(ModelRuntime& runtime, const Tokenizer& tokenizer, const std::vector<ChessSequence>& games,
                  const std::vector<std::string>& texts) {
  const WordEnds ends(tokenizer, runtime.decoder().config.vocab_size);
  const auto scores = score_words(runtime, games, kLimit, ends);
  Tally tally;
  for (std::size_t g = 0; g < games.size(); ++g) {
    std::size_t at = 0;
    REQUIRE(scores[g].size() == games[g].words.size());
    for (std::size_t w = 0; w < games[g].words.size(); ++w) {
      const auto end = std::min(texts[g].find(' ', at), texts[g].size());
      const auto word = texts[g].substr(at, end - at);
      at = end + 1;
      const auto score = scores[g][w];
      ++(score == WordScore::right    ? tally.right
         : score == WordScore::wrong  ? tally.wrong
         : score == WordScore::beyond ? tally.beyond
                                      : tally.no_context);
      if (score != WordScore::right && score != WordScore::wrong) continue;
      const auto first = static_cast<std::ptrdiff_t>(games[g].words[w].first);
      const std::vector<std::int32_t> prefix(games[g].ids.begin(), games[g].ids.begin() + first);
      const auto written = generate_word(runtime, prefix, tokenizer, ends, 16);
      CAPTURE(g);
      CAPTURE(w);
      CAPTURE(word);
      CAPTURE(written);
      CHECK((score == WordScore::right) == (written == word));
    }
  }
  return tally;
}

}  // namespace

TEST_SUITE("eval/chess_scores") {
  TEST_CASE("score_words: right exactly where greedy generation writes the word, Llama on 1 and 2 ranks") {
    const test::TempDir dir;
    std::filesystem::copy(FSDP_FIXTURE_DIR "/tokenizers/tokenizer.model", dir / "tokenizer.model");
    const auto tokenizer = open_tokenizer(dir.path().string());
    const auto texts = some_games();
    std::vector<ChessSequence> games;
    for (const auto& text : texts) games.push_back(encode_game(*tokenizer, text));
    for (const int ranks : {1, 2}) {
      CAPTURE(ranks);
      run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
        const at::NoGradGuard no_grad;
        ModelRuntime runtime(world, small(Architecture::llama, 1016), {}, {}, 1);
        initialize_parameters(runtime, 1);
        learn(runtime, games, 25);
        const auto tally = check_words(runtime, *tokenizer, games, texts);
        if (world.rank() == 0)
          MESSAGE(fmt::format("{} right, {} wrong, {} beyond the limit", tally.right, tally.wrong, tally.beyond));
        CHECK(tally.right > 15);
        CHECK(tally.wrong > 15);
        CHECK(tally.beyond > 5);
        CHECK(tally.no_context == 0);
      });
    }
  }

  TEST_CASE("score_words: right exactly where greedy generation writes the word, minGPT without a start id") {
    const auto tokenizer = open_tokenizer("gpt2");
    const auto texts = some_games();
    std::vector<ChessSequence> games;
    for (const auto& text : texts) games.push_back(encode_game(*tokenizer, text));
    const auto world = make_single_group();
    const at::NoGradGuard no_grad;
    ModelRuntime runtime(*world, small(Architecture::mingpt, 50257), {}, {}, 1);
    initialize_parameters(runtime, 1);
    learn(runtime, games, 25);

    const auto tally = check_words(runtime, *tokenizer, games, texts);

    MESSAGE(fmt::format("{} right, {} wrong, {} beyond the limit", tally.right, tally.wrong, tally.beyond));
    CHECK(tally.right > 15);
    CHECK(tally.wrong > 15);
    CHECK(tally.no_context == static_cast<int>(games.size()));
  }

  TEST_CASE("score_words: scores do not depend on other games of the batch, and a rank may have no games") {
    const auto tokenizer = open_tokenizer("gpt2");
    const auto texts = some_games();
    std::vector<ChessSequence> games;
    for (const auto& text : texts) games.push_back(encode_game(*tokenizer, text));
    run_thread_ranks(2, 2, [&](ProcessGroup& world) {
      const at::NoGradGuard no_grad;
      ModelRuntime runtime(world, small(Architecture::mingpt, 50257), {}, {}, 1);
      initialize_parameters(runtime, 1);
      learn(runtime, games, 12);
      const WordEnds ends(*tokenizer, 50257);
      const auto together = score_words(runtime, games, kLimit, ends);
      for (std::size_t g = 0; g < games.size(); ++g) {
        const auto mine = world.rank() == 0 ? std::span(games).subspan(g, 1) : std::span<const ChessSequence>();
        const auto alone = score_words(runtime, mine, kLimit, ends);
        CHECK(alone.size() == mine.size());
        if (world.rank() == 0) CHECK((alone[0] == together[g]));
      }
    });
  }
}
