#include "lib/formats/safetensors.hpp"

#include <unistd.h>
#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "lib/base/files/shared_write.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/little_endian.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/formats/byte_sink.hpp"
#include "lib/formats/inside_directory.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // limit of the reference reader

/// Bits of an element of a type that the format has and DType lacks; 0 for any other name. A type that gets a row in
/// DType is read as that one.
/// Source: safetensors 0.8, tensor.rs (Dtype).
std::uint64_t bits_of_other(std::string_view type) {
  if (std::ranges::find(dtype_rows(), type, &DTypeRow::safetensors) != dtype_rows().end()) return 0;
  constexpr std::array<std::pair<std::string_view, std::uint64_t>, 6> types{
      {{"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}}};
  const auto found = std::ranges::find(types, type, [](const auto& known) { return known.first; });
  return found == types.end() ? 0 : found->second;
}

struct Header {
  nlohmann::json json;
  std::uint64_t data_begin_bytes;
};

Header read_header(const File& file) {
  const std::string name = file.path().string();
  const std::uint64_t file_bytes = file.size_bytes();
  std::string length_text(8, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(length_text.data(), 8)));
  const auto length = detail::read_le<std::uint64_t>(length_text, 0);
  if (length > kMaxHeaderBytes || length > file_bytes - 8) {
    throw FormatError(name, 0,
                      "is not a safetensors file or was cut short: its header would take " + std::to_string(length) +
                          " bytes, the file has " + std::to_string(file_bytes));
  }
  std::string text(length, '\0');
  file.read_at(8, std::as_writable_bytes(std::span(text.data(), text.size())));
  auto json = parse_json_or_discard(text, name);
  if (!text.starts_with('{') || !json.is_object()) throw FormatError(name, 8, "the header is not a JSON object");
  return {std::move(json), 8 + length};
}

class EntryParser {
 public:
  EntryParser(const File& file, std::uint64_t data_begin_bytes)
      : name_(file.path().string()), begin_(data_begin_bytes), data_bytes_(file.size_bytes() - data_begin_bytes) {}

  SafetensorsEntry parse(const std::string& tensor, const nlohmann::json& json) const {
    if (!json.is_object() || !json.contains("dtype") || !json["dtype"].is_string() || !json.contains("shape") ||
        !json["shape"].is_array() || json["shape"].size() > kMaxDims || !json.contains("data_offsets") ||
        !json["data_offsets"].is_array() || json["data_offsets"].size() != 2) {
      fail(tensor, "needs dtype, shape and data_offsets");
    }
    SafetensorsEntry entry;
    const auto& type = json["dtype"].get_ref<const std::string&>();
    const auto bits = bits_of_other(type);
    entry.dtype = bits != 0 ? DType::u8 : dtype(tensor, type);
    for (const auto& size : json["shape"]) entry.shape.push_back(static_cast<std::int64_t>(count(tensor, size)));
    const auto begin = count(tensor, json["data_offsets"][0]), end = count(tensor, json["data_offsets"][1]);
    if (begin > end || end > data_bytes_) {
      fail(tensor,
           "lies outside the file, which has " + std::to_string(data_bytes_) + " bytes of data; it may be cut short");
    }
    if (bits != 0) make_bytes(tensor, type, bits, end - begin, entry);
    std::uint64_t expected = 0;
    if (__builtin_mul_overflow(count_elements(tensor, entry.shape), dtype_size_bytes(entry.dtype), &expected) ||
        expected != end - begin) {
      fail(tensor, "has " + std::to_string(end - begin) + " bytes, which its shape and type contradict");
    }
    entry.begin = begin_ + begin;
    entry.end = begin_ + end;
    return entry;
  }

  /// Makes the entry a tensor of `bytes` bytes that remembers its type and shape. \param bits  of one element
  void make_bytes(const std::string& tensor, const std::string& type, std::uint64_t bits, std::uint64_t bytes,
                  SafetensorsEntry& entry) const {
    std::uint64_t expected = 0;
    if (__builtin_mul_overflow(count_elements(tensor, entry.shape), bits, &expected) || expected % 8 != 0 ||
        expected / 8 != bytes)
      fail(tensor, "has " + std::to_string(bytes) + " bytes, which its shape and type contradict");
    entry.other = OtherType{type, std::move(entry.shape)};
    entry.shape = {static_cast<std::int64_t>(bytes)};
  }

  /// Refuses files with bytes that belong to no tensor, as the reference reader does.
  void check_tiling(const std::map<std::string, SafetensorsEntry>& tensors) const {
    std::vector<const std::pair<const std::string, SafetensorsEntry>*> order;
    for (const auto& tensor : tensors) order.push_back(&tensor);
    std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
      return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
    });
    std::uint64_t at = begin_;
    for (const auto* tensor : order) {
      if (tensor->second.begin != at) fail(tensor->first, "does not start where the one before it ends");
      at = tensor->second.end;
    }
    if (at != begin_ + data_bytes_) {
      throw FormatError(name_, at, std::to_string(begin_ + data_bytes_ - at) + " bytes belong to no tensor");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& tensor, const std::string& what) const {
    throw FormatError(name_ + ": tensor \"" + tensor.substr(0, 200) + "\" " + what);
  }
  std::uint64_t count_elements(const std::string& tensor, const Shape& shape) const {
    try {
      return element_count(shape);
    } catch (const FormatError& error) {
      fail(tensor, std::string("has an impossible shape: ") + error.what());
    }
  }
  DType dtype(const std::string& tensor, const std::string& text) const {
    try {
      return dtype_from_safetensors(text);
    } catch (const FormatError& error) {
      fail(tensor, std::string("has an ") + error.what());
    }
  }
  std::uint64_t count(const std::string& tensor, const nlohmann::json& json) const {
    if (!json.is_number_unsigned() || json.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
      fail(tensor, "has a size or offset that is not a count");
    }
    return json.get<std::uint64_t>();
  }

  std::string name_;
  std::uint64_t begin_, data_bytes_;
};

void check_whole(const ShardRecord& tensor) {
  const bool whole = tensor.sizes == tensor.global_shape && tensor.offsets.size() == tensor.sizes.size() &&
                     std::all_of(tensor.offsets.begin(), tensor.offsets.end(), [](auto offset) { return offset == 0; });
  if (!whole || element_count(tensor.sizes) * dtype_size_bytes(tensor.dtype) != tensor.data.size()) {
    throw std::invalid_argument("tensor \"" + tensor.name + "\": safetensors files take whole tensors only");
  }
}

/// Numbers of the tensors in the order in which the file holds them, which is the reference writer's.
std::vector<std::size_t> file_order(std::span<const SafetensorsItem> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) {
    return std::pair(-dtype_row(tensors[a].dtype).safetensors_order, std::string_view(tensors[a].name)) <
           std::pair(-dtype_row(tensors[b].dtype).safetensors_order, std::string_view(tensors[b].name));
  });
  return order;
}

/// The name as JSON text. \throws RequestError when it is not UTF-8
std::string quoted(const std::string& name) {
  try {
    return json_text(nlohmann::json(name));
  } catch (const nlohmann::json::exception&) {
    throw RequestError("a tensor's name is not UTF-8, which safetensors needs", Remedy::rename);
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

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) : file_(File::open_read(path)) {
  const Header header = read_header(file_);
  const EntryParser parser(file_, header.data_begin_bytes);
  for (const auto& [name, json] : header.json.items()) {
    if (name != "__metadata__") {
      tensors_.emplace(name, parser.parse(name, json));
      continue;
    }
    if (!json.is_object()) throw FormatError(path.string(), 8, "__metadata__ is not a JSON object");
    for (const auto& [key, value] : json.items()) {
      if (!value.is_string()) throw FormatError(path.string(), 8, "__metadata__ holds something else than strings");
      metadata_.emplace(key, value.get<std::string>());
    }
  }
  parser.check_tiling(tensors_);
}

void SafetensorsReader::read_rows(const std::string& name, std::int64_t first_row, std::int64_t num_rows,
                                  std::span<std::byte> out) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw std::invalid_argument(file_.path().string() + ": has no tensor \"" + name + "\"");
  const auto& entry = found->second;
  const std::int64_t total_rows = entry.shape.empty() ? 1 : entry.shape[0];
  if (first_row < 0 || num_rows < 0 || first_row > total_rows || num_rows > total_rows - first_row) {
    throw std::invalid_argument("tensor \"" + name + "\" has " + std::to_string(total_rows) + " rows; rows " +
                                std::to_string(first_row) + " and " + std::to_string(num_rows) + " more were wanted");
  }
  const std::uint64_t row_bytes =
      total_rows > 0 ? (entry.end - entry.begin) / static_cast<std::uint64_t>(total_rows) : 0;
  if (out.size() != row_bytes * static_cast<std::uint64_t>(num_rows)) {
    throw std::invalid_argument("tensor \"" + name + "\": " + std::to_string(out.size()) +
                                " bytes are the wrong room for " + std::to_string(num_rows) + " rows of " +
                                std::to_string(row_bytes) + " bytes");
  }
  file_.read_at(entry.begin + row_bytes * static_cast<std::uint64_t>(first_row), out);
}

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
      throw RequestError("tensor \"" + tensor.name + "\" would be written twice");
    }
    std::string_view dtype;
    try {
      dtype = safetensors_name(tensor.dtype);
    } catch (const RequestError& error) {
      throw RequestError("tensor \"" + tensor.name + "\": " + error.what());
    }
    const auto end = at + element_count(tensor.shape) * dtype_size_bytes(tensor.dtype);
    if (tensor.other && bits_of_other(tensor.other->name) == 0)
      throw RequestError("tensor \"" + tensor.name + "\" is of type " + tensor.other->name +
                         ", which safetensors cannot hold");
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
