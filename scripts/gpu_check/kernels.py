"""Stage profile: measures the time of a training step by kernel with NVIDIA's tools."""

import collections
import csv
import re

from checks import FAIL, PASS, Skipped, Trouble, skip
from contenders import REHEARSAL, SHAPES
from training import Trainings

STEPS, BATCH, LAYERS, LISTED = 6, 16, 2, 25
# The first pattern that matches counts: names of attention kernels also contain those of matrix products.
KINDS = [("kernels of this project", r"fsdp::"), ("attention", r"flash|fmha|sdpa|attention|cudnn"),
         ("products", r"gemm|gemv|cutlass|nvjet|cublas|xmma"), ("collectives", r"nccl")]


class Profile:
    def __init__(self, stage):
        self.stage, self.machine, self.trainings = stage, stage.machine, Trainings(stage, "profile")

    def run(self):
        if self.machine.device != "cuda":
            self.stage.check("time by kernel", lambda: skip("needs a GPU"))
        elif self.machine.tool("nsys"):
            self.stage.check("time by kernel, nsys", self.by_kernel, self.nsys)
        elif self.machine.tool("ncu"):
            self.stage.check("time by kernel, ncu", self.by_kernel, self.ncu)
        else:
            why = "no nsys and no ncu on PATH or in CUDA_HOME/bin; PyTorch's profiler sees its own process only"
            self.stage.check("time by kernel", lambda: skip(why))

    def nsys(self, command):
        """Returns [(name, nanoseconds, calls)] from Nsight Systems; needs no permission to read performance counters."""
        nsys, report = self.machine.tool("nsys"), self.machine.work / "profile.nsys-rep"
        options = ["--trace=cuda", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true", "-o", report]
        self.stage.run("nsys", [nsys, "profile", *options, *command], 240)
        options = ["--report", "cuda_gpu_kern_sum", "--format", "csv", "--output", "-", report]
        log = self.stage.run("nsys stats", [nsys, "stats", *options], 120)
        return [(row["Name"], float(row["Total Time (ns)"]), int(row["Instances"])) for row in table(log, "Total Time (ns)")]

    def ncu(self, command):
        """Returns [(name, nanoseconds, calls)] from Nsight Compute, which runs each kernel alone and at the GPU's current clock."""
        log = self.machine.work / "ncu.csv"
        options = ["--clock-control", "none", "--metrics", "gpu__time_duration.sum", "--csv", "--log-file", log, "--launch-count", 3000]
        try:
            self.stage.run("ncu", [self.machine.tool("ncu"), *options, *command], 420)
        except Trouble as trouble:
            said = self.stage.log_of("ncu").read_text(encoding="utf-8", errors="replace")
            raise Skipped("ncu may not read the GPU's performance counters here") if "ERR_NVGPUCTRPERM" in said else trouble
        units = {"ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}
        total, calls = collections.Counter(), collections.Counter()
        for row in table(log, "Metric Value"):
            total[row["Kernel Name"]] += float(row["Metric Value"].replace(",", "")) * units[row["Metric Unit"]]
            calls[row["Kernel Name"]] += 1
        return [(name, total[name], calls[name]) for name in total]

    def by_kernel(self, profiler):
        shape = {**SHAPES["codellama"], "layers": LAYERS, **(REHEARSAL if self.machine.small else {})}
        self.trainings.make_model("profile", shape, 90)
        found = profiler(self.trainings.ours_command("profile", "profile", "bf16", STEPS, BATCH))
        if not found:
            raise Trouble("no kernel was seen")
        shares, figures = by_kind(found)
        text = ", ".join(f"{kind} {share:.1f} %" for kind, share in shares.items())
        without = "kernels of this project" not in shares and "PyTorch's operators alone" not in self.machine.version
        return (FAIL if without else PASS), f"{sum(ns for _, ns, _ in found) / 1e6 / STEPS:.2f} ms of kernels a step: {text}", figures


def by_kind(found):
    """Returns each kernel group's share of all time in percent, largest first, and the longest kernels."""
    total, kinds = sum(ns for _, ns, _ in found), collections.Counter()
    for name, ns, _ in found:
        kinds[next((kind for kind, words in KINDS if re.search(words, name)), "others")] += ns
    longest = sorted(found, key=lambda each: -each[1])[:LISTED]
    kernels = [{"name": name[:120], "ms_per_step": round(ns / 1e6 / STEPS, 4), "calls_per_step": round(calls / STEPS, 2)}
               for name, ns, calls in longest]
    shares = {kind: 100 * ns / total for kind, ns in kinds.most_common()}
    return shares, {"kernels": kernels, "shares_percent": shares}


def table(log, column):
    """Returns the rows of a CSV table among a tool's messages; the table begins with the line that names `column`."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    begin = next((i for i, line in enumerate(lines) if column in line), None)
    if begin is None:
        raise Trouble(f"no table of kernels: {log}")
    rows = csv.DictReader(lines[begin:])
    return [row for row in rows if (row.get(column) or "").strip()[:1].isdigit()]


def run(stage):
    Profile(stage).run()
