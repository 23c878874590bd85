#pragma once
// Matrices in 4 bits as bitsandbytes and transformers store them: W holds codes, W.absmax and W.nested_absmax scales,
// W.quant_state.bitsandbytes__nf4 the rest as JSON.
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lib/base/dtype.hpp"
#include "lib/files/formats/shard_record.hpp"
#include "lib/files/read/source.hpp"

namespace fsdp {

struct StoredNf4 {
  std::size_t codes = 0, absmax = 0;         ///< tensors of the source
  std::optional<std::size_t> nested_absmax;  ///< absmax is in 8 bits
  float nested_offset = 0;
  Shape shape;                ///< of the matrix: [rows, columns]
  DType dtype = DType::bf16;  ///< that it was made of
};

/// By the names of matrices; empty where there is none. Reads the small tensors that say how.
/// \throws FormatError naming what is missing, is stored in another way, or does not fit
std::map<std::string, StoredNf4> find_stored_nf4(const Source& source);

/// Belongs to a matrix W in `found`, besides W itself: its absmax, quant_map, ...
bool is_part_of(const std::map<std::string, StoredNf4>& found, const std::string& name);

}  // namespace fsdp
