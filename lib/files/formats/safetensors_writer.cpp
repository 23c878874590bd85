#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "lib/base/error.hpp"
#include "lib/base/json_text.hpp"
#include "lib/base/shared_write.hpp"
#include "lib/files/formats/byte_sink.hpp"
#include "lib/files/formats/safetensors.hpp"
#include "lib/files/formats/zip_format.hpp"

namespace fsdp {
namespace {

/// The reference writer's order of types: by descending alignment, then as its enumeration lists them.
std::ptrdiff_t reference_rank(DType dtype) {
  constexpr std::array order{DType::u64,       DType::i64,     DType::f64, DType::f32, DType::u32,
                             DType::i32,       DType::bf16,    DType::f16, DType::u16, DType::i16,
                             DType::f8_e4m3fn, DType::f8_e5m2, DType::i8,  DType::u8,  DType::boolean};
  return std::find(order.begin(), order.end(), dtype) - order.begin();
}

void check_whole(const ShardRecord& tensor) {
  const bool whole = tensor.sizes == tensor.global_shape && tensor.offsets.size() == tensor.sizes.size() &&
                     std::all_of(tensor.offsets.begin(), tensor.offsets.end(), [](auto offset) { return offset == 0; });
  if (!whole ||
      static_cast<std::uint64_t>(num_elements(tensor.sizes)) * dtype_size_bytes(tensor.dtype) != tensor.data.size()) {
    throw UsageError("tensor \"" + tensor.name + "\": safetensors files take whole tensors only");
  }
}

/// The entries' numbers in the order in which the file holds them.
std::vector<std::size_t> file_order(std::span<const SafetensorsItem> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) {
    return std::pair(reference_rank(tensors[a].dtype), std::string_view(tensors[a].name)) <
           std::pair(reference_rank(tensors[b].dtype), std::string_view(tensors[b].name));
  });
  return order;
}

/// As the file has it, in case the text is not UTF-8 a message about it.
std::string quoted(const std::string& name) {
  try {
    return json_text(nlohmann::json(name));
  } catch (const nlohmann::json::exception&) {
    throw UsageError("a tensor's name is not UTF-8, which safetensors needs; give it another with --rename");
  }
}

void write_all(const std::filesystem::path& path, const SafetensorsPlan& plan, std::span<const ShardRecord> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    return std::pair(plan.offsets[a], tensors[a].data.size()) < std::pair(plan.offsets[b], tensors[b].data.size());
  });
  ByteSink sink(path);
  sink.write(plan.head);
  for (const auto number : order) sink.write(tensors[number].data);
  sink.finish();
}

}  // namespace

SafetensorsPlan plan_safetensors(std::span<const SafetensorsItem> tensors,
                                 const std::map<std::string, std::string>& metadata) {
  SafetensorsPlan plan;
  plan.offsets.resize(tensors.size());
  std::string text = "{";
  const auto add = [&text](const std::string& name, const std::string& json) {
    text += (text.size() > 1 ? "," : "") + name + ":" + json;
  };
  std::set<std::string_view> names;
  std::uint64_t at = 0;
  if (!metadata.empty()) add("\"__metadata__\"", json_text(nlohmann::json(metadata)));
  for (const auto number : file_order(tensors)) {
    const auto& tensor = tensors[number];
    if (!names.insert(tensor.name).second || tensor.name == "__metadata__") {
      throw UsageError("tensor \"" + tensor.name + "\" would be written twice");
    }
    std::string_view dtype;
    try {
      dtype = safetensors_name(tensor.dtype);
    } catch (const UsageError& error) {
      throw UsageError("tensor \"" + tensor.name + "\": " + error.what());
    }
    const auto end = at + static_cast<std::uint64_t>(num_elements(tensor.shape)) * dtype_size_bytes(tensor.dtype);
    const auto& shape = tensor.other ? tensor.other->shape : tensor.shape;
    add(quoted(tensor.name), "{\"dtype\":\"" + (tensor.other ? tensor.other->name : std::string(dtype)) +
                                 "\",\"shape\":" + json_text(nlohmann::json(shape)) + ",\"data_offsets\":[" +
                                 std::to_string(at) + "," + std::to_string(end) + "]}");
    plan.offsets[number] = at;
    at = end;
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  detail::append_le(plan.head, std::uint64_t{text.size()});
  plan.head += text;
  for (auto& offset : plan.offsets) offset += plan.head.size();
  plan.size_bytes = plan.head.size() + at;
  return plan;
}

void write_safetensors(const std::filesystem::path& path, std::span<const ShardRecord> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsItem> items;
  for (const auto& tensor : tensors) {
    check_whole(tensor);
    items.push_back({tensor.name, tensor.dtype, tensor.sizes});
  }
  const auto plan = plan_safetensors(items, metadata);
  const auto temporary = path.parent_path() / ("." + path.filename().string() + "." + process_tag() + ".tmp");
  std::error_code error, ignored;
  try {
    write_all(temporary, plan, tensors);
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
