#include "lib/models/layers/parameter_finder.hpp"

#include <stdexcept>
#include <utility>

#include "lib/base/types/index.hpp"

namespace fsdp::detail {

ParameterFinder::ParameterFinder(const Decoder& decoder, int block, std::string prefix)
    : decoder_(decoder), prefix_(std::move(prefix)) {
  const auto indices = block_parameters(decoder, block);
  for (std::size_t i = 0; i < indices.size(); ++i)
    places_.emplace(element(decoder.parameters, indices[i]).name, static_cast<int>(i));
}

int ParameterFinder::find(const std::string& name) const {
  const auto found = places_.find(prefix_ + name);
  return found == places_.end() ? -1 : found->second;
}

Linear ParameterFinder::linear(const std::string& module, std::int64_t rows, std::int64_t columns) const {
  const auto weight = module + ".weight";
  const int place = find(weight);
  if (place < 0) throw std::logic_error("the block has no " + weight);
  Linear linear;
  linear.weight = static_cast<std::size_t>(place);
  linear.bias = find(module + ".bias");
  linear.absmax = find(weight + kAbsmax);
  linear.nested_absmax = find(weight + kNestedAbsmax);
  linear.nested_offset = find(weight + kNestedOffset);
  linear.lora_a = find(module + ".lora_A.weight");
  linear.lora_b = find(module + ".lora_B.weight");
  linear.lora_b_bias = find(module + ".lora_B.bias");
  if (linear.lora_a >= 0) linear.adapter = decoder_.adapters.at(prefix_ + module);
  linear.magnitude = find(module + ".lora_magnitude_vector");
  linear.rows = rows;
  linear.columns = columns;
  return linear;
}

std::vector<int> block_parameters(const Decoder& decoder, int block) {
  std::vector<int> indices;
  for (std::size_t i = 0; i < decoder.parameters.size(); ++i) {
    if (decoder.parameters[i].block == block) indices.push_back(static_cast<int>(i));
  }
  return indices;
}

}  // namespace fsdp::detail
