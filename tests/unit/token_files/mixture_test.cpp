// The order of the samples of mixtures: shares at every prefix, places, and runs that go on with other sources.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/token_files/mixture_order.hpp"

using fsdp::MixEnd;
using fsdp::MixtureOrder;
using fsdp::MixtureRule;
using fsdp::MixtureSource;
using nlohmann::json;
using Numbers = std::vector<std::int64_t>;

namespace {

json orders() { return json::parse(fsdp::read_text_file(FSDP_FIXTURE_DIR "/mixtures/orders.json")); }

/// The largest |w t - c| * (2k - 2) - (2k - 3) over all prefixes, times the sum of the weights: at most 0 within the
/// bound 1 - 1 / (2k - 2).
std::int64_t excess(const Numbers& weights, std::int64_t samples) {
  MixtureRule rule(weights);
  const auto sum = std::reduce(weights.begin(), weights.end(), std::int64_t{0});
  const auto spread = 2 * std::ssize(weights) - 2;
  std::int64_t most = std::numeric_limits<std::int64_t>::min();
  for (std::int64_t t = 1; t <= samples; ++t) {
    rule.next();
    for (std::size_t i = 0; i < weights.size(); ++i)
      most = std::max(most, std::abs(weights[i] * t - rule.given()[i] * sum) * spread - sum * (spread - 1));
  }
  return most;
}

std::vector<MixtureSource> sources_of(const Numbers& rows, const Numbers& weights) {
  std::vector<MixtureSource> sources;
  for (std::size_t i = 0; i < rows.size(); ++i)
    sources.push_back({.rows = rows[i], .weight = weights[i], .end = rows[i], .place = {}});
  return sources;
}

/// "a0 b0 a1'1": source, row and, after the first, the epoch.
std::string words(MixtureOrder& order, std::int64_t first, std::int64_t count, const std::string& names = "abcdefgh") {
  std::string text;
  for (auto position = first; position < first + count; ++position) {
    const auto sample = order.at(position);
    text += (text.empty() ? "" : " ") + names.substr(sample.source, 1) + std::to_string(sample.row.row);
    if (sample.row.epoch > 0) text += "'" + std::to_string(sample.row.epoch);
  }
  return text;
}

MixtureOrder::Options unshuffled(MixEnd end = MixEnd::repeat, std::int64_t first = 0) {
  return {.end = end, .seed = 7, .shuffle = false, .first_position = first, .same_rule = true};
}

}  // namespace

TEST_SUITE("mixtures") {
  TEST_CASE("whole_weights: decimal numbers exactly, in lowest terms") {
    CHECK(fsdp::whole_weights(std::vector<double>{0.7, 0.3}) == Numbers{7, 3});
    CHECK(fsdp::whole_weights(std::vector<double>{70, 20, 10}) == Numbers{7, 2, 1});
    CHECK(fsdp::whole_weights(std::vector<double>{0.333333, 0.666667}) == Numbers{333333, 666667});
    CHECK(fsdp::whole_weights(std::vector<double>{1e-3, 2.5}) == Numbers{1, 2500});
    CHECK(fsdp::whole_weights(std::vector<double>{1e6, 0, 3e6}) == Numbers{1, 0, 3});
    const auto third = fsdp::whole_weights(std::vector<double>{1.0 / 3, 2.0 / 3});  // 16 digits: to billionths
    CHECK(third == Numbers{333333333, 666666667});
    CHECK_THROWS_WITH_AS(fsdp::whole_weights(std::vector<double>{1, -1}), doctest::Contains("-1"), fsdp::RequestError);
    CHECK_THROWS_AS(fsdp::whole_weights(std::vector<double>{0, 0}), fsdp::RequestError);
    CHECK_THROWS_AS(fsdp::whole_weights(std::vector<double>{1, std::nan("")}), fsdp::RequestError);
    CHECK_THROWS_WITH_AS(fsdp::whole_weights(std::vector<double>{1.0 / 3, 1e-12}), doctest::Contains("billionth"),
                         fsdp::RequestError);
  }

  TEST_CASE("the rule chooses what fractions choose") {
    for (const auto& blend : orders()["blends"]) {
      CAPTURE(blend["name"].get<std::string>());
      MixtureRule rule(fsdp::whole_weights(blend["weights"].get<std::vector<double>>()));
      const auto wanted = blend["order"].get<std::string>();
      std::string found;
      while (found.size() < wanted.size()) found += static_cast<char>('0' + rule.next());
      CHECK(found == wanted);
    }
  }

  TEST_CASE("at every prefix each source has its share within 1 - 1 / (2k - 2) of a sample: 200 random mixtures") {
    std::mt19937 random(11);
    for (int i = 0; i < 200; ++i) {
      Numbers weights;
      const auto count = 2 + random() % 9;
      const auto largest = i % 3 == 0 ? 10u : i % 3 == 1 ? 1000u : 100000u;
      for (std::size_t k = 0; k < count; ++k) weights.push_back(1 + random() % largest);
      CAPTURE(i);
      CHECK(excess(weights, 3000) <= 0);
    }
    Numbers fifty(50);
    for (auto& weight : fifty) weight = 1 + random() % 1000000;
    CHECK(excess(fifty, 5000) <= 0);
    CHECK(excess({1000000, 1, 1, 1, 1, 1}, 20000) <= 0);
  }

  TEST_CASE("a source without a weight gives nothing, and one source gives all") {
    MixtureRule rule({0, 2, 0, 1});
    for (int i = 0; i < 30; ++i) rule.next();
    CHECK(rule.given() == Numbers{0, 20, 0, 10});
    MixtureRule one({5});
    for (int i = 0; i < 3; ++i) CHECK(one.next() == 0);
    CHECK_THROWS_AS(MixtureRule({0, 0}), std::invalid_argument);
  }

  TEST_CASE("the rule goes on from any place, and finds a far one without the way") {
    const Numbers weights{2, 3, 5, 7};
    MixtureRule stepped(weights);
    for (std::int64_t t = 0; t < 200; ++t) {
      MixtureRule resumed(weights), sought(weights);
      resumed.resume(stepped.given());
      sought.seek(t);
      CHECK(sought.given() == stepped.given());
      const auto next = stepped.next();
      CHECK(resumed.next() == next);
      CHECK(sought.next() == next);
    }
    MixtureRule far(weights);
    far.seek(std::int64_t{17} * 1000000000000 + 3);
    CHECK(far.total() == std::int64_t{17} * 1000000000000 + 3);
    CHECK_THROWS_AS(far.resume({5, 0, 0, 0}), std::invalid_argument);
  }

  TEST_CASE("runs in phases: each source goes on at its next row, whatever the weights become") {
    for (const auto& run : orders()["resume"]) {
      CAPTURE(run["name"].get<std::string>());
      std::map<std::string, fsdp::SourcePlace> places;
      std::int64_t position = 0;
      if (run["name"] == "same") continue;  // the test below
      for (const auto& phase : run["phases"]) {
        Numbers rows, weights;
        std::string names;
        for (const auto& [name, weight] : phase["weights"].items()) {
          names += name;
          rows.push_back(run["rows"][name].get<std::int64_t>());
          weights.push_back(weight.get<std::int64_t>());
        }
        if (run["name"] == "order_changed" && position > 0) {  // items() sorts the names
          names = "cab";
          rows = {60, 40, 25};
          weights = {2, 5, 3};
        }
        auto sources = sources_of(rows, weights);
        for (std::size_t i = 0; i < names.size(); ++i) sources[i].place = places[names.substr(i, 1)];
        auto options = unshuffled(MixEnd::repeat, position);
        options.same_rule = false;
        MixtureOrder order(sources, options);
        const auto samples = phase["samples"].get<std::int64_t>();
        CHECK(words(order, position, samples, names) == phase["sequence"].get<std::string>());
        position += samples;
        const auto after = order.places(position);
        for (std::size_t i = 0; i < names.size(); ++i) {
          places[names.substr(i, 1)] = after[i];
          CHECK(after[i].rows.samples == phase["positions_after"][names.substr(i, 1)].get<std::int64_t>());
        }
      }
    }
  }

  TEST_CASE("a run that stops anywhere goes on with the sample of one that does not, whatever the ends") {
    for (const auto end : {MixEnd::repeat, MixEnd::drop}) {
      for (const bool shuffle : {false, true}) {
        const auto sources = sources_of({7, 31, 12, 3}, {4, 3, 2, 1});
        MixtureOrder whole(sources, {.end = end, .seed = 3, .shuffle = shuffle});
        std::vector<std::string> all;
        for (std::int64_t i = 0; i < 180; ++i) all.push_back(words(whole, i, 1));
        for (std::int64_t stop = 0; stop < 160; ++stop) {
          auto continued = sources;
          const auto places = whole.places(stop);
          for (std::size_t i = 0; i < places.size(); ++i) continued[i].place = places[i];
          MixtureOrder rest(continued, {.end = end, .seed = 3, .shuffle = shuffle, .first_position = stop});
          for (auto i = stop; i < stop + 20; ++i) CHECK(words(rest, i, 1) == all[static_cast<std::size_t>(i)]);
        }
      }
    }
  }

  TEST_CASE("drop: each row once, then all begin again; stop: the run ends before the first row that would repeat") {
    MixtureOrder drop(sources_of({3, 10, 5}, {1, 1, 1}), unshuffled(MixEnd::drop));
    REQUIRE(drop.num_samples() == 18);
    std::map<std::size_t, std::vector<std::int64_t>> rows, again;
    for (std::int64_t i = 0; i < 18; ++i) {
      const auto sample = drop.at(i);
      CHECK(sample.row.epoch == 0);
      rows[sample.source].push_back(sample.row.row);
    }
    CHECK(rows[0] == Numbers{0, 1, 2});
    CHECK(rows[1] == Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    CHECK(rows[2] == Numbers{0, 1, 2, 3, 4});
    for (std::int64_t i = 18; i < 36; ++i) {
      const auto sample = drop.at(i);
      CHECK(sample.row.epoch == 1);
      again[sample.source].push_back(sample.row.row);
    }
    CHECK(again == rows);

    MixtureOrder stop(sources_of({3, 10, 5}, {1, 1, 1}), unshuffled(MixEnd::stop));
    CHECK(stop.num_samples() == 9);
    CHECK(words(stop, 0, 9) == "a0 b0 c0 a1 b1 c1 a2 b2 c2");
    auto twice = sources_of({3, 10, 5}, {1, 1, 1});
    twice[0].end = 6;  // two epochs: c is the first to end, after five rounds
    CHECK(MixtureOrder(twice, unshuffled(MixEnd::stop)).num_samples() == 17);
    MixtureOrder large(sources_of({1000000000, 2000000000}, {1, 2}), unshuffled(MixEnd::stop));
    CHECK(large.num_samples() == 3000000000);
  }

  TEST_CASE("positions in any order, and a far first one") {
    MixtureOrder forward(sources_of({70, 1000, 13}, {3, 5, 1}), {.seed = 5}), any(forward);
    std::vector<std::string> all;
    for (std::int64_t i = 0; i < 70000; ++i) all.push_back(words(forward, i, 1));
    std::mt19937 random(2);
    for (int i = 0; i < 60; ++i) {
      const auto at = static_cast<std::int64_t>(random() % 70000);
      CHECK(words(any, at, 1) == all[static_cast<std::size_t>(at)]);
    }
    MixtureOrder later(sources_of({70, 1000, 13}, {3, 5, 1}), {.seed = 5});
    CHECK(words(later, 69999, 1) == all.back());
    CHECK_THROWS_AS(later.at(-1), std::out_of_range);
  }

  TEST_CASE("a source with more rows at its end: what is left of the epoch, then the new rows, none twice") {
    for (const bool shuffle : {false, true}) {
      const fsdp::MixtureOrder::Options options{.seed = 9, .shuffle = shuffle};
      MixtureOrder before(sources_of({10, 4}, {2, 1}), options);
      auto grown = sources_of({14, 4}, {2, 1});
      const auto places = before.places(9);
      for (std::size_t i = 0; i < 2; ++i) grown[i].place = places[i];
      auto later = options;
      later.first_position = 9;
      MixtureOrder after(grown, later);
      std::vector<std::int64_t> rows;
      for (std::int64_t i = 0; i < 21; ++i) {
        const auto sample = i < 9 ? before.at(i) : after.at(i);
        if (sample.source != 0) continue;
        CHECK(sample.row.epoch == 0);
        rows.push_back(sample.row.row);
      }
      REQUIRE(rows.size() == 14);
      CHECK(*std::max_element(rows.begin(), rows.begin() + 10) == 9);
      std::ranges::sort(rows);
      for (std::int64_t i = 0; i < 14; ++i) CHECK(rows[static_cast<std::size_t>(i)] == i);
      CHECK(after.places(21)[0].rows.epoch == 1);
      CHECK(after.places(20)[0].rows.sizes == Numbers{10, 14});
    }
  }
}
