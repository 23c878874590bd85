#pragma once
// Exact checks that every kind of process group must pass. All ranks of `group` call each function.
#include "tests/support/torch_doctest.hpp"

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "lib/engine/collectives/tensor_collectives.hpp"
#include "lib/ranks/process_group.hpp"
#include "tests/support/tensor_compare.hpp"

namespace fsdp::test {

inline std::vector<std::byte> pattern(int rank, std::size_t n) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i)
    bytes[i] = static_cast<std::byte>(static_cast<std::size_t>(rank) * 37 + i * 11 + 5);
  return bytes;
}

inline void check_small_values(ProcessGroup& group) {
  const int size = group.size();
  group.barrier();
  // These values have no exact sum, so only a sum in rank order gives the expected bits.
  std::vector<double> values{0.1 * (group.rank() + 1), 1e16 / (group.rank() + 1), static_cast<double>(group.rank())};
  std::vector<double> sums{0.1, 1e16, 0.0};
  for (int r = 1; r < size; ++r) {
    sums[0] += 0.1 * (r + 1);
    sums[1] += 1e16 / (r + 1);
    sums[2] += r;
  }
  auto all = values;
  group.all_reduce(all, Reduce::sum);
  CHECK(all == sums);
  CHECK(group.all_reduce(static_cast<double>(group.rank()), Reduce::max) == size - 1);
  CHECK(group.all_reduce(static_cast<double>(-group.rank()), Reduce::min) == 1 - size);
  for (int root = 0; root < size; ++root) {
    for (const std::size_t n : {0u, 1u, 7u, 8u, 5003u}) {
      auto bytes = pattern(group.rank(), n);
      group.broadcast(bytes, root);
      CHECK((bytes == pattern(root, n)));
    }
    CHECK(group.broadcast_text(group.rank() == root ? "from " + std::to_string(root) : "", root) ==
          "from " + std::to_string(root));
    const std::string mine(static_cast<std::size_t>(group.rank()) * 3,
                           static_cast<char>('a' + group.rank()));  // empty on rank 0
    const auto texts = group.gather(mine, root);
    REQUIRE(texts.size() == (group.rank() == root ? static_cast<std::size_t>(size) : 0u));
    for (std::size_t r = 0; r < texts.size(); ++r) CHECK(texts[r] == std::string(r * 3, static_cast<char>('a' + r)));
  }
}

inline void check_blocks(ProcessGroup& group) {
  const auto size = static_cast<std::size_t>(group.size());
  const auto rank = static_cast<std::size_t>(group.rank());
  const std::vector<std::size_t> lengths{1, 6, 8, 40'004};
  for (const bool in_place : {false, true}) {
    std::vector<std::vector<std::byte>> in, out;
    for (const auto n : lengths) {
      in.push_back(pattern(group.rank(), n));
      out.emplace_back(n * size);
      if (in_place) std::memcpy(out.back().data() + rank * n, in.back().data(), n);
    }
    std::vector<GatherBlock> blocks;
    for (std::size_t b = 0; b < in.size(); ++b) {
      const auto own = std::span(out[b]).subspan(rank * lengths[b], lengths[b]);
      blocks.push_back({in_place ? std::span<const std::byte>(own) : std::span<const std::byte>(in[b]), out[b]});
    }
    group.all_gather(blocks)->wait();
    for (std::size_t b = 0; b < in.size(); ++b) {
      std::vector<std::byte> want;
      for (int r = 0; r < group.size(); ++r) {
        const auto part = pattern(r, lengths[b]);
        want.insert(want.end(), part.begin(), part.end());
      }
      CHECK((out[b] == want));
    }
  }
  // Starts two exchanges at once and waits for them in reverse order.
  std::vector<std::vector<std::byte>> in, out;
  std::vector<std::unique_ptr<Work>> works;
  for (const auto n : lengths) {
    in.push_back(pattern(group.rank(), n * size));
    out.emplace_back(n * size);
    const ExchangeBlock block{in.back(), out.back()};
    works.push_back(group.all_to_all(std::span(&block, 1)));
  }
  for (std::size_t w = works.size(); w-- > 0;) works[w]->wait();
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    for (std::size_t r = 0; r < size; ++r) {
      const auto sent = pattern(static_cast<int>(r), lengths[b] * size);
      CHECK(std::equal(sent.begin() + static_cast<std::ptrdiff_t>(rank * lengths[b]),
                       sent.begin() + static_cast<std::ptrdiff_t>((rank + 1) * lengths[b]),
                       out[b].begin() + static_cast<std::ptrdiff_t>(r * lengths[b])));
    }
  }
}

/// Every rank writes its part of shared memory and reads the parts of all ranks. \return false when the ranks share no
/// memory
inline bool check_peer_memory(ProcessGroup& group) {
  const auto size = static_cast<std::size_t>(group.size());
  const auto rank = static_cast<std::size_t>(group.rank());
  constexpr std::size_t kPart = 10'001;
  const auto memory = group.peer_memory(kPart * size, size + 1);
  CHECK(group.all_reduce(memory == nullptr ? 0.0 : 1.0, Reduce::sum) == (memory == nullptr ? 0.0 : group.size()));
  if (memory == nullptr) return false;
  CHECK(memory->size_bytes() >= kPart * size);
  bool zero = true;
  for (std::size_t i = 0; i < kPart * size; ++i) zero = zero && memory->data()[i] == std::byte{0};
  CHECK((zero && memory->counter(size).value == 0));
  group.barrier();
  for (std::uint64_t round = 1; round <= 20; ++round) {
    const auto mine = pattern(group.rank() + static_cast<int>(round), kPart);
    std::memcpy(memory->data() + rank * kPart, mine.data(), kPart);
    memory->counter(rank).raise(round);
    for (std::size_t r = 0; r < size; ++r) {
      wait_for_counter(group, memory->counter(r), round, static_cast<int>(r), "a test");
      const auto theirs = pattern(static_cast<int>(r + round), kPart);
      CHECK(std::memcmp(memory->data() + r * kPart, theirs.data(), kPart) == 0);
    }
    group.barrier();
  }
  memory->counter(size).value.fetch_add(rank + 1);
  group.barrier();
  CHECK(memory->counter(size).value == size * (size + 1) / 2);
  return true;
}

inline at::Tensor rank_values(int rank, std::int64_t n, at::ScalarType type) {
  return (at::arange(n, at::kFloat) * 0.37f + static_cast<float>(rank) * 1.3f).sin().to(type);
}

/// Checks gathers and reductions of tensors: bit for bit equal to float32 sums in rank order.
inline void check_tensors(ProcessGroup& group) {
  const auto collectives = make_host_collectives(group);
  const int size = group.size();
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t rows : {1, 3, 500}) {
      const auto mine = rank_values(group.rank(), rows * 5, type).view({rows, 5});
      auto full = at::zeros({rows * size, 5}, type);
      full.narrow(0, rows * group.rank(), rows).copy_(mine);
      const TensorGather gathers[] = {{mine, at::zeros({rows * size, 5}, type)},
                                      {full.narrow(0, rows * group.rank(), rows), full}};
      collectives->all_gather(gathers)->wait();
      for (int r = 0; r < size; ++r) {
        const auto want = rank_values(r, rows * 5, type).view({rows, 5});
        for (const auto& gather : gathers) CHECK(same_bits(gather.full.narrow(0, rows * r, rows), want));
      }
      const auto shard_sum = [&](at::Tensor start) {
        for (int r = 0; r < size; ++r) {
          start.add_(rank_values(r, rows * size * 5, type)
                         .view({rows * size, 5})
                         .narrow(0, rows * group.rank(), rows)
                         .to(at::kFloat));
        }
        return start;
      };
      const auto sent = rank_values(group.rank(), rows * size * 5, type).view({rows * size, 5});
      const TensorReduce reduces[] = {{sent, at::full({rows, 5}, 7.5f), false},
                                      {sent, at::full({rows, 5}, 0.3f), true}};
      collectives->reduce_scatter(reduces)->wait();
      CHECK(same_bits(reduces[0].shard, shard_sum(at::zeros({rows, 5}))));
      CHECK(same_bits(reduces[1].shard, shard_sum(at::full({rows, 5}, 0.3f))));
    }
  }
  // Sizes that no number of ranks divides; one tensor is empty.
  std::vector<at::Tensor> tensors, want;
  for (const std::int64_t n : {1, 0, 7, 1001}) {
    tensors.push_back(rank_values(group.rank(), n, at::kFloat));
    want.push_back(at::zeros({n}));
    for (int r = 0; r < size; ++r) want.back().add_(rank_values(r, n, at::kFloat));
  }
  collectives->all_reduce(tensors)->wait();
  for (std::size_t i = 0; i < tensors.size(); ++i) CHECK(same_bits(tensors[i], want[i]));
}

inline void check_everything(ProcessGroup& group) {
  check_small_values(group);
  check_blocks(group);
  check_tensors(group);
  check_peer_memory(group);
}

/// Splits into groups of odd and even ranks, then splits these into halves.
inline void check_splits(ProcessGroup& group) {
  const auto parity = group.split(group.rank() % 2);
  CHECK(parity->rank() == group.rank() / 2);
  CHECK(parity->size() == (group.size() + 1 - group.rank() % 2) / 2);
  for (int r = 0; r < parity->size(); ++r) CHECK(parity->world_rank(r) == group.world_rank(2 * r + group.rank() % 2));
  check_everything(*parity);
  const auto alone = parity->split(parity->rank());
  CHECK(alone->size() == 1);
  CHECK(alone->world_rank(0) == group.world_rank(group.rank()));
  check_everything(*alone);
  group.barrier();
}

}  // namespace fsdp::test
