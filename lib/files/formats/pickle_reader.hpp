#pragma once
// Reads pickles of protocols 2 to 5 without executing anything.
#include <cstdint>
#include <memory>
#include <string>

#include "lib/base/error.hpp"
#include "lib/files/formats/pickle_value.hpp"

namespace fsdp {

/// The bytes end before the pickle does: with more of the file it may be well-formed.
class PickleEndsEarly : public FormatError {
 public:
  using FormatError::FormatError;
};

/// Bounds on what a pickle may make this program allocate or recurse into.
struct PickleLimits {
  std::uint64_t max_values = 50'000'000;  ///< made, and also visited when shared values are followed each time
  std::uint32_t max_depth = 200;
};

/// Where the bytes of a pickle lie.
struct PickleSource {
  std::shared_ptr<const std::string> text;
  std::uint64_t begin_bytes = 0;        ///< of the pickle in `text`
  std::string file;                     ///< for messages
  std::uint64_t file_offset_bytes = 0;  ///< of text[0] in `file`, for messages
};

/// Reads one pickle; bytes after its STOP are left alone (document.length_bytes says where).
/// Accepts exactly the opcodes torch.save and DCP write; big integers come as decimal digits.
/// \throws FormatError naming file, byte and opcode on an unknown or refused opcode, truncation, a reference to what
/// is not there, a value that contains itself, invalid UTF-8 or a broken limit
PickleDocument read_pickle(const PickleSource& source, const PickleLimits& limits = {});

}  // namespace fsdp
