#include "lib/checkpoints/source/main_dtype.hpp"

#include <algorithm>
#include <map>
#include <string_view>

namespace fsdp {

std::string main_dtype(const Source& source, const std::function<std::uint64_t(const SourceTensor&)>& bytes_of) {
  std::map<std::string_view, std::uint64_t> bytes;
  for (const auto& tensor : source.tensors())
    if (is_float(tensor.dtype)) bytes[torch_name(tensor.dtype)] += bytes_of(tensor);
  const auto most =
      std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() || most->second == 0 ? "float32" : std::string(most->first);
}

}  // namespace fsdp
