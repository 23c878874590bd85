#pragma once
// GPT-2's alphabet: each of the 256 bytes is written as one printable character, so that vocabularies are plain text.
// Source: openai/gpt-2, src/encoder.py, bytes_to_unicode.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {

/// The bytes in the order of the alphabet, which is the order of their ids in GPT-2's vocabulary: first those that
/// are printable in Latin-1 and stand for themselves, then the others, which stand for U+0100, U+0101, ...
std::array<std::uint8_t, 256> byte_alphabet();

/// The bytes that a piece of a vocabulary stands for ("Ġthe" is " the"). A piece with a character outside the alphabet
/// (a special token someone added) stands for its own UTF-8 bytes.
std::string bytes_of_piece(std::string_view piece);

}  // namespace fsdp
