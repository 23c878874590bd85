#include "lib/files/read/source.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lib/base/error.hpp"
#include "lib/base/json_text.hpp"

namespace fsdp {

std::uint64_t SourceTensor::size_bytes() const {
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(num_elements(shape)), dtype_size_bytes(dtype), &bytes)) {
    throw FormatError("tensor \"" + name + "\" has more bytes than 64 bits can count");
  }
  return bytes;
}

nlohmann::json Source::model_config() const {
  return info_.model_config.empty() ? nlohmann::json() : parse_json(info_.model_config, info_.directory.string());
}

bool is_local_state(const Source& source) {
  const auto is_flat = [](const SourceTensor& tensor) {
    const std::string_view name = tensor.name;
    const auto last = name.substr(name.rfind('.') + 1);  // npos + 1 == 0: all of it
    return tensor.shape.size() == 1 && (last == "flat_param" || last == "_flat_param");
  };
  return std::any_of(source.tensors().begin(), source.tensors().end(), is_flat);
}

}  // namespace fsdp
