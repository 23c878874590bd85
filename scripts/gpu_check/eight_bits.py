"""Of stage truth: products in 8 bits by the GPU, against their emulation by the CPU."""

from checks import FAIL, skip, verdict_of
from training import worst

# Codes are the same bit for bit where activations are. In float32 these are as far apart as sums in another order and, in
# the forward, Hopper's 14 bits of them, which takes few numbers on the border of two codes to the other one: 1/16 of an
# activation, 1/4 of a gradient. Against torchao on a CPU losses were 2e-3 and gradient norms 4e-2 apart by that after some
# steps, and 1e-4 in the first, in which 8 bits are 4e-3 to 1.2e-2 away from 32. (In bf16 that is no more than its roundings.)
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
