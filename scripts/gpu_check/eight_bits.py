"""Part of stage rest: compares fp8 matrix products on the GPU with their emulation on the CPU."""

from checks import skip, verdict_of
from gradients import by_parameter
from training import KEYS, by_step, distance, judged

# fp8 codes agree bit for bit if the activations do. In float32 the activations differ by the order of sums and, on Hopper,
# by the 13 bits with which its products are aligned before they are added. This moves a few numbers on the border of two
# codes to the other code, by 1/16 of an activation and 1/4 of a gradient. So the two runs are compared by how far each is
# from PyTorch's float32, most of which is the 8 bits: neither further (a wrong scale or transpose) nor nearer (no 8 bits at
# all). In bf16 this distance would be no larger than bf16's own.
ARGUMENTS = ("--compute-dtype", "fp8")
NEARER = 1 / 3
GRADIENTS = (0.67, 1.5)  # a gradient is a vector of many errors, most of which are those of equal codes: the distances are nearly equal


def why_not(truth):
    if not truth.on_gpu:
        return "needs a GPU"
    return None if truth.machine.has_fp8() else "this GPU has no products in 8 bits"


def compare(truth, model, steps, rows, limit):
    if why := why_not(truth):
        return skip(why)
    float32 = truth.pytorch(model)["float32"]

    def ours(name, *more):
        return truth.trainings.ours(f"{model} fp8 {name}", model, "float32", steps, rows, limit, (*ARGUMENTS, *more))

    device, host = ours("on the GPU"), ours("on the CPU", "--device", "cpu")
    good, text, figures = judged(device, host, float32)
    good = good and all(figures["ours"][key] >= NEARER * figures["yardstick"][key] for key in KEYS)
    with open(truth.stage.log_of(f"{model} fp8 on the GPU"), "a", encoding="utf-8") as log:
        log.write(by_step(device, host, float32))
    apart = distance(device, host)
    return verdict_of(good), text.replace("PyTorch's", "on the CPU") + f"; {apart['loss']:.1e} and {apart['grad_norm']:.1e} apart", figures


def gradients(truth, model, rows, limit):
    if why := why_not(truth):
        return skip(why)
    truth.make(model)
    return by_parameter(truth, f"{model} fp8", model, "float32", rows, limit, GRADIENTS, (ARGUMENTS, (*ARGUMENTS, "--device", "cpu")))
