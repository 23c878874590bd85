#pragma once
// Splits a template into tokens.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/templates/jinja/jinja_value.hpp"

namespace fsdp::jinja {

enum class TokenKind : std::uint8_t {
  data,
  output_begin,
  output_end,
  block_begin,
  block_end,
  name,
  text,
  number,
  sign,
  end
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  ///< of data, names, texts and signs
  Value number = {};
};

/// \throws FormatError
[[noreturn]] void fail(int line, const std::string& problem);

/// Tokens, the last of them `end`. White space is removed as the marks - and + say, and but in a strict environment as
/// trim_blocks and lstrip_blocks do.
/// \throws FormatError naming the line
std::vector<Token> tokens_of(std::string_view source, JinjaEnvironment environment);

}  // namespace fsdp::jinja
