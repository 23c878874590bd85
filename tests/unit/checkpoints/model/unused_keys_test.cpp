#include "lib/checkpoints/model/unused_keys.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;
using fsdp::test::TempDir;
using nlohmann::json;

namespace {

std::filesystem::path fixtures() { return std::filesystem::path(FSDP_FIXTURE_DIR); }

json read_json(const std::filesystem::path& file) { return json::parse(read_text_file(file)); }

std::set<std::string> ignored_of(const TempDir& directory, const json& config) {
  const auto file = directory.path() / "config.json";
  std::ofstream(file) << config;
  const auto found = ignored_in_config(directory.path()).to_json();
  if (!found.contains(file.string())) return {};
  return found.at(file.string()).get<std::set<std::string>>();
}

}  // namespace

TEST_SUITE("config/unused_keys") {
  TEST_CASE("a key is used if any value of it means something else, or is refused") {
    const json object{{"a", 1}, {"b", 2}, {"note", "text"}, {"inner", {{"c", 3}, {"d", 4}}}};
    const auto sum = [](const json& of) {
      if (of.contains("b") && of["b"] == "?") throw FormatError("b");
      return of.value("a", json()) == 1 && of.value("inner", json::object()).value("c", json()) == 3;
    };
    CHECK(unused_keys(object, sum) == std::vector<std::string>{"inner.d", "note"});
  }

  TEST_CASE("no key is ignored that changes a loss in transformers") {
    // tests/fixtures/families/README.md: losses of transformers with one key changed.
    const TempDir directory;
    int changing = 0, same = 0;
    const auto keys = read_json(fixtures() / "families/config_keys.json");
    for (const auto& [model, truth] : keys.at("models").items()) {
      const auto config = read_json(fixtures() / "families" / model / "config.json");
      CHECK(!ignored_of(directory, config).contains("hidden_size"));
      for (const auto& change : truth.at("keys")) {
        auto changed = config;
        changed[change.at("key").get<std::string>()] = change.at("value");
        std::set<std::string> ignored;
        try {
          ignored = ignored_of(directory, changed);
        } catch (const Error&) {
          continue;  // refused: nothing is ignored
        }
        CAPTURE(model);
        CAPTURE(change.dump());
        const bool is_ignored = ignored.contains(change.at("key").get<std::string>());
        CHECK(!(is_ignored && change.at("effect") != "same"));
        (is_ignored ? same : changing) += 1;
      }
    }
    CHECK(changing > 50);
    CHECK(same > 20);
  }

  TEST_CASE("what is ignored of a Llama and of the ids of generation_config.json") {
    const TempDir directory;
    json config{{"architectures", {"LlamaForCausalLM"}},
                {"model_type", "llama"},
                {"hidden_act", "silu"},
                {"hidden_size", 48},
                {"intermediate_size", 80},
                {"num_attention_heads", 4},
                {"num_hidden_layers", 3},
                {"num_key_value_heads", 2},
                {"vocab_size", 1016},
                {"max_position_embeddings", 256},
                {"rms_norm_eps", 1e-5},
                {"rope_theta", 1e6},
                {"rope_scaling", nullptr},
                {"rope_scalng", {{"type", "linear"}}},
                {"use_cache", true},
                {"tie_word_embeddings", false},
                {"torch_dtype", "bfloat16"},
                {"eos_token_id", 2}};
    // Not told are architectures and torch_dtype, which exports have, too.
    CHECK(ignored_of(directory, config) == std::set<std::string>{"rope_scalng", "use_cache"});
    config["quantization_config"] = {{"quant_method", "bitsandbytes"},
                                     {"load_in_4bit", true},
                                     {"bnb_4bit_quant_type", "nf4"},
                                     {"bnb_4bit_compute_dtype", "float32"}};
    CHECK(ignored_of(directory, config).contains("quantization_config.bnb_4bit_compute_dtype"));
    CHECK(!ignored_of(directory, config).contains("quantization_config.bnb_4bit_quant_type"));
    const auto generation = directory.path() / "generation_config.json";
    std::ofstream(generation) << json{{"eos_token_id", {2, 3}}, {"temperature", 0.6}};
    CHECK(ignored_in_config(directory.path()).to_json().at(generation.string()) == json{"temperature"});
  }

  TEST_CASE("what is ignored of an adapter's configuration") {
    const TempDir directory;
    json config{{"peft_type", "LORA"},
                {"r", 8},
                {"lora_alpha", 16},
                {"target_modules", {"q_proj"}},
                {"base_model_name_or_path", "x"},
                {"inference_mode", true},
                {"task_type", "CAUSAL_LM"}};
    const auto ignored = [&] {
      std::ofstream(directory.path() / "adapter_config.json") << config;
      return ignored_in_adapter_config(directory.path()).to_json();
    };
    CHECK(ignored().empty());  // as the programs write it
    config["inference_mode"] = false;
    config["revision"] = "main";
    CHECK(ignored().begin().value() == json{"inference_mode", "revision"});
  }
}
