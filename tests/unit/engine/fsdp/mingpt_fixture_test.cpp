// Compares with PyTorch: tests/fixtures/numerics/mingpt_tiny (its README says how it was made).
#include "tests/unit/engine/fsdp/fixture_files.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

const std::filesystem::path kFolder = numerics_folder("mingpt_tiny");

nlohmann::json read_json(const char* name) { return test::read_json(kFolder / name); }

Setup fixture_setup() {
  at::set_num_threads(1);
  Setup setup;
  setup.model = read_model_config(kFolder);
  const SafetensorsReader file(kFolder / "model.safetensors");
  for (const auto& spec : parameter_table(setup.model)) setup.weights.push_back(read_tensor(file, spec.name));
  return setup;
}

/// Returns one step on the single batch of inputs.json.
Setup one_batch() {
  auto setup = fixture_setup();
  const auto inputs = read_json("inputs.json");
  const StepRows rows{int_tensor(inputs.at("input_ids")), int_tensor(inputs.at("targets")), {}};
  setup.rows = [rows](int) { return rows; };
  setup.steps = 1;
  setup.lr = 0.0;
  setup.clip = 1e9;  // no clipping
  return setup;
}

}  // namespace

TEST_SUITE("fsdp/minGPT against PyTorch") {
  TEST_CASE("one batch: logits within 1e-5") {
    auto setup = one_batch();
    setup.steps = 0;
    const auto expected = read_json("expected.json").at("one_batch");
    at::Tensor logits;
    train(setup, [&](RigRank& rank) {
      const auto batch = rank.batch_of(setup.rows(0), 0, 4);
      const auto& decoder = rank.decoder();
      at::Tensor x;
      for (std::size_t s = 0; s < decoder.layers.size(); ++s)
        x = decoder.layers[s]->forward(rank.engine().gathered(s).params(), batch, x, nullptr);
      const auto head = rank.engine().gathered(decoder.layers.size());
      std::vector<at::Tensor> rows;
      for (std::int64_t t = 1; t <= x.size(0); ++t)
        rows.push_back(decoder.last_logits(head.params(), x.narrow(0, 0, t)));
      logits = at::cat(rows);
    });
    REQUIRE(logits.sizes() == at::IntArrayRef({4 * 32, 97}));
    for (const char* precision : {"f32", "f64"}) {
      const auto last = at::tensor(expected.at(precision).at("logits_0_last").get<std::vector<double>>(), at::kDouble);
      const double norm = expected.at(precision).at("logits_norm").get<double>();
      const double row_error = relative_error(logits[31], last),
                   norm_error = relative(logits.to(at::kDouble).norm().item<double>(), norm);
      MESSAGE("against ", std::string(precision), ": last row of logits ", row_error, ", norm of all ", norm_error);
      CHECK(row_error < 1e-5);
      CHECK(norm_error < 1e-5);
    }
  }

  TEST_CASE("one batch: loss and every gradient within 1e-5 of their L2 norms, on one rank and on four") {
    const auto expected = read_json("expected.json").at("one_batch");
    const SafetensorsReader subset(kFolder / "grads_subset.safetensors");
    for (const int ranks : {1, 4}) {
      auto setup = one_batch();
      setup.ranks = ranks;
      const auto got = train(setup);
      for (const char* precision : {"f32", "f64"}) {
        const auto& want = expected.at(precision);
        CHECK(relative(got.losses[0], want.at("loss").get<double>()) < 1e-5);
        CHECK(relative(got.norms[0], want.at("total_grad_norm").get<double>()) < 1e-5);
        Worst norms, first_elements, whole;
        const auto table = parameter_table(setup.model);
        for (std::size_t i = 0; i < table.size(); ++i) {
          const auto& name = table[i].name;
          const auto grad = got.gradients[i].to(at::kDouble);
          const double norm = want.at("grad_norm").at(name).get<double>();
          norms(relative(grad.norm().item<double>(), norm));
          const auto first = want.at("grad_first4").at(name).get<std::vector<double>>();
          for (std::int64_t k = 0; k < 4; ++k) {
            first_elements(std::abs(grad.view({-1})[k].item<double>() - first[static_cast<std::size_t>(k)]) / norm);
          }
          if (subset.tensors().count(name) == 1) whole(relative_error(grad, read_tensor(subset, name)));
        }
        CHECK(norms.value < 1e-5);
        CHECK(first_elements.value < 1e-5);
        CHECK(whole.value < 1e-5);
        MESSAGE(ranks, " ranks against ", std::string(precision), ": loss ",
                relative(got.losses[0], want.at("loss").get<double>()), ", gradients' norms ", norms.value,
                ", first elements ", first_elements.value, ", whole tensors ", whole.value);
      }
    }
  }

  TEST_CASE("trajectories: 20 AdamW steps within 1e-4 on 1, 2 and 4 ranks, for every strategy") {
    const auto trajectory = read_json("trajectory.json");
    const auto ids = read_tensor(SafetensorsReader(kFolder / "batches.safetensors"), "ids");
    struct Case {
      const char* name;
      int ranks;
      std::int64_t rows;
    };
    int number = 0;
    for (const auto& c :
         {Case{"rank1_b4", 1, 4}, Case{"rank1_b8", 1, 8}, Case{"rank2_b4", 2, 8}, Case{"rank4_b2", 4, 8}}) {
      for (const auto sharding :
           {Sharding::full_shard, Sharding::grad_shard, Sharding::no_shard, Sharding::hybrid_full_shard}) {
        if (!tries(number++, 3)) continue;
        auto setup = fixture_setup();
        setup.rows = [&](int step) {
          const auto rows = ids[step].narrow(0, 0, c.rows);
          return StepRows{rows.narrow(1, 0, 32).contiguous(), rows.narrow(1, 1, 32).contiguous(), {}};
        };
        setup.steps = 20;
        setup.ranks = c.ranks;
        setup.ranks_per_node = std::max(1, c.ranks / 2);
        setup.policy.sharding = sharding;
        const auto got = train(setup);
        for (const char* precision : {"f32", "f64"}) {
          const auto& want = trajectory.at(c.name).at(precision);
          const auto losses = want.at("loss").get<std::vector<double>>();
          const auto norms = want.at("grad_norm_before_clip").get<std::vector<double>>();
          REQUIRE(losses.size() == 20);
          const double loss_error = largest_difference(got.losses, losses),
                       norm_error = largest_difference(got.norms, norms);
          CHECK(loss_error < 1e-4);
          CHECK(norm_error < 1e-3);
          for (std::size_t step = 0; step < 20; ++step) {
            const auto by_rank = want.at("loss_per_rank").at(step).get<std::vector<double>>();
            CHECK(largest_difference(by_rank, got.rank_losses[step]) < 1e-4);
          }
          if (sharding == Sharding::full_shard) {
            MESSAGE(std::string(c.name), " against ", std::string(precision), ": losses within ", loss_error,
                    ", norms within ", norm_error);
          }
        }
      }
    }
  }
}
