#pragma once
// What oneDNN may use of the processor: ONEDNN_MAX_CPU_ISA (or DNNL_MAX_CPU_ISA) lowers it, and LibTorch's entries
// refuse to work below what they need, whatever the processor has.
namespace fsdp {

/// Instructions that products need, in the order in which oneDNN adds them.
enum class OnednnLevel { avx512 = 4, avx512_bf16 = 6 };

/// The environment does not forbid them.
bool onednn_may_use(OnednnLevel level);

}  // namespace fsdp
