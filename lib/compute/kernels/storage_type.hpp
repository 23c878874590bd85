#pragma once
// Storage types of the arrays that kernels read and write, on the CPU and on a GPU.
#include <cstdint>

namespace fsdp::kernels {

/// bf16 and f16 are bit patterns in memory.
enum class Type : std::uint8_t { f32, bf16, f16 };

}  // namespace fsdp::kernels
