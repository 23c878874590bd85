#pragma once
// Measures the memory of an operation on meta tensors, which only record allocations.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>

#include "lib/compute/device/memory_recorder.hpp"
#include "lib/compute/meta/meta_ops.hpp"

namespace fsdp::test {

struct Room {
  std::int64_t allocations = 0;
  std::int64_t peak_bytes = 0;  ///< bytes beyond what was allocated before
  std::int64_t kept_bytes = 0;
  bool operator==(const Room&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const Room& room) {
  return out << room.allocations << " allocations, peak " << room.peak_bytes << ", kept " << room.kept_bytes;
}

struct Inputs {
  at::TensorOptions options;
  at::Tensor matrix(std::int64_t rows, std::int64_t columns) const { return at::zeros({rows, columns}, options); }
  at::Tensor floats(std::int64_t n) const { return at::zeros({n}, options.dtype(at::kFloat)); }
  at::Tensor vector(std::int64_t n) const { return at::zeros({n}, options); }
  at::Tensor ids(std::int64_t n) const { return at::zeros({n}, options.dtype(at::kInt)); }
};

/// Makes inputs and returns the operation to measure; the operation returns the tensors that it keeps.
using Operation = std::function<std::function<std::vector<at::Tensor>()>(const Ops& ops, const Inputs& in)>;

using Kept = std::vector<at::Tensor>;
/// Measures the second run, because the first one also makes what is made only once.
inline Room meta_room(const Operation& operation, at::ScalarType dtype, const MemoryRecorder& recorder,
                      const Ops& ops) {
  const auto run = operation(ops, {at::TensorOptions(dtype).device(at::kMeta)});
  (void)run();
  const auto first = recorder.log().records.size();
  const auto kept = run();
  Room room;
  for (std::size_t i = first; i < recorder.log().records.size(); ++i) {
    const auto& record = recorder.log().records[i];
    if (record.on_host || record.bytes == 0) continue;  // empty tensors need no allocation
    if (record.bytes > 0) ++room.allocations;
    room.kept_bytes += record.bytes;
    room.peak_bytes = std::max(room.peak_bytes, room.kept_bytes);
  }
  return room;
}

using OperationCase = std::pair<std::string, Operation>;

}  // namespace fsdp::test
