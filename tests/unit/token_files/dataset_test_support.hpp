#pragma once
// Shared by the tests of token files.
#include <cstdint>
#include <string>
#include <vector>

#include "lib/token_files/token_file.hpp"

namespace fsdp::test {

/// Packed rows, as shipped.
inline const std::string kShakespeare = FSDP_TEST_DATA_DIR "/shakespeare/train.h5";

inline std::vector<std::int32_t> read_document(const TokenFile& documents, std::int64_t i) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(documents.length(i)));
  documents.read(i, ids);
  return ids;
}

}  // namespace fsdp::test
