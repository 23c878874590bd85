#include "lib/training/state/engine_shards.hpp"

#include <fstream>

#include "lib/base/types/error.hpp"
#include "tests/support/small_job.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/support/tensor_compare.hpp"

using fsdp::ProcessGroup;
using fsdp::Sharding;
using fsdp::test::FullState;
using fsdp::test::SmallJob;
using fsdp::test::SmallJobRank;
using fsdp::test::TempDir;

namespace {

void require_equal_states(const FullState& a, const FullState& b) {
  REQUIRE(a.master_weights.size() == b.master_weights.size());
  REQUIRE(a.states.size() == b.states.size());
  for (std::size_t i = 0; i < a.master_weights.size(); ++i) {
    CHECK(fsdp::test::same_bits(a.master_weights[i], b.master_weights[i]));
    for (const auto& [key, tensors] : a.states) {
      CAPTURE(key);
      if (tensors.size() > i && tensors[i].defined()) CHECK(fsdp::test::same_bits(tensors[i], b.states.at(key).at(i)));
    }
  }
}

/// Two steps, then saved. \return what was saved
FullState save_shards_of(SmallJob job, int ranks, Sharding sharding, const std::filesystem::path& directory) {
  FullState saved;
  job.sharding.sharding = sharding;
  job.sharding.shard_group_size = ranks == 4 ? 2 : 0;
  fsdp::run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
    SmallJobRank rank(world, job);
    rank.step();
    rank.step();
    collect_state(rank, saved);
    fsdp::save_shards(world, rank.runtime.mesh(), rank.runtime.engine(), &rank.trainer->optimizer(), directory);
  });
  return saved;
}

}  // namespace

TEST_SUITE("checkpoint/engine shards") {
  TEST_CASE("any ranks read what any other wrote, bit for bit, with each kind of optimizer's states") {
    const TempDir dir;
    SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    for (const std::string kind : {"adamw", "adamw8bit", "muon"}) {
      job.optimizer.kind = kind;
      job.optimizer.eight_bit.least_elements = 64;
      for (const auto& [ranks, sharding] :
           {std::pair{1, Sharding::full_shard}, {3, Sharding::full_shard}, {4, Sharding::hybrid_full_shard}}) {
        const auto folder = dir / (kind + std::to_string(ranks));
        CAPTURE(folder);
        const auto saved = save_shards_of(job, ranks, sharding, folder);
        CHECK_FALSE(std::filesystem::exists(folder.string() + ".tmp"));
        for (const int others : {1, 2, 3}) {
          FullState loaded;
          fsdp::run_thread_ranks(others, others, [&](ProcessGroup& world) {
            SmallJobRank rank(world, job);
            fsdp::load_shards(world, rank.runtime.engine(), &rank.trainer->optimizer(), folder);
            CHECK(rank.trainer->optimizer().steps() == 2);
            collect_state(rank, loaded);
          });
          require_equal_states(saved, loaded);
        }
      }
    }
  }

  TEST_CASE("what is there, or does not fit, is refused on all ranks") {
    const TempDir dir;
    SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    save_shards_of(job, 2, Sharding::full_shard, dir / "two");
    CHECK_THROWS_AS(save_shards_of(job, 2, Sharding::full_shard, dir / "two"), fsdp::RequestError);
    // Files of an interrupted save are removed; any other file stays.
    std::filesystem::create_directories(dir / "next.tmp");
    std::ofstream(dir / "next.tmp" / "__0_0.distcp") << "half";
    save_shards_of(job, 2, Sharding::full_shard, dir / "next");
    std::filesystem::create_directories(dir / "third.tmp");
    std::ofstream(dir / "third.tmp" / "thesis.tex") << "mine";
    CHECK_THROWS_AS(save_shards_of(job, 2, Sharding::full_shard, dir / "third"), fsdp::RequestError);
    CHECK(std::filesystem::file_size(dir / "third.tmp" / "thesis.tex") == 4);
    const auto load = [&](const SmallJob& other) {
      fsdp::run_thread_ranks(2, 2, [&](ProcessGroup& world) {
        SmallJobRank rank(world, other);
        fsdp::load_shards(world, rank.runtime.engine(), &rank.trainer->optimizer(), dir / "two");
      });
    };
    auto wider = job;
    wider.model.ffn_hidden_size = 32;
    CHECK_THROWS_AS(load(wider), fsdp::FormatError);
    auto deeper = job;
    deeper.model.num_layers = 3;
    CHECK_THROWS_AS(load(deeper), fsdp::FormatError);
    auto other = job;
    other.optimizer.kind = "muon";
    CHECK_THROWS_AS(load(other), fsdp::FormatError);
  }
}
