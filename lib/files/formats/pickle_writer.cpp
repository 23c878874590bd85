#include "lib/files/formats/pickle_writer.hpp"

#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lib/base/error.hpp"
#include "lib/files/formats/pickle_check.hpp"
#include "lib/files/formats/zip_format.hpp"

namespace fsdp {

using detail::append_le;

PickleWriter::PickleWriter() : text_("\x80\x02") {}

void PickleWriter::integer(std::int64_t value) {
  if (value >= 0 && value <= 0xff) {
    op('K');
    append_le(text_, static_cast<std::uint8_t>(value));
  } else if (value >= 0 && value <= 0xffff) {
    op('M');
    append_le(text_, static_cast<std::uint16_t>(value));
  } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
    op('J');
    append_le(text_, static_cast<std::int32_t>(value));
  } else {
    text_ += "\x8a\x08";
    append_le(text_, value);
  }
}

void PickleWriter::unsigned_integer(std::uint64_t value) {
  if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    integer(static_cast<std::int64_t>(value));
  } else {
    text_ += "\x8a\x09";
    append_le(text_, value);
    text_.push_back('\0');  // the sign
  }
}

void PickleWriter::big_integer(std::string_view digits) {
  constexpr std::size_t longest_bytes = 255, longest_digits = 616;
  const bool negative = digits.starts_with('-');
  if (negative) digits.remove_prefix(1);
  std::string value(1, '\0');  // two's complement, little-endian, with room for the sign
  for (const char digit : digits.substr(0, longest_digits)) {
    if (digit < '0' || digit > '9') throw std::logic_error("PickleWriter::big_integer: not a decimal number");
    unsigned carry = static_cast<unsigned>(digit - '0');
    for (auto& byte : value) {
      carry += static_cast<unsigned char>(byte) * 10u;
      byte = static_cast<char>(carry & 0xff);
      carry >>= 8;
    }
    if (carry != 0) value.push_back(static_cast<char>(carry));
  }
  if ((value.back() & 0x80) != 0) value.push_back('\0');
  if (negative) {
    unsigned carry = 1;
    for (auto& byte : value) {
      carry += static_cast<unsigned char>(~byte);
      byte = static_cast<char>(carry & 0xff);
      carry >>= 8;
    }
  }
  if (value.size() > longest_bytes || digits.size() > longest_digits) {
    throw UsageError("an integer of " + std::to_string(digits.size()) + " digits in a checkpoint; 255 bytes are most");
  }
  text_ += '\x8a';
  text_.push_back(static_cast<char>(value.size()));
  text_ += value;
}

void PickleWriter::real(double value) {
  op('G');
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) text_.push_back(static_cast<char>(bits >> shift & 0xff));
}

void PickleWriter::string(std::string_view text) {
  constexpr std::size_t longest_memoized = 1024;
  if (!detail::is_utf8(text)) throw UsageError("a string in a checkpoint is not UTF-8");
  std::string memo_key = text.size() <= longest_memoized ? "s" + std::string(text) : std::string();
  if (!memo_key.empty() && recall(memo_key)) return;
  if (text.size() > std::numeric_limits<std::uint32_t>::max())
    throw UsageError("a string of 4 GiB or more in a checkpoint");
  op('X');
  append_le(text_, static_cast<std::uint32_t>(text.size()));
  text_ += text;
  if (!memo_key.empty()) memoize(std::move(memo_key));
}

void PickleWriter::bytes(std::string_view data) {
  std::string text;  // each byte as the character of that number
  text.reserve(data.size());
  for (const char byte : data) {
    const auto code = static_cast<unsigned char>(byte);
    if (code < 0x80) {
      text.push_back(byte);
    } else {
      text.push_back(static_cast<char>(0xc0 | code >> 6));
      text.push_back(static_cast<char>(0x80 | (code & 0x3f)));
    }
  }
  global("_codecs", "encode");
  string(text);
  string("latin1");
  tuple2();
  reduce();
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  if ((std::string(module) += name).find('\n') != std::string::npos) {
    throw UsageError("a class name in a checkpoint has a line break");
  }
  std::string line = std::string(module) + "\n" + std::string(name) + "\n";
  std::string memo_key = "c" + line;
  if (recall(memo_key)) return;
  op('c');
  text_ += line;
  memoize(std::move(memo_key));
}

bool PickleWriter::recall(const std::string& memo_key) {
  const auto found = memo_.find(memo_key);
  if (found == memo_.end()) return false;
  if (found->second <= 0xff) {
    op('h');
    append_le(text_, static_cast<std::uint8_t>(found->second));
  } else {
    op('j');
    append_le(text_, found->second);
  }
  return true;
}

void PickleWriter::memoize(std::string memo_key) {
  const auto index = static_cast<std::uint32_t>(memo_.size());
  if (index <= 0xff) {
    op('q');
    append_le(text_, static_cast<std::uint8_t>(index));
  } else {
    op('r');
    append_le(text_, index);
  }
  memo_.emplace(std::move(memo_key), index);
}

void PickleWriter::json(const nlohmann::json& value) { json(value, 0); }

void PickleWriter::json(const nlohmann::json& value, int depth) {
  constexpr int max_depth = 100;
  if (depth > max_depth) throw UsageError("a checkpoint value is nested deeper than 100 levels");
  switch (value.type()) {
    case nlohmann::json::value_t::null:
      return none();
    case nlohmann::json::value_t::boolean:
      return boolean(value.get<bool>());
    case nlohmann::json::value_t::number_integer:
      return integer(value.get<std::int64_t>());
    case nlohmann::json::value_t::number_unsigned:
      return unsigned_integer(value.get<std::uint64_t>());
    case nlohmann::json::value_t::number_float:
      return real(value.get<double>());
    case nlohmann::json::value_t::string:
      return string(value.get_ref<const std::string&>());
    case nlohmann::json::value_t::array:
      empty_list();
      mark();
      for (const auto& item : value) json(item, depth + 1);
      return append_items();
    case nlohmann::json::value_t::object:
      empty_dict();
      mark();
      for (const auto& [key, item] : value.items()) {
        string(key);
        json(item, depth + 1);
      }
      return set_items();
    default:
      throw UsageError("a checkpoint value is neither None, bool, int, float, str, list nor dict");
  }
}

std::string PickleWriter::finish() {
  op('.');
  return std::move(text_);
}

}  // namespace fsdp
