#pragma once
// Reads tests/fixtures/numerics, and recreates tensors with its prng.py.
#include "tests/unit/engine/fsdp/engine_rig.hpp"

#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tests/support/read_tensor.hpp"

namespace fsdp::test {

inline std::filesystem::path numerics_folder(const char* name) {
  return std::filesystem::path(FSDP_FIXTURE_DIR) / "numerics" / name;
}

inline nlohmann::json read_json(const std::filesystem::path& file) {
  return nlohmann::json::parse(std::ifstream(file));
}

inline at::Tensor int_tensor(const nlohmann::json& rows) {
  const auto values = rows.get<std::vector<std::vector<std::int32_t>>>();
  std::vector<std::int32_t> flat;
  for (const auto& row : values) flat.insert(flat.end(), row.begin(), row.end());
  return at::tensor(flat, at::kInt).view({static_cast<std::int64_t>(values.size()), -1});
}

inline double relative(double got, double want) { return std::abs(got - want) / std::abs(want); }

/// Equals prng.py's tensor(name, seed, shape, amp, center) bit for bit.
inline at::Tensor prng_tensor(std::string_view name, std::uint64_t seed, const std::vector<std::int64_t>& shape,
                              double amp, double center) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  const auto mix = [](std::uint64_t z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  };
  auto tensor = at::empty(shape, at::kFloat);
  auto* out = tensor.data_ptr<float>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    const auto bits = mix(hash + seed * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(i));
    const double uniform = static_cast<double>(bits >> 40) / 16777216.0;
    out[i] = static_cast<float>(center + (2.0 * uniform - 1.0) * amp);
  }
  return tensor;
}

/// Returns the logits of the first step's rows before any step; every rank computes all of them and must agree.
inline at::Tensor all_logits(const Setup& setup, std::int64_t first_position = 0,
                             const std::shared_ptr<const Packing>& packing = nullptr) {
  at::Tensor first;
  std::mutex one_by_one;
  auto forward = setup;
  forward.steps = 0;
  train(forward, [&](RigRank& rank) {
    auto batch = rank.batch_of(setup.rows(0), 0, setup.rows(0).ids.size(0));
    batch.first_position = first_position;
    batch.packing = packing;
    const auto& decoder = rank.decoder();
    at::Tensor x;
    for (std::size_t s = 0; s < decoder.layers.size(); ++s)
      x = decoder.layers[s]->forward(rank.engine().gathered(s).params(), batch, x, nullptr);
    const auto logits = decoder.loss->logits(rank.engine().gathered(decoder.layers.size()).params(), x);
    const std::lock_guard lock(one_by_one);
    if (first.defined()) CHECK(same_bits(logits, first));
    first = logits;
  });
  return first;
}

/// The batch of training/lora: row 1 is padded, and row 0's prompt is not a target.
inline StepRows peft_batch() {
  const auto inputs = fsdp::test::read_json(std::filesystem::path(FSDP_FIXTURE_DIR) / "training/lora/inputs.json");
  const auto ids = int_tensor(inputs.at("input_ids")), labels = int_tensor(inputs.at("labels"));
  return {
      ids, at::cat({labels.narrow(1, 1, labels.size(1) - 1), at::full({labels.size(0), 1}, -100, at::kInt)}, 1), {}};
}

/// Calls body(setup) on 1 to 4 ranks, with every strategy and transport, recomputation, accumulation: for a seventh
/// of the combinations, or for all where FSDP_ALL is set.
template <typename Body>
void for_every_layout(const Setup& start, const Body& body) {
  int number = 0;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const auto sharding : kShardings) {
      for (const bool peer : {true, false}) {
        if (!tries(number++, 7)) continue;
        auto setup = start;
        setup.ranks = ranks;
        setup.ranks_per_node = is_hybrid(sharding) && ranks % 2 == 0 ? ranks / 2 : ranks;
        setup.policy.sharding = sharding;
        setup.policy.checkpoint_every = ranks == 3 ? 1 : 0;
        setup.peer_memory = peer;
        setup.accumulation = ranks == 1 ? 2 : 1;
        body(setup);
      }
    }
  }
}

}  // namespace fsdp::test
