#pragma once
// Finds a block's tensors among its parameters by their names.
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/base/types/index.hpp"
#include "lib/compute/tensor/layer.hpp"
#include "lib/models/layers/decoder.hpp"

namespace fsdp::detail {

/// A matrix, by the indices of its parts among the block's parameters; -1: no such part.
struct Linear {
  std::size_t weight = 0;
  int bias = -1;
  int absmax = -1, nested_absmax = -1, nested_offset = -1;  ///< scales, if the weight holds codes
  int lora_a = -1, lora_b = -1, lora_b_bias = -1, magnitude = -1;
  LoraModule adapter = {};             ///< of lora_a and lora_b
  std::int64_t rows = 0, columns = 0;  ///< size of the matrix

  /// For a group that is not to compute the gradient of the bias.
  Linear without_bias() const {
    auto same = *this;
    same.bias = -1;
    return same;
  }
};

class ParameterFinder {
 public:
  /// \param prefix  common prefix of the names of the block's parameters, including the dot
  /// \pre the decoder's parameters are set
  ParameterFinder(const Decoder& decoder, int block, std::string prefix);

  /// Returns the index of a parameter; -1 if there is none.
  int find(const std::string& name) const;

  /// Returns the matrix [rows, columns] with its bias, 4-bit scales and adapter, if it has them.
  /// \throws std::logic_error if there is no such matrix
  Linear linear(const std::string& module, std::int64_t rows, std::int64_t columns) const;

 private:
  const Decoder& decoder_;
  std::string prefix_;
  std::unordered_map<std::string, int> places_;
};

/// Returns the indices of the block's parameters, in the table's order.
std::vector<int> block_parameters(const Decoder& decoder, int block);

/// The parameter at a place that ParameterFinder returned; undefined for -1.
inline at::Tensor at_place(LayerParams p, int place) { return place < 0 ? at::Tensor() : element(p, place); }
/// Its gradient slot; null for -1.
inline GradSlot* at_place(LayerGrads g, int place) { return place < 0 ? nullptr : element(g, place); }

}  // namespace fsdp::detail
