"""Part of stage truth: compares fp8 matrix products on the GPU with their emulation on the CPU."""

from checks import FAIL, skip, verdict_of
from training import worst

# fp8 codes agree bit for bit if the activations do. In float32 the activations differ by the order of sums and, in the
# forward pass, by the 14 bits of Hopper's accumulators, which moves a few numbers on the border of two codes to the
# other code: by 1/16 of an activation, 1/4 of a gradient. Against torchao on a CPU this made losses differ by 2e-3 and
# gradient norms by 4e-2 after some steps, and losses by 1e-4 in the first step, where fp8 differs from float32 by 4e-3 to
# 1.2e-2. (In bf16 this difference is no larger than bf16's own rounding.)
LOSS, NORM, FIRST = 5e-3, 5e-2, 1 / 3
ARGUMENTS = ("--compute-dtype", "fp8")


def compare(truth, model, steps, rows, limit):
    if not truth.on_gpu:
        return skip("needs a GPU")
    if not truth.machine.has_fp8():
        return skip("this GPU has no products in 8 bits")
    if model not in truth.theirs:
        return FAIL, "PyTorch's own run is missing", {}

    def ours(name, *more):
        return truth.trainings.ours(f"{model} fp8 {name}", model, "float32", steps, rows, limit, (*ARGUMENTS, *more))

    device, host = ours("on the GPU"), ours("on the CPU", "--device", "cpu")
    loss, norm = worst(device, host)
    first, _ = worst(device[:1], host[:1])
    without, _ = worst(device[:1], truth.trainings.ours(f"{model} without fp8", model, "float32", 1, rows, limit))
    return (verdict_of(loss <= LOSS and norm <= NORM and first <= FIRST * without),
            f"loss within {loss:.1e} of {LOSS:g}, gradient norm {norm:.1e} of {NORM:g}; the first loss is {first:.1e} away, and {without:.1e} from this GPU's float32, of which a third is allowed",
            {"loss": loss, "grad_norm": norm, "first_loss": first, "first_loss_from_float32": without})
