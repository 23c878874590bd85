// Whole jobs with Falcon, rotary scaling beyond the trained length, and the language model of a multimodal Gemma 3.
#include "lib/checkpoints/programs/hf/hf_names.hpp"
#include "tests/support/finetune_rig.hpp"
#include "tests/unit/engine/fsdp/recipe_files.hpp"

#include "lib/formats/safetensors.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

using Weights = std::vector<std::pair<std::string, at::Tensor>>;
/// Names of runs with their options.
using Kinds = std::vector<std::pair<std::string, std::string>>;

void write_model(const std::filesystem::path& folder, const nlohmann::json& config, const Weights& weights) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config.dump();
  std::vector<ShardRecord> records;
  for (const auto& [name, tensor] : weights) {
    const auto shape = tensor.sizes().vec();
    const std::span bytes(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
    records.push_back({name, DType::f32, shape, Shape(shape.size(), 0), shape, bytes});
  }
  write_safetensors(folder / "model.safetensors", records, {});
}

Weights weights_of(const Setup& setup) {
  Weights weights;
  const auto table = parameter_table(setup.model);
  for (std::size_t i = 0; i < table.size(); ++i) weights.emplace_back(table[i].name, setup.weights[i]);
  return weights;
}

/// Writes a fixture's model as a directory of the Hub. \return its config.json
nlohmann::json write_recipe(const std::filesystem::path& folder, const char* kind, const std::string& name) {
  const Recipe model(kind, name);
  auto config = read_json(model.folder() / "config.json");
  write_model(folder, config, weights_of(model.start()));
  return config;
}

struct Jobs : Runs {
  FinetuneOutcome job(const std::string& name, int ranks, const std::string& options) {
    return finetune(dir.path(), ranks,
                    words("--device cpu --no-tensorboard --quiet --precision fp32 --out-dir " + dir.path().string() +
                          " --run-name " + name + " " + options));
  }
  /// Trains on the rows of Runs. \return the loss on the noise afterwards
  double tune(const std::string& name, int ranks, const std::string& options) {
    const auto outcome = job(name, ranks,
                             "--max-steps 4 --lr 1e-2 --lr-schedule constant --total-batch-size 6 --batch-size " +
                                 std::to_string(6 / ranks) + " --train-data " + rows.string() + " --val-data " +
                                 noise.string() + " " + options);
    INFO(outcome.error);
    REQUIRE(outcome.code == ExitCode::ok);
    return outcome.report.at("val_loss").get<double>();
  }
  double loss_of_model(const std::filesystem::path& model, const std::string& options = "") {
    const auto outcome =
        job("evaluated", 1, "--max-epochs -1 --val-data " + noise.string() + " --model " + model.string() + options);
    INFO(outcome.error);
    REQUIRE(outcome.code == ExitCode::ok);
    return outcome.report.at("val_loss").get<double>();
  }
};

}  // namespace

TEST_SUITE("jobs/kinds of models") {
  TEST_CASE(
      "Falcon trains whole, by adapters and on 4 bits, on several ranks, and its exports have the loss it ended with") {
    for (const std::string name : {"falcon_40b", "falcon_11b", "falcon_rw"}) {
      CAPTURE(name);
      Jobs jobs;
      const auto model = jobs.dir / "model";
      const auto config = write_recipe(model, "falcon", name);
      const auto start = jobs.loss_of_model(model);
      for (const auto& [run, options] : Kinds{{"whole", ""}, {"lora", "--lora-rank 4 --lora-alpha 8"}}) {
        CAPTURE(run);
        const auto out = jobs.dir / (run + "-hf");
        const auto ended = jobs.tune(run, run == "whole" ? 2 : 3,
                                     "--model " + model.string() + " --save-final-hf " + out.string() + " " + options);
        CHECK(std::abs(jobs.loss_of_model(out) - ended) < 1e-5);
        CHECK(std::abs(ended - start) > 1e-3);
        auto exported = read_json(out / "config.json");
        for (const auto& [key, value] : config.items())
          if (key != "torch_dtype") CHECK(exported.at(key) == value);
      }
      const auto out = jobs.dir / "nf4-hf";
      jobs.tune("nf4", 1,
                "--model " + model.string() + " --lora-rank 4 --quantize nf4 --save-final-hf " + out.string());
      CHECK(read_json(out / "config.json").contains("quantization_config"));
      CHECK(std::abs(jobs.loss_of_model(out, " --lora-rank 1") - start) < 1);  // adapters begin at 0
    }
  }

  TEST_CASE("--seq-len goes beyond max_position_embeddings where the scaling was made for it") {
    Jobs jobs;
    const auto data = jobs.dir / "long.h5";
    TokenFileNotes notes;
    notes.vocab_size = 59;
    const auto writer = write_packed_rows(data, 39, notes);
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < 39 * 8; ++i) ids.push_back((7 * i + i * i / 5) % 59);
    writer->add(ids);
    writer->finish();
    const auto train = [&](const std::string& run, const std::string& model, const std::string& options) {
      return jobs.job(run, 2,
                      "--model " + (jobs.dir / model).string() + " --train-data " + data.string() +
                          " --max-steps 2 --lr 1e-2 --batch-size 1 " + options);
    };
    for (const std::string name : {"llama_dynamic", "mistral_yarn_no_original", "phi3_longrope"}) {
      CAPTURE(name);
      const auto config = write_recipe(jobs.dir / name, "rope", name);
      const auto outcome =
          train("run-" + name, name, "--seq-len 38 --save-final-hf " + (jobs.dir / (name + "-hf")).string());
      INFO(outcome.error);
      CHECK(outcome.code == ExitCode::ok);
      const auto exported = read_json(jobs.dir / (name + "-hf") / "config.json");
      for (const auto* key : {"rope_scaling", "rope_theta", "max_position_embeddings"})
        CHECK(exported.at(key) == config.at(key));
    }
    // Without --seq-len rows end at the model's positions.
    CHECK(train("run", "llama_dynamic", "").code == ExitCode::ok);
    auto config = write_recipe(jobs.dir / "llama_default", "rope", "llama_default");
    config["max_position_embeddings"] = 20;
    std::ofstream(jobs.dir / "llama_default" / "config.json") << config.dump();
    const auto refused = train("refused", "llama_default", "--seq-len 38");
    CHECK(refused.code == ExitCode::usage);
    CHECK(has_all(refused.error, {"--seq-len", "38", "20"}));
  }

  TEST_CASE("of a multimodal Gemma 3 the language model is trained and exported") {
    Jobs jobs;
    const auto folder = std::filesystem::path(FSDP_FIXTURE_DIR) / "families" / "gemma3";
    const SafetensorsReader stored(folder / "model.safetensors");
    auto text = read_json(folder / "config.json");
    Weights alone;
    for (const auto& [name, entry] : stored.tensors())
      alone.emplace_back(name, read_tensor(stored, name).to(at::kFloat));
    write_model(jobs.dir / "alone", text, alone);
    const auto want = jobs.loss_of_model(jobs.dir / "alone");
    const nlohmann::json config{{"model_type", "gemma3"},
                                {"architectures", {"Gemma3ForConditionalGeneration"}},
                                {"eos_token_id", {1, 106}},
                                {"text_config", text},
                                {"vision_config", {{"model_type", "siglip_vision_model"}}}};
    for (const std::string prefix : {"language_model.model.", "model.language_model."}) {
      CAPTURE(prefix);
      Weights whole;
      for (const auto& [name, tensor] : alone)
        whole.emplace_back(name.starts_with("model.") ? prefix + name.substr(6) : name, tensor);
      whole.emplace_back(prefix[0] == 'l' ? "vision_tower.patch.weight" : "model.vision_tower.patch.weight",
                         at::ones({2, 3}));
      whole.emplace_back("multi_modal_projector.norm.weight", at::ones({3}));
      const auto model = jobs.dir / "whole";
      write_model(model, config, whole);
      CHECK(std::abs(jobs.loss_of_model(model) - want) < 1e-6);
      for (const auto& [run, options] : Kinds{{"all", ""}, {"lora", "--lora-rank 4"}}) {
        CAPTURE(run);
        const auto name = run + std::to_string(prefix.size()) + prefix[0], out = (jobs.dir / (name + "-hf")).string();
        const auto ended = jobs.tune(name, 2, "--model " + model.string() + " --save-final-hf " + out + " " + options);
        CHECK(std::abs(jobs.loss_of_model(out) - ended) < 1e-5);
        const auto exported = read_json(std::filesystem::path(out) / "config.json");
        CHECK(exported.at("model_type") == "gemma3_text");
        CHECK(exported.at("architectures")[0] == "Gemma3ForCausalLM");
        CHECK(!exported.contains("vision_config"));
        const SafetensorsReader written(std::filesystem::path(out) / "model.safetensors");
        CHECK(written.tensors().contains("model.embed_tokens.weight"));
        CHECK(written.tensors().size() == alone.size());
      }
    }
  }
}
