#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <chrono>
#include <thread>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/ranks/thread_group.hpp"
#include "tests/gpu/gpu_support.hpp"

namespace {

at::TensorOptions floats(int device = 0) {
  return at::TensorOptions(at::kFloat).device(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
}

void gather(fsdp::TensorCollectives& collectives, const at::Tensor& shard, const at::Tensor& full) {
  const fsdp::TensorGather one{shard, full};
  collectives.all_gather(std::span(&one, 1))->wait();
}

void reduce(fsdp::TensorCollectives& collectives, const fsdp::TensorReduce& one) {
  collectives.reduce_scatter(std::span(&one, 1))->wait();
}

}  // namespace

TEST_SUITE("gpu/nccl") {
  TEST_CASE("all_gather: with one rank, a group of tensors of several dtypes and odd sizes arrives unchanged") {
    const auto backend = cuda_backend();
    const auto group = fsdp::make_single_group();
    const auto collectives = backend->make_collectives(*group, 0);
    CHECK(collectives->rank() == 0);
    CHECK(collectives->size() == 1);
    std::vector<fsdp::TensorGather> gathers;
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto shard = small_integers(1021, dtype);
      gathers.push_back({shard, at::zeros_like(shard)});
    }
    collectives->all_gather(gathers)->wait();
    for (const auto& [shard, full] : gathers) CHECK(same(shard, full));
    gather(*collectives, gathers[0].full, gathers[0].full);  // in place
    CHECK(same(gathers[0].shard, gathers[0].full));
  }

  TEST_CASE("reduce_scatter: with one rank, each wire dtype arrives in float32, replacing or adding") {
    const auto backend = cuda_backend();
    const auto group = fsdp::make_single_group();
    const auto collectives = backend->make_collectives(*group, 0);
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      CAPTURE(c10::toString(dtype));
      const auto full = small_integers(513, dtype);
      const auto shard = at::full({513}, 1.0, floats());
      reduce(*collectives, {full, shard, false});
      CHECK(same(shard, full));
      reduce(*collectives, {full, shard, true});
      CHECK(same(shard, full.to(at::kFloat) * 2));
    }
  }

  TEST_CASE("all_reduce: with one rank, tensors stay unchanged") {
    const auto backend = cuda_backend();
    const auto group = fsdp::make_single_group();
    const auto collectives = backend->make_collectives(*group, 0);
    const std::vector<at::Tensor> tensors{small_integers(7, at::kFloat), small_integers(300, at::kFloat, 5)};
    collectives->all_reduce(tensors)->wait();
    CHECK(same(tensors[0], small_integers(7, at::kFloat)));
    CHECK(same(tensors[1], small_integers(300, at::kFloat, 5)));
  }

  TEST_CASE("all_to_all: with one rank, the sent tensors arrive") {
    const auto backend = cuda_backend();
    const auto group = fsdp::make_single_group();
    const auto collectives = backend->make_collectives(*group, 0);
    const auto sent = small_integers(1001, at::kBFloat16), received = at::zeros_like(sent);
    const fsdp::TensorExchange one{sent, received};
    collectives->all_to_all(std::span(&one, 1))->wait();
    CHECK(same(received, sent));
  }

  TEST_CASE("wait: orders the compute stream after the transfer although buffers are freed and reused at once") {
    const auto backend = cuda_backend();
    const auto group = fsdp::make_single_group();
    const auto collectives = backend->make_collectives(*group, 0);
    constexpr std::int64_t kElements = 8 << 20;
    std::vector<at::Tensor> wrong_counts;
    for (int round = 0; round < 30; ++round) {
      // The shard is written right before the gather, its result is read right after, and both are freed while the
      // device still works on them: without correct ordering another round's value appears.
      const auto shard = at::full({kElements}, double(round), floats());
      const auto full = at::empty({kElements}, floats());
      const fsdp::TensorGather one{shard, full};
      const auto work = collectives->all_gather(std::span(&one, 1));
      if (round % 3 == 2) continue;  // dropped without wait: must not corrupt the next rounds' memory
      work->wait();
      wrong_counts.push_back(full.ne(double(round)).sum());
    }
    backend->synchronize(0);
    for (const auto& count : wrong_counts) CHECK(count.item<std::int64_t>() == 0);
  }

  TEST_CASE("make_collectives: two ranks on one GPU are refused with a reason, without a hang") {
    const auto backend = cuda_backend();
    CHECK_THROWS_AS(
        fsdp::run_thread_ranks(2, 2, [&](fsdp::ProcessGroup& group) { backend->make_collectives(group, 0); }),
        fsdp::RuntimeFailure);
  }

  TEST_CASE("collectives: wrong tensors are refused before they reach NCCL") {
    const auto backend = cuda_backend();
    const auto group = fsdp::make_single_group();
    const auto collectives = backend->make_collectives(*group, 0);
    const auto on_host = at::zeros({4}, at::kFloat);
    CHECK_THROWS_AS(gather(*collectives, on_host, on_host), std::logic_error);
    CHECK_THROWS_AS(gather(*collectives, at::zeros({4}, floats()), at::zeros({5}, floats())), std::logic_error);
    CHECK_THROWS_AS(reduce(*collectives, {at::zeros({4}, floats()), at::zeros({4}, floats()).to(at::kBFloat16), false}),
                    std::logic_error);
  }

  TEST_CASE("collectives: two devices exchange and sum exactly") {
    const auto backend = cuda_backend();
    if (backend->device_count() < 2) {
      MESSAGE("skipped: one device only");
      return;
    }
    fsdp::run_thread_ranks(2, 2, [&](fsdp::ProcessGroup& group) {
      const int rank = group.rank();
      backend->set_device(rank);
      const auto collectives = backend->make_collectives(group, rank);
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        const auto mine = small_integers(301, dtype, 20 * rank, rank);
        const auto full = at::zeros({602}, mine.options());
        gather(*collectives, mine, full);
        CHECK(same(full.narrow(0, 0, 301), small_integers(301, dtype, 0)));
        CHECK(same(full.narrow(0, 301, 301), small_integers(301, dtype, 20)));

        const auto shard = at::zeros({301}, floats(rank));
        const auto grad = small_integers(602, dtype, rank, rank);
        const auto sum = small_integers(602, at::kDouble, 0) + small_integers(602, at::kDouble, 1);
        for (int round = 1; round <= 2; ++round) {
          reduce(*collectives, {grad, shard, round > 1});
          CHECK(same(shard, sum.narrow(0, 301 * rank, 301) * round));
        }
        const std::vector<at::Tensor> tensors{grad.to(at::kFloat)};
        collectives->all_reduce(tensors)->wait();
        CHECK(same(tensors[0], sum));
      }
      backend->synchronize(rank);
    });
  }

  TEST_CASE("synchronize: a rank that never joins a collective is an error after the timeout, not a hang") {
    const auto backend = cuda_backend();
    if (backend->device_count() < 2) {
      MESSAGE("skipped: one device only");
      return;
    }
    bool in_compute = false;
    const auto body = [&](fsdp::ProcessGroup& group) {
      const int rank = group.rank();
      backend->set_device(rank);
      const auto ops = backend->make_ops(rank);
      const auto collectives = backend->make_collectives(group, rank);
      const std::vector<at::Tensor> tensors{small_integers(64, at::kFloat, 0, rank)};
      const auto other = tensors[0].clone();
      collectives->all_reduce(tensors)->wait();  // connects the ranks
      backend->synchronize(rank);
      if (rank == 1) {
        std::this_thread::sleep_for(std::chrono::seconds(12));
        return;
      }
      auto gather = collectives->all_reduce(tensors);
      static_cast<void>(ops->to_host(other));  // does not wait for the collective
      gather->wait();
      in_compute ? static_cast<void>(ops->to_host(other)) : backend->synchronize(rank);
    };
    for (const bool compute : {false, true}) {
      in_compute = compute;
      CHECK_THROWS_AS(fsdp::run_thread_ranks(2, 2, body, std::chrono::seconds(5)), fsdp::RuntimeFailure);
    }
  }
}
