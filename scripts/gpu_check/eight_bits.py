"""Of stage truth: products in 8 bits by the GPU, against their emulation by the CPU."""

from checks import FAIL, skip, verdict_of
from training import worst

# Codes are the same bit for bit where activations are. These are bf16's on both sides, rounded in other places, which takes
# numbers on the border of two codes to the other one: 1/16 of an activation, 1/4 of a gradient. Against torchao on a CPU
# losses were 2e-3 and gradient norms 4e-2 apart by that.
LOSS, NORM = 5e-3, 5e-2
ARGUMENTS = ("--compute-dtype", "fp8")


def compare(truth, model, steps, rows, limit):
    if not truth.on_gpu:
        return skip("needs a GPU")
    if not truth.machine.has_fp8():
        return skip("this GPU has no products in 8 bits")
    if model not in truth.theirs:
        return FAIL, "PyTorch's own run is missing", {}

    def ours(name, *more):
        return truth.trainings.ours(f"{model} fp8 {name}", model, "bf16", steps, rows, limit, (*ARGUMENTS, *more))

    device = ours("on the GPU")
    loss, norm = worst(device, ours("on the CPU", "--device", "cpu"))
    plain = truth.trainings.ours(f"{model} without fp8", model, "bf16", steps, rows, limit)
    without, _ = worst(device, plain)
    # Products that stayed in 16 bits give the same bits.
    return (verdict_of(loss <= LOSS and norm <= NORM and without > 0),
            f"loss within {loss:.1e} of {LOSS:g}, gradient norm {norm:.1e} of {NORM:g}; this GPU's bf16 without it is {without:.1e} away, which must not be 0",
            {"loss": loss, "grad_norm": norm, "loss_from_bf16": without})
