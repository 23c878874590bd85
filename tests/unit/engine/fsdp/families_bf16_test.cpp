// Model families in bf16 against transformers' own bf16: tests/fixtures/families.
//
// bf16 rounds differently if operations are fused or summed in another order. The bounds are the largest differences
// between transformers' bf16 and float64 over all models: two bf16 computations of one model should not differ more.
// Seen, with and without AVX2: logits 0.086, loss 4.9e-3 (others 4.3e-3), norms 2.8 %.
#include "tests/unit/engine/fsdp/family_files.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr double kLossBound = 5e-3, kLogitBound = 0.16, kNormBound = 0.036;

/// Sets the policy of --precision bf16.
Setup in_bf16(Setup setup) {
  setup.policy.precision.param_dtype = at::kBFloat16;
  setup.policy.precision.reduce_dtype = at::kBFloat16;
  setup.policy.precision.buffer_dtype = at::kBFloat16;
  return setup;
}

bool are_bf16(const std::vector<at::Tensor>& weights) {
  return std::all_of(weights.begin(), weights.end(),
                     [](const at::Tensor& w) { return same_bits(w, w.to(at::kBFloat16).to(at::kFloat)); });
}

nlohmann::json expected_of(const std::string& model) { return read_json(family_folder(model) / "expected.json"); }

}  // namespace

TEST_SUITE("fsdp/families in bf16 against transformers'") {
  TEST_CASE("logits within 0.16, loss within 5e-3, each parameter's gradient norm within 3.6 %") {
    int number = 0;
    for (const std::string model : kFamilies) {
      ++number;                               // one of the two cases of each family, in turn
      for (const char* which : {"a", "b"}) {  // case c has only float32 results
        if (!tries(number++, 2)) continue;
        const auto want = expected_of(model).at("cases").at(which).at("bf16");
        auto setup = in_bf16(steps_on(model, which));
        const auto ids = setup.rows(0).ids;
        const auto logits = all_logits(setup).view({ids.size(0), ids.size(1), -1}).to(at::kDouble);
        Worst logit, loss, total, norm;
        const int kept = for_kept_logits(want, [&](int row, int position, const std::string& name) {
          const auto theirs = at::tensor(want.at(name + "_first16").get<std::vector<double>>(), at::kDouble);
          logit((logits[row][position].narrow(0, 0, theirs.size(0)) - theirs).abs().max().item<double>());
        });
        const auto table = parameter_table(setup.model);
        for (setup.ranks = 1; setup.ranks <= 2; ++setup.ranks) {
          const auto got = train(setup);
          loss(std::abs(got.losses[0] - want.at("loss").get<double>()));
          total(relative(got.norms[0], want.at("total_grad_norm").get<double>()));
          for (std::size_t i = 0; i < table.size(); ++i) {
            norm(relative(got.gradients[i].to(at::kDouble).norm().item<double>(),
                          want.at("grad_norm").at(table[i].name).get<double>()));
          }
        }
        CAPTURE(model);
        CAPTURE(std::string(which));
        CHECK(kept >= 2);
        CHECK(logit.value < kLogitBound);
        CHECK(loss.value < kLossBound);
        CHECK(total.value < kNormBound);
        CHECK(norm.value < kNormBound);
        MESSAGE(model, " ", std::string(which), ": logits ", logit.value, ", loss ", loss.value, ", norm ", total.value,
                ", norms ", norm.value);
      }
    }
  }

  // Weights in bf16 lose small updates; Kahan summation restores them.
  TEST_CASE("losses of five steps within 0.02, for each storage of trained weights") {
    struct Way {
      const char *name, *truth;
      bool narrow, kahan;
    };
    int number = 0;
    for (const std::string model : kFamilies) {
      const auto training = expected_of(model).at("training");
      for (const auto& way : {Way{"float32 master weights", "bf16_compute_f32_master", false, false},
                              Way{"weights and states in bf16", "bf16_parameters", true, false},
                              Way{"in bf16 with Kahan's sums", "bf16_compute_f32_master", true, true}}) {
        if (!tries(number++, 5)) continue;
        const auto want = training.at(way.truth).at("loss").get<std::vector<double>>();
        // Without bf16 weights in the file, rounding them would change the starting point.
        if (way.kahan && !are_bf16(start_of(model).weights)) continue;
        Worst worst;
        for (const int ranks : {1, 2}) {
          auto setup = in_bf16(steps_on(model, "b", static_cast<int>(want.size())));
          setup.ranks = ranks;
          setup.lr = 1e-3;
          setup.clip = 1.0;
          if (way.narrow) {
            setup.policy.precision.master_dtype = at::kBFloat16;
            setup.optimizer.kind = "anyprecision";
            setup.optimizer.momentum_dtype = setup.optimizer.variance_dtype = at::kBFloat16;
            setup.optimizer.kahan = way.kahan;
          }
          worst(largest_difference(want, train(setup).losses));
        }
        INFO(model, ", ", std::string(way.name));
        CHECK(worst.value < 0.02);
        MESSAGE(model, ", ", std::string(way.name), ": losses of the steps differ by at most ", worst.value);
      }
    }
  }
}
