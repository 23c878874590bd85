"""Stage speed: fsdp-finetune beside FSDP2, eager and compiled, on the same shapes in the same run."""

import os
import shutil
import statistics

from checks import FAIL, LATE, NOTE, PASS, Late, Trouble, skip
from training import Trainings, spread

STEPS, WARM_UP = 20, 8  # the first steps compile, choose kernels and fill the allocator
# Required results on an H200; on other GPUs and for other cases the figures are only printed.
GOAL_GPU = "H200"
SHAPES = {
    "codellama": dict(kind="llama", layers=8, width=4096, heads=32, ffn=11008, vocab=32016, length=512, rows=64),
    "mingpt": dict(kind="mingpt", layers=12, width=768, heads=12, ffn=3072, vocab=50257, length=1024, rows=32)}
# Shape, rows per step, turns; required speed relative to compiled FSDP2, and MFU: llm.c publishes 60 % for minGPT.
CASES = [("codellama", 16, 2, 1.05, 0.58), ("codellama", 4, 1, None, None), ("mingpt", 8, 2, None, 0.60)]
REHEARSAL = dict(layers=2, width=64, heads=4, ffn=176, vocab=1000, length=64)
OURS, EAGER, COMPILED, IN_FP8, BY_FLASH = "ours", "FSDP2", "FSDP2 compiled", "ours with fp8", "ours with flash attention"
# Options and variables of the contenders that are fsdp-finetune.
VARIANTS = {OURS: ((), {}), IN_FP8: (("--compute-dtype", "fp8"), {}), BY_FLASH: ((), {"FSDP_CUDA_ATTENTION": "flash"})}


def layers_that_fit(gpu_bytes, shape):
    """Returns 8, 4, 2 or 1 layers, at 20 bytes per parameter (16 of states on PyTorch's side, 4 of copies) and 8 GiB for
    activations and logits."""
    layer = 4 * shape["width"] ** 2 + 3 * shape["width"] * shape["ffn"]
    rest = 2 * shape["width"] * shape["vocab"]
    return next((n for n in (8, 4, 2) if 20 * (n * layer + rest) + 2**33 <= gpu_bytes), 1)


class Speed:
    def __init__(self, stage):
        self.stage, self.machine, self.trainings = stage, stage.machine, Trainings(stage)
        self.shapes = {name: dict(shape) for name, shape in SHAPES.items()}
        if self.machine.device == "cuda":
            self.shapes["codellama"]["layers"] = layers_that_fit(self.machine.facts["gpu_bytes"], SHAPES["codellama"])
        else:
            for shape in self.shapes.values():
                shape |= REHEARSAL
        self.made = set()

    def run(self):
        if not self.machine.has_bf16():
            self.stage.check("tokens/s", lambda: skip("this GPU has no units for bf16"))
            return
        for name, batch, turns, ratio_goal, mfu_goal in CASES:
            shape, runs = self.shapes[name], {}
            title = f"{name} {batch} x {shape['length']}"
            self.stage.check(f"{title}, tokens/s", self.turns, name, batch, turns, runs)
            if OURS in runs:
                self.stage.check(f"{title}, to FSDP2", self.ratio, runs, ratio_goal)
                self.stage.check(f"{title}, MFU", self.share_of_peak, runs, mfu_goal)

    def contenders(self, name):
        # Triton compiles the launchers of its kernels and inductor the CPU code with a C compiler.
        compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
        variants = name == "codellama" and self.machine.has_fp8()
        by_cudnn = variants and self.machine.facts["capability"].partition(".")[0] in ("9", "10")  # else flash is ours anyway
        return [OURS, EAGER, *([COMPILED] if compiler else []), *([IN_FP8] if variants else []), *([BY_FLASH] if by_cudnn else [])]

    def turns(self, name, batch, turns, runs):
        """Lets the contenders run in turns, so that drift of the machine affects all; a turn's rate is the median of its steps."""
        if name not in self.made:
            self.trainings.make_model(name, self.shapes[name], 120)
            self.made.add(name)
        failed, shape = {}, self.shapes[name]
        for turn in range(turns):
            for contender in self.contenders(name):
                if contender not in failed:
                    try:
                        self.one_turn(name, batch, contender, turn, runs)
                    except (Late, Trouble) as trouble:  # keep the figures of the others
                        failed[contender] = trouble
                        runs.pop(contender, None)
        parts = [f"{contender} {spread(found['tokens_per_second'], 0)}{self.memory(found)}" for contender, found in runs.items()]
        parts += [f"{contender} failed: {why}" for contender, why in failed.items()]
        verdict = FAIL if any(isinstance(why, Trouble) for why in failed.values()) else LATE if failed else PASS
        return verdict, f"{', '.join(parts)}; {shape['layers']} layers x {shape['width']}", runs

    def one_turn(self, name, batch, contender, turn, runs):
        what = f"{name} {batch} {contender} turn {turn + 1}"
        if contender in VARIANTS:
            options, variables = VARIANTS[contender]
            lines = self.trainings.ours(what, name, "bf16", STEPS, batch, 100, options, variables)
            totals = lines[-1]
        else:
            lines, totals = self.trainings.pytorch(what, name, ["bf16"], STEPS, batch, 150, contender == COMPILED)
            lines = lines["bf16"]
        counted, tokens = lines[WARM_UP:], batch * self.shapes[name]["length"]
        found = runs.setdefault(contender, {"tokens_per_second": [], "mfu": [], "reserved_memory_bytes": []})
        found["tokens_per_second"].append(tokens / statistics.median(line["step_seconds"] for line in counted))
        found["mfu"] += [line["mfu"] for line in counted if "mfu" in line]
        found["reserved_memory_bytes"].append(totals.get("reserved_memory_bytes"))

    @staticmethod
    def memory(found):
        peak = found["reserved_memory_bytes"][-1]
        return f" in {peak / 2**30:.1f} GiB" if peak else ""

    def judged(self, figure, goal):
        """Returns PASS or FAIL if a goal is set for this GPU and case, else NOTE."""
        if goal is not None and GOAL_GPU in (self.machine.facts["gpu"] or ""):
            return verdict_of(figure >= goal)
        return NOTE

    def ratio(self, runs, goal):
        rates = {contender: found["tokens_per_second"] for contender, found in runs.items()}
        per_turn = {other: [a / b for a, b in zip(rates[OURS], rates[other])] for other in (COMPILED, EAGER) if other in rates}
        text = ", ".join(f"{spread(ratios)} times {other}" for other, ratios in per_turn.items())
        for variant in (IN_FP8, BY_FLASH):
            if variant in rates:
                text += f", {variant} {spread([a / b for a, b in zip(rates[variant], rates[OURS])])} times ours"
        if COMPILED not in per_turn:
            why = "it failed" if COMPILED in self.contenders("") else "no C compiler on PATH, and CC names none"
            return skip(f"nothing of {COMPILED} to compare with ({why}){text and '; ' + text}")
        asked = f" (goal on an {GOAL_GPU}: {goal} times {COMPILED})" if goal else ""
        return self.judged(statistics.median(per_turn[COMPILED]), goal), text + asked, per_turn

    def share_of_peak(self, runs, goal):
        """Returns MFU, relative to the data sheet's dense bf16 rate; both sides do the same useful operations per token."""
        if not runs[OURS]["mfu"]:
            return skip("the peak of this GPU is not known")
        ours = statistics.median(runs[OURS]["mfu"])
        rates = {contender: statistics.median(found["tokens_per_second"]) for contender, found in runs.items()}
        shares = {contender: ours * rate / rates[OURS] for contender, rate in rates.items()}
        asked = f" (goal on an {GOAL_GPU}: {100 * goal:.0f} %)" if goal else ""
        text = ", ".join(f"{contender} {100 * share:.1f} %" for contender, share in shares.items())
        return self.judged(ours, goal), text + asked, shares


def run(stage):
    Speed(stage).run()
