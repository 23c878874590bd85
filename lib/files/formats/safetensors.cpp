#include "lib/files/formats/safetensors.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/base/json_text.hpp"
#include "lib/files/formats/inside_directory.hpp"
#include "lib/files/formats/zip_format.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t max_header_bytes = 100'000'000;  // the reference reader's limit
constexpr std::size_t max_dims = 64;

/// Bits of an element of the format's types that nothing here computes with; 0: it is none of them.
/// Source: safetensors 0.8, tensor.rs (Dtype).
std::uint64_t bits_of_other(std::string_view type) {
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
  if (length > max_header_bytes || length > file_bytes - 8) {
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
        !json["shape"].is_array() || json["shape"].size() > max_dims || !json.contains("data_offsets") ||
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

  /// What is stored in `bytes` becomes just these. \param bits  of an element
  void make_bytes(const std::string& tensor, const std::string& type, std::uint64_t bits, std::uint64_t bytes,
                  SafetensorsEntry& entry) const {
    std::uint64_t expected = 0;
    if (__builtin_mul_overflow(count_elements(tensor, entry.shape), bits, &expected) || expected % 8 != 0 ||
        expected / 8 != bytes)
      fail(tensor, "has " + std::to_string(bytes) + " bytes, which its shape and type contradict");
    entry.other = OtherType{type, std::move(entry.shape)};
    entry.shape = {static_cast<std::int64_t>(bytes)};
  }

  /// The reference reader refuses files with holes: bytes nobody accounts for.
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
      return static_cast<std::uint64_t>(num_elements(shape));
    } catch (const FormatError& error) {
      fail(tensor, std::string("has an impossible shape: ") + error.what());
    }
  }
  DType dtype(const std::string& tensor, const std::string& text) const {
    if (text == "C64") return DType::c64;  // read, and written as pairs
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
  if (found == tensors_.end()) throw UsageError(file_.path().string() + ": has no tensor \"" + name + "\"");
  const auto& entry = found->second;
  const std::int64_t total_rows = entry.shape.empty() ? 1 : entry.shape[0];
  if (first_row < 0 || num_rows < 0 || first_row > total_rows || num_rows > total_rows - first_row) {
    throw UsageError("tensor \"" + name + "\" has " + std::to_string(total_rows) + " rows; rows " +
                     std::to_string(first_row) + " and " + std::to_string(num_rows) + " more were wanted");
  }
  const std::uint64_t row_bytes =
      total_rows > 0 ? (entry.end - entry.begin) / static_cast<std::uint64_t>(total_rows) : 0;
  if (out.size() != row_bytes * static_cast<std::uint64_t>(num_rows)) {
    throw UsageError("tensor \"" + name + "\": " + std::to_string(out.size()) + " bytes are the wrong room for " +
                     std::to_string(num_rows) + " rows of " + std::to_string(row_bytes) + " bytes");
  }
  file_.read_at(entry.begin + row_bytes * static_cast<std::uint64_t>(first_row), out);
}

}  // namespace fsdp
