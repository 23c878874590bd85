#pragma once
#include <cstdlib>

namespace fsdp::test {

/// Without this setting, which must precede MKL's first call, MKL's results depend on the alignment of the operands.
inline const bool kReproducibleProducts = ::setenv("MKL_CBWR", "AUTO", /*overwrite=*/0) == 0;

}  // namespace fsdp::test
