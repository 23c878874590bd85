// Compares with transformers' Llama: tests/fixtures/numerics/llama_nano and llama_tiny (the README says how made).
#include "tests/unit/engine/fsdp/fixture_files.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Returns a fixture's model with its weights, and one step on the rows of one case.
Setup one_step(const char* model, const char* which) {
  at::set_num_threads(1);
  const auto folder = numerics_folder(model);
  const auto expected = read_json(folder / "expected.json");
  Setup setup;
  setup.model = read_model_config(folder);
  for (const auto& spec : parameter_table(setup.model)) {
    const bool norm = spec.init == Init::ones;
    setup.weights.push_back(prng_tensor(spec.name, expected.at("seed").get<std::uint64_t>(), spec.shape,
                                        norm ? 0.1 : expected.at("amp").get<double>(), norm ? 1.0 : 0.0));
  }
  const auto inputs = read_json(folder / "inputs.json").at(which);
  const auto ids = int_tensor(inputs.at("input_ids")), labels = int_tensor(inputs.at("labels"));
  // The labels are the ids shifted by one; the last position has no target.
  const StepRows rows{
      ids, at::cat({labels.narrow(1, 1, labels.size(1) - 1), at::full({labels.size(0), 1}, -100, at::kInt)}, 1), {}};
  setup.rows = [rows](int) { return rows; };
  setup.steps = 1;
  setup.lr = 0.0;
  setup.clip = 1e9;  // no clipping
  return setup;
}

nlohmann::json case_of(const char* model, const char* which) {
  return read_json(numerics_folder(model) / "expected.json").at("cases").at(which);
}

constexpr const char* kModels[] = {"llama_nano", "llama_tiny"};
constexpr const char* kCases[] = {"a", "b"};

}  // namespace

TEST_SUITE("fsdp/Llama against transformers") {
  TEST_CASE("the weights of prng.py equal the stored file's, bit for bit") {
    const auto setup = one_step("llama_nano", "a");
    const SafetensorsReader stored(numerics_folder("llama_nano") / "model.safetensors");
    const auto table = parameter_table(setup.model);
    for (std::size_t i = 0; i < table.size(); ++i)
      CHECK(same_bits(setup.weights[i], read_tensor(stored, table[i].name)));
  }

  TEST_CASE("logits within 1e-5, with and without padding on the right") {
    for (const char* model : kModels) {
      for (const char* which : kCases) {
        const auto setup = one_step(model, which);
        const auto ids = setup.rows(0).ids;
        const auto logits = all_logits(setup).view({ids.size(0), ids.size(1), -1});
        const auto expected = case_of(model, which);
        for (const char* precision : {"f32", "f64"}) {
          const auto first16 = [&](const char* name) {
            return at::tensor(expected.at(precision).at(name).get<std::vector<double>>(), at::kDouble);
          };
          const double last = relative_error(logits[0][ids.size(1) - 1].narrow(0, 0, 16),
                                             first16("logits_0_last_first16")),
                       inner = relative_error(logits[1][20].narrow(0, 0, 16), first16("logits_1_pos20_first16"));
          CHECK(last < 1e-5);
          CHECK(inner < 1e-5);
          MESSAGE(std::string(model), " ", std::string(which), " against ", std::string(precision), ": ", last, ", ",
                  inner);
        }
        if (std::string(model) == "llama_nano" && std::string(which) == "a") {
          const SafetensorsReader stored(numerics_folder(model) / "logits_a.safetensors");
          CHECK(relative_error(logits, read_tensor(stored, "logits")) < 1e-5);
        }
      }
    }
  }

  TEST_CASE("loss and gradients within 1e-5 on 1 to 4 ranks, for every strategy and with checkpointing") {
    const SafetensorsReader stored(numerics_folder("llama_nano") / "grads_a.safetensors");
    int number = 0;
    for (const char* model : kModels) {
      for (const char* which : kCases) {
        const auto expected = case_of(model, which);
        for (const int ranks : {1, 2, 3, 4}) {
          for (const auto sharding : {Sharding::full_shard, Sharding::grad_shard, Sharding::no_shard}) {
            if (!tries(number++, 5)) continue;
            auto setup = one_step(model, which);
            setup.ranks = ranks;
            setup.policy.sharding = sharding;
            setup.policy.checkpoint_every = ranks == 2 ? 1 : 0;
            const auto got = train(setup);
            for (const char* precision : {"f32", "f64"}) {
              const auto& want = expected.at(precision);
              Worst norms, first_elements, whole;
              const auto table = parameter_table(setup.model);
              for (std::size_t i = 0; i < table.size(); ++i) {
                const auto& name = table[i].name;
                const auto grad = got.gradients[i].to(at::kDouble);
                const double norm = want.at("grad_norm").at(name).get<double>();
                norms(relative(grad.norm().item<double>(), norm));
                const auto first = want.at("grad_first4").at(name).get<std::vector<double>>();
                for (std::int64_t k = 0; k < 4; ++k) {
                  first_elements(std::abs(grad.view({-1})[k].item<double>() - first[static_cast<std::size_t>(k)]) /
                                 norm);
                }
                if (std::string(model) == "llama_nano" && std::string(which) == "a") {
                  whole(relative_error(grad, read_tensor(stored, name)));
                }
              }
              CHECK(relative(got.losses[0], want.at("loss").get<double>()) < 1e-5);
              CHECK(relative(got.norms[0], want.at("total_grad_norm").get<double>()) < 1e-5);
              CHECK(norms.value < 1e-5);
              CHECK(first_elements.value < 1e-5);
              CHECK(whole.value < 1e-5);
            }
          }
        }
      }
    }
  }

  TEST_CASE("bf16: loss within 1e-3 and gradient norm within 1e-2 of float64's and of transformers' own bf16") {
    for (const char* model : kModels) {
      for (const char* which : kCases) {
        const auto expected = case_of(model, which);
        for (const int ranks : {1, 2}) {
          auto setup = one_step(model, which);
          setup.ranks = ranks;
          setup.policy.precision.param_dtype = at::kBFloat16;
          setup.policy.precision.reduce_dtype = at::kBFloat16;
          const auto got = train(setup);
          for (const char* precision : {"f64", "bf16"}) {
            const auto& want = expected.at(precision);
            const double loss = relative(got.losses[0], want.at("loss").get<double>()),
                         norm = relative(got.norms[0], want.at("total_grad_norm").get<double>());
            MESSAGE(std::string(model), " ", std::string(which), ", ", ranks, " ranks against ", std::string(precision),
                    ": loss ", loss, ", norm ", norm);
            CHECK(loss < 1e-3);
            CHECK(norm < 1e-2);
          }
        }
      }
    }
  }
}
