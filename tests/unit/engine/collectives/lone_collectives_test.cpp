// Collectives of a group of one against the host's, which use its process group.
#include "tests/support/tensor_compare.hpp"
#include "tests/support/torch_doctest.hpp"

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <array>

#include "lib/engine/collectives/tensor_collectives.hpp"
#include "lib/ranks/thread_group.hpp"

using namespace fsdp;
using fsdp::test::same_bits;

TEST_SUITE("comm/a group of one") {
  TEST_CASE("gathers, sums and exchanges like any group") {
    run_thread_ranks(1, 1, [](ProcessGroup& group) {
      const auto lone = make_lone_collectives(), host = make_host_collectives(group);
      CHECK(lone->rank() == 0);
      CHECK(lone->size() == 1);
      for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const auto from = at::randn({5, 7}).to(type);
        std::array<at::Tensor, 2> gathered, summed, exchanged;
        std::size_t i = 0;
        for (auto* collectives : {lone.get(), host.get()}) {
          gathered[i] = at::zeros({5, 7}, type);
          const TensorGather gather{from, gathered[i]};
          collectives->all_gather(std::span(&gather, 1))->wait();
          exchanged[i] = at::zeros({35}, type);
          const TensorExchange exchange{from, exchanged[i]};
          collectives->all_to_all(std::span(&exchange, 1))->wait();
          summed[i] = at::zeros({5, 7});
          for (const bool accumulate : {false, true, true}) {
            const TensorReduce reduce{from, summed[i], accumulate};
            collectives->reduce_scatter(std::span(&reduce, 1))->wait();
          }
          ++i;
        }
        CHECK(same_bits(gathered[0], from));
        CHECK(same_bits(gathered[0], gathered[1]));
        CHECK(same_bits(exchanged[0], exchanged[1]));
        CHECK(same_bits(summed[0], summed[1]));
        const auto before = summed[0].clone();
        CHECK_NOTHROW(lone->all_reduce(std::span(summed.data(), 1))->wait());
        CHECK(same_bits(summed[0], before));
      }
      // In place, and with a tensor without rows.
      const auto whole = at::randn({4, 3});
      const std::array<TensorGather, 2> gathers{TensorGather{whole, whole},
                                                TensorGather{at::zeros({0, 3}), at::zeros({0, 3})}};
      CHECK_NOTHROW(lone->all_gather(gathers)->wait());
      const TensorGather wrong{whole, at::zeros({5, 3})};
      CHECK_THROWS_AS(lone->all_gather(std::span(&wrong, 1)), std::logic_error);
    });
  }
}
