#pragma once
// A small DCP checkpoint of two ranks and its expected content.
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/checkpoints/programs/dcp/dcp.hpp"
#include "tests/support/cut_block.hpp"
#include "tests/unit/formats/formats_test_support.hpp"

namespace fsdp::test {

struct WholeTensor {
  DType dtype;
  Shape shape;
  Bytes bytes;
};

inline WholeTensor random_tensor(DType dtype, Shape shape, unsigned seed) {
  auto bytes = random_bytes(tensor_bytes(dtype, shape), seed);
  return {dtype, std::move(shape), std::move(bytes)};
}

inline Bytes cut(const WholeTensor& tensor, const Block& block) {
  return cut_block(tensor.bytes, tensor.shape, block, dtype_size_bytes(tensor.dtype));
}

struct SmallCheckpoint {
  std::map<std::string, WholeTensor> tensors{{"model.w", random_tensor(DType::f32, {4, 3}, 1)},
                                             {"model.b", random_tensor(DType::bf16, {3}, 2)},
                                             {"optim.m", random_tensor(DType::f32, {4, 3}, 3)},
                                             {"step", random_tensor(DType::i64, {}, 4)}};
  std::map<std::string, nlohmann::json> values{{"epoch", 3}, {"groups", {{{"lr", 0.1}, {"names", {"w", "b"}}}}}};

  /// Rows are split in two as by torch.chunk; scalars and values are on rank 0.
  void write(const std::filesystem::path& directory) const {
    std::vector<DcpItem> items;
    for (int rank = 0; rank < 2; ++rank) {
      DcpShardWriter writer(directory, rank);
      for (const auto& [key, value] : values) {
        if (rank == 0) writer.add_value(key, {key}, value);
      }
      for (const auto& [key, tensor] : tensors) {
        Block block{Shape(tensor.shape.size(), 0), tensor.shape};
        if (tensor.shape.empty() && rank == 1) continue;
        if (!tensor.shape.empty()) {
          const auto half = (tensor.shape[0] + 1) / 2;
          block.offsets[0] = rank * half;
          block.sizes[0] = rank == 0 ? half : tensor.shape[0] - half;
        }
        writer.add_tensor({key, tensor.dtype, tensor.shape, block.offsets, block.sizes, cut(tensor, block)}, {key});
      }
      const auto written = writer.finish();
      items.insert(items.end(), written.begin(), written.end());
    }
    write_dcp_metadata(directory, items);
  }
};

}  // namespace fsdp::test
