#include "lib/files/formats/pickle_input.hpp"

#include <bit>
#include <stdexcept>

#include "lib/base/error.hpp"
#include "lib/files/formats/pickle_check.hpp"

namespace fsdp::detail {
namespace {

PickleValue::Data read_long(PickleInput& input, std::uint32_t count) {
  constexpr std::uint32_t limit = 1024;  // turning n bytes into digits takes n^2 steps
  if (count > limit) input.fail("an integer of " + std::to_string(count) + " bytes; at most 1024 are accepted");
  return pickle_integer(input.take(count));
}

PickleValue::Data read_float(PickleInput& input) {
  std::uint64_t bits = 0;
  for (const char byte : input.take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
  return std::bit_cast<double>(bits);
}

}  // namespace

PickleInput::PickleInput(const PickleSource& source) : source_(source) {
  if (source.begin_bytes > source.text->size()) throw std::logic_error("read_pickle: begins past the text");
  rest_ = std::string_view(*source.text).substr(source.begin_bytes);
}

void PickleInput::fail(const std::string& what) const {
  throw FormatError(source_.file, opcode_offset_, "pickle: " + what);
}

void PickleInput::end_early(const std::string& what) const {
  throw PickleEndsEarly(source_.file, opcode_offset_, "pickle: " + what);
}

std::uint8_t PickleInput::next_opcode() {
  opcode_offset_ = source_.file_offset_bytes + (source_.text->size() - rest_.size());
  return number<std::uint8_t>();
}

std::string_view PickleInput::take(std::uint64_t count) {
  if (count > rest_.size()) {
    end_early("ends early: " + std::to_string(count) + " more bytes expected, " + std::to_string(rest_.size()) +
              " left");
  }
  const auto taken = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return taken;
}

std::string_view PickleInput::utf8(std::uint64_t count) {
  const auto text = take(count);
  if (!is_utf8(text)) fail("a string is not UTF-8");
  return text;
}

std::string_view PickleInput::line() {
  const auto end = rest_.find('\n');
  if (end == std::string_view::npos) end_early("a name has no end");
  const auto text = utf8(end);
  take(1);
  return text;
}

std::optional<PickleValue::Data> read_pickle_literal(PickleOp op, PickleInput& input) {
  switch (op) {
    case PickleOp::none:
      return PickleNone{};
    case PickleOp::new_true:
      return true;
    case PickleOp::new_false:
      return false;
    case PickleOp::bin_int:
      return std::int64_t{input.number<std::int32_t>()};
    case PickleOp::bin_int1:
      return std::int64_t{input.number<std::uint8_t>()};
    case PickleOp::bin_int2:
      return std::int64_t{input.number<std::uint16_t>()};
    case PickleOp::long1:
      return read_long(input, input.number<std::uint8_t>());
    case PickleOp::long4:
      return read_long(input, input.number<std::uint32_t>());
    case PickleOp::bin_float:
      return read_float(input);
    case PickleOp::bin_unicode:
      return PickleString{input.utf8(input.number<std::uint32_t>())};
    case PickleOp::short_bin_unicode:
      return PickleString{input.utf8(input.number<std::uint8_t>())};
    case PickleOp::bin_unicode8:
      return PickleString{input.utf8(input.number<std::uint64_t>())};
    case PickleOp::bin_bytes:
      return PickleBytes{input.take(input.number<std::uint32_t>())};
    case PickleOp::short_bin_bytes:
      return PickleBytes{input.take(input.number<std::uint8_t>())};
    case PickleOp::bin_bytes8:
    case PickleOp::byte_array8:
      return PickleBytes{input.take(input.number<std::uint64_t>())};
    default:
      return std::nullopt;
  }
}

}  // namespace fsdp::detail
