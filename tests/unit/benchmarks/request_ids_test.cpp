// Ids of requests against those that lm-eval 0.4.13 gave its models (tests/fixtures/benchmarks).
#include "lib/benchmarks/tasks/request_ids.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "lib/base/files/file.hpp"
#include "lib/documents/unpacked_file.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"

using nlohmann::json;

namespace {

const std::filesystem::path kFixtures = FSDP_FIXTURE_DIR "/benchmarks";
using Ids = std::vector<std::int32_t>;

json expected() {
  fsdp::detail::UnpackedFile file(kFixtures / "expected.json.gz");
  std::string text;
  for (std::string block; file.read(block);) text += block;
  return json::parse(text);
}

struct Encoder {
  explicit Encoder(const std::string& model)
      : tokenizer(fsdp::open_tokenizer((kFixtures / "models" / model).string())) {
    const auto config = json::parse(fsdp::read_text_file(kFixtures / "models" / model / "config.json"));
    positions = config.value("n_positions", config.value("max_position_embeddings", std::int64_t{0}));
  }
  std::shared_ptr<const fsdp::Tokenizer> tokenizer;
  std::int64_t positions = 0;
};

/// The last `most` ids of the first list and the second one.
Ids joined(const Ids& first, const Ids& second, std::int64_t most) {
  auto all = first;
  all.insert(all.end(), second.begin(), second.end());
  if (std::ssize(all) > most) all.erase(all.begin(), all.end() - most);
  return all;
}

}  // namespace

TEST_SUITE("benchmarks/request ids") {
  TEST_CASE("contexts, continuations, windows and prompts are lm-eval's ids") {
    const auto truth = expected();
    std::map<std::string, int> seen;
    for (const auto& [run, by_model] : truth.items()) {
      for (const auto& [model, tasks] : by_model.items()) {
        if (model == "requests") continue;
        const Encoder of(model);
        const fsdp::RequestEncoder encoder(*of.tokenizer, of.positions);
        for (const auto& [task, samples] : tasks.items()) {
          if (task == "results") continue;
          std::map<std::int64_t, json> arguments;
          for (const auto& one : by_model["requests"][task])
            arguments[one["doc_id"].get<std::int64_t>()] = one["arguments"];
          for (const auto& sample : samples) {
            const auto& requests = arguments.at(sample["doc_id"].get<std::int64_t>());
            REQUIRE(requests.size() == sample["ids"].size());
            for (std::size_t i = 0; i < requests.size(); ++i) {
              CAPTURE(run);
              CAPTURE(model);
              CAPTURE(task);
              CAPTURE(requests[i].dump());
              const auto& ids = sample["ids"][i];
              const auto first = requests[i][0].get<std::string>();
              if (ids.contains("windows")) {
                auto windows = json::array();
                for (const auto& window : encoder.windows(first))
                  windows.push_back({window.context, window.continuation});
                CHECK(windows == ids["windows"]);
                ++seen["windows"];
              } else if (ids.contains("prompt_ids")) {
                bool was_cut = false;
                const auto most = requests[i][1].value("max_gen_toks", std::int64_t{256});
                CHECK(encoder.prompt(first, most, was_cut) == ids["prompt_ids"].get<Ids>());
                ++seen["prompts"];
              } else {
                const auto pair = encoder.pair(first, requests[i][1].get<std::string>());
                const auto context = ids["context_ids"].get<Ids>();
                CHECK(pair.continuation == ids["continuation_ids"].get<Ids>());
                CHECK(joined(pair.context, pair.continuation, of.positions + 1) ==
                      joined(context, pair.continuation, of.positions + 1));
                CHECK(pair.was_cut == (pair.context.size() < context.size()));
                seen["cut"] += pair.was_cut ? 1 : 0;
                ++seen["pairs"];
              }
            }
          }
        }
      }
    }
    CHECK(seen["pairs"] > 2000);
    CHECK(seen["cut"] > 100);
    CHECK(seen["windows"] > 10);
    CHECK(seen["prompts"] > 50);
  }
}
