#pragma once
// Loads matrices in 4 bits: each rank makes the blocks that it keeps from a matrix of floating-point numbers, or takes
// those that bitsandbytes made.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "lib/checkpoints/source/stored_quantization.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/training/state/load/row_reader.hpp"
#include "lib/training/state/load/weight_hash.hpp"

namespace fsdp::detail {

class QuantizedLoader {
 public:
  explicit QuantizedLoader(ModelRuntime& runtime);

  bool is_quantized(std::size_t param) const;
  /// This rank's codes, and its scales as far as it can know them alone.
  /// \param stored  where its parts are; null: `tensor` has the matrix itself
  /// \param hash    takes what is read; may be null
  /// \throws FormatError naming a matrix with elements that are not finite
  void read(std::size_t param, RowReader& reader, std::size_t tensor, const StoredNf4* stored, WeightHash* hash);
  /// Computes what the scales of a matrix share over all ranks. Collective; call it when everything has been read.
  void finish();

 private:
  void read_stored(std::size_t param, RowReader& reader, const StoredNf4& stored, WeightHash* hash);
  /// This rank's rows of the parameter `name`. \param rows  as many as it has
  void put(const std::string& name, const at::Tensor& rows);
  /// Its rows of what all ranks have whole.
  void put_own_rows(const std::string& name, const at::Tensor& whole);
  std::size_t param(const std::string& name) const { return numbers_.at(name); }

  ModelRuntime& runtime_;
  std::map<std::string, std::size_t> numbers_;
  std::map<std::size_t, at::Tensor> absmax_;  ///< by matrix: of this rank's blocks, until finish()
};

}  // namespace fsdp::detail
