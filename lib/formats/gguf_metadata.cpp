#include "lib/formats/gguf_metadata.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>

#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

constexpr std::uint32_t kLatestVersion = 3;
constexpr std::uint64_t kMostStringBytes = 1u << 26;   // a chat template has some ten thousand bytes
constexpr std::uint64_t kMostElements = 1u << 22;      // of all arrays; large vocabularies have a million with merges
constexpr std::uint64_t kLeastEntryBytes = 8 + 4 + 1;  // an empty key, a type, a byte
constexpr std::uint64_t kStringLengthBytes = 8, kShownKeyBytes = 200;
constexpr int kDeepestArray = 4;

double shortest_double(float value) {
  if (!std::isfinite(value)) return value;
  const auto text = fmt::format("{}", value);
  double number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

class MetadataReader {
 public:
  explicit MetadataReader(const File& file) : cursor_(file) {}

  nlohmann::json read() {
    cursor_.expect(cursor_.num_entries(), kLeastEntryBytes, "key-value pairs");
    auto all = nlohmann::json::object();
    for (std::uint64_t i = 0; i < cursor_.num_entries(); ++i) {
      key_ = "a key";
      auto key = text();
      key_ = "'" + key.substr(0, kShownKeyBytes) + "'";
      if (all.contains(key)) cursor_.fail("has the key " + key_ + " twice");
      const auto type = cursor_.value_type();
      all[std::move(key)] = value(type, 0);
    }
    return all;
  }

 private:
  std::string text() {
    auto text = cursor_.string();
    if (!is_utf8(text)) cursor_.fail(key_ + " holds a text that is no UTF-8");
    return text;
  }

  nlohmann::json value(GgufValueType type, int depth) {
    if (type == GgufValueType::string) return text();
    if (type != GgufValueType::array) return cursor_.number(type);
    if (depth == kDeepestArray) cursor_.fail(key_ + " has an array inside four others");
    const auto element = cursor_.value_type();
    const auto count = cursor_.integer<std::uint64_t>(), bytes = gguf_value_bytes(element);
    cursor_.expect(count, bytes == 0 ? kStringLengthBytes : bytes, "elements of an array");
    if (count > kMostElements - elements_)
      cursor_.fail(
          fmt::format("{} has {} elements: more than {} in all arrays are not read", key_, count, kMostElements));
    elements_ += count;
    auto all = nlohmann::json::array();
    for (std::uint64_t i = 0; i < count; ++i) all.push_back(value(element, depth + 1));
    return all;
  }

  GgufCursor cursor_;
  std::string key_;  ///< being read, for messages
  std::uint64_t elements_ = 0;
};

}  // namespace

GgufCursor::GgufCursor(const File& file) : file_(file), name_(file.path().string()), size_(file.size_bytes()) {
  if (take(kGgufMagic.size()) != kGgufMagic) fail("is no GGUF file");
  const auto version = integer<std::uint32_t>();
  if (version != 2 && version != kLatestVersion)
    fail(fmt::format("is GGUF of version {}, and 2 and 3 are read{}", version,
                     version % 65536 == 0 ? " (is it big-endian?)" : ""));
  num_tensors_ = integer<std::uint64_t>();
  num_entries_ = integer<std::uint64_t>();
}

void GgufCursor::fail(const std::string& problem) const { throw FormatError(name_, at_, problem); }

void GgufCursor::expect(std::uint64_t count, std::uint64_t each, const char* what) const {
  if (count > rest() / each)
    fail(fmt::format("says that {} {} follow, but only {} bytes do: the file was cut short or is damaged", count, what,
                     rest()));
}

std::string_view GgufCursor::take(std::uint64_t bytes) {
  expect(bytes, 1, "bytes");
  if (at_ + bytes > begin_ + buffer_.size()) {
    constexpr std::uint64_t buffer_bytes = 64u << 10;
    buffer_.resize(std::min(rest(), std::max(bytes, buffer_bytes)));
    file_.read_at(at_, std::as_writable_bytes(std::span(buffer_.data(), buffer_.size())));
    begin_ = at_;
  }
  const auto taken = std::string_view(buffer_).substr(at_ - begin_, bytes);
  at_ += bytes;
  return taken;
}

void GgufCursor::skip(std::uint64_t bytes) {
  expect(bytes, 1, "bytes");
  at_ += bytes;
}

std::string GgufCursor::string() {
  const auto bytes = integer<std::uint64_t>();
  if (bytes > kMostStringBytes) fail(fmt::format("has a text of {} bytes", bytes));
  return std::string(take(bytes));
}

GgufValueType GgufCursor::value_type() {
  const auto number = integer<std::uint32_t>();
  if (number > static_cast<std::uint32_t>(GgufValueType::f64)) fail(fmt::format("has a value of type {}", number));
  return static_cast<GgufValueType>(number);
}

nlohmann::json GgufCursor::number(GgufValueType type) {
  switch (type) {
    case GgufValueType::u8:
      return integer<std::uint8_t>();
    case GgufValueType::i8:
      return integer<std::int8_t>();
    case GgufValueType::boolean:
      return integer<std::uint8_t>() != 0;
    case GgufValueType::u16:
      return integer<std::uint16_t>();
    case GgufValueType::i16:
      return integer<std::int16_t>();
    case GgufValueType::u32:
      return integer<std::uint32_t>();
    case GgufValueType::i32:
      return integer<std::int32_t>();
    case GgufValueType::f32:
      return shortest_double(std::bit_cast<float>(integer<std::uint32_t>()));
    case GgufValueType::u64:
      return integer<std::uint64_t>();
    case GgufValueType::i64:
      return integer<std::int64_t>();
    default:
      return std::bit_cast<double>(integer<std::uint64_t>());
  }
}

std::uint64_t gguf_value_bytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::u8:
    case GgufValueType::i8:
    case GgufValueType::boolean:
      return 1;
    case GgufValueType::u16:
    case GgufValueType::i16:
      return 2;
    case GgufValueType::u32:
    case GgufValueType::i32:
    case GgufValueType::f32:
      return 4;
    case GgufValueType::u64:
    case GgufValueType::i64:
    case GgufValueType::f64:
      return 8;
    default:
      return 0;
  }
}

bool is_gguf_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  const auto file = File::open_read(path);
  std::string first(std::min<std::uint64_t>(kGgufMagic.size(), file.size_bytes()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(first.data(), first.size())));
  return first == kGgufMagic;
}

nlohmann::json read_gguf_metadata(const std::filesystem::path& path) {
  const auto file = File::open_read(path);
  return MetadataReader(file).read();
}

}  // namespace fsdp
