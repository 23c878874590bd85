#include "lib/checkpoints/source/source.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>

#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {
namespace {

static_assert(std::is_trivially_copyable_v<ReadSum>);

std::string gather_bytes(ProcessGroup& group, std::span<const ReadSum> local) {
  std::string all;
  for (const auto& part : group.gather({reinterpret_cast<const char*>(local.data()), local.size_bytes()}, 0))
    all += part;
  return all;
}

std::vector<ReadSum> sums_of(std::string_view bytes) {
  std::vector<ReadSum> sums(bytes.size() / sizeof(ReadSum));
  if (!sums.empty()) std::memcpy(sums.data(), bytes.data(), bytes.size());
  return sums;
}

}  // namespace

std::uint64_t SourceTensor::size_bytes() const {
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(element_count(shape), dtype_size_bytes(dtype), &bytes)) {
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
    const auto last = name.substr(name.rfind('.') + 1);  // npos + 1 == 0: the whole name
    return tensor.shape.size() == 1 && (last == "flat_param" || last == "_flat_param");
  };
  return std::any_of(source.tensors().begin(), source.tensors().end(), is_flat);
}

std::vector<ReadSum> gather_sums(ProcessGroup& group, std::span<const ReadSum> local) {
  return sums_of(gather_bytes(group, local));
}

std::vector<ReadSum> all_gather_sums(ProcessGroup& group, std::span<const ReadSum> local) {
  return sums_of(group.broadcast_text(gather_bytes(group, local), 0));
}

}  // namespace fsdp
