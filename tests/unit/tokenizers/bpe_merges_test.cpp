#include "lib/tokenizers/bpe/bpe_merges.hpp"

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace {

using Ids = std::vector<std::int32_t>;

struct Rule {
  std::int32_t left, right, result;
};

/// Applies the definition of BPE: one merge at a time over the whole word.
Ids merge_slowly(Ids word, const std::vector<Rule>& rules) {
  for (;;) {
    std::size_t best_rule = rules.size(), best_at = 0;
    for (std::size_t at = 0; at + 1 < word.size(); ++at) {
      for (std::size_t rule = 0; rule < best_rule; ++rule) {
        if (word[at] == rules[rule].left && word[at + 1] == rules[rule].right) best_rule = rule, best_at = at;
      }
    }
    if (best_rule == rules.size()) return word;
    word[best_at] = rules[best_rule].result;
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

Ids merged(const fsdp::BpeMerges& merges, const Ids& word) {
  Ids out;
  merges.apply(word, out);
  return out;
}

}  // namespace

TEST_SUITE("tokenizer/bpe_merges") {
  TEST_CASE("apply: the merge added first goes first, of equals the leftmost") {
    fsdp::BpeMerges merges;
    merges.add(1, 2, 10);
    merges.add(0, 1, 11);
    merges.add(0, 0, 12);

    CHECK(merged(merges, {0, 1, 2}) == Ids{0, 10});
    CHECK(merged(merges, {0, 1, 0}) == Ids{11, 0});
    CHECK(merged(merges, {0, 0, 0}) == Ids{12, 0});
    CHECK(merged(merges, {}).empty());
    CHECK(merged(merges, {7}) == Ids{7});
  }

  TEST_CASE("add: of a pair that is there twice the last place counts") {
    fsdp::BpeMerges merges;
    merges.add(1, 2, 10);
    merges.add(2, 3, 11);
    CHECK(merged(merges, {1, 2, 3}) == Ids{10, 3});
    merges.add(1, 2, 10);
    CHECK(merged(merges, {1, 2, 3}) == Ids{1, 11});
    CHECK(merged(merges, {1, 2}) == Ids{10});
  }

  TEST_CASE("apply: equals the plain definition on random tables and words") {
    std::mt19937 random(1);
    for (int round = 0; round < 300; ++round) {
      std::vector<Rule> rules;
      fsdp::BpeMerges merges;
      for (std::int32_t made = 3; made < 15; ++made) {
        const auto left = static_cast<std::int32_t>(random() % static_cast<unsigned>(made));
        const auto right = static_cast<std::int32_t>(random() % static_cast<unsigned>(made));
        std::erase_if(rules, [&](const Rule& rule) { return rule.left == left && rule.right == right; });
        rules.push_back({left, right, made});
        merges.add(left, right, made);
      }
      Ids word(random() % 150);  // short words and long ones take different ways
      for (auto& id : word) id = static_cast<std::int32_t>(random() % 3);

      CAPTURE(round);
      CHECK(merged(merges, word) == merge_slowly(word, rules));
    }
  }
}
