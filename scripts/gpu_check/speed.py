"""Stage speed: fsdp-finetune beside FSDP2, eager and compiled, a model compiled as a whole, and llm.c, on the same shapes in the
same minutes, and beside itself with other kernels, other attention and graphs; rates of the GPU without a model."""

import dataclasses
import os
import shutil
import statistics

import llmc
import rates
from checks import FAIL, LATE, NOTE, PASS, Late, Trouble, skip, verdict_of
from machine import NO_MPIEXEC
from power import Sampled, words
from training import Trainings, spread

STEPS, WARM_UP = 20, 8  # the first steps compile, choose kernels and fill the allocator
GOAL_GPUS = ("H100", "H200")  # on other GPUs the figures are only printed
SHAPES = {
    "codellama": dict(kind="llama", layers=8, width=4096, heads=32, ffn=11008, vocab=32016, length=512, rows=64),
    "mingpt": dict(kind="mingpt", layers=12, width=768, heads=12, ffn=3072, vocab=50257, length=1024, rows=32)}
REHEARSAL = dict(layers=2, width=64, heads=4, ffn=176, vocab=1000, length=64)
OURS, EAGER, COMPILED, WHOLE, LLMC = "ours", "FSDP2", "FSDP2 compiled", "PyTorch compiled, not sharded", "llm.c"
IN_FP8, BY_FLASH, PLAIN, OFFLOADED = "ours with fp8", "ours with flash attention", "ours with plain operators", "ours with CPU offload"
GRAPHS_ON, GRAPHS_OFF = "ours with graphs", "ours without graphs"
# Options and variables of the contenders that are fsdp-finetune.
VARIANTS = {OURS: ((), {}), IN_FP8: (("--compute-dtype", "fp8"), {}), BY_FLASH: ((), {"FSDP_CUDA_ATTENTION": "flash"}),
            PLAIN: ((), {"FSDP_CUDA_KERNELS": "off"}), OFFLOADED: (("--cpu-offload",), {}),
            GRAPHS_ON: (("--cuda-graphs", "on"), {}), GRAPHS_OFF: (("--cuda-graphs", "off"), {})}
OF_PYTORCH = {EAGER: (), COMPILED: ("--compile",), WHOLE: ("--whole",)}  # options of reference.py
OTHERS = (*OF_PYTORCH, LLMC)
# Variables with which NCCL's kernels take fewer multiprocessors from the products.
FEWER = {"registered buffers": {"FSDP_NCCL_REGISTER": "on"}, "16 blocks for NCCL": {"NCCL_MAX_CTAS": "16"}, "4 blocks for NCCL": {"NCCL_MAX_CTAS": "4"}}


@dataclasses.dataclass
class Case:
    """`first` takes turns once, then `again`. `goals`: our tokens/s over theirs."""
    name: str
    batch: int
    first: tuple
    again: tuple = ()
    goals: dict = dataclasses.field(default_factory=dict)


CASES = [
    Case("codellama", 16, (OURS, COMPILED, BY_FLASH, IN_FP8, PLAIN), (OURS, COMPILED), {COMPILED: 1.05}),
    Case("mingpt", 8, (OURS, COMPILED, WHOLE, LLMC, GRAPHS_ON, GRAPHS_OFF, PLAIN, OFFLOADED), (OURS, COMPILED, LLMC), {COMPILED: 1.0, LLMC: 1.0}),
    Case("mingpt", 1, (OURS, GRAPHS_ON, GRAPHS_OFF)),
    Case("codellama", 4, (OURS, EAGER, COMPILED))]


def layers_that_fit(gpu_bytes, shape):
    """Returns 8, 4, 2 or 1 layers, at 20 bytes per parameter (16 of states on PyTorch's side, 4 of copies) and 8 GiB for
    activations and logits."""
    layer = 4 * shape["width"] ** 2 + 3 * shape["width"] * shape["ffn"]
    rest = 2 * shape["width"] * shape["vocab"]
    return next((n for n in (8, 4, 2) if 20 * (n * layer + rest) + 2**33 <= gpu_bytes), 1)


class Speed:
    def __init__(self, stage):
        self.stage, self.machine, self.trainings = stage, stage.machine, Trainings(stage, "speed")
        self.shapes = {name: dict(shape) for name, shape in SHAPES.items()}
        if self.machine.small:
            for shape in self.shapes.values():
                shape |= REHEARSAL
        else:
            self.shapes["codellama"]["layers"] = layers_that_fit(self.machine.facts["gpu_bytes"], SHAPES["codellama"])

    def run(self):
        def check(name, function, *arguments):
            self.stage.check(name, function, *arguments, stops=False)
        check("rates", rates.check, self.stage)
        if not self.machine.has_bf16():
            check("tokens/s", lambda: skip("this GPU has no units for bf16"))
            return
        for case in CASES:
            runs = {}
            title = f"{case.name} {case.batch} x {self.shapes[case.name]['length']}"
            check(f"{title}, tokens/s", self.turns, case, runs)
            if OURS in runs:
                check(f"{title}, to others", self.ratio, case, runs)
                check(f"{title}, MFU", self.share_of_peak, runs)
                check(f"{title}, between steps", self.between_steps, runs)
        check("codellama on all GPUs, tokens/s", self.on_all_gpus)

    def is_possible(self, contender):
        # Triton compiles the launchers of its kernels and inductor the CPU code with a C compiler.
        if contender in (COMPILED, WHOLE):
            return bool(os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))) and not self.machine.computes_nothing
        if contender == LLMC:
            return self.machine.llmc is not None and not self.machine.small
        if contender == IN_FP8:
            return self.machine.has_fp8()
        if contender == BY_FLASH:  # elsewhere flash is ours anyway
            return self.machine.device == "cuda" and self.machine.facts["capability"].partition(".")[0] in ("9", "10")
        return contender in (OURS, EAGER, OFFLOADED) or self.machine.device == "cuda"

    def make(self, model):
        if not self.trainings.folder(model).exists():
            self.trainings.make_model(model, self.shapes[model], 120)

    def turns(self, case, runs):
        """Lets the contenders run in turns, so that drift of the machine affects all; a turn's rate is the median of its steps."""
        self.make(case.name)
        failed, shape = {}, self.shapes[case.name]
        for turn, contenders in enumerate((case.first, case.again)):
            for contender in filter(self.is_possible, contenders):
                if contender not in failed:
                    try:
                        self.one_turn(case, contender, turn, runs)
                    except (Late, Trouble) as trouble:  # keep the figures of the others, and of its first turn
                        failed[contender] = trouble
                        if isinstance(trouble, Trouble):
                            runs.pop(contender, None)
        parts = [f"{contender} {spread(found['tokens_per_second'], 0)}{self.memory(found)}{words(found['clocks'][-1])}" for contender, found in runs.items()]
        parts += [f"{contender} failed: {why}" for contender, why in failed.items()]
        verdict = FAIL if any(isinstance(why, Trouble) for why in failed.values()) else LATE if failed else PASS
        return verdict, f"{', '.join(parts)}; {shape['layers']} layers x {shape['width']}", runs

    def one_turn(self, case, contender, turn, runs):
        what = f"{case.name} {case.batch} {contender} turn {turn + 1}"
        if contender == LLMC:
            llmc.program(self.stage)  # before the clocks are sampled
        with Sampled(self.machine) as gpu:
            lines, peak = self.trained(case, contender, what)
        found = runs.setdefault(contender, {key: [] for key in ("tokens_per_second", "mfu", "reserved_memory_bytes", "clocks", "step_seconds", "gap_seconds",
                                                                "first_step_seconds")})
        usual = statistics.median(line["step_seconds"] for line in lines[WARM_UP:])
        found["tokens_per_second"].append(case.batch * self.shapes[case.name]["length"] / usual)
        found["step_seconds"].append(usual)
        found["first_step_seconds"].append(lines[0]["step_seconds"])
        found["gap_seconds"] += [line["device_gap_seconds"] for line in lines[WARM_UP:] if "device_gap_seconds" in line]
        found["mfu"] += [line["mfu"] for line in lines[WARM_UP:] if "mfu" in line]
        found["reserved_memory_bytes"].append(peak)
        found["clocks"].append(gpu.found)

    def trained(self, case, contender, what):
        """Returns a line per step, and the peak of reserved memory."""
        if contender == LLMC:
            return [{"step_seconds": each} for each in llmc.seconds_of_steps(self.stage, what, self.shapes[case.name], case.batch, STEPS, 100)], None
        if contender in VARIANTS:
            options, variables = VARIANTS[contender]
            lines = self.trainings.ours(what, case.name, "bf16", STEPS, case.batch, 100, options, variables)
            totals = lines[-1]
        else:
            lines, totals = self.trainings.pytorch(what, case.name, ["bf16"], STEPS, case.batch, 150, OF_PYTORCH[contender])
            lines = lines["bf16"]
        return lines, totals.get("reserved_memory_bytes")

    @staticmethod
    def memory(found):
        peak = found["reserved_memory_bytes"][-1]
        return f" in {peak / 2**30:.1f} GiB" if peak else ""

    def ratio(self, case, runs):
        """Compares tokens/s. PASS or FAIL if a goal is set for this GPU and case, else NOTE."""
        rate = {contender: found["tokens_per_second"] for contender, found in runs.items()}
        per_turn = {other: [a / b for a, b in zip(rate[OURS], rate[other])] for other in OTHERS if other in rate}
        parts = [f"{spread(ratios)} times {other}" for other, ratios in per_turn.items()]
        parts += [f"{variant} {spread([a / b for a, b in zip(rate[variant], rate[OURS])])} times ours" for variant in VARIANTS if variant in rate and variant != OURS]
        missing = [f"nothing of {other} ({self.why_not(other)})" for other in case.goals if other not in rate]
        text = ", ".join((*parts, *missing))
        asked = {other: goal for other, goal in case.goals.items() if other in rate}
        if case.goals and not asked:
            return skip(text)
        if case.goals:
            text += f" (goals: {', '.join(f'{goal} times {other}' for other, goal in case.goals.items())})"
        if not asked or self.machine.small or not any(name in self.machine.facts["gpu"] for name in GOAL_GPUS):
            return NOTE, text, per_turn
        return verdict_of(all(statistics.median(per_turn[other]) >= goal for other, goal in asked.items())), text, per_turn

    def why_not(self, other):
        if self.is_possible(other):
            return "it failed"
        if other == LLMC:
            return "--llmc names no source" if self.machine.llmc is None else "it has one size"
        return "a rehearsal compiles nothing" if self.machine.computes_nothing else "no C compiler on PATH, and CC names none"

    def share_of_peak(self, runs):
        """Returns MFU, relative to the data sheet's dense bf16 rate; all sides do the same useful operations per token."""
        if not runs[OURS]["mfu"]:
            return skip("the peak of this GPU is not known")
        ours = statistics.median(runs[OURS]["mfu"])
        rate = {contender: statistics.median(found["tokens_per_second"]) for contender, found in runs.items()}
        shares = {contender: ours * each / rate[OURS] for contender, each in rate.items()}
        return NOTE, ", ".join(f"{contender} {100 * share:.1f} %" for contender, share in shares.items()), shares

    @staticmethod
    def between_steps(runs):
        """Returns how long the GPU waits between two of our steps, and the seconds of first steps, the longest of the turns."""
        first = ", ".join(f"{contender} {max(found['first_step_seconds']):.1f} s" for contender, found in runs.items())
        gaps = {contender: {"gap": statistics.median(found["gap_seconds"]), "of": statistics.median(found["step_seconds"])}
                for contender, found in runs.items() if found["gap_seconds"]}
        waits = [f"{contender} {1e3 * each['gap']:.3f} ms of {1e3 * each['of']:.1f} a step" for contender, each in gaps.items()]
        return NOTE, f"{', '.join(waits) or 'no GPU'}; first step {first}", gaps

    def on_all_gpus(self):
        """Compares full-shard on all GPUs of the node with one GPU alone, and with fewer multiprocessors for NCCL: how much of a
        step do gathers and reductions take, and how much of it because their kernels occupy multiprocessors?"""
        gpus = self.machine.facts["gpus"] if self.machine.device == "cuda" else 0
        if gpus < 2:
            return skip("NCCL needs two GPUs")
        if self.machine.mpiexec is None:
            return skip(NO_MPIEXEC)
        self.make("codellama")
        shape = self.shapes["codellama"]
        batch = min(16, shape["rows"] // gpus)

        def rate(ranks, way="as usual", variables=None):
            """Returns tokens/s of a GPU."""
            launch = (lambda command: [self.machine.mpiexec, "-n", ranks, *command]) if ranks > 1 else None
            lines = self.trainings.ours(f"codellama {ranks} GPUs {way}", "codellama", "bf16", STEPS, batch, 100, ("--sharding", "full-shard"), variables, launch)
            return batch * shape["length"] / statistics.median(line["step_seconds"] for line in lines[WARM_UP:])
        alone, usual = rate(1), rate(gpus)
        fewer = {way: rate(gpus, way, variables) for way, variables in FEWER.items()}
        parts = [f"{gpus} GPUs {usual:.0f} each, {usual / alone:.3f} times one alone", *(f"with {way} {each / usual:.3f} times that" for way, each in fewer.items())]
        return NOTE, f"{', '.join(parts)}; {batch} rows per GPU", {"alone": alone, "all": usual, **fewer}


def run(stage):
    Speed(stage).run()
