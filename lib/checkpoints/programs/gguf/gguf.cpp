#include "lib/checkpoints/programs/gguf/gguf.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/little_endian.hpp"

namespace fsdp {
namespace {

constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kAlignment = 32;
constexpr const char* kAlignmentKey = "general.alignment";
constexpr std::size_t kMostDims = 4;  // GGML_MAX_DIMS
constexpr std::uint64_t kLargestAlignment = 1u << 20;

using ValueType = GgufValueType;
using Cursor = GgufCursor;

constexpr std::array kTypes{GgufType{0, "F32", 1, 4, DType::f32},  GgufType{1, "F16", 1, 2, DType::f16},
                            GgufType{2, "Q4_0", 32, 18},           GgufType{3, "Q4_1", 32, 20},
                            GgufType{6, "Q5_0", 32, 22},           GgufType{7, "Q5_1", 32, 24},
                            GgufType{8, "Q8_0", 32, 34},           GgufType{10, "Q2_K", 256, 84},
                            GgufType{11, "Q3_K", 256, 110},        GgufType{12, "Q4_K", 256, 144},
                            GgufType{13, "Q5_K", 256, 176},        GgufType{14, "Q6_K", 256, 210},
                            GgufType{15, "Q8_K", 256, 292},        GgufType{16, "IQ2_XXS", 256, 66},
                            GgufType{17, "IQ2_XS", 256, 74},       GgufType{18, "IQ3_XXS", 256, 98},
                            GgufType{19, "IQ1_S", 256, 50},        GgufType{20, "IQ4_NL", 32, 18},
                            GgufType{21, "IQ3_S", 256, 110},       GgufType{22, "IQ2_S", 256, 82},
                            GgufType{23, "IQ4_XS", 256, 136},      GgufType{24, "I8", 1, 1, DType::i8},
                            GgufType{25, "I16", 1, 2, DType::i16}, GgufType{26, "I32", 1, 4, DType::i32},
                            GgufType{27, "I64", 1, 8, DType::i64}, GgufType{28, "F64", 1, 8, DType::f64},
                            GgufType{29, "IQ1_M", 256, 56},        GgufType{30, "BF16", 1, 2, DType::bf16},
                            GgufType{34, "TQ1_0", 256, 54},        GgufType{35, "TQ2_0", 256, 66},
                            GgufType{39, "MXFP4", 32, 17}};

template <typename Matches>
const GgufType* find_type(const Matches& matches) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(), matches);
  return found == kTypes.end() ? nullptr : found;
}

std::uint64_t aligned(std::uint64_t bytes, std::uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// --- writing ---------------------------------------------------------------------------------------------------------
void append_string(std::string& out, std::string_view text) {
  detail::append_le(out, std::uint64_t{text.size()});
  out += text;
}

void append_type(std::string& out, ValueType type) { detail::append_le(out, static_cast<std::uint32_t>(type)); }

struct ValueAppender {
  std::string& out;

  void operator()(bool value) const {
    append_type(out, ValueType::boolean);
    out.push_back(value ? '\1' : '\0');
  }
  void operator()(std::uint32_t value) const {
    append_type(out, ValueType::u32);
    detail::append_le(out, value);
  }
  void operator()(float value) const {
    append_type(out, ValueType::f32);
    detail::append_le(out, std::bit_cast<std::uint32_t>(value));
  }
  void operator()(const std::string& value) const {
    append_type(out, ValueType::string);
    append_string(out, value);
  }
  void operator()(const std::vector<std::string>& values) const {
    begin_array(ValueType::string, values.size());
    for (const auto& value : values) append_string(out, value);
  }
  void operator()(const std::vector<float>& values) const {
    begin_array(ValueType::f32, values.size());
    for (const auto value : values) detail::append_le(out, std::bit_cast<std::uint32_t>(value));
  }
  void operator()(const std::vector<std::int32_t>& values) const {
    begin_array(ValueType::i32, values.size());
    for (const auto value : values) detail::append_le(out, value);
  }

 private:
  void begin_array(ValueType type, std::size_t size) const {
    append_type(out, ValueType::array);
    append_type(out, type);
    detail::append_le(out, std::uint64_t{size});
  }
};

// --- reading ---------------------------------------------------------------------------------------------------------
std::string number_text(Cursor& cursor, ValueType type) {
  // A float32 is shown in its own digits, which differ from a double's in form only.
  if (type == ValueType::f32) return fmt::format("{}", std::bit_cast<float>(cursor.integer<std::uint32_t>()));
  if (type == ValueType::f64) return fmt::format("{}", std::bit_cast<double>(cursor.integer<std::uint64_t>()));
  return cursor.number(type).dump();
}

std::string readable(std::string text) {
  if (is_utf8(text)) return text;
  return fmt::format("({} bytes that are no UTF-8)", text.size());
}

std::string value_text(Cursor& cursor, ValueType type, int depth = 0) {
  if (type == ValueType::string) return readable(cursor.string());
  if (type != ValueType::array) return number_text(cursor, type);
  constexpr int deepest = 4;
  if (depth == deepest) cursor.fail("has an array inside four others");
  const auto element = cursor.value_type();
  const auto count = cursor.integer<std::uint64_t>(), bytes = gguf_value_bytes(element);
  constexpr std::uint64_t length_bytes = 8, shown = 8;
  cursor.expect(count, bytes == 0 ? length_bytes : bytes, "elements of an array");
  std::vector<std::string> texts;
  for (std::uint64_t i = 0; i < count && (i < shown || bytes == 0); ++i) {
    auto text = value_text(cursor, element, depth + 1);
    if (i < shown) texts.push_back(std::move(text));
  }
  if (bytes != 0) cursor.skip((count - texts.size()) * bytes);
  return fmt::format("[{}{}] ({})", fmt::join(texts, ", "), count > shown ? ", ..." : "", count);
}

void read_metadata(Cursor& cursor, std::uint64_t count, std::map<std::string, std::string>& metadata) {
  constexpr std::uint64_t least_bytes = 8 + 4 + 1;
  cursor.expect(count, least_bytes, "key-value pairs");
  for (std::uint64_t i = 0; i < count; ++i) {
    auto key = readable(cursor.string());
    const auto type = cursor.value_type();
    if (metadata.contains(key)) cursor.fail("has the key '" + key.substr(0, 200) + "' twice");
    metadata.emplace(std::move(key), value_text(cursor, type));
  }
}

[[noreturn]] void fail_tensor(const Cursor& cursor, const std::string& name, const std::string& problem) {
  cursor.fail("tensor '" + readable(name).substr(0, 200) + "' " + problem);
}

/// Reads the description of one tensor, whose `begin_bytes` is counted from the beginning of the data.
GgufTensor read_tensor(Cursor& cursor) {
  GgufTensor tensor{.name = cursor.string(), .type = nullptr, .shape = {}};
  if (tensor.name.empty() || !is_utf8(tensor.name)) fail_tensor(cursor, tensor.name, "has no proper name");
  const auto num_dims = cursor.integer<std::uint32_t>();
  if (num_dims > kMostDims) fail_tensor(cursor, tensor.name, fmt::format("has {} dims", num_dims));
  std::int64_t most = 1;  // elements if no size were 0
  for (std::uint32_t i = 0; i < num_dims; ++i) {
    const auto size = cursor.integer<std::uint64_t>();
    if (size > std::uint64_t{1} << 62) fail_tensor(cursor, tensor.name, "has an impossible size");
    tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
    if (__builtin_mul_overflow(most, std::max(std::int64_t{1}, static_cast<std::int64_t>(size)), &most))
      fail_tensor(cursor, tensor.name, "has more elements than 64 bits can count");
  }
  const auto number = cursor.integer<std::uint32_t>();
  tensor.type = find_type([&](const GgufType& type) { return type.number == number; });
  if (tensor.type == nullptr)
    fail_tensor(cursor, tensor.name, fmt::format("has elements of type {}, which is not known", number));
  tensor.begin_bytes = cursor.integer<std::uint64_t>();
  const auto row = tensor.shape.empty() ? std::int64_t{1} : tensor.shape.back();
  if (static_cast<std::uint64_t>(row) % tensor.type->block_elements != 0)
    fail_tensor(cursor, tensor.name,
                fmt::format("has rows of {} elements, which are no whole blocks of {}", row, tensor.type->name));
  const auto blocks = element_count(tensor.shape) / tensor.type->block_elements;
  if (__builtin_mul_overflow(blocks, tensor.type->block_bytes, &tensor.size_bytes))
    fail_tensor(cursor, tensor.name, "has an impossible size");
  return tensor;
}

std::uint64_t alignment_of(const Cursor& cursor, const std::map<std::string, std::string>& metadata) {
  const auto found = metadata.find(kAlignmentKey);
  if (found == metadata.end()) return kAlignment;
  constexpr std::size_t most_digits = 7;
  const auto& text = found->second;
  const bool is_number =
      !text.empty() && text.size() <= most_digits && text.find_first_not_of("0123456789") == std::string::npos;
  const auto alignment = is_number ? std::stoull(text) : 0;
  if (alignment == 0 || alignment > kLargestAlignment || !std::has_single_bit(alignment))
    cursor.fail(std::string(kAlignmentKey) + " is " + text.substr(0, 60) + ", expected a power of two");
  return alignment;
}

}  // namespace

const GgufType* find_gguf_type(std::string_view name) {
  return find_type([&](const GgufType& type) { return type.name == name; });
}

const GgufType* find_gguf_type(DType dtype) {
  return find_type([&](const GgufType& type) { return type.dtype == dtype; });
}

GgufPlan plan_gguf(std::span<const GgufItem> tensors, std::span<const GgufEntry> entries) {
  GgufPlan plan;
  auto& head = plan.head;
  head = kGgufMagic;
  detail::append_le(head, kVersion);
  detail::append_le(head, std::uint64_t{tensors.size()});
  detail::append_le(head, std::uint64_t{entries.size()});
  for (const auto& entry : entries) {
    append_string(head, entry.key);
    std::visit(ValueAppender{head}, entry.value);
  }
  std::uint64_t at = 0;
  for (const auto& tensor : tensors) {
    append_string(head, tensor.name);
    detail::append_le(head, static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size)
      detail::append_le(head, static_cast<std::uint64_t>(*size));
    detail::append_le(head, tensor.type->number);
    detail::append_le(head, at);
    plan.offsets.push_back(at);
    const auto blocks = element_count(tensor.shape) / tensor.type->block_elements;
    at = aligned(at + blocks * tensor.type->block_bytes, kAlignment);
  }
  head.resize(aligned(head.size(), kAlignment), '\0');
  for (auto& offset : plan.offsets) offset += head.size();
  plan.size_bytes = head.size() + at;
  return plan;
}

GgufHeader read_gguf_header(const File& file) {
  Cursor cursor(file);
  const auto num_tensors = cursor.num_tensors(), num_entries = cursor.num_entries();
  GgufHeader header;
  read_metadata(cursor, num_entries, header.metadata);
  constexpr std::uint64_t least_bytes = 8 + 1 + 4 + 4 + 8;
  cursor.expect(num_tensors, least_bytes, "tensors");
  std::set<std::string_view> names;
  for (std::uint64_t i = 0; i < num_tensors; ++i) header.tensors.push_back(read_tensor(cursor));
  const auto alignment = alignment_of(cursor, header.metadata);
  const auto begin = aligned(cursor.at(), alignment), end = cursor.at() + cursor.rest();
  for (auto& tensor : header.tensors) {
    if (!names.insert(tensor.name).second) fail_tensor(cursor, tensor.name, "is there twice");
    const bool is_inside =
        begin <= end && tensor.begin_bytes <= end - begin && tensor.size_bytes <= end - begin - tensor.begin_bytes;
    if (!is_inside || tensor.begin_bytes % alignment != 0)
      fail_tensor(cursor, tensor.name,
                  fmt::format("does not lie inside the file, which has {} bytes; it may be cut short", end));
    tensor.begin_bytes += begin;
  }
  return header;
}

}  // namespace fsdp
