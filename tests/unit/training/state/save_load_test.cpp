#include "lib/checkpoints/programs/formats.hpp"
#include "tests/support/small_job.hpp"

#include <limits>

#include "lib/base/types/error.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/training/state/checkpoint_names.hpp"
#include "lib/training/state/checkpoint_saver.hpp"
#include "lib/training/state/latest_link.hpp"
#include "lib/training/state/load/load.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/support/tensor_compare.hpp"

using fsdp::CheckpointSaver;
using fsdp::ProcessGroup;
using fsdp::SaveResult;
using fsdp::Sharding;
using fsdp::test::FullState;
using fsdp::test::SmallJob;
using fsdp::test::SmallJobRank;
using fsdp::test::TempDir;

namespace {

fsdp::RunManifest manifest_of(SmallJobRank& rank) {
  fsdp::RunManifest manifest;
  manifest.config = fsdp::test::small_model();
  manifest.state = rank.trainer->state();
  manifest.world_size = rank.runtime.world().size();
  return manifest;
}

/// Ends a save and points `latest` to it, as a run does.
SaveResult finish(CheckpointSaver& saver, SmallJobRank& rank) {
  const auto step = rank.trainer->state().step;
  return saver.finish([&] { fsdp::point_latest_to(saver.directory(), step); });
}

SaveResult save(CheckpointSaver& saver, SmallJobRank& rank) {
  saver.start(manifest_of(rank), 1e-3);
  return finish(saver, rank);
}

std::filesystem::path latest(const std::filesystem::path& folder) {
  return std::filesystem::read_symlink(folder / "latest");
}

bool same_state(const FullState& a, const FullState& b) {
  bool same = a.master_weights.size() == b.master_weights.size();
  for (std::size_t i = 0; same && i < a.master_weights.size(); ++i) {
    same = fsdp::test::same_bits(a.master_weights[i], b.master_weights[i]);
    for (const auto& [key, tensors] : a.states) {
      same = same && fsdp::test::same_bits(tensors[i], b.states.at(key)[i]);
    }
  }
  return same && a.states.size() == b.states.size();
}

}  // namespace

TEST_SUITE("checkpoint/save and load") {
  TEST_CASE("any ranks and strategy read what any other wrote, bit for bit") {
    const TempDir dir;
    SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    for (const auto& [ranks, sharding] : {std::pair{1, Sharding::full_shard},
                                          {3, Sharding::full_shard},
                                          {2, Sharding::no_shard},
                                          {3, Sharding::optimizer_shard},
                                          {4, Sharding::hybrid_full_shard}}) {
      CAPTURE(ranks);
      const auto folder = dir / std::string(to_string(sharding)).append(std::to_string(ranks));
      FullState saved;
      job.sharding.sharding = sharding;
      job.sharding.shard_group_size = ranks == 4 ? 2 : 0;
      fsdp::run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
        SmallJobRank rank(world, job);
        rank.step();
        rank.step();
        collect_state(rank, saved);
        CheckpointSaver saver(rank.runtime, rank.trainer->optimizer(), folder, 0);
        const auto result = save(saver, rank);
        CHECK(result.saved);
        CHECK(result.path == folder / "step-00000002");
      });
      CHECK(latest(folder) == "step-00000002");
      for (const int others : {1, 2, 3}) {
        FullState loaded;
        job.sharding.sharding = others == 3 ? Sharding::optimizer_shard : Sharding::full_shard;
        fsdp::run_thread_ranks(others, others, [&](ProcessGroup& world) {
          SmallJobRank rank(world, job);
          const fsdp::Checkpoint checkpoint(folder / "latest");
          fsdp::load_checkpoint(rank.runtime, &rank.trainer->optimizer(), checkpoint);
          CHECK(rank.trainer->optimizer().steps() == 2);
          collect_state(rank, loaded);
        });
        CAPTURE(others);
        CHECK(same_state(saved, loaded));
      }
    }
  }

  TEST_CASE("every optimizer's state, in its own types, on any ranks") {
    const TempDir dir;
    SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    for (const std::string kind : {"adamw", "anyprecision", "lion", "sgd"}) {
      const auto folder = dir / kind;
      CAPTURE(folder);
      job.optimizer.kind = kind;
      job.optimizer.momentum = kind == "sgd" ? 0.9 : 0;
      job.optimizer.kahan = kind == "anyprecision";
      FullState saved, loaded;
      fsdp::run_thread_ranks(3, 3, [&](ProcessGroup& world) {
        SmallJobRank rank(world, job);
        rank.step();
        rank.step();
        collect_state(rank, saved);
        CheckpointSaver saver(rank.runtime, rank.trainer->optimizer(), folder, 0);
        CHECK(save(saver, rank).saved);
      });
      fsdp::run_thread_ranks(2, 2, [&](ProcessGroup& world) {
        SmallJobRank rank(world, job);
        const fsdp::Checkpoint checkpoint(folder / "latest");
        const auto plan = fsdp::load_checkpoint(rank.runtime, &rank.trainer->optimizer(), checkpoint);
        CHECK(plan.found);
        CHECK(plan.remark.empty());
        CHECK(rank.trainer->optimizer().steps() == 2);
        collect_state(rank, loaded);
      });
      CHECK(same_state(saved, loaded));
    }
    // Another optimizer's averages are not taken for one's own.
    job.optimizer = {};
    fsdp::run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      for (const char* other : {"lion", "sgd"}) {
        const fsdp::Checkpoint checkpoint(dir / other / "latest");
        const auto plan = fsdp::load_checkpoint(rank.runtime, &rank.trainer->optimizer(), checkpoint);
        CHECK_FALSE(plan.found);
        CHECK(plan.remark.find("its optimizer is not AdamW") == 0);
      }
    });
  }

  TEST_CASE("Child-Tuning's D goes on where it stood on any ranks: in the middle of its pass, and with its masks") {
    const TempDir dir;
    SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    job.micro_batch_size = 6;  // 30 rows: five batches
    job.optimizer.child_tuning = {fsdp::ChildTuning::task_driven, 0.25, 0};
    const auto never = [] { return false; };
    const auto measure = [&](SmallJobRank& rank, std::int64_t up_to) {
      while (rank.trainer->state().fisher_batches < up_to) CHECK(rank.trainer->measure_fisher(never));
    };
    FullState whole, moved;
    fsdp::run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      CHECK(rank.trainer->fisher_batches() == 5);
      CHECK_FALSE(rank.trainer->measure_fisher([] { return true; }));
      measure(rank, 5);
      rank.trainer->choose_child();
      rank.step();
      collect_state(rank, whole);
    });
    const auto continue_from = [&](SmallJobRank& rank, bool has_masks) {
      const fsdp::Checkpoint checkpoint(dir / "run" / "latest");
      const auto plan = fsdp::load_checkpoint(rank.runtime, &rank.trainer->optimizer(), checkpoint);
      CHECK(plan.found);
      CHECK(plan.child);
      CHECK(rank.trainer->optimizer().is_choosing_child() != has_masks);
      CHECK(has_child(checkpoint) == has_masks);
      rank.trainer->state() = checkpoint.run()->state;
    };
    job.micro_batch_size = 3;
    fsdp::run_thread_ranks(2, 2, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      measure(rank, 2);
      CheckpointSaver saver(rank.runtime, rank.trainer->optimizer(), dir / "run", 0);
      CHECK(save(saver, rank).saved);
    });
    job.micro_batch_size = 2;
    fsdp::run_thread_ranks(3, 3, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      continue_from(rank, false);
      CHECK(rank.trainer->state().fisher_batches == 2);
      measure(rank, 5);
      const auto child = rank.trainer->choose_child();
      CHECK(child.kept == child.wanted);
      CheckpointSaver saver(rank.runtime, rank.trainer->optimizer(), dir / "run", 0);
      CHECK(save(saver, rank).saved);
    });
    job.micro_batch_size = 6;
    fsdp::run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      continue_from(rank, true);
      rank.step();
      collect_state(rank, moved);
    });
    std::int64_t different = 0;
    for (std::size_t i = 0; i < whole.master_weights.size(); ++i) {
      // Sums in another order: an element at the threshold may change sides.
      const auto& masks = whole.states[fsdp::kChildMask];
      if (i < masks.size() && masks[i].defined())
        different += masks[i].ne(moved.states[fsdp::kChildMask][i]).sum().item<std::int64_t>();
    }
    CHECK(different <= 2);
    // Without D the masks are left where they are.
    job.optimizer.child_tuning = {};
    fsdp::run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      const auto plan =
          fsdp::load_checkpoint(rank.runtime, &rank.trainer->optimizer(), fsdp::Checkpoint(dir / "run" / "latest"));
      CHECK(plan.found);
      CHECK_FALSE(plan.child);
    });
  }

  TEST_CASE("what was frozen starts with states of zero, and what is frozen now leaves its states") {
    const TempDir dir;
    SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    job.sharding.freeze = {{}, {"transformer.h.0"}};
    const auto run = [&](const char* from, const char* to, std::string_view remark) {
      fsdp::run_thread_ranks(2, 2, [&](ProcessGroup& world) {
        SmallJobRank rank(world, job);
        if (from != nullptr) {
          const fsdp::Checkpoint checkpoint(dir / from / "latest");
          const auto plan = fsdp::load_checkpoint(rank.runtime, &rank.trainer->optimizer(), checkpoint);
          CHECK(plan.found);
          CHECK(plan.remark == remark);
          CHECK(rank.trainer->optimizer().steps() == 1);
        }
        rank.step();
        CheckpointSaver saver(rank.runtime, rank.trainer->optimizer(), dir / to, 0);
        auto manifest = manifest_of(rank);
        if (!job.sharding.freeze.freeze.empty()) manifest.options["freeze"] = "transformer.h.0";
        saver.start(manifest, 1e-3);
        CHECK(finish(saver, rank).saved);
      });
    };
    run(nullptr, "frozen", "");
    job.sharding.freeze = {};
    run("frozen", "thawed", "12 of 28 parameters have no state (they were frozen): theirs starts at zero");
    job.sharding.freeze = {{"transformer.h.1"}, {}};
    run("frozen", "upper", "");
    run(nullptr, "all", "");
  }

  TEST_CASE("a state that is not finite is not saved, on whichever rank it is") {
    const TempDir dir;
    const SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    fsdp::run_thread_ranks(2, 2, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      CheckpointSaver saver(rank.runtime, rank.trainer->optimizer(), dir / "out", 0);
      rank.step();
      CHECK(save(saver, rank).saved);
      rank.step();
      if (world.rank() == 1)
        rank.trainer->optimizer().state("exp_avg", 0).view({-1})[0] = std::numeric_limits<float>::infinity();
      const auto result = save(saver, rank);
      CHECK_FALSE(result.saved);
      CHECK(result.error.find("optim.state.transformer.wte.weight.exp_avg") != std::string::npos);
    });
    CHECK(latest(dir / "out") == "step-00000001");
    CHECK_FALSE(std::filesystem::exists(dir / "out/.step-00000002.tmp"));
  }

  TEST_CASE("the newest proven checkpoint outlives --keep-last 1, and latest goes back to it") {
    const TempDir dir;
    const SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    const auto out = dir / "out";
    const auto there = [&](const char* name) { return std::filesystem::exists(out / name); };
    fsdp::run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      CheckpointSaver saver(rank.runtime, rank.trainer->optimizer(), out, 1);
      rank.step();
      save(saver, rank);
      CHECK_FALSE(saver.prune(/*proven_step=*/1));
      rank.step();
      save(saver, rank);
      CHECK(saver.prune(1));
      CHECK(there("step-00000001"));
      CHECK(latest(out) == "step-00000002");

      CHECK(fsdp::roll_back_latest(out, 2, 1) == (out / "step-00000001").string());
      CHECK(latest(out) == "step-00000001");
      CHECK(fsdp::roll_back_latest(out, 2, 1).empty());

      CHECK_FALSE(saver.prune(2));
      CHECK_FALSE(there("step-00000001"));
    });
  }

  TEST_CASE("--keep-optimizer 1: older checkpoints keep their weights alone, of which no run goes on") {
    const TempDir dir;
    const SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    const auto out = dir / "out";
    const auto model_of = [&](const char* name) {
      std::vector<std::string> bytes;
      const auto source = fsdp::open_source(out / name);
      for (std::size_t i = 0; i < source->tensors().size(); ++i) {
        const auto& tensor = source->tensors()[i];
        if (!tensor.name.starts_with("model.")) continue;
        bytes.emplace_back(tensor.size_bytes(), '\0');
        source->read(i, 0, static_cast<std::uint64_t>(fsdp::num_elements(tensor.shape)),
                     std::as_writable_bytes(std::span(bytes.back())), nullptr);
      }
      return bytes;
    };
    std::vector<std::string> before;
    fsdp::run_thread_ranks(2, 2, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      CheckpointSaver saver(rank.runtime, rank.trainer->optimizer(), out, 0, /*keep_optimizer=*/1);
      for (int step = 1; step <= 3; ++step) {
        rank.step();
        save(saver, rank);
        if (world.rank() == 0 && step == 1) before = model_of("step-00000001");
        CHECK(saver.strip(step - 1, /*wait=*/false).empty());  // states up to the step before are proven
      }
      CHECK(saver.strip(2, true).empty());
      if (world.rank() == 0) {
        CHECK(fsdp::read_run_manifest(out / "step-00000001").weights_alone);
        CHECK_FALSE(fsdp::read_run_manifest(out / "step-00000002").weights_alone);  // the newest proven one
      }
      CHECK(saver.strip(3, true).empty());
      saver.keep_for_good(2);  // run.json is rewritten
    });
    CHECK(fsdp::read_run_manifest(out / "step-00000002").weights_alone);
    CHECK_FALSE(fsdp::read_run_manifest(out / "step-00000003").weights_alone);
    CHECK(model_of("step-00000001") == before);
    fsdp::run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      const fsdp::Checkpoint stripped(out / "step-00000002"), newest(out / "latest");
      CHECK_THROWS_WITH_AS(fsdp::load_checkpoint(rank.runtime, &rank.trainer->optimizer(), stripped),
                           doctest::Contains("weights alone"), fsdp::FormatError);
      fsdp::load_checkpoint(rank.runtime, nullptr, stripped);
      fsdp::load_checkpoint(rank.runtime, &rank.trainer->optimizer(), newest);
      CHECK(rank.trainer->optimizer().steps() == 3);
    });
  }

  TEST_CASE("what a validation came to is told to a checkpoint that is written, and to one that is being written") {
    const TempDir dir;
    const SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    for (const bool is_written : {false, true}) {
      const auto out = dir / (is_written ? "written" : "under-way");
      fsdp::run_thread_ranks(2, 2, [&](ProcessGroup& world) {
        SmallJobRank rank(world, job);
        CheckpointSaver saver(rank.runtime, rank.trainer->optimizer(), out, 0);
        rank.step();
        auto& state = rank.trainer->state();
        state.validation_due = true;
        saver.start(manifest_of(rank), 1e-3);
        if (is_written) {
          CHECK(finish(saver, rank).saved);
          if (world.rank() == 0) CHECK(fsdp::read_run_manifest(out / "latest").state.validation_due);
        }
        state.validation_due = false;
        state.validation.step = state.validation.best_step = 1;
        state.validation.best_value = 2.5;
        saver.amend(state);
        if (!is_written) CHECK(finish(saver, rank).saved);
      });
      const auto told = fsdp::read_run_manifest(out / "latest").state;
      CHECK(told.validation.best_value == 2.5);
      CHECK_FALSE(told.validation_due);
    }
  }

  TEST_CASE("what a killed save has left is tidied up, what is not a save's stays") {
    const TempDir dir;
    const SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    const auto out = dir / "out";
    for (const char* name : {".step-00000007.tmp", ".step-00000003.old", ".step-00000005.old", "step-00000005", "mine"})
      std::filesystem::create_directories(out / name);
    fsdp::run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      const CheckpointSaver saver(rank.runtime, rank.trainer->optimizer(), out, 0);
    });
    std::vector<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator(out)) left.push_back(entry.path().filename());
    std::sort(left.begin(), left.end());
    CHECK(left == std::vector<std::string>{"mine", "step-00000003", "step-00000005"});
  }

  TEST_CASE("a tied head stands in the checkpoint under both of its names, minGPT's and Llama's") {
    const TempDir dir;
    SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    for (const auto architecture : {fsdp::Architecture::mingpt, fsdp::Architecture::llama}) {
      const bool llama = architecture == fsdp::Architecture::llama;
      const auto out = dir / (llama ? "llama" : "mingpt");
      job.model.architecture = architecture;
      job.model.tie_word_embeddings = true;
      job.model.num_kv_heads = llama ? 1 : job.model.num_kv_heads;
      fsdp::run_thread_ranks(2, 2, [&](ProcessGroup& world) {
        SmallJobRank rank(world, job);
        CheckpointSaver saver(rank.runtime, rank.trainer->optimizer(), out, 0);
        auto manifest = manifest_of(rank);
        manifest.config = job.model;
        saver.start(manifest, 1e-3);
        CHECK(finish(saver, rank).saved);
      });
      const fsdp::Checkpoint checkpoint(out / "latest");
      CHECK(checkpoint.tensor(llama ? "model.model.embed_tokens.weight" : "model.transformer.wte.weight"));
      CHECK(checkpoint.tensor("model.lm_head.weight"));
    }
  }

  TEST_CASE("another model's checkpoint is refused by tensor and shapes") {
    const TempDir dir;
    SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    fsdp::run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      CheckpointSaver saver(rank.runtime, rank.trainer->optimizer(), dir / "out", 0);
      save(saver, rank);
      job.model.ffn_hidden_size = 32;
      SmallJobRank other(world, job);
      std::string message;
      try {
        fsdp::load_checkpoint(other.runtime, nullptr, fsdp::Checkpoint(dir / "out/latest"));
      } catch (const fsdp::FormatError& error) {
        message = error.what();
      }
      CHECK(message.find("mlp.c_fc") != std::string::npos);
      CHECK(message.find("28") != std::string::npos);
      CHECK(message.find("32") != std::string::npos);
    });
  }
}
