"""Part of stages contact and rest: the gradients of the first step by parameter. How far are ours from float32, and how far PyTorch's?

A gradient is a vector of many rounding errors, so its distance from float32 hardly varies by chance, and the first step is
before any error has grown: a kernel that is less exact than it should be, or wrong for one parameter, shows here."""

import json
import math

from checks import Trouble, skip, verdict_of

MOST = 2  # times as far as PyTorch's
LEAST = 1e-5  # of a distance: float32's own


def compare(truth, model, precision, rows, limit):
    if precision == "bf16" and not truth.machine.has_bf16():
        return skip("this GPU has no units for bf16")
    truth.make(model)
    return by_parameter(truth, f"{model} {precision}", model, precision, rows, limit, (0, MOST), ((),))


def by_parameter(truth, name, model, precision, rows, limit, between, variants):
    """Compares distances from PyTorch's float32: of our run with the first of `variants` (options), against those of
    the run with the second, or of PyTorch in this precision. Their ratio must be `between` two limits."""
    checkpoints = []
    for number, more in enumerate(variants):
        run = f"gradients of {name} {number}"
        truth.trainings.ours(run, model, precision, 1, rows, limit, more, saves=True)
        checkpoints.append(truth.machine.work / "runs" / run.replace(" ", "-") / "checkpoints/latest")
        if not checkpoints[-1].exists():
            raise Trouble("the run left no checkpoint")
    to = truth.machine.work / f"gradients-{name}".replace(" ", "-")
    log = truth.trainings.reference(f"gradients of {name}", ["gradients", truth.trainings.folder(model), "--checkpoint", *checkpoints, "--batch", rows,
                                                            "--precision", precision, "--to", to], limit)
    found = json.loads((to / "gradients.json").read_text(encoding="utf-8"))
    ratios = {each: max(ours, LEAST) / max(other, LEAST) for each, (ours, other) in found.items()}
    by_ratio = sorted(found, key=ratios.get, reverse=True)
    with open(log, "a", encoding="utf-8") as file:
        file.write("distance from float32: ours, the other's, ratio\n")
        file.writelines(f"{found[each][0]:.2e} {found[each][1]:.2e} {ratios[each]:5.2f}  {each}\n" for each in by_ratio)
    means = [math.sqrt(sum(pair[side] ** 2 for pair in found.values()) / len(found)) for side in (0, 1)]
    good = all(between[0] <= ratio <= between[1] for ratio in ratios.values())
    other = "PyTorch's" if len(variants) == 1 else "on the CPU"
    text = (f"from float32: ours {means[0]:.1e}, {other} {means[1]:.1e} of a gradient; "
            f"{ratios[by_ratio[-1]]:.2f} to {ratios[by_ratio[0]]:.2f} times ({by_ratio[0]})")
    return verdict_of(good), text, {"distances": found}
