"""Trains the same job on both sides, fsdp-finetune and PyTorch, and measures how far their numbers are apart."""

import json
import math
import shutil
import statistics
import sys

from checks import NoNumber, Trouble
from machine import REFERENCE

# PyTorch's float32 run on the same device is the truth. A run is as wrong as its distance from the truth, and it may be a
# few times as wrong as PyTorch's run of the same kind, its yardstick:
#   bf16, fp16  FSDP2 in this precision. How far two runs in 16 bits are apart says nothing about which one is wrong, and
#               depends on the model: where a step is unstable, both are far from float32
#   float32     FSDP2 in float32 with the same rows in two micro-batches, which differs by the order of sums alone. AdamW's
#               division by the gradients' size magnifies this order, by an amount that depends on the model and the GPU
# Distances are compared as root mean squares over the steps, because single steps, where one side is close to the truth by
# chance, decide nothing. Differences grow from step to step, so the last steps decide. How far two right runs are from each
# other's distance depends on whether they round at the same places; docs/gpu-check.md has the measured scatter.
FURTHER = 3  # of runs that round at the same places, or in float32
FURTHER_BY_PRECISION = {"float32": FURTHER, "bf16": 5, "fp16": 5}  # of ours and PyTorch's, which round at different places
YARDSTICKS = {"float32": "float32-in-two", "bf16": "bf16", "fp16": "fp16"}
KEYS = ("loss", "grad_norm")
# The least distance of a yardstick: that of float32 runs on an H100 whose sums have other orders (plain operators, two
# micro-batches, two ranks). TF32, which has fp16's ten bits of mantissa, would be 40 times as far in the gradient norm.
LEAST = {"loss": 1e-6, "grad_norm": 4e-5}
# Every option whose default could change is given. The last value of an option counts.
HYPER_PARAMETERS = ["--no-shuffle", "--optimizer", "adamw", "--lr-schedule", "constant", "--warmup-steps", 0,
                    "--warmup-ratio", 0, "--betas", 0.9, 0.95, "--eps", 1e-8, "--weight-decay", 0.1, "--decay-all", "--clip-grad-norm", 1.0]


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Trainings:
    """The runs of a stage; a model directory is made once per call, and named after `purpose` and model."""

    def __init__(self, stage, purpose):
        self.stage, self.machine, self.purpose, self.rates, self.shapes = stage, stage.machine, purpose, {}, {}

    def folder(self, model):
        return self.machine.work / f"{self.purpose}-{model}"

    def reference(self, log_name, arguments, limit):
        return self.stage.run(log_name, [sys.executable, REFERENCE, *arguments, "--device", self.machine.device], limit)

    def define(self, name, shape):
        """Names a model that the first run of PyTorch makes."""
        self.rates[name], self.shapes[name] = shape.get("lr", 1e-3), shape

    def make_model(self, name, shape, limit):
        self.define(name, shape)
        self.reference(f"make {name}", ["make", self.folder(name), json.dumps(shape)], limit)

    def pytorch(self, name, model, precisions, steps, batch, limit, more=()):
        """Returns FSDP2's lines by precision, without the line of totals, and the totals of the last precision."""
        to = self.machine.work / name.replace(" ", "-")
        self.reference(name, ["train", self.folder(model), json.dumps(self.shapes[model]), "--to", to, "--precision", *precisions, "--steps", steps, "--batch", batch,
                              "--lr", self.rates[model], *more], limit)
        lines = {precision: read_lines(to / f"{precision}.jsonl") for precision in precisions}
        return {precision: found[:-1] for precision, found in lines.items()}, lines[precisions[-1]][-1]

    def ours_command(self, model, run, precision, steps, batch, more=(), saves=False, programs=None):
        return [(programs or self.machine.programs) / "fsdp-finetune", "--model", self.folder(model), "--train-data", self.folder(model) / "rows.h5",
                *HYPER_PARAMETERS, "--lr", self.rates[model], "--device", self.machine.device, "--precision", precision,
                "--max-steps", steps, "--batch-size", batch, *([] if saves else ["--no-save"]), "--log-every", 1, "--out-dir", self.machine.work / "runs", "--run-name", run, *more]

    def ours(self, name, model, precision, steps, batch, limit, more=(), env=None, launch=None, saves=False, kit=None):
        """Returns fsdp-finetune's lines of metrics.jsonl, one per step. `launch` makes the command line of several ranks;
        a run that `saves` leaves a checkpoint; `kit`: other programs than the machine's."""
        run = name.replace(" ", "-")
        shutil.rmtree(self.machine.work / "runs" / run, ignore_errors=True)
        command = self.ours_command(model, run, precision, steps, batch, more, saves, kit and kit.programs)
        self.stage.run(name, launch(command) if launch else command, limit, {**(kit.variables if kit else {}), **(env or {})})
        return [line for line in read_lines(self.machine.work / "runs" / run / "metrics.jsonl") if "loss" in line]

    def take_prediction(self, name):
        """Returns the tokens/s that a run predicted for itself, None if it wrote none. Deletes the file, by which later runs beside it
        would correct their predictions."""
        file = self.machine.work / "runs" / name.replace(" ", "-") / "speed.json"
        if not file.exists():
            return None
        found = json.loads(file.read_text(encoding="utf-8"))
        file.unlink()
        return found["predicted"]["tokens_per_second"]


def differences(run, truth):
    """Returns the relative differences of each step by key."""
    if len(run) != len(truth) or not run:
        raise Trouble(f"{len(run)} steps, and {len(truth)} of the run to compare with")
    if not all(math.isfinite(line[key]) and line[key] > 0 for lines in (run, truth) for line in lines for key in KEYS):
        raise NoNumber("a loss or gradient norm that is no positive number")
    return {key: [a[key] / b[key] - 1 for a, b in zip(run, truth)] for key in KEYS}


def distance(run, truth):
    """Returns the root mean square of the steps' relative differences by key."""
    return {key: math.sqrt(statistics.fmean(x * x for x in found)) for key, found in differences(run, truth).items()}


def judged(ours, yardstick, truth, further=FURTHER):
    """Returns whether our run is at most `further` times as far from the truth as the yardstick, a text, and figures."""
    mine, other = distance(ours, truth), distance(yardstick, truth)
    good = all(mine[key] <= further * max(other[key], LEAST[key]) for key in KEYS)
    text = f"from float32: loss {mine['loss']:.1e}, PyTorch's {other['loss']:.1e}; gradient norm {mine['grad_norm']:.1e}, {other['grad_norm']:.1e}"
    return good, text, {"ours": mine, "yardstick": other}


def by_step(ours, yardstick, truth):
    """Returns a table of the differences from the truth in each step."""
    columns = [differences(run, truth)[key] for key in KEYS for run in (ours, yardstick)]
    rows = [f"{step:4}  " + "  ".join(f"{x:+.1e}" for x in row) for step, row in enumerate(zip(*columns), 1)]
    return "\n".join(["differences from PyTorch's float32: loss, ours and the yardstick's; gradient norm, ours and the yardstick's", *rows, ""])


def spread(values, digits=2):
    """Formats median and range."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"
