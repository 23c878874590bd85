#pragma once
// Matrices stored in 4 bits as the floating-point numbers that they stand for.
#include <memory>

#include "lib/files/read/source.hpp"

namespace fsdp {

/// `source` with each matrix that bitsandbytes stored in 4 bits as one of the type that it was made of, bit for bit
/// what bitsandbytes dequantises it to; what else it stored for these is left out. `source` itself where there is none.
/// Stays lazy. \throws what find_stored_nf4() throws
std::shared_ptr<const Source> dequantize(std::shared_ptr<const Source> source);

}  // namespace fsdp
