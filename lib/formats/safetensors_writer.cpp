#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/base/error.hpp"
#include "lib/formats/byte_sink.hpp"
#include "lib/formats/safetensors.hpp"
#include "lib/formats/zip_format.hpp"

namespace fsdp {
namespace {

using Order = std::vector<const ShardRecord*>;

/// The reference writer's order of types: by descending alignment, then as its enumeration lists them.
std::ptrdiff_t reference_rank(DType dtype) {
  constexpr std::array order{DType::u64,       DType::i64,     DType::f64, DType::f32, DType::u32,
                             DType::i32,       DType::bf16,    DType::f16, DType::u16, DType::i16,
                             DType::f8_e4m3fn, DType::f8_e5m2, DType::i8,  DType::u8,  DType::boolean};
  return std::find(order.begin(), order.end(), dtype) - order.begin();
}

Order check_and_sort(std::span<const ShardRecord> tensors) {
  Order order;
  for (const auto& tensor : tensors) {
    const bool whole =
        tensor.sizes == tensor.global_shape && tensor.offsets.size() == tensor.sizes.size() &&
        std::all_of(tensor.offsets.begin(), tensor.offsets.end(), [](auto offset) { return offset == 0; });
    if (!whole ||
        static_cast<std::uint64_t>(num_elements(tensor.sizes)) * dtype_size_bytes(tensor.dtype) != tensor.data.size()) {
      throw UsageError("tensor \"" + tensor.name + "\": safetensors files take whole tensors only");
    }
    safetensors_name(tensor.dtype);  // refuses complex types
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(reference_rank(a->dtype), std::string_view(a->name)) <
           std::pair(reference_rank(b->dtype), std::string_view(b->name));
  });
  return order;
}

std::string make_header(const Order& order, const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto add = [&text](const std::string& name, const std::string& json) {
    text += (text.size() > 1 ? "," : "") + nlohmann::json(name).dump() + ":" + json;
  };
  std::set<std::string_view> names;
  std::uint64_t at = 0;
  if (!metadata.empty()) add("__metadata__", nlohmann::json(metadata).dump());
  for (const auto* tensor : order) {
    if (!names.insert(tensor->name).second || tensor->name == "__metadata__") {
      throw UsageError("tensor \"" + tensor->name + "\" would be written twice");
    }
    const auto end = at + tensor->data.size();
    add(tensor->name, "{\"dtype\":\"" + std::string(safetensors_name(tensor->dtype)) +
                          "\",\"shape\":" + nlohmann::json(tensor->sizes).dump() + ",\"data_offsets\":[" +
                          std::to_string(at) + "," + std::to_string(end) + "]}");
    at = end;
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string header;
  detail::append_le(header, std::uint64_t{text.size()});
  return header + text;
}

void write_all(const std::filesystem::path& path, const std::string& header, const Order& order) {
  ByteSink sink(path);
  sink.write(header);
  for (const auto* tensor : order) sink.write(tensor->data);
  sink.finish();
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const ShardRecord> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const Order order = check_and_sort(tensors);
  const std::string header = make_header(order, metadata);
  const auto temporary =
      path.parent_path() / ("." + path.filename().string() + "." + std::to_string(::getpid()) + ".tmp");
  std::error_code error, ignored;
  try {
    write_all(temporary, header, order);
  } catch (...) {
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  std::filesystem::rename(temporary, path, error);
  if (error) {
    std::filesystem::remove(temporary, ignored);
    throw IoError(path.string() + ": cannot replace: " + error.message());
  }
  sync_directory(path.has_parent_path() ? path.parent_path() : ".");
}

}  // namespace fsdp
