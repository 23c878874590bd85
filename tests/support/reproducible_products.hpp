#pragma once
#include <cstdlib>

namespace fsdp::test {

/// MKL's results depend on where its operands happen to lie unless it is told otherwise, before its first call.
inline const bool kReproducibleProducts = ::setenv("MKL_CBWR", "AUTO", /*overwrite=*/0) == 0;

}  // namespace fsdp::test
