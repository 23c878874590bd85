// The gathers that an update starts for the next forward pass. The test's transfers happen only when they are waited
// for, so operations in between must read current values, and no gather may be left over.
#include "tests/support/small_model.hpp"
#include "tests/support/tensor_compare.hpp"
#include "tests/support/torch_doctest.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>

#include <algorithm>
#include <string>

#include "lib/engine/fsdp/engine.hpp"
#include "lib/engine/sharding/wrap.hpp"
#include "lib/models/layers/decoder.hpp"
#include "lib/ranks/thread_group.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

class LateCollectives final : public TensorCollectives {
 public:
  explicit LateCollectives(ProcessGroup& group) : inner_(make_host_collectives(group)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::unique_ptr<Work> all_gather(std::span<const TensorGather> tensors) override {
    const bool unit = std::any_of(tensors.begin(), tensors.end(), [](const auto& x) { return x.shard.dim() > 1; });
    asked += unit ? 'u' : 'l';
    return std::make_unique<LateGather>(*this, std::vector<TensorGather>(tensors.begin(), tensors.end()));
  }
  std::unique_ptr<Work> reduce_scatter(std::span<const TensorReduce> tensors) override {
    return inner_->reduce_scatter(tensors);
  }
  std::unique_ptr<Work> all_to_all(std::span<const TensorExchange> tensors) override {
    return inner_->all_to_all(tensors);
  }
  std::unique_ptr<Work> all_reduce(std::span<const at::Tensor> tensors) override { return inner_->all_reduce(tensors); }

  std::string asked;  ///< 'u': gather of a unit started, 'l': of largest values started, '.': waited
  int under_way = 0;
  int dropped = 0;  ///< gathers that were never waited for

 private:
  class LateGather final : public Work {
   public:
    LateGather(LateCollectives& owner, std::vector<TensorGather> tensors)
        : owner_(owner), tensors_(std::move(tensors)) {
      ++owner_.under_way;
    }
    LateGather(const LateGather&) = delete;
    LateGather& operator=(const LateGather&) = delete;
    ~LateGather() override { owner_.dropped += tensors_.empty() ? 0 : 1; }
    void wait() override {
      owner_.asked += '.';
      owner_.inner_->all_gather(tensors_)->wait();
      tensors_.clear();
      --owner_.under_way;
    }

   private:
    LateCollectives& owner_;
    std::vector<TensorGather> tensors_;
  };

  std::unique_ptr<TensorCollectives> inner_;
};

enum class Travel { as_they_are, in_8_bits };

/// An engine as ModelRuntime makes it, except for the transfers.
class LateEngine {
 public:
  LateEngine(ProcessGroup& world, LateCollectives& collectives, const EnginePolicy& policy, const char* wrap = "block",
             Travel travel = Travel::as_they_are, const ModelConfig& config = small_model())
      : decoder_(make_decoder(config, host_ops())), mesh_(make_mesh(world, policy.sharding, 0)) {
    EngineInput input;
    for (const auto& layer : decoder_.layers) input.layers.push_back(layer.get());
    input.loss = decoder_.loss.get();
    std::vector<WrapInput> wraps;
    for (const auto& spec : decoder_.parameters) {
      ParamLayout layout;
      layout.name = spec.name;
      layout.shape = spec.shape;
      layout.gathered_in_fp8 = travel == Travel::in_8_bits && spec.is_matrix_of_block();
      input.parameters.push_back(layout);
      wraps.push_back({layout.elements(), spec.block});
    }
    input.units = make_units(wraps, parse_wrap(wrap));
    input.ops = &host_ops();
    input.mesh = &mesh_;
    mesh_.connect(
        [&](ProcessGroup&) { return std::shared_ptr<TensorCollectives>(std::shared_ptr<void>(), &collectives); });
    input.allow_peer_memory = false;
    engine = std::make_unique<Engine>(input, policy);
    change([&](std::size_t i, const at::Tensor& rows) {
      rows.copy_(at::full_like(rows, 0.02 * static_cast<double>(i % 7) - 0.05 + 0.03 * world.rank()));
    });
    engine->sync_parameters();
  }

  void change(const std::function<void(std::size_t, const at::Tensor&)>& how) {
    for (std::size_t i = 0; i < engine->num_parameters(); ++i) how(i, engine->master_weight(i));
  }
  void update(double by) {
    for (const auto& params : engine->parameter_groups(UnitPass::update_and_cast)) {
      for (const auto i : params) engine->master_weight(i).add_(by * static_cast<double>(i % 3));
    }
  }

 private:
  Decoder decoder_;
  Mesh mesh_;

 public:
  std::unique_ptr<Engine> engine;  ///< destroyed before the members that it refers to
};

MicroBatch batch_of(int rank) {
  MicroBatch batch;
  batch.rows = 2;
  batch.length = 4;
  batch.ids_N = at::arange(8, at::kInt).add_(7 * rank);
  batch.targets_N = at::arange(8, at::kInt).add_(7 * rank + 1);
  return batch;
}

}  // namespace

TEST_SUITE("fsdp/first gathers") {
  TEST_CASE("a forward pass, an evaluation, replaced rows and single layers read current values") {
    run_thread_ranks(2, 2, [](ProcessGroup& world) {
      const at::NoGradGuard no_grad;
      for (const bool prefetch : {false, true}) {
        EnginePolicy policy;
        policy.forward_prefetch = prefetch;
        LateCollectives late(world), ordinary(world);
        LateEngine ahead(world, late, policy), plain(world, ordinary, policy);
        const auto batch = batch_of(world.rank());
        const auto check_alike = [&] {
          CHECK(ahead.engine->evaluate(batch).nats == plain.engine->evaluate(batch).nats);
          CHECK(late.under_way == 0);
        };
        const auto update_both = [&](double by) {
          ahead.update(by);
          CHECK(late.under_way == (prefetch ? 2 : 1));
          plain.change([&](std::size_t i, const at::Tensor& rows) { rows.add_(by * static_cast<double>(i % 3)); });
          plain.engine->sync_parameters();
        };
        update_both(0.01);
        check_alike();
        update_both(0.02);
        CHECK(ahead.engine->forward_backward(batch, {}, 1.0).nats ==
              plain.engine->forward_backward(batch, {}, 1.0).nats);
        CHECK(late.under_way == 0);
        CHECK(ahead.engine->counts().shard.all_gathers == plain.engine->counts().shard.all_gathers);

        update_both(0.03);
        for (auto* one : {&ahead, &plain}) {
          one->change([](std::size_t, const at::Tensor& rows) { rows.mul_(0.5); });
          one->engine->sync_parameters();
        }
        CHECK(late.under_way == 0);
        check_alike();

        update_both(0.04);
        for (std::size_t layer = 0; layer < 4; ++layer) {
          const auto seen = ahead.engine->gathered(layer), expected = plain.engine->gathered(layer);
          REQUIRE(seen.params().size() == expected.params().size());
          for (std::size_t i = 0; i < seen.params().size(); ++i)
            CHECK(same_bits(seen.params()[i], expected.params()[i]));
        }
        check_alike();
      }
    });
  }

  TEST_CASE("in every strategy, gathers that are not used are waited for") {
    run_thread_ranks(2, 2, [](ProcessGroup& world) {
      for (const auto sharding : {Sharding::full_shard, Sharding::grad_shard}) {
        for (const char* wrap : {"block", "none"}) {
          for (const bool limit : {true, false}) {
            EnginePolicy policy;
            policy.sharding = sharding;
            policy.forward_prefetch = true;
            policy.limit_all_gathers = limit;
            LateCollectives late(world);
            {
              LateEngine ahead(world, late, policy, wrap);
              ahead.update(0.01);
              const auto batch = batch_of(world.rank());
              ahead.engine->forward_backward(batch, {true, false}, 1.0);
              ahead.engine->forward_backward(batch, {false, true}, 1.0);
              ahead.update(0.01);
              CHECK(late.under_way == (std::string(wrap) == "none" ? 1 : 2));
            }
            CHECK(late.under_way == 0);
            CHECK(late.dropped == 0);
          }
        }
      }
    });
  }

  TEST_CASE("largest values of fp8 matrices are requested before gathers that would delay them") {
    run_thread_ranks(2, 2, [](ProcessGroup& world) {
      EnginePolicy policy;
      policy.forward_prefetch = true;
      auto config = small_model();
      config.ffn_hidden_size = 32;
      config.num_layers = 4;
      LateCollectives late(world);
      LateEngine ahead(world, late, policy, "block", Travel::in_8_bits, config);
      late.asked.clear();
      ahead.update(0.01);
      // Embedding and a block, whose gathers start; three other blocks, whose largest values are waited for together.
      CHECK(late.asked == "lu.ulll...");
    });
  }
}
