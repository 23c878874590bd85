// Adapters with all that peft trains beside LoRA, against peft itself: ten steps on 1 to 4 ranks, the files that are
// written, peft's own files, and merged weights. Cases and tolerances are those of the fixtures' README; a few of the
// cases are in tests/fixtures/recipes.
#include "lib/checkpoints/programs/formats.hpp"
#include "tests/support/torch_doctest.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "lib/checkpoints/model/adapter_plan.hpp"
#include "lib/checkpoints/model/merge_adapter.hpp"
#include "lib/engine/optim/optimizer.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/ranks/thread_group.hpp"
#include "lib/training/state/adapter_files.hpp"
#include "lib/training/state/load/load.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/unit/checkpoints/programs/convert_test_support.hpp"
#include "tests/unit/engine/fsdp/fixture_files.hpp"

using namespace fsdp;
using fsdp::test::read_tensor;
using fsdp::test::relative;
using fsdp::test::Worst;

namespace {

namespace fs = std::filesystem;

fs::path recipes() {
  const auto all = fs::path(FSDP_FIXTURE_DIR) / "../../../shared/fixtures/recipes";
  return fs::exists(all / "peft") ? all : fs::path(FSDP_FIXTURE_DIR) / "recipes";
}
fs::path cases() { return recipes() / "peft"; }

nlohmann::json json_of(const fs::path& file) { return nlohmann::json::parse(std::ifstream(file)); }

/// A case of the fixtures.
struct Case {
  explicit Case(const std::string& name)
      : folder(cases() / name), expected(json_of(folder / "expected.json")), inputs(json_of(folder / "inputs.json")) {
    base = cases() / expected.at("base").get<std::string>();
    read();
  }
  /// A run of the recipe, on a base in 4 bits.
  static Case in_4_bits(const std::string& name) {
    Case made;
    made.folder = recipes() / "recipe" / name;
    made.base = recipes() / "recipe/quantised";
    made.expected = json_of(recipes() / "recipe/expected_training.json").at("runs").at(name);
    made.inputs = json_of(recipes() / "recipe/inputs.json");
    made.labels = made.expected.at("labels").get<std::string>();
    made.lr = 2e-3, made.decay = 0, made.clip = 0.3;
    made.read();
    return made;
  }
  std::int64_t rows() const { return static_cast<std::int64_t>(inputs.at("input_ids").size()); }

  fs::path folder, base;
  nlohmann::json expected, inputs;
  std::string labels = "labels";
  double lr = 3e-3, decay = 0.01, clip = 1;
  ModelConfig config;
  QuantizeConfig quantize;
  AdapterPlan plan;

 private:
  Case() = default;
  void read() {
    config = read_model_config(base);
    quantize = stored_quantization(base).value_or(QuantizeConfig());
    plan = plan_adapter(folder, base_modules(config));
    // peft trained with the order of the options, and wrote its patterns sorted.
    if (folder.filename() == "patterns_order") plan.lora.alpha_pattern = {{"q_proj", 10}};
  }
};

std::vector<std::string> names_of_cases() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(cases())) {
    const auto name = entry.path().filename().string();
    if (fs::exists(entry.path() / "adapter_config.json")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

at::Tensor ids_of(const nlohmann::json& rows) {
  std::vector<std::int32_t> flat;
  for (const auto& row : rows) {
    for (const auto& id : row) flat.push_back(id.get<std::int32_t>());
  }
  return at::tensor(flat, at::kInt).view({static_cast<std::int64_t>(rows.size()), -1});
}

/// Rows [first, first + count) as a micro-batch.
MicroBatch batch_of(const Case& of, std::int64_t first, std::int64_t count) {
  const auto ids = ids_of(of.inputs.at("input_ids")), labels = ids_of(of.inputs.at(of.labels));
  const auto targets =
      at::cat({labels.narrow(1, 1, labels.size(1) - 1), at::full({labels.size(0), 1}, -100, at::kInt)}, 1);
  MicroBatch batch;
  batch.rows = count;
  batch.length = ids.size(1);
  batch.ids_N = ids.narrow(0, first, count).reshape({-1});
  batch.targets_N = targets.narrow(0, first, count).reshape({-1});
  return batch;
}

/// A model with the case's adapter on a rank.
class Rank {
 public:
  Rank(ProcessGroup& world, const Case& of, const ShardingOptions& sharding)
      : world_(world), case_(of), runtime_(world, of.config, sharding, {}, 1) {
    load_weights(runtime_, of.base);
  }

  /// The start of the fixtures; what is trained whole starts as the base.
  void take_initial() {
    const SafetensorsReader initial(case_.folder / "adapter_initial.safetensors"),
        last(case_.folder / "adapter_model.safetensors");
    auto& engine = runtime_.engine();
    for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
      const auto& spec = runtime_.decoder().parameters[i];
      const auto range = engine.range(i);
      // A frozen embedding and head stand in peft's file, too, and new rows started by chance.
      const bool is_new_table = case_.plan.lora.vocabulary > 0 && (spec.saved || spec.kept) && spec.shape.size() == 2;
      if ((!spec.adapter && !is_new_table) || range.num_rows == 0) continue;
      auto name = "base_model.model." + spec.name;
      const bool is_there = initial.tensors().contains(name);
      if (!is_there) name = last_name(last, spec.name);
      if (!is_there && !last.tensors().contains(name)) continue;  // a frozen weight that peft writes as the head's
      engine.master_weight(i)
          .narrow(0, 0, range.num_rows)
          .copy_(read_tensor(is_there ? initial : last, name).narrow(0, range.first_row, range.num_rows));
    }
    engine.sync_parameters();
  }

  /// The start of the recipe: A of a seed, B of zeros.
  void take_made_up() {
    auto& engine = runtime_.engine();
    for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
      const auto& spec = runtime_.decoder().parameters[i];
      const auto range = engine.range(i);
      if (!spec.adapter || range.num_rows == 0) continue;
      auto mine = engine.master_weight(i).narrow(0, 0, range.num_rows);
      mine.zero_();
      if (spec.name.ends_with("lora_A.weight"))
        mine.copy_(test::prng_tensor(spec.name, 601, spec.shape, 1 / std::sqrt(static_cast<double>(spec.shape[1])), 0)
                       .narrow(0, range.first_row, range.num_rows));
    }
    engine.sync_parameters();
  }

  /// The name of a frozen table in peft's file.
  static std::string last_name(const SafetensorsReader& last, const std::string& name) {
    for (const char* wrapper : {".token_adapter.base_layer", ".base_layer"}) {
      auto wrapped = "base_model.model." + name;
      wrapped.insert(wrapped.rfind('.'), wrapper);
      if (last.tensors().contains(wrapped)) return wrapped;
    }
    return name;
  }

  void train(std::vector<double>& losses, std::vector<double>& norms) {
    OptimizerOptions adamw;
    adamw.weight_decay = case_.decay;
    auto& engine = runtime_.engine();
    auto optimizer = make_optimizer({runtime_.ops(), test::engine_params(engine), adamw, nullptr, nullptr});
    const auto all = batch_of(case_, 0, case_.rows());
    const auto tokens = static_cast<double>(all.targets_N.ge(0).sum().item<std::int64_t>());
    const auto first = case_.rows() * world_.rank() / world_.size();
    const auto last = case_.rows() * (world_.rank() + 1) / world_.size();
    for (int step = 0; step <= 10; ++step) {
      const auto batch = batch_of(case_, first, last - first);
      const auto loss = world_.all_reduce(engine.forward_backward(batch, {true, true}, 1.0 / tokens).nats, Reduce::sum);
      losses.push_back(loss / tokens);
      const double norm = engine.gradient_norm();
      if (step == 10) break;
      norms.push_back(norm);
      optimizer->begin_step();
      for (const auto& params : engine.parameter_groups(UnitPass::update)) {
        std::vector<at::Tensor> gradients;
        for (const auto i : params) gradients.push_back(engine.gradient(i));
        optimizer->step_part(params, gradients, case_.lr, {.divisor = 1.0 / std::min(1.0, case_.clip / (norm + 1e-6))});
      }
      engine.sync_parameters();
    }
  }

  at::Tensor logits() {
    const auto batch = batch_of(case_, 0, case_.rows());
    const auto& decoder = runtime_.decoder();
    auto& engine = runtime_.engine();
    at::Tensor x;
    for (std::size_t s = 0; s < decoder.layers.size(); ++s)
      x = decoder.layers[s]->forward(engine.gathered(s).params(), batch, x, nullptr);
    const auto logits = decoder.loss->logits(engine.gathered(decoder.layers.size()).params(), x);
    return logits.view({case_.rows(), batch.length, -1});
  }

  ModelRuntime& runtime() { return runtime_; }

 private:
  ProcessGroup& world_;
  const Case& case_;
  ModelRuntime runtime_;
};

ShardingOptions sharding_of(const Case& of) {
  ShardingOptions sharding;
  sharding.lora = of.plan.lora;
  sharding.quantize = of.quantize;
  return sharding;
}

/// The largest difference from the logits that the fixtures keep.
double logits_apart(const Case& of, const at::Tensor& logits) {
  const SafetensorsReader kept(of.folder / "logits.safetensors");
  const auto mask = ids_of(of.inputs.at("attention_mask"));
  const auto last = mask[1].sum().item<std::int64_t>() - 1;
  return std::max((logits[0] - read_tensor(kept, "row0")).abs().max().item<double>(),
                  (logits[1][last] - read_tensor(kept, "row1_last")).abs().max().item<double>());
}

/// Compares what was written with peft's file. \return the largest difference
double adapters_apart(const Case& of, const fs::path& written) {
  const SafetensorsReader mine(written / "adapter_model.safetensors"), theirs(of.folder / "adapter_model.safetensors");
  double worst = 0;
  std::set<std::string> names;
  for (const auto& [name, entry] : theirs.tensors()) {
    // For a vocabulary of its own peft writes a saved module under three names, of which the shortest is read.
    if (name.find(".original_module.") != std::string::npos || name.find(".modules_to_save.") != std::string::npos)
      continue;
    names.insert(name);
    REQUIRE_MESSAGE(mine.tensors().contains(name), name);
    worst = std::max(worst, (read_tensor(mine, name) - read_tensor(theirs, name)).abs().max().item<double>());
  }
  // Beside an adapter of one of two tied weights, the frozen weight is written under both names.
  CHECK(mine.tensors().size() - names.size() <=
        (of.config.tie_word_embeddings && of.plan.lora.vocabulary > 0 ? 1u : 0u));
  return worst;
}

}  // namespace

TEST_SUITE("checkpoint/whole adapters against peft") {
  TEST_CASE("targets, ranks and scales of every case") {
    for (const auto& name : names_of_cases()) {
      CAPTURE(name);
      const Case of(name);
      const auto adapted = adapted_modules(of.config, of.plan.lora);
      const auto& targets = of.expected.at("targets");
      CHECK(adapted.size() == targets.size());
      for (const auto& [module, target] : targets.items()) {
        REQUIRE_MESSAGE(adapted.contains(module), module);
        CHECK(adapted.at(module).rank == target.at("r").get<std::int64_t>());
        CHECK(adapted.at(module).scale == doctest::Approx(target.at("scale").get<double>()).epsilon(1e-12));
      }
      // The written configuration means the same, in whatever order its patterns are read.
      const auto model = adapted_model(of.config, of.plan.lora);
      const auto again = adapter_config_from_json(adapter_config_to_json(model, of.plan.lora, "base"), "again");
      const auto same = adapted_modules(model, again.lora);
      REQUIRE(same.size() == adapted.size());
      for (const auto& [module, adapter] : adapted) CHECK(same.at(module).scale == adapter.scale);
    }
  }

  TEST_CASE("losses, norms, adapters and logits of ten steps on 1 to 4 ranks") {
    at::set_num_threads(1);
    int number = 0;
    for (const auto& name : names_of_cases()) {
      CAPTURE(name);
      const Case of(name);
      const auto& want = of.expected.at("f32");
      const bool all = std::getenv("FSDP_ALL") != nullptr;
      for (int ranks = all ? 1 : 1 + number++ % 4; ranks <= 4; ranks += all ? 1 : 4) {
        CAPTURE(ranks);
        std::vector<double> losses, norms;
        at::Tensor logits;
        const test::TempDir written;
        run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
          const at::NoGradGuard no_grad;
          Rank rank(world, of, sharding_of(of));
          rank.take_initial();
          std::vector<double> my_losses, my_norms;
          rank.train(my_losses, my_norms);
          const auto mine = rank.logits();
          save_adapter(rank.runtime(), written.path(), "base");
          if (world.rank() != 0) return;
          losses = my_losses, norms = my_norms, logits = mine;
        });
        double worst_loss = 0, worst_norm = 0;
        for (std::size_t s = 0; s < losses.size(); ++s)
          worst_loss = std::max(worst_loss, std::abs(losses[s] - want.at("loss")[s].get<double>()));
        for (std::size_t s = 0; s < norms.size(); ++s)
          worst_norm = std::max(worst_norm, relative(norms[s], want.at("grad_norm")[s].get<double>()));
        const auto apart = logits_apart(of, logits), adapters = adapters_apart(of, written.path());
        // Rows of 0.02 before a norm have gradients of 8 to 15, and Adam's steps are as large as the rows.
        const double wide = name == "resized_plain_saved_tied" ? 10 : 1;
        CHECK(worst_loss < 1e-5);
        CHECK(worst_norm < 3e-5 * (wide > 1 ? 20 : 1));
        CHECK(adapters < 2e-4 * wide);
        CHECK(apart < 2e-4 * wide);
        MESSAGE(name, " on ", ranks, ": losses ", worst_loss, ", norms ", worst_norm, ", adapters ", adapters,
                ", logits ", apart);
      }
    }
  }

  TEST_CASE("a base in 4 bits with a head and an embedding that are trained whole, in float32 and bf16") {
    at::set_num_threads(1);
    if (!fs::exists(recipes() / "recipe")) {
      MESSAGE("skipped: the recipe's fixtures are not here");
      return;
    }
    for (const auto* name : {"qlora_answers", "qlora_saved_modules"}) {
      const auto of = Case::in_4_bits(name);
      for (const int ranks : {1, 2, 3, 4}) {
        for (const bool narrow : {false, true}) {
          CAPTURE(name);
          CAPTURE(ranks);
          const auto& want = of.expected.at(narrow ? "bf16_kbit" : "f32");
          auto sharding = sharding_of(of);
          if (narrow) sharding.precision = at::kBFloat16;
          std::vector<double> losses, norms;
          at::Tensor logits;
          const test::TempDir written;
          run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
            const at::NoGradGuard no_grad;
            Rank rank(world, of, sharding);
            rank.take_made_up();
            std::vector<double> my_losses, my_norms;
            rank.train(my_losses, my_norms);
            const auto mine = rank.logits();
            save_adapter(rank.runtime(), written.path(), "base");
            if (world.rank() == 0) losses = my_losses, norms = my_norms, logits = mine;
          });
          Worst loss, norm;
          for (std::size_t s = 0; s < losses.size(); ++s) loss(std::abs(losses[s] - want.at("loss")[s].get<double>()));
          for (std::size_t s = 0; s < norms.size(); ++s)
            norm(relative(norms[s], want.at("grad_norm")[s].get<double>()));
          CHECK(loss.value < (narrow ? 4e-2 : 1e-5));
          MESSAGE(std::string(name), " on ", ranks, ": losses ", loss.value, ", norms ", norm.value);
          if (narrow) continue;
          CHECK(norm.value < 3e-5);
          CHECK(adapters_apart(of, written.path()) < 2e-4);
          const SafetensorsReader kept(of.folder / "logits.safetensors");
          const auto every = [&](std::int64_t row, std::int64_t from, std::int64_t step, const char* key) {
            const auto theirs = read_tensor(kept, key);
            return (logits[row].slice(0, from, logits.size(1), step).narrow(0, 0, theirs.size(0)) - theirs)
                .abs()
                .max()
                .item<double>();
          };
          CHECK(every(0, 1, 3, "row0") < 3e-4);
        }
      }
    }
  }

  TEST_CASE("peft's own files: logits, and merged weights") {
    at::set_num_threads(1);
    for (const auto& name : names_of_cases()) {
      CAPTURE(name);
      const Case of(name);
      const bool wide = name == "resized_plain_saved_tied", sorts = name == "patterns_order";
      auto sharding = sharding_of(of);
      sharding.lora = plan_adapter(of.folder, base_modules(of.config)).lora;
      run_thread_ranks(1, 1, [&](ProcessGroup& world) {
        const at::NoGradGuard no_grad;
        Rank rank(world, of, sharding);
        load_adapter(rank.runtime(), of.folder);
        std::vector<double> losses, norms;
        const auto apart = logits_apart(of, rank.logits());
        rank.train(losses, norms);
        const auto& again = of.expected.at("loss_when_read_again");
        CHECK(std::abs(losses[0] - again.get<double>()) < (wide ? 1e-4 : 1e-5));
        if (!sorts) CHECK(apart < (wide ? 2e-3 : 2e-4));
      });
      const auto merged = merge_adapter(open_source(of.base / "model.safetensors"), of.folder);
      const auto& want = of.expected.at("merged");
      const bool tied = want.value("right_tie_word_embeddings", want.at("config_tie_word_embeddings").get<bool>());
      CHECK(merged->info().unties_head == (of.config.tie_word_embeddings && !tied));
      for (const auto& tensor : merged->tensors()) {
        if (!want.at("tensors").contains(tensor.name)) {
          CHECK(want.contains("right_tie_word_embeddings"));
          continue;
        }
        if (want.contains("right_tie_word_embeddings") && tensor.shape[0] == of.config.vocab_size) continue;
        if (sorts && tensor.name.ends_with("layers.1.self_attn.q_proj.weight")) continue;
        const auto values = test::values_of<float>(test::read_whole(*merged, test::number_of(*merged, tensor.name)));
        double squares = 0;
        for (const auto value : values) squares += static_cast<double>(value) * value;
        CHECK(std::sqrt(squares) == doctest::Approx(want.at("tensors").at(tensor.name)[0].get<double>()).epsilon(1e-5));
      }
      CHECK((merged->tensors().size() == want.at("tensors").size() || want.contains("right_tie_word_embeddings")));
    }
  }
}
