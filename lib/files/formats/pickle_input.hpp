#pragma once
// The bytes of a pickle, taken in order and never past the end, and the opcodes that hold a plain value.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lib/files/formats/pickle_opcodes.hpp"
#include "lib/files/formats/pickle_reader.hpp"
#include "lib/files/formats/pickle_value.hpp"
#include "lib/files/formats/zip_format.hpp"

namespace fsdp::detail {

class PickleInput {
 public:
  explicit PickleInput(const PickleSource& source);

  std::uint8_t next_opcode();
  std::uint64_t opcode_offset() const { return opcode_offset_; }  ///< in the file
  std::uint64_t left_bytes() const { return rest_.size(); }

  std::string_view take(std::uint64_t count);
  template <typename Integer>
  Integer number() {
    return read_le<Integer>(take(sizeof(Integer)), 0);
  }
  std::string_view utf8(std::uint64_t count);
  /// UTF-8 up to the next newline, which is taken too.
  std::string_view line();

  /// \throws FormatError at the current opcode
  [[noreturn]] void fail(const std::string& what) const;
  /// \throws PickleEndsEarly at the current opcode
  [[noreturn]] void end_early(const std::string& what) const;

 private:
  const PickleSource& source_;
  std::string_view rest_;
  std::uint64_t opcode_offset_ = 0;
};

/// The value of an opcode that carries one (None, bool, int, float, str, bytes); nothing for other opcodes.
std::optional<PickleValue::Data> read_pickle_literal(PickleOp op, PickleInput& input);

}  // namespace fsdp::detail
