#pragma once
// 4-bit matrices that bitsandbytes stored, as parameters.
#include "tests/unit/engine/fsdp/fixture_files.hpp"

#include <ATen/ops/full.h>

#include "lib/models/config/quantize_config.hpp"

namespace fsdp::test {

inline at::Tensor blocks_of(const at::Tensor& codes, std::int64_t blocks) {
  auto padded = at::full({blocks * 32}, 0x77, at::kByte);
  padded.narrow(0, 0, codes.numel()).copy_(codes.view({-1}));
  return padded.view({blocks, 32});
}

/// Returns a component of a matrix that bitsandbytes stored, by name.
inline at::Tensor stored_part(const SafetensorsReader& stored, const ParameterSpec& spec) {
  if (spec.name.ends_with(kNestedOffset)) {
    const auto matrix = spec.name.substr(0, spec.name.size() - std::string_view(kNestedOffset).size());
    const auto state = read_tensor(stored, matrix + ".quant_state.bitsandbytes__nf4");
    const std::string text(static_cast<const char*>(state.const_data_ptr()), static_cast<std::size_t>(state.numel()));
    return at::full({1}, nlohmann::json::parse(text).at("nested_offset").get<float>(), at::kFloat);
  }
  const auto tensor = read_tensor(stored, spec.name);
  return spec.stands_for > 0 ? blocks_of(tensor, spec.shape[0]) : tensor;
}

}  // namespace fsdp::test
