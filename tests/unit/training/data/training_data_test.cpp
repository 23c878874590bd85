// Mixtures as micro-batches, and how they are named, weighed, saved and continued.
#include "tests/support/torch_doctest.hpp"

#include "lib/training/data/training_data.hpp"

#include <ATen/ops/equal.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/training/data/mixture_state.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/unit/training/data/written_tokens.hpp"

using fsdp::MixtureOrder;
using fsdp::TokenLoader;
using fsdp::TrainingData;
using fsdp::TrainingSource;
using fsdp::test::Ids;
using fsdp::test::ids_of;
using fsdp::test::TempDir;
using fsdp::test::write_documents;
using fsdp::test::write_rows;

namespace {

/// Rows of `length` ids, which count up from `first`.
std::filesystem::path count_up(const std::filesystem::path& file, std::int64_t length, std::int64_t rows, int first) {
  Ids ids(static_cast<std::size_t>(rows * (length + 1)));
  std::iota(ids.begin(), ids.end(), first);
  return write_rows(file, length, ids);
}

TrainingSource source(const std::string& name, TokenLoader rows, std::int64_t weight = 1) {
  return {name, name + ".h5", std::move(rows), weight};
}

void write_text(const std::filesystem::path& file, const std::string& text) { std::ofstream(file) << text; }

double square_sum(const fsdp::DocumentLengths& row) {
  double sum = 0;
  for (const auto& document : row) sum += static_cast<double>(document.tokens * document.tokens);
  return sum;
}

/// Sources of a checkpoint that stands at a position.
fsdp::SavedMixture saved_at(const TrainingData& data, std::int64_t position) {
  std::vector<std::string> contents;
  for (const auto& one : data.sources()) contents.push_back(content_of(one.rows, one.rows.num_records()));
  const auto saved = save_mixture(data, position, contents, {});
  return fsdp::mixture_from_text(mixture_to_text(saved), "run.json");
}

}  // namespace

TEST_SUITE("train/training_data") {
  TEST_CASE("rows of different kinds share a micro-batch: padded, and each in its group") {
    const TempDir dir;
    const TokenLoader rows(count_up(dir / "rows.h5", 4, 3, 100), {0, 100}, 1000);
    const TokenLoader texts(write_documents(dir / "texts.h5", {{1, 2}, {3, 4, 5, 6, 7, 8}}), {10, 100}, 1000);
    std::vector<TrainingSource> sources;
    sources.push_back(source("rows", TokenLoader(rows.tokens().file(), {0, 100}, 1000)));
    sources.push_back(source("texts", TokenLoader(texts.tokens().file(), {10, 100}, 1000)));
    const TrainingData data(std::move(sources), {.shuffle = false});
    CHECK(data.num_rows() == 5);
    CHECK(data.is_mixture());
    CHECK(data.has_many_lengths());
    CHECK(data.tokens_per_row() == 5);
    const auto batch = data.read({0, 1, 2, 3}, {7, 8, 9, 10});
    CHECK(batch.rows == 4);
    CHECK(batch.length == 5);
    CHECK(ids_of(batch.ids_N) == Ids{100, 101, 102, 0, 0, 1, 0, 0, 0, 0, 104, 105, 106, 0, 0, 3, 4, 5, 6, 7});
    CHECK(ids_of(batch.targets_N) ==
          Ids{101, 102, 103, -1, -1, 2, -1, -1, -1, -1, 105, 106, 107, -1, -1, 4, 5, 6, 7, 8});
    CHECK(ids_of(batch.groups_N) == Ids{0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1});
    CHECK(batch.num_targets == 3 + 1 + 3 + 5);
    CHECK(batch.packing == nullptr);
    CHECK(batch.sample_keys.numel() == 4);
    CHECK(data.read({}).rows == 0);
  }

  TEST_CASE("packed documents beside rows: each other row is one document") {
    const TempDir dir;
    std::vector<TrainingSource> sources;
    sources.push_back(source("rows", TokenLoader(count_up(dir / "rows.h5", 4, 3, 100), {0, 100}, 1000)));
    TokenLoader packed(write_documents(dir / "texts.h5", {{1, 2, 3}, {4, 5, 6}, {7, 8}}), {4, 100}, 1000);
    packed.pack({1, false});
    sources.push_back(source("packed", std::move(packed)));
    const TrainingData data(std::move(sources), {.shuffle = false});
    CHECK(data.is_packed());
    const auto batch = data.read({0, 1});
    REQUIRE(batch.packing != nullptr);
    REQUIRE(batch.packing->documents.size() == 3);
    CHECK(batch.packing->documents[0].length == 3);
    CHECK(batch.packing->documents[1].first == batch.length);
    CHECK(batch.packing->documents[1].length == 2);
    CHECK(batch.packing->documents[2].length == 2);
  }

  TEST_CASE("one source is read as it is alone") {
    const TempDir dir;
    const auto file = count_up(dir / "rows.h5", 4, 9, 0);
    const TokenLoader rows(file, {0, 100}, 1000);
    std::vector<TrainingSource> sources;
    sources.push_back(source("rows", TokenLoader(file, {0, 100}, 1000)));
    const TrainingData data(std::move(sources), {.seed = 4});
    CHECK(data.groups().empty());
    fsdp::Sampler order(9, 4, true);
    for (const std::int64_t position : {0, 8, 9, 25}) {
      const auto batch = data.read({position});
      CHECK(at::equal(batch.ids_N, rows.read({order.row(position)}).ids_N));
      CHECK_FALSE(batch.groups_N.defined());
    }
  }

  TEST_CASE("of the micro-batches in the order of training the heaviest is found") {
    const TempDir dir;
    std::vector<Ids> documents;
    for (const std::size_t pairs : {5, 6, 1, 3, 3, 6, 2, 4}) documents.emplace_back(pairs + 1, 7);
    const auto file = write_documents(dir / "texts.h5", documents);
    for (const bool shuffle : {false, true}) {
      for (const std::int64_t rows : {1, 2, 3}) {
        std::vector<TrainingSource> sources;
        TokenLoader packed(file, {6, 100}, 50);
        packed.pack({1, false});
        sources.push_back(source("packed", std::move(packed)));
        sources.push_back(source("rows", TokenLoader(count_up(dir / "rows.h5", 4, 3, 0), {0, 100}, 1000)));
        const TrainingData data(std::move(sources), {.seed = 9, .shuffle = shuffle});
        const fsdp::StepSlice places{1, 2 * data.num_rows()};  // of two epochs and more
        double most = 0;
        for (std::int64_t at = 0; at < places.num_samples; at += rows) {
          std::vector<std::int64_t> positions(static_cast<std::size_t>(std::min(rows, places.num_samples - at)));
          std::iota(positions.begin(), positions.end(), 1 + at);
          double weight = 0;
          const auto batch = data.read(positions);
          for (const auto& document : batch.packing->documents)
            weight += static_cast<double>(document.length * document.length);
          most = std::max(most, weight);
        }
        const auto heaviest = data.heaviest_micro_batch(places, rows, square_sum);
        double weight = 0;
        for (const auto& row : heaviest) weight += square_sum(row);
        CHECK(std::ssize(heaviest) <= rows);
        CHECK(weight == most);
      }
    }
  }

  TEST_CASE("sources are parsed from words, lists and files") {
    const TempDir dir;
    const auto a = (dir / "a.h5").string(), odd = (dir / "x,y:0.5.h5").string();
    write_text(a, "x");
    write_text(odd, "x");
    auto sources = fsdp::parse_data_sources(a);
    REQUIRE(sources.size() == 1);
    CHECK(sources[0].name.empty());
    sources = fsdp::parse_data_sources(odd);
    REQUIRE(sources.size() == 1);
    CHECK(sources[0].path == odd);
    sources = fsdp::parse_data_sources(a + ":0.7," + odd + ":0.3");
    REQUIRE(sources.size() == 2);
    CHECK(sources[0].name == "a");
    CHECK(sources[0].weight == 0.7);
    CHECK(sources[1].path == odd);
    CHECK(sources[1].weight == 0.3);
    CHECK(fsdp::data_sources_text(sources) == "a=" + a + ":0.7,x_y_0.5=" + odd + ":0.3");
    sources = fsdp::parse_data_sources("one=ORG/NAME:2\n" + a + ":1");
    CHECK(sources[0].name == "one");
    CHECK(sources[0].path == "ORG/NAME");
    sources = fsdp::parse_data_sources("web/train.h5,code/train.h5");
    CHECK(sources[0].name == "web-train");
    CHECK(sources[1].name == "code-train");
    const auto refused = [](const std::string& text, const char* why) {
      CHECK_THROWS_WITH_AS(fsdp::parse_data_sources(text), doctest::Contains(why), fsdp::RequestError);
    };
    CHECK(fsdp::parse_data_sources("a.h5:1, b.h5:2")[1].path == "b.h5");
    refused("a.h5:0.7,b.h5", "b.h5 has no weight");
    refused("a.h5:1,x/a.h5:1,x/a.h5:2", "are called x-a");
    refused("a.h5:-1,b.h5:2", "weight of a.h5");
    refused("a.h5:1,:2", "names no path");
  }

  TEST_CASE("a mixture file: its keys, and what is wrong by key") {
    const TempDir dir;
    const auto file = dir / "mix.json";
    write_text(dir / "web.h5", "x");
    write_text(file, R"({"sources": [
        {"path": "web.h5", "epochs": 2, "name": "web", "max_rows": 5, "token_dtype": "uint32", "layout": "stream"},
        {"path": "ORG/CODE", "epochs": 0.5, "field": "code", "form": "text", "template": "chatml", "train_on": "all",
         "validation": "web.h5"}]})");
    REQUIRE(fsdp::is_mixture_file(file));
    const auto sources = fsdp::parse_data_sources(file.string());
    REQUIRE(sources.size() == 2);
    CHECK(sources[0].path == (dir / "web.h5").string());
    CHECK(sources[0].epochs == 2.0);
    CHECK(sources[0].max_rows == 5);
    CHECK(sources[0].token_type->bytes == 4);
    CHECK(sources[1].name == "CODE");
    CHECK(sources[1].path == "ORG/CODE");
    CHECK(sources[1].train_on == fsdp::TrainOn::all);
    CHECK(sources[1].validation == (dir / "web.h5").string());
    const auto refused = [&](const std::string& entries, const char* why) {
      write_text(file, "{\"sources\": [" + entries + "]}");
      CHECK_THROWS_WITH_AS(fsdp::parse_data_sources(file.string()), doctest::Contains(why), fsdp::Error);
    };
    CHECK_THROWS_WITH_AS(fsdp::parse_data_sources(file.string() + ":0.5,x.h5:0.5"),
                         doctest::Contains("is a file of sources"), fsdp::RequestError);
    refused(R"({"path": "a", "weigth": 1})", "sources[0].weigth: is no key");
    refused(R"({"path": "a", "weight": "1"})", "sources[0].weight: a number");
    refused(R"({"path": "a", "weight": 1, "epochs": 1})", "stands beside weight");
    refused(R"({"path": "a", "weight": 1}, {"path": "b"})", "b has no weight");
    refused(R"({"path": "a", "name": "x"}, {"path": "b", "name": "x"})", "called x");
    refused(R"({"path": "a", "name": "x y"})", "sources[0].name");
    refused(R"({"path": "a", "form": "poem"})", "sources[0].form: 'poem' is none of");
    refused(R"({"path": "a"},)", "is no JSON");
    refused(R"("a.h5", "b.h5")", "sources[0]: an object with path");
    write_text(file, R"({"data": [{"text": "x"}]})");
    CHECK_FALSE(fsdp::is_mixture_file(file));
  }

  TEST_CASE("a run goes on: the same mixture in any order, other weights, new, missing and changed sources") {
    const TempDir dir;
    count_up(dir / "a.h5", 4, 20, 0);
    count_up(dir / "b.h5", 4, 12, 200);
    const auto make = [&](const std::vector<std::string>& names, const std::vector<std::int64_t>& weights) {
      std::vector<TrainingSource> sources;
      for (std::size_t i = 0; i < names.size(); ++i)
        sources.push_back(source(names[i], TokenLoader(dir / (names[i] + ".h5"), {0, 100}, 1000), weights[i]));
      return sources;
    };
    const TrainingData data(make({"a", "b"}, {3, 1}), {.seed = 1});
    const auto saved = saved_at(data, 17);

    auto sources = make({"a", "b"}, {6, 2});
    auto continued = continue_mixture(saved, sources, fsdp::MixEnd::repeat);
    CHECK(continued.same_rule);
    CHECK(continued.changes.empty());
    const TrainingData again(std::move(sources), {.seed = 1, .first_position = 17});
    for (std::int64_t position = 17; position < 60; ++position)
      CHECK(at::equal(again.read({position}).ids_N, data.read({position}).ids_N));

    sources = make({"a", "b"}, {1, 1});
    continued = continue_mixture(saved, sources, fsdp::MixEnd::repeat);
    CHECK_FALSE(continued.same_rule);
    REQUIRE(continued.changes.size() == 1);
    CHECK(continued.changes[0].find("a 50 %, b 50 %, and were a 75 %, b 25 %") != std::string::npos);
    CHECK(sources[0].place.rows.samples + sources[1].place.rows.samples == 17);

    std::filesystem::copy_file(dir / "b.h5", dir / "renamed.h5");
    count_up(dir / "c.h5", 4, 5, 400);
    sources = make({"c", "renamed"}, {1, 1});
    continued = continue_mixture(saved, sources, fsdp::MixEnd::repeat);
    CHECK(continued.changes[0] == "c is new and begins at its first row");
    CHECK(continued.changes[1] == "renamed is b, whose rows it has");
    CHECK(continued.changes[2] == "a rests");
    CHECK(sources[0].place.rows.samples == 0);
    CHECK(sources[1].place.rows.samples == saved.sources[1].place.rows.samples);
    REQUIRE(continued.resting.size() == 1);
    CHECK(continued.resting[0].place.rows.samples == saved.sources[0].place.rows.samples);

    count_up(dir / "a.h5", 4, 25, 0);  // more rows at its end
    sources = make({"a", "b"}, {3, 1});
    continued = continue_mixture(saved, sources, fsdp::MixEnd::repeat);
    CHECK(continued.same_rule);
    CHECK(continued.changes[0] == "a has 5 rows more, with which its present epoch ends");
    const auto refused = [&](const char* why) {
      sources = make({"a", "b"}, {3, 1});
      CHECK_THROWS_WITH_AS(continue_mixture(saved, sources, fsdp::MixEnd::repeat), doctest::Contains(why),
                           fsdp::RequestError);
    };
    count_up(dir / "a.h5", 4, 19, 0);
    refused("has 19 rows, of which some are no longer there: it had 20");
    count_up(dir / "a.h5", 4, 20, 1);
    refused("holds other rows");
  }

  TEST_CASE("a change anywhere in a file is seen, and packed documents that share rows in another way") {
    const TempDir dir;
    for (const std::int64_t rows : {65, 120, 126, 127, 1000}) {
      CAPTURE(rows);
      std::vector<std::int32_t> ids;  // of rows of 2, and as many more as the writer leaves out
      for (std::int64_t i = 0; i < 3 * rows; ++i) ids.push_back(static_cast<std::int32_t>(i % 997));
      const auto content = [&](const char* name) {
        return content_of(TokenLoader(write_rows(dir / name, 2, ids), {0, 100}, 1000), rows);
      };
      const auto before = content("a.h5");
      CHECK(content("same.h5") == before);
      for (auto i = static_cast<std::size_t>(rows * 18 / 10); i < static_cast<std::size_t>(rows * 2); ++i) ids[i] = 7;
      CHECK(content("b.h5") != before);  // the last tenth
    }
    const auto file = write_documents(dir / "texts.h5", {{1, 2, 3}, {4, 5}, {6, 7, 8}, {9, 10}});
    const auto packed = [&](std::int64_t length) {
      TokenLoader rows(file, {length, 100}, 1000);
      rows.pack({1, false});
      return content_of(rows, 4);
    };
    CHECK(packed(4) == packed(4));
    CHECK(packed(4) != packed(3));
  }

  TEST_CASE("positions before the job's first one are those of a run from the beginning") {
    const TempDir dir;
    const auto file = count_up(dir / "rows.h5", 4, 9, 0);
    const auto make = [&](std::int64_t first) {
      std::vector<TrainingSource> sources;
      sources.push_back(source("rows", TokenLoader(file, {0, 100}, 1000)));
      sources.front().place.rows.samples = sources.front().place.rows.in_epoch = first;
      sources.front().place.in_mixture = sources.front().place.in_rule = first;
      return TrainingData(std::move(sources), {.seed = 4, .first_position = first});
    };
    const auto whole = make(0), later = make(5);
    for (std::int64_t position = 0; position < 12; ++position)
      CHECK(at::equal(whole.read({position}).ids_N, later.read({position}).ids_N));
  }

  TEST_CASE("drop: a file that grew after its source had ended gives the new rows") {
    const TempDir dir;
    const auto make = [&](std::int64_t rows_of_a) {
      std::vector<TrainingSource> sources;
      sources.push_back(source("a", TokenLoader(count_up(dir / "a.h5", 4, rows_of_a, 0), {0, 100}, 1000)));
      sources.push_back(source("b", TokenLoader(count_up(dir / "b.h5", 4, 30, 100), {0, 100}, 1000)));
      return sources;
    };
    const TrainingData data(make(3), {.end = fsdp::MixEnd::drop, .shuffle = false});
    const auto saved = saved_at(data, 14);
    auto sources = make(8);
    const auto continued = continue_mixture(saved, sources, fsdp::MixEnd::drop);
    CHECK_FALSE(continued.same_rule);
    const TrainingData again(
        std::move(sources),
        {.end = fsdp::MixEnd::drop, .shuffle = false, .first_position = 14, .same_rule = continued.same_rule});
    std::vector<std::int64_t> rows_of_a;
    auto order = again.order();
    for (std::int64_t position = 14; position < 24; ++position) {
      const auto sample = order.at(position);
      if (sample.source == 0) rows_of_a.push_back(sample.row.row);
    }
    CHECK(rows_of_a == std::vector<std::int64_t>{3, 4, 5, 6, 7});
  }

  TEST_CASE("places of sources that cannot be are refused") {
    const nlohmann::json good = {{"end", "repeat"},
                                 {"sources",
                                  {{{"name", "a"},
                                    {"content", "0"},
                                    {"records", 5},
                                    {"rows", 5},
                                    {"weight", 1},
                                    {"ends_at", 5},
                                    {"samples", 7},
                                    {"epoch", 1},
                                    {"in_epoch", 2},
                                    {"epoch_rows", {5}},
                                    {"in_mixture", 7},
                                    {"in_rule", 7}}}}};
    CHECK(fsdp::mixture_from_text(good.dump(), "run.json").sources[0].place.rows.in_epoch == 2);
    const auto refused = [&](const char* key, const nlohmann::json& value) {
      auto bad = good;
      bad["sources"][0][key] = value;
      CAPTURE(key);
      CHECK_THROWS_WITH_AS(fsdp::mixture_from_text(bad.dump(), "run.json"), doctest::Contains("run.json"),
                           fsdp::FormatError);
    };
    refused("in_epoch", 5);
    refused("samples", -1);
    refused("epoch_rows", nlohmann::json::array());
    refused("epoch_rows", {9});
    refused("rows", 0);
    refused("weight", "1");
    CHECK_THROWS_AS(fsdp::mixture_from_text(R"({"end": "never", "sources": []})", "run.json"), fsdp::FormatError);
    CHECK_THROWS_AS(fsdp::mixture_from_text(nlohmann::json::array(), "run.json"), fsdp::FormatError);
  }
}
