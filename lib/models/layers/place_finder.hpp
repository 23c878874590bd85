#pragma once
// Finds a block's tensors among its parameters by their names.
#include <cstdint>
#include <string>
#include <unordered_map>

#include "lib/models/layers/linear_group.hpp"

namespace fsdp::detail {

class PlaceFinder {
 public:
  /// \param prefix  what the names of all of the block's parameters begin with, its dot included
  /// \pre the decoder's parameters are set
  PlaceFinder(const Decoder& decoder, int block, std::string prefix);

  /// -1: there is none.
  int find(const std::string& name) const;

  /// The matrix of [rows, columns] with its bias, its scales in 4 bits and its adapter, where it has them.
  /// \throws std::logic_error when there is no such matrix
  Linear linear(const std::string& module, std::int64_t rows, std::int64_t columns) const;

 private:
  std::string prefix_;
  std::unordered_map<std::string, int> places_;
};

}  // namespace fsdp::detail
