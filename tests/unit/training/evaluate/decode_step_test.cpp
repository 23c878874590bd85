// Several sequences in one step, against each alone.
#include "lib/training/evaluate/decode_step.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include <map>

#include "lib/ranks/thread_group.hpp"
#include "lib/training/evaluate/generate.hpp"
#include "tests/support/reproducible_products.hpp"
#include "tests/support/rowwise_runtime.hpp"
#include "tests/support/small_model.hpp"
#include "tests/support/torch_doctest.hpp"

using namespace fsdp;
using fsdp::test::fill;
using fsdp::test::rowwise;

namespace {

ModelConfig llama_of(std::int64_t window, std::int64_t width) {
  ModelConfig config;
  config.architecture = Architecture::llama;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.embed_size = width;
  config.ffn_hidden_size = 2 * width + 32;
  config.vocab_size = 301;
  config.block_size = 24;
  config.traits.window = window;
  return config;
}

std::vector<std::pair<std::string, ModelConfig>> all_kinds() {
  std::vector<std::pair<std::string, ModelConfig>> kinds{{"llama", llama_of(0, 64)},
                                                         {"llama, window", llama_of(5, 64)}};
  auto wide = llama_of(0, 640);
  wide.block_size = 120;
  kinds.emplace_back("llama, wide", wide);
  auto dynamic = llama_of(0, 64);
  dynamic.rope_scaling = R"({"rope_type": "dynamic", "factor": 2.0})";
  kinds.emplace_back("llama, dynamic", dynamic);
  auto mingpt = test::small_model();
  mingpt.block_size = 24;
  kinds.emplace_back("mingpt", mingpt);
  int number = 0;
  for (const auto& falcon : test::small_falcons()) kinds.emplace_back("falcon " + std::to_string(number++), falcon);
  return kinds;
}

std::vector<std::int32_t> prompt(const ModelConfig& config, int number) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < (1 + (number * 5) % 11) * config.block_size / 24; ++i)
    ids.push_back(static_cast<std::int32_t>((7 * number + 13 * i) % config.vocab_size));
  return ids;
}

/// Equal up to rounding.
bool near(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<float>() <= 1e-4F * b.abs().max().item<float>();
}

/// Texts number rank, rank + ranks, ... of `count`, each with its own length and its own end.
class Texts final : public TextQueue {
 public:
  Texts(ProcessGroup& world, const ModelConfig& config, int count)
      : world_(world), config_(config), count_(count), next_(world.rank()) {}
  TextInWork* next() override {
    if (next_ >= count_) return nullptr;
    auto& text = works_[next_];
    text.sequence.ids = prompt(config_, next_);
    text.left = 3 + next_ % 5 * 7;  // up to 31: beyond the positions
    text.seed = static_cast<std::uint64_t>(next_);
    next_ += world_.size();
    return &text;
  }
  void ended(TextInWork&) override { ++ended_; }
  bool goes_on(bool works) override { return world_.all_reduce(works ? 1 : 0, Reduce::max) > 0; }

  std::map<int, std::vector<std::int32_t>> ids() const {
    std::map<int, std::vector<std::int32_t>> all;
    for (const auto& [number, text] : works_) all[number] = text.sequence.ids;
    CHECK(ended_ == static_cast<int>(all.size()));
    return all;
  }

 private:
  ProcessGroup& world_;
  const ModelConfig& config_;
  int count_, next_, ended_ = 0;
  std::map<int, TextInWork> works_;
};

}  // namespace

TEST_SUITE("eval/decode step") {
  TEST_CASE("logits of a sequence are the same bits in any company, and those of the whole row up to rounding") {
    for (const auto& [name, config] : all_kinds()) {
      CAPTURE(name);
      const auto world = make_single_group();
      const at::NoGradGuard no_grad;
      ModelRuntime runtime(*world, config, {}, rowwise(), 1);
      fill(runtime);
      const auto logits = [&](std::size_t company) {
        std::vector<DecodedSequence> all(company);
        std::vector<DecodedSequence*> sequences;
        for (std::size_t i = 0; i < company; ++i) {
          all[i].ids = prompt(config, static_cast<int>(i) + 2);
          sequences.push_back(&all[i]);
        }
        std::vector<at::Tensor> steps;
        for (int step = 0; step < 4; ++step) {
          const auto found = decode_step(runtime, sequences, {.alike = true});
          REQUIRE(found.size(0) == static_cast<std::int64_t>(company));
          steps.push_back(found.narrow(0, 0, 1).clone());
          if (company == 1) {
            DecodedSequence whole;
            whole.ids = all[0].ids;
            DecodedSequence* const one = &whole;
            CHECK(near(found, decode_step(runtime, {&one, 1}, {.no_cache = true})));
          }
          for (std::size_t i = 0; i < company; ++i)
            all[i].ids.push_back(static_cast<std::int32_t>((5 * step + static_cast<int>(i)) % config.vocab_size));
        }
        return at::cat(steps);
      };
      const auto alone = logits(1);
      for (const std::size_t company : {2, 5, 17, 40}) {
        CAPTURE(company);
        CHECK(at::equal(logits(company), alone));
      }
    }
  }

  TEST_CASE("texts are the same whatever the number of texts at a time and of ranks, greedy and drawn") {
    for (const auto& [name, config] : all_kinds()) {
      CAPTURE(name);
      for (const double temperature : {0.0, 1.0}) {
        CAPTURE(temperature);
        SamplingOptions options;
        options.temperature = temperature;
        std::map<int, std::vector<std::int32_t>> expected;
        for (const auto& [ranks, most] : {std::pair(1, 1), {1, 4}, {1, 11}, {2, 3}, {3, 1}}) {
          CAPTURE(ranks);
          CAPTURE(most);
          std::vector<std::map<int, std::vector<std::int32_t>>> found(static_cast<std::size_t>(ranks));
          run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
            const at::NoGradGuard no_grad;
            ModelRuntime runtime(world, config, {}, rowwise(), 1);
            fill(runtime);
            Texts texts(world, config, 11);
            write_texts(runtime, options, static_cast<std::size_t>(most), /*same_texts=*/false, texts);
            found[static_cast<std::size_t>(world.rank())] = texts.ids();
          });
          std::map<int, std::vector<std::int32_t>> all;
          for (auto& mine : found) all.merge(mine);
          REQUIRE(all.size() == 11);
          for (const auto& [number, ids] : all)
            CHECK(ids.size() == prompt(config, number).size() + static_cast<std::size_t>(3 + number % 5 * 7));
          if (expected.empty()) expected = all;
          CHECK(all == expected);
        }
      }
    }
  }

  TEST_CASE("after replace() the logits are those of the new ids, and what both begin with is not computed again") {
    for (const auto& [name, config] : all_kinds()) {
      CAPTURE(name);
      const auto world = make_single_group();
      const at::NoGradGuard no_grad;
      ModelRuntime runtime(*world, config, {}, {}, 1);
      fill(runtime);
      DecodedSequence sequence;
      auto* const one = &sequence;
      sequence.ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
      decode_step(runtime, {&one, 1});
      for (const std::vector<std::int32_t>& ids : {std::vector<std::int32_t>{1, 2, 3, 4, 5, 6, 7, 20, 21},
                                                   {1, 2, 3, 4, 5, 6, 7, 20, 21, 22, 23},
                                                   {1, 2, 3},
                                                   {30, 31}}) {
        sequence.replace(ids);
        CHECK(sequence.cached < static_cast<std::int64_t>(ids.size()));
        if (name == "llama" && ids.size() == 11) CHECK(sequence.cached == 9);
        const auto found = decode_step(runtime, {&one, 1});
        DecodedSequence fresh;
        auto* const other = &fresh;
        fresh.ids = ids;
        CHECK(near(found, decode_step(runtime, {&other, 1})));
      }
    }
  }
}
