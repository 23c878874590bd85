// Requests that share beginnings and contexts, against each alone.
#include "lib/training/requests/score_requests.hpp"

#include <ATen/core/grad_mode.h>

#include "lib/ranks/thread_group.hpp"
#include "tests/support/reproducible_products.hpp"
#include "tests/support/rowwise_runtime.hpp"
#include "tests/support/small_model.hpp"
#include "tests/support/torch_doctest.hpp"

using namespace fsdp;
using fsdp::test::fill;
using fsdp::test::rowwise;

namespace {

std::vector<std::pair<std::string, ModelConfig>> all_kinds() {
  ModelConfig llama;
  llama.architecture = Architecture::llama;
  llama.num_layers = 2;
  llama.num_heads = 4;
  llama.num_kv_heads = 2;
  llama.embed_size = 64;
  llama.ffn_hidden_size = 160;
  llama.vocab_size = 301;
  llama.block_size = 96;
  std::vector<std::pair<std::string, ModelConfig>> kinds{{"llama", llama}};
  for (const std::int64_t window : {5, 50}) {
    kinds.emplace_back("llama, window " + std::to_string(window), llama);
    kinds.back().second.traits.window = window;
  }
  kinds.emplace_back("llama, dynamic", llama);
  kinds.back().second.rope_scaling =
      R"({"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 50})";
  auto mingpt = test::small_model();
  mingpt.block_size = 96;
  kinds.emplace_back("mingpt", mingpt);
  for (auto falcon : test::small_falcons()) {
    falcon.block_size = 96;
    kinds.emplace_back("falcon " + std::to_string(kinds.size()), falcon);
  }
  return kinds;
}

using Ids = std::vector<std::int32_t>;

Ids ids_of(const ModelConfig& config, int number, int count) {
  Ids ids;
  for (int i = 0; i < count; ++i)
    ids.push_back(static_cast<std::int32_t>((7 * number + 13 * i + i * i) % config.vocab_size));
  return ids;
}

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Questions after the same 40 and the same 44 ids, with one or several choices of one id or several; a context that is
/// the beginning of another; and some that begin with nothing else.
std::vector<ScoreRequest> requests_of(const ModelConfig& config) {
  std::vector<ScoreRequest> all;
  const auto shots = ids_of(config, 1, 40);
  for (int question = 0; question < 9; ++question) {
    auto beginning = question % 3 == 2 ? shots + ids_of(config, 3, 4) : shots;
    const auto context = beginning + ids_of(config, 20 + question, 1 + question);
    for (int choice = 0; choice <= question % 4; ++choice)
      all.push_back({context, ids_of(config, 50 + 9 * choice + question, question < 4 ? 1 : 1 + choice % 3)});
  }
  all.push_back({shots, ids_of(config, 4, 3)});
  all.push_back({shots + ids_of(config, 20, 1), ids_of(config, 5, 1)});
  for (int other = 0; other < 4; ++other)
    all.push_back({ids_of(config, 90 + other, 2 + 13 * other), ids_of(config, 70 + other, 1 + other)});
  return all;
}

ScoreRequestsOptions alike(std::int64_t batch_size) {
  ScoreRequestsOptions options;
  options.micro_batch_size = batch_size;
  options.alike = true;
  return options;
}

}  // namespace

TEST_SUITE("requests/score requests") {
  TEST_CASE("scores are those of each request alone, and the same bits for any batch size and ranks") {
    for (const auto& [name, config] : all_kinds()) {
      CAPTURE(name);
      const auto requests = requests_of(config);
      const auto world = make_single_group();
      const at::NoGradGuard no_grad;
      ModelRuntime runtime(*world, config, {}, rowwise(), 1);
      fill(runtime);
      const auto together = score_requests(runtime, requests, alike(64)).value();
      REQUIRE(together.size() == requests.size());
      for (std::size_t i = 0; i < requests.size(); ++i) {
        CAPTURE(i);
        const auto alone = score_requests(runtime, std::span(requests).subspan(i, 1), alike(1)).value();
        // Sums in float32 in another order: attention to a beginning and to the rest.
        CHECK(together[i].log_likelihood == doctest::Approx(alone[0].log_likelihood).epsilon(2e-5));
        CHECK(together[i].is_greedy == alone[0].is_greedy);
      }
      for (const auto& [ranks, batch_size] : {std::pair(1, 1), {1, 2}, {2, 1}, {3, 4}}) {
        CAPTURE(ranks);
        CAPTURE(batch_size);
        run_thread_ranks(ranks, ranks, [&](ProcessGroup& group) {
          const at::NoGradGuard none;
          ModelRuntime of_rank(group, config, {}, rowwise(), 1);
          fill(of_rank);
          const auto scores = score_requests(of_rank, requests, alike(batch_size)).value();
          for (std::size_t i = 0; i < requests.size(); ++i)
            CHECK(scores[i].log_likelihood == together[i].log_likelihood);
        });
      }
    }
  }

  TEST_CASE("a beginning is computed once in a pass, and a pass is asked for before it is made") {
    auto config = test::small_model();
    config.block_size = 96;
    const auto world = make_single_group();
    const at::NoGradGuard no_grad;
    ModelRuntime runtime(*world, config, {}, {}, 1);
    fill(runtime);
    const auto passes = [&](bool shared) {
      std::vector<ScoreRequest> requests;
      for (int i = 0; i < 20; ++i)
        requests.push_back({ids_of(config, shared ? 1 : 1 + i, 60) + ids_of(config, 30 + i, 4), ids_of(config, i, 1)});
      int count = 0;
      ScoreRequestsOptions options;
      options.micro_batch_size = 4;  // 256 tokens: 60 + 20 x 4 are one pass, 20 x 64 are five
      options.stopped = [&] { return ++count, false; };
      REQUIRE(score_requests(runtime, requests, options));
      options.stopped = [] { return true; };
      CHECK(!score_requests(runtime, requests, options));
      return count;
    };
    CHECK(passes(true) == 1);
    CHECK(passes(false) == 5);
  }
}
