#pragma once
// Finds a block's tensors among its parameters by their names.
#include <cstdint>
#include <string>
#include <unordered_map>

#include "lib/models/layers/linear_group.hpp"

namespace fsdp::detail {

class PlaceFinder {
 public:
  /// \param prefix  common prefix of the names of the block's parameters, including the dot
  /// \pre the decoder's parameters are set
  PlaceFinder(const Decoder& decoder, int block, std::string prefix);

  /// Returns the index of a parameter; -1 if there is none.
  int find(const std::string& name) const;

  /// Returns the matrix [rows, columns] with its bias, 4-bit scales and adapter, if it has them.
  /// \throws std::logic_error if there is no such matrix
  Linear linear(const std::string& module, std::int64_t rows, std::int64_t columns) const;

 private:
  std::string prefix_;
  std::unordered_map<std::string, int> places_;
};

}  // namespace fsdp::detail
