#include "lib/checkpoints/model/adapter_plan.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/programs/hf/hf_names.hpp"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/checkpoints/model/merge_adapter.hpp"
#include "lib/checkpoints/programs/torch_save/torch_target.hpp"
#include "lib/checkpoints/target/copy.hpp"
#include "lib/formats/safetensors.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/ranks/process_group.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/unit/checkpoints/programs/convert_test_support.hpp"

using namespace fsdp;

namespace {

using Strings = std::vector<std::string>;

/// Returns two Llama blocks with matrices of 2 x 2.
const std::vector<BaseModule>& llama() {
  static const std::vector<BaseModule> modules{{"model.embed_tokens"},
                                               {"model.layers.0.self_attn.q_proj", true, true},
                                               {"model.layers.0.self_attn.v_proj", true, true},
                                               {"model.layers.0.input_layernorm"},
                                               {"model.layers.1.self_attn.q_proj", true, true},
                                               {"model.layers.1.self_attn.v_proj", true, true},
                                               {"model.norm"},
                                               {"lm_head"}};
  return modules;
}

Strings parts_of(const Strings& modules) {
  Strings names;
  for (const auto& module : modules) {
    for (const char* part : {".lora_A.weight", ".lora_B.weight"})
      names.push_back("base_model.model.model.layers." + module + part);
  }
  return names;
}

const Strings kQv = parts_of({"0.self_attn.q_proj", "0.self_attn.v_proj", "1.self_attn.q_proj", "1.self_attn.v_proj"});

/// Makes an adapter of rank 2 with the given fields and tensors changed.
class Folder {
 public:
  Folder(const nlohmann::json& fields, const Strings& names, float value) {
    nlohmann::json config{{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"target_modules", {"q_proj", "v_proj"}}};
    if (fields.is_object()) config.update(fields);
    std::ofstream(path_ / "adapter_config.json") << config;
    const std::vector<float> values(4, value);
    std::vector<ShardRecord> records;
    for (const auto& name : names)
      records.push_back({name, DType::f32, {2, 2}, {0, 0}, {2, 2}, std::as_bytes(std::span(values))});
    write_safetensors(path_ / "adapter_model.safetensors", records, {});
  }

  AdapterPlan plan() const { return plan_adapter(path_.path(), llama()); }
  const test::TempDir& path() const { return path_; }

  /// Returns the message with which the directory is refused.
  std::string refusal() const {
    try {
      plan();
    } catch (const FormatError& error) {
      return error.what();
    }
    return "accepted";
  }

 private:
  test::TempDir path_;
};

Folder adapter(const nlohmann::json& fields = {}, const Strings& names = kQv, float value = 1) {
  return {fields, names, value};
}

Strings modules_of(const AdapterPlan& plan) {
  Strings names;
  for (const auto& [module, parts] : plan.parts) names.push_back(module.substr(std::string("model.layers.").size()));
  return names;
}

bool has(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

}  // namespace

TEST_SUITE("convert/adapter_plan") {
  TEST_CASE("target_modules is matched as peft does") {
    CHECK(modules_of(adapter().plan()).size() == 4);
    CHECK(modules_of(adapter({{"target_modules", "all-linear"}}).plan()).size() == 4);
    CHECK(modules_of(adapter({{"target_modules", R"(.*layers\.1\.self_attn\.(q|k)_proj)"}}).plan()) ==
          Strings{"1.self_attn.q_proj"});
    CHECK(modules_of(adapter({{"target_modules", R"(model\.(?P<in>layers)\.0\..*[qv]_proj)"}}).plan()).size() == 2);
    CHECK(modules_of(adapter({{"target_modules", {"model.layers.1.self_attn.v_proj", "gone"}}}).plan()) ==
          Strings{"1.self_attn.v_proj"});
    // A string is a pattern for the whole name, a word in a list is never a pattern.
    CHECK(has(adapter({{"target_modules", "q_proj"}}).refusal(), "target_modules names no module"));
    CHECK(has(adapter({{"target_modules", {"all"}}}).refusal(), "target_modules names no module"));
    for (const nlohmann::json& wrong : {nlohmann::json(), nlohmann::json(5)})
      CHECK(has(adapter({{"target_modules", wrong}}).refusal(), "field 'target_modules' is"));
    CHECK(has(adapter({{"target_modules", "(q_proj"}}).refusal(), "regular expression"));
    CHECK(has(adapter({{"target_modules", ".{,3}q_proj"}}).refusal(), "regular expression"));
    CHECK(has(adapter({{"target_modules", "(a*)*(m*)*.*_norm"}}).refusal(), "target_modules"));
    for (const auto& targets : {nlohmann::json{"q_proj", "embed_tokens"}, nlohmann::json(".*(q_proj|embed_tokens)")}) {
      const auto said = adapter({{"target_modules", targets}}).refusal();
      CHECK(has(said, "adapter_config.json"));
      CHECK(has(said, "target_modules names 'model.embed_tokens'"));
    }
  }

  TEST_CASE("an adapter of a multimodal model acts on its language model") {
    for (const std::string prefix : {"model.language_model.", "language_model.model.", "language_model."}) {
      CAPTURE(prefix);
      Strings names;
      for (auto name : kQv) names.push_back(name.replace(name.find("model.layers."), 6, prefix));
      const auto own = prefix + "layers.1.self_attn.v_proj";
      CHECK(
          modules_of(adapter({{"target_modules", "(.*)language_model[.](.*)(q_proj|v_proj)"}}, names).plan()).size() ==
          4);
      const auto one = adapter({{"target_modules", {"q_proj", own}}, {"rank_pattern", {{own, 2}}}}, names).plan();
      CHECK(modules_of(one) == Strings{"0.self_attn.q_proj", "1.self_attn.q_proj", "1.self_attn.v_proj"});
      names.push_back("base_model.model.model.vision_tower.layers.0.self_attn.q_proj.lora_A.weight");
      const auto with_images = adapter({}, names).plan();
      CHECK(modules_of(with_images).size() == 4);
      REQUIRE(with_images.remarks.size() == 1);
      CHECK(has(with_images.remarks[0], "its 1 tensors for the part for images are left out"));
    }
  }

  TEST_CASE("layers, excluded modules, ranks and scales are chosen as peft does") {
    CHECK(modules_of(adapter({{"layers_to_transform", 1}}).plan()) ==
          Strings{"1.self_attn.q_proj", "1.self_attn.v_proj"});
    // A module that is named in full is taken whatever its layer.
    const nlohmann::json named{"model.layers.0.self_attn.v_proj", "q_proj"};
    CHECK(modules_of(adapter({{"layers_to_transform", {1}}, {"target_modules", named}}).plan()) ==
          Strings{"0.self_attn.v_proj", "1.self_attn.q_proj"});
    CHECK(has(adapter({{"layers_to_transform", {1}}, {"layers_pattern", "h"}}).refusal(), "names no module"));
    CHECK(
        has(adapter({{"layers_to_transform", {1}}, {"target_modules", ".*q_proj"}}).refusal(), "layers_to_transform"));
    CHECK(modules_of(adapter({{"exclude_modules", {"1.self_attn.q_proj", "v_proj"}}}).plan()) ==
          Strings{"0.self_attn.q_proj"});
    CHECK(modules_of(adapter({{"exclude_modules", R"(.*\.0\..*)"}}).plan()).size() == 2);
    const auto plan = adapter({{"r", 4},
                               {"rank_pattern", {{R"(.*\.[01]\..*)", 2}}},
                               {"alpha_pattern", {{"layers.1.self_attn.q_proj", 6}, {"q_proj", 8}}}})
                          .plan();
    CHECK(plan.parts.at("model.layers.0.self_attn.q_proj").adapter.scale == 4);
    CHECK(plan.parts.at("model.layers.1.self_attn.q_proj").adapter.scale == 3);
    CHECK(plan.parts.at("model.layers.1.self_attn.v_proj").adapter.scale == 2);
    // "ayers" begins at no dot.
    CHECK(adapter({{"alpha_pattern", {{"ayers.1.self_attn.q_proj", 6}}}})
              .plan()
              .parts.at("model.layers.1.self_attn.q_proj")
              .adapter.scale == 2);
  }

  TEST_CASE("the first pattern in the order of the file counts") {
    const auto folder = adapter();
    std::ofstream(folder.path() / "adapter_config.json")
        << R"({"peft_type":"LORA","r":2,"lora_alpha":4,"target_modules":["q_proj","v_proj"],)"
        << R"("alpha_pattern":{"q_proj":10,"layers.1.self_attn.q_proj":3}})";
    CHECK(folder.plan().parts.at("model.layers.1.self_attn.q_proj").adapter.scale == 5);
  }

  TEST_CASE("an adapter of the model without its head has names without the first word") {
    Strings names;
    for (auto name : kQv)
      names.push_back(name.erase(std::string("base_model.model.").size(), std::string("model.").size()));
    CHECK(modules_of(adapter({}, names).plan()).size() == 4);
    CHECK(modules_of(adapter({{"target_modules", R"(layers\.1\..*_proj)"}}, names).plan()) ==
          Strings{"1.self_attn.q_proj", "1.self_attn.v_proj"});
  }

  TEST_CASE("parameters that are trained whole, and a head that parts from its embedding") {
    auto names = kQv;
    names.emplace_back("base_model.model.model.norm.weight");
    const nlohmann::json norm{{"modules_to_save", {"model.norm"}}};
    CHECK(adapter(norm, names).plan().whole.contains("model.norm.weight"));
    CHECK(has(adapter(norm).refusal(), "\"model.norm.weight\""));
    // An ending needs no dot.
    CHECK(has(adapter({{"modules_to_save", {"norm"}}}, names).refusal(), "input_layernorm.weight"));
    CHECK(has(adapter({{"modules_to_save", {"v_proj"}}}).refusal(), "v_proj.weight"));
    names.back() = "base_model.model.model.layers.0.self_attn.q_proj.base_layer.bias";
    CHECK(adapter({{"bias", "lora_only"}}, names).plan().whole.size() == 1);
    names.back() = "base_model.model.model.norm.bias";
    CHECK(has(adapter({{"bias", "lora_only"}}, names).refusal(), "norm.bias"));
    CHECK(adapter({{"bias", "all"}}, names).plan().whole.size() == 1);
    auto tied = llama();
    tied.back().tied_to = "model.embed_tokens";
    names.back() = "base_model.model.lm_head.weight";
    const auto head = adapter({{"modules_to_save", {"lm_head"}}}, names);
    CHECK(plan_adapter(head.path().path(), tied).unties);
    CHECK(!head.plan().unties);
    const auto one = adapter({{"modules_to_save", {"lm_head"}}, {"ensure_weight_tying", true}}, names);
    const auto plan = plan_adapter(one.path().path(), tied);
    CHECK(!plan.unties);
    CHECK(plan.whole.at("model.embed_tokens.weight") == plan.whole.at("lm_head.weight"));
  }

  TEST_CASE("names in modules_to_save that end no module's name have no effect, and a remark has them") {
    auto names = kQv;
    names.emplace_back("base_model.model.model.norm.weight");
    const auto plan = adapter({{"modules_to_save", {"score", "model.norm", "layernorms"}}}, names).plan();
    CHECK(plan.lora.modules_to_save == Strings{"model.norm"});
    REQUIRE(plan.remarks.size() == 1);
    CHECK(has(plan.remarks[0], "adapter_config.json"));
    CHECK(has(plan.remarks[0], "'score', 'layernorms'"));
  }

  TEST_CASE("ensure_weight_tying acts where modules or targets have one of the names that peft ties") {
    const std::vector<BaseModule> base{
        {"transformer.word_embeddings", true},
        {"transformer.h.0.dense", true, true},
        {.name = "lm_head", .can_have_adapter = true, .tied_to = "transformer.word_embeddings"}};
    const std::string prefix = "base_model.model.";
    const auto plan = [&](const nlohmann::json& saved, const Strings& whole) {
      Strings names{prefix + "transformer.h.0.dense.lora_A.weight", prefix + "transformer.h.0.dense.lora_B.weight"};
      for (const auto& name : whole) names.push_back(prefix + name);
      const auto folder =
          adapter({{"target_modules", {"dense"}}, {"modules_to_save", saved}, {"ensure_weight_tying", true}}, names);
      return plan_adapter(folder.path().path(), base);
    };
    const auto head = plan({"lm_head"}, {"lm_head.weight"});
    CHECK(!head.unties);
    CHECK(head.whole.contains("transformer.word_embeddings.weight"));
    const auto embedding = plan({"word_embeddings"}, {"transformer.word_embeddings.weight"});
    CHECK(embedding.unties);
    CHECK(!embedding.whole.contains("lm_head.weight"));
    // peft writes the embedding's name in place of the head's that it was told.
    CHECK(!plan({"word_embeddings"}, {"transformer.word_embeddings.weight", "lm_head.weight"}).unties);
  }

  TEST_CASE("a module that target_modules does not name and one without tensors have no adapter; remarks name both") {
    const auto narrow = adapter({{"target_modules", {"q_proj"}}}).plan();
    CHECK(modules_of(narrow) == Strings{"0.self_attn.q_proj", "1.self_attn.q_proj"});
    CHECK(narrow.lora.targets.size() == 2);
    REQUIRE(narrow.remarks.size() == 1);
    CHECK(has(narrow.remarks[0], "2 (model.layers.0.self_attn.v_proj, model.layers.1.self_attn.v_proj)"));
    const auto wide = adapter({}, parts_of({"0.self_attn.q_proj"})).plan();
    CHECK(modules_of(wide) == Strings{"0.self_attn.q_proj"});
    REQUIRE(wide.remarks.size() == 1);
    CHECK(has(wide.remarks[0], "3 (model.layers.0.self_attn.v_proj"));
    CHECK(has(adapter({{"init_lora_weights", false}}, parts_of({"0.self_attn.q_proj"})).refusal(), "by chance"));
    CHECK(has(adapter({{"target_modules", {"v_proj"}}}, parts_of({"0.self_attn.q_proj"})).refusal(), "names none of"));
    CHECK(adapter().plan().remarks.empty());
  }

  TEST_CASE("a tensor that belongs to no adapter of the base is refused by name") {
    for (const char* name :
         {"base_model.model.model.norm.weight", "base_model.model.model.norm.bias",
          "base_model.model.model.layers.0.self_attn.q_proj.lora_diag",
          "base_model.model.model.embed_tokens.lora_embedding_C",
          "base_model.model.model.layers.2.q_proj.lora_A.weight", "model.layers.0.self_attn.q_proj.lora_A.weight",
          "base_model.model.layers.0.self_attn.q_proj.lora_A.weight",
          "base_model.model.model.layers.0.self_attn.q_proj.lora_A.other.weight",
          "base_model.model.model.layers.0.self_attn.q_proj.lora_velora_embed"}) {
      CAPTURE(name);
      auto names = kQv;
      names.emplace_back(name);
      const auto said = adapter({}, names).refusal();
      CHECK(has(said, "adapter_model.safetensors"));
      CHECK(has(said, fmt::format("\"{}\"", name)));
    }
    CHECK(has(adapter({}, {}).refusal(), "holds no adapter"));
    auto halved = kQv;
    halved.pop_back();
    CHECK(has(adapter({}, halved).refusal(), "lacks its lora_A or its lora_B"));
    CHECK(has(adapter({{"use_dora", true}}).refusal(), "use_dora"));
  }

  TEST_CASE("adapter_model.bin and names with .default. are read") {
    Strings names;
    for (auto name : kQv) names.push_back(name.replace(name.rfind(".weight"), 0, ".default"));
    const auto folder = adapter({}, names);
    CHECK(modules_of(folder.plan()).size() == 4);
    names.push_back(kQv[0]);
    CHECK(has(adapter({}, names).refusal(), "another name"));
    const auto source = open_source(folder.path() / "adapter_model.safetensors");
    TorchTarget target("adapter_model.bin");
    auto alone = make_single_group();
    copy(*source, target, folder.path() / "adapter_model.bin", {}, *alone);
    std::filesystem::remove(folder.path() / "adapter_model.safetensors");
    const auto plan = folder.plan();
    CHECK(plan.file.filename() == "adapter_model.bin");
    CHECK(modules_of(plan).size() == 4);
  }

  TEST_CASE("fields that change the numbers and are not supported, and unknown fields, are refused by name") {
    const std::vector<std::pair<const char*, nlohmann::json>> refused{{"kasa_config", {{"beta", 1e-4}}},
                                                                      {"alora_invocation_tokens", {5, 6}},
                                                                      {"arrow_config", {{"top_k", 2}}},
                                                                      {"use_bdlora", {{"nblocks", 2}}},
                                                                      {"use_qalora", true},
                                                                      {"megatron_config", {{"a", 1}}},
                                                                      {"rank_pattern", {{"q_proj", 0}}},
                                                                      {"alpha_pattern", {{"q_proj", -4}}},
                                                                      {"layers_pattern", "lay.*"},
                                                                      {"exclude_modules", "(v_proj"},
                                                                      {"target_parameters", {"q_proj.weight"}},
                                                                      {"layers_to_transform", "first"},
                                                                      {"layer_replication", {{0, 1}}},
                                                                      {"some_new_field", "on"},
                                                                      {"another_new_field", 0},
                                                                      {"lora_alpha", -8},
                                                                      {"lora_dropout", 1},
                                                                      {"bias", "some"}};
    for (const auto& [field, value] : refused) {
      CAPTURE(field);
      const auto said = adapter({{field, value}}).refusal();
      CHECK(has(said, "adapter_config.json"));
      CHECK(has(said, field));
    }
    for (const nlohmann::json& off : {nlohmann::json(), nlohmann::json(false), nlohmann::json(""),
                                      nlohmann::json::array(), nlohmann::json::object()}) {
      CAPTURE(off);
      CHECK(adapter({{"some_new_field", off}, {"kasa_config", off}}).refusal() == "accepted");
    }
    CHECK(adapter({{"eva_config", {{"rho", 2}}}, {"loftq_config", {{"loftq_bits", 4}}}, {"qalora_group_size", 16}})
              .refusal() == "accepted");
  }

  TEST_CASE("init_lora_weights that change the base are refused by name") {
    for (const char* name :
         {"pissa", "pissa_niter_4", "PiSSA_niter_16", "olora", "OLoRA", "loftq", "corda", "lora_ga"}) {
      CAPTURE(name);
      const auto said = adapter({{"init_lora_weights", name}}).refusal();
      CHECK(has(said, "init_lora_weights"));
      CHECK(has(said, "path_initial_model_for_weight_conversion"));
    }
    CHECK(has(adapter({{"init_lora_weights", "made_up"}}).refusal(), "'made_up', which is not known"));
    for (const nlohmann::json& value :
         {nlohmann::json(true), nlohmann::json(false), nlohmann::json("gaussian"), nlohmann::json("orthogonal"),
          nlohmann::json("mica"), nlohmann::json("eva"), nlohmann::json()}) {
      CAPTURE(value);
      CHECK(adapter({{"init_lora_weights", value}}).refusal() == "accepted");
    }
  }

  TEST_CASE("velora and monteclora have an effect in training only") {
    auto names = kQv;
    names.emplace_back("base_model.model.model.layers.0.self_attn.q_proj.lora_velora_embed");
    const auto velora = adapter({{"velora_config", {{"num_groups", 2}}}}, names).plan();
    CHECK(modules_of(velora).size() == 4);
    CHECK(velora.remarks.size() == 1);
    names.back() = "base_model.model.model.layers.0.self_attn.q_proj.lora_monteclora_sampler.expert_weights";
    CHECK(modules_of(adapter({{"monteclora_config", {{"num_samples", 2}}}}, names).plan()).size() == 4);
  }

  TEST_CASE("a merge follows the plan and refuses elements that are not finite") {
    const auto merged = [](const Folder& folder, const std::string& module) {
      const auto base = std::make_shared<test::MemorySource>();
      for (const auto& known : llama())
        base->add(known.name + ".weight", DType::f32, {2, 2}, test::bytes_of<float>({1, 2, 3, 4}));
      const auto source = merge_adapter(base, folder.path().path());
      return test::values_of<float>(test::read_whole(*source, test::number_of(*source, module + ".weight")));
    };
    const auto narrow = adapter({{"target_modules", {"q_proj"}}});
    // alpha / r is 2, and B A is all 2.
    CHECK(merged(narrow, "model.layers.0.self_attn.q_proj") == std::vector<float>{5, 6, 7, 8});
    CHECK(merged(narrow, "model.layers.0.self_attn.v_proj") == std::vector<float>{1, 2, 3, 4});
    const auto all = adapter({{"target_modules", "all-linear"}});
    CHECK(merged(all, "model.layers.0.self_attn.v_proj") == std::vector<float>{5, 6, 7, 8});
    const auto damaged = adapter({}, kQv, std::numeric_limits<float>::quiet_NaN());
    CHECK_THROWS_WITH_AS(merged(damaged, "model.layers.0.self_attn.q_proj"),
                         doctest::Contains("adapter_model.safetensors: 'base_model.model.model.layers.0"), FormatError);
  }

  TEST_CASE("a base that an adapter cannot be added to is refused by tensor and type") {
    const auto refusal = [](DType dtype, const nlohmann::json& targets, std::optional<DType> result) {
      const auto base = std::make_shared<test::MemorySource>();
      for (const auto& known : llama()) {
        const bool is_short = known.name == "model.layers.1.self_attn.v_proj";
        base->add(known.name + ".weight", is_short ? dtype : DType::f32, {2, 2}, test::Bytes(is_short ? 4 : 16));
      }
      const auto folder = adapter({{"target_modules", targets}});
      return test::message_of<FormatError>([&] { merge_adapter(base, folder.path().path(), result); });
    };
    const nlohmann::json by_name{"q_proj", "v_proj"};
    for (const nlohmann::json& targets : {by_name, nlohmann::json(".*_proj"), nlohmann::json("all-linear")}) {
      CAPTURE(targets);
      for (const auto& [dtype, name] : {std::pair{DType::i8, "int8"}, {DType::u8, "uint8"}}) {
        const auto said = refusal(dtype, targets, DType::f32);
        CHECK(has(said, "model.layers.1.self_attn.v_proj.weight"));
        CHECK(has(said, name));
      }
      const auto said = refusal(DType::f8_e4m3fn, targets, std::nullopt);
      CHECK(has(said, "model.layers.1.self_attn.v_proj.weight"));
      CHECK(has(said, "float8_e4m3fn"));
      CHECK(refusal(DType::f8_e5m2, targets, DType::bf16).empty());
    }
    CHECK(refusal(DType::i8, {"q_proj"}, std::nullopt).empty());
    CHECK(refusal(DType::f8_e5m2, by_name, DType::f8_e5m2).empty());  // the user asked for this dtype
  }

  TEST_CASE("a directory with an adapter, opened as a model") {
    const auto folder = adapter({{"base_model_name_or_path", "org/base"}});
    CHECK_THROWS_WITH_AS(refuse_adapter_alone(folder.path().path()), doctest::Contains("org/base"), FormatError);
    CHECK_THROWS_WITH_AS(refuse_adapter_alone(folder.path() / "adapter_model.safetensors"),
                         doctest::Contains("is an adapter, not a model"), FormatError);
    CHECK(has(adapter_left_out(folder.path().path()).at(0), "--adapter"));
    std::ofstream(folder.path() / "config.json") << "{}";
    CHECK_NOTHROW(refuse_adapter_alone(folder.path().path()));
    std::filesystem::remove(folder.path() / "adapter_model.safetensors");
    CHECK(adapter_left_out(folder.path().path()).empty());
  }
}
