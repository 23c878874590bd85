#pragma once
// Reads pickles of protocols 2 to 5 without executing anything.
#include <cstdint>
#include <memory>
#include <string>

#include "lib/base/types/error.hpp"
#include "lib/formats/pickle/pickle_value.hpp"

namespace fsdp {

/// The bytes end before the pickle does: with more bytes of the file the pickle may be well-formed.
class PickleEndsEarly : public FormatError {
 public:
  using FormatError::FormatError;
};

/// Limits on memory and recursion that a pickle may cause.
struct PickleLimits {
  std::uint64_t max_values = 50'000'000;  ///< values made; also values visited by a walk that follows every reference
  std::uint32_t max_depth = 200;
};

/// The bytes of a pickle and where they come from.
struct PickleSource {
  std::shared_ptr<const std::string> text;
  std::uint64_t begin_bytes = 0;        ///< offset of the pickle in `text`
  std::string file;                     ///< for messages
  std::uint64_t file_offset_bytes = 0;  ///< offset of text[0] in `file`, for messages
};

/// Reads one pickle. Bytes after its STOP are ignored; document.length_bytes is the length up to there.
/// Only opcodes that torch.save and DCP write are accepted. Integers beyond 64 bits become decimal digits.
/// \throws FormatError naming file, byte and opcode on an unknown or refused opcode, truncation, a reference to a
/// missing memo entry, a value that contains itself, invalid UTF-8, or an exceeded limit
PickleDocument read_pickle(const PickleSource& source, const PickleLimits& limits = {});

}  // namespace fsdp
