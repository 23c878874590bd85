#include "lib/checkpoints/transform/transform.hpp"

#include <string_view>
#include <unordered_set>

#include "lib/base/types/error.hpp"

namespace fsdp {

void check_read(const SourceTensor& tensor, std::uint64_t first, std::uint64_t count, std::size_t out_bytes) {
  const auto all = element_count(tensor.shape);
  if (first > all || count > all - first) {
    throw std::invalid_argument("tensor \"" + tensor.name + "\" has " + std::to_string(all) + " elements, not " +
                                std::to_string(count) + " from " + std::to_string(first));
  }
  if (out_bytes != count * dtype_size_bytes(tensor.dtype)) {
    throw std::invalid_argument("tensor \"" + tensor.name + "\": " + std::to_string(count) + " elements do not fill " +
                                std::to_string(out_bytes) + " bytes");
  }
}

void check_unique_names(const Source& source) {
  std::unordered_set<std::string_view> names;
  const auto check = [&](const std::string& name) {
    if (name.empty()) throw RequestError("a tensor would have an empty name");
    if (!names.insert(name).second) throw RequestError("two tensors or values would have the name \"" + name + "\"");
  };
  for (const auto& tensor : source.tensors()) check(tensor.name);
  for (const auto& value : source.values()) check(value.name);
}

}  // namespace fsdp
