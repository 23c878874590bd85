#include "tests/support/engine_params.hpp"
#include "tests/support/small_job.hpp"

#include <fmt/format.h>

#include "lib/base/types/error.hpp"
#include "lib/engine/optim/optimizer.hpp"
#include "lib/formats/safetensors.hpp"
#include "lib/training/state/load/load.hpp"
#include "lib/training/state/model_sizes.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/support/tensor_compare.hpp"

using fsdp::Checkpoint;
using fsdp::Engine;
using fsdp::ModelRuntime;
using fsdp::ProcessGroup;
using fsdp::test::TempDir;

namespace {

const std::filesystem::path kFixtures = FSDP_FIXTURE_DIR;

/// This rank's rows of a float32 tensor.
at::Tensor rows_of(const fsdp::SafetensorsReader& truth, const std::string& name, const Engine& engine, std::size_t i) {
  const auto range = engine.range(i);
  auto rows = at::empty(engine.layout(i).shape_with_rows(range.num_rows));
  if (range.num_rows > 0)
    truth.read_rows(name, range.first_row, range.num_rows,
                    {static_cast<std::byte*>(rows.data_ptr()), static_cast<std::size_t>(rows.nbytes())});
  return rows;
}

bool equal_rows(const at::Tensor& padded, const at::Tensor& rows) {
  return fsdp::test::same_bits(padded.narrow(0, 0, rows.size(0)), rows);
}

fsdp::RequestedModel two_heads() {
  fsdp::RequestedModel wish;
  wish.sizes["num-heads"] = 2;
  return wish;
}

}  // namespace

TEST_SUITE("checkpoint/import") {
  TEST_CASE("weights of a Hugging Face directory, each rank its rows") {
    const auto folder = kFixtures / "numerics/llama_nano";
    const fsdp::SafetensorsReader truth(folder / "model.safetensors");
    for (const int ranks : {1, 3}) {
      fsdp::run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
        ModelRuntime runtime(world, fsdp::read_model_config(folder), {}, {}, 1);
        fsdp::load_weights(runtime, folder);
        auto& engine = runtime.engine();
        for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
          CAPTURE(engine.layout(i).name);
          CHECK(equal_rows(engine.master_weight(i), rows_of(truth, engine.layout(i).name, engine, i)));
        }
      });
    }
  }

  TEST_CASE("model and AdamW state of minimal_fsdp's restart file, as PyTorch 2.0 and 2.11 wrote it") {
    for (const char* name : {"pt_t201_minimal_fsdp_vars", "pt_t211_minimal_fsdp_namespace", "full_t201_ws2_minimal"}) {
      CAPTURE(name);
      const auto folder = kFixtures / "checkpoints" / name;
      const fsdp::SafetensorsReader truth(folder / "expected.safetensors");
      const Checkpoint checkpoint(folder / "ckpt.pt");
      const auto config = fsdp::model_of_tensors(checkpoint, two_heads());
      CHECK(checkpoint.epochs_done() == 5);
      fsdp::run_thread_ranks(3, 3, [&](ProcessGroup& world) {
        ModelRuntime runtime(world, config, {}, {}, 1);
        auto& engine = runtime.engine();
        const auto optimizer = fsdp::make_optimizer({fsdp::host_ops(), fsdp::test::engine_params(engine), {}});
        CHECK(fsdp::load_checkpoint(runtime, optimizer.get(), checkpoint).found);
        CHECK(optimizer->steps() == 3);
        for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
          const auto& parameter = engine.layout(i).name;
          const auto moment = [&](const char* field) {
            return rows_of(truth, fmt::format("optimizer_state.state.{}.{}", parameter, field), engine, i);
          };
          CHECK(equal_rows(engine.master_weight(i), rows_of(truth, "model_state." + parameter, engine, i)));
          CHECK(equal_rows(optimizer->state("exp_avg", i), moment("exp_avg")));
          CHECK(equal_rows(optimizer->state("exp_avg_sq", i), moment("exp_avg_sq")));
        }
      });
    }
  }

  TEST_CASE("folders of trainers: weights and AdamW state under the names of a module around the model") {
    struct Trainer {
      std::filesystem::path folder, checkpoint;
      std::string module, config;  // config.json; empty: in the checkpoint
    };
    const auto trainers = kFixtures / "trainers";
    const auto shared = std::filesystem::canonical(kFixtures).parent_path().parent_path().parent_path() / "shared" /
                        "fixtures" / "doors";
    const auto qwen = fsdp::read_text_file(trainers / "hf_trainer_ws2/ckpt/checkpoint-4/config.json");
    const auto llama = [](int width, int hidden) {
      return fmt::format(R"({{"model_type": "llama", "hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": 1,
        "vocab_size": 61, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32}})",
                         width, hidden);
    };
    const std::vector<Trainer> all{{trainers / "hf_trainer_ws2", "checkpoint-4", "", ""},
                                   {trainers / "accel_fsdp2_ws2_full", "", "", qwen},
                                   {shared / "lightning_fsdp_ws2_sharded", "", "net.", llama(12, 27)},
                                   {shared / "lightning_mp_ws2_sharded", "", "net.", llama(12, 27)},
                                   {shared / "composer_sharded_ws2", "ep0-ba2", "model.", llama(8, 19)}};
    for (const auto& trainer : all) {
      CAPTURE(trainer.folder.string());
      if (!std::filesystem::exists(trainer.folder)) continue;
      const TempDir dir;
      fsdp::RequestedModel wish;
      if (!trainer.config.empty()) {
        fsdp::replace_file(dir / "config.json", trainer.config);
        wish.config = fsdp::read_model_config(dir.path());
      }
      const fsdp::SafetensorsReader truth(trainer.folder / "expected.safetensors");
      const fsdp::SafetensorsReader states(trainer.folder / "expected_optim.safetensors");
      const Checkpoint checkpoint(trainer.folder / "ckpt" / trainer.checkpoint);
      CHECK(checkpoint.learning_rate() == 0.01);
      CHECK(!checkpoint.tokens_seen());
      const auto config = fsdp::model_of_tensors(checkpoint, wish);
      fsdp::run_thread_ranks(2, 2, [&](ProcessGroup& world) {
        ModelRuntime runtime(world, config, {}, {}, 1);
        auto& engine = runtime.engine();
        const auto optimizer = fsdp::make_optimizer({fsdp::host_ops(), fsdp::test::engine_params(engine), {}});
        CHECK(fsdp::load_checkpoint(runtime, optimizer.get(), checkpoint).found);
        CHECK(optimizer->steps() == (trainer.checkpoint == "checkpoint-4" ? 4 : 2));
        for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
          const auto parameter = trainer.module + engine.layout(i).name;
          CAPTURE(parameter);
          CHECK(equal_rows(engine.master_weight(i), rows_of(truth, parameter, engine, i)));
          for (const char* field : {"exp_avg", "exp_avg_sq"})
            CHECK(equal_rows(optimizer->state(field, i),
                             rows_of(states, fmt::format("optim.state.{}.{}", parameter, field), engine, i)));
        }
      });
    }
  }

  TEST_CASE("tokens seen and a rate that all groups of a trainer's optimizer have") {
    const TempDir dir;
    std::filesystem::copy(kFixtures / "trainers/hf_trainer_ws2/ckpt", dir.path(),
                          std::filesystem::copy_options::recursive);
    fsdp::replace_file(dir / "checkpoint-4/trainer_state.json",
                       R"({"global_step": 7, "num_input_tokens_seen": 1234, "loss": NaN})");
    const auto candidates = fsdp::checkpoint_candidates(dir.path().string(), dir / "none");
    REQUIRE(candidates.size() == 1);
    CHECK(candidates[0].filename() == "checkpoint-4");
    const Checkpoint checkpoint(candidates[0]);
    CHECK(checkpoint.step() == std::pair<std::string, std::int64_t>("trainer_state.global_step", 7));
    CHECK(checkpoint.tokens_seen() == 1234);
    CHECK(checkpoint.learning_rate() == 0.01);
  }

  TEST_CASE("the number of heads shows in no shape: it is asked for, and must fit") {
    const Checkpoint checkpoint(kFixtures / "checkpoints/pt_t211_gpt_full/ckpt.pt");
    CHECK_THROWS_AS(fsdp::model_of_tensors(checkpoint, {}), fsdp::RequestError);
    auto wish = two_heads();
    wish.sizes["embed-size"] = 4;
    CHECK_THROWS_AS(fsdp::model_of_tensors(checkpoint, wish), fsdp::RequestError);
  }

  TEST_CASE("a file that is no checkpoint is refused by name") {
    const TempDir dir;
    fsdp::replace_file(dir / "text.pt", "not a checkpoint");
    std::string message;
    try {
      const Checkpoint checkpoint(dir / "text.pt");
    } catch (const fsdp::FormatError& error) {
      message = error.what();
    }
    CHECK(message.find("text.pt") != std::string::npos);
  }
}
