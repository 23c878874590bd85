"""Trains the same job on both sides, fsdp-finetune and PyTorch, and measures how far their numbers are apart."""

import json
import math
import shutil
import statistics
import sys

from checks import Trouble
from machine import REFERENCE

# The largest relative difference of a step's loss and of its gradient norm, over all steps.
#   float32  the two sides sum in different orders, which AdamW's division by the gradients' size magnifies. The ten bits
#            of mantissa that TF32 would leave exceed this limit: in fp16, which has as many, norms were 3e-4 off on a CPU
#   bf16     8 bits at every operation, rounded at different places: each side may be as far from exact numbers as this
#            project allows itself, 1e-3 and 1e-2
#   fp16     three bits more: an eighth of bf16's limit
TOLERANCES = {"float32": (1e-5, 1e-4), "bf16": (2e-3, 2e-2), "fp16": (2.5e-4, 2.5e-3)}
# Every option whose default could change is given. The last value of an option counts.
HYPER_PARAMETERS = ["--no-shuffle", "--optimizer", "adamw", "--lr", 1e-3, "--lr-schedule", "constant", "--warmup-steps", 0,
                    "--warmup-ratio", 0, "--betas", 0.9, 0.95, "--eps", 1e-8, "--weight-decay", 0.1, "--decay-all", "--clip-grad-norm", 1.0]


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Trainings:
    """The runs of a stage; a model directory is made once per shape and named after the shape."""

    def __init__(self, stage):
        self.stage, self.machine = stage, stage.machine

    def folder(self, model):
        return self.machine.work / model

    def reference(self, log_name, arguments, limit):
        return self.stage.run(log_name, [sys.executable, REFERENCE, *arguments, "--device", self.machine.device], limit)

    def make_model(self, name, shape, limit):
        self.reference(f"make {name}", ["make", self.folder(name), json.dumps(shape)], limit)

    def pytorch(self, name, model, precisions, steps, batch, limit, compiled=False):
        """Returns FSDP2's lines by precision, without the line of totals, and the totals of the last precision."""
        to = self.machine.work / name.replace(" ", "-")
        self.reference(name, ["train", self.folder(model), "--to", to, "--precision", *precisions, "--steps", steps, "--batch", batch,
                              *(["--compile"] if compiled else [])], limit)
        lines = {precision: read_lines(to / f"{precision}.jsonl") for precision in precisions}
        return {precision: found[:-1] for precision, found in lines.items()}, lines[precisions[-1]][-1]

    def ours_command(self, model, run, precision, steps, batch, more=()):
        return [self.machine.programs / "fsdp-finetune", "--model", self.folder(model), "--train-data", self.folder(model) / "rows.h5",
                *HYPER_PARAMETERS, "--device", self.machine.device, "--precision", precision, "--max-steps", steps, "--batch-size", batch,
                "--no-save", "--log-every", 1, "--out-dir", self.machine.work / "runs", "--run-name", run, *more]

    def ours(self, name, model, precision, steps, batch, limit, more=(), env=None, launch=None):
        """Returns fsdp-finetune's lines of metrics.jsonl, one per step. `launch` makes the command line of several ranks."""
        run = name.replace(" ", "-")
        shutil.rmtree(self.machine.work / "runs" / run, ignore_errors=True)
        command = self.ours_command(model, run, precision, steps, batch, more)
        self.stage.run(name, launch(command) if launch else command, limit, env)
        return [line for line in read_lines(self.machine.work / "runs" / run / "metrics.jsonl") if "loss" in line]


def worst(ours, theirs):
    """Returns the largest relative differences of loss and gradient norm."""
    if len(ours) != len(theirs) or not ours:
        raise Trouble(f"{len(ours)} steps, and {len(theirs)} of PyTorch's")
    keys = ("loss", "grad_norm")
    for side, lines in (("ours", ours), ("PyTorch", theirs)):
        if not all(math.isfinite(line[key]) and line[key] > 0 for line in lines for key in keys):
            raise Trouble(f"{side}: a loss or gradient norm that is no positive number")
    return [max(abs(a[key] / b[key] - 1) for a, b in zip(ours, theirs)) for key in keys]


def spread(values, digits=2):
    """Formats median and range."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"
