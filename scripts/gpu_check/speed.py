"""Stage speed: fsdp-finetune beside an older one, FSDP2, eager and compiled, a model compiled as a whole, and llm.c, on the same
shapes in the same minutes, and beside itself with other kernels, other attention and graphs; rates of the GPU without a model."""

import json
import os
import shutil
import statistics

import contention
import llmc
import rates
from checks import FAIL, LATE, NOTE, PASS, Late, Trouble, skip, verdict_of
from contenders import ACCUMULATED, BY_FLASH, CASES, COMPILED, EAGER, IN_FP8, LLMC, OF_PYTORCH, OFFLOADED, OLD, OTHERS, OURS, PACKED, VARIANTS, WHOLE, shapes
from machine import NO_MPIEXEC
from power import Sampled, words
from training import Trainings, spread

STEPS, WARM_UP = 20, 8  # on all GPUs
GOAL_GPUS = ("H100", "H200")  # on other GPUs the figures are only printed
FEWER = {"16 blocks for NCCL": {"NCCL_MAX_CTAS": "16"}}  # which leaves more multiprocessors to the products


class Speed:
    def __init__(self, stage):
        self.stage, self.machine, self.trainings = stage, stage.machine, Trainings(stage, "speed")
        self.shapes = shapes(self.machine)

    def run(self):
        def check(name, function, *arguments):
            self.stage.check(name, function, *arguments, stops=False)
        check("rates", rates.check, self.stage)
        check("contention", contention.check, self.stage)
        if not self.machine.has_bf16():
            check("tokens/s", lambda: skip("this GPU has no units for bf16"))
            return
        for case in CASES:
            if not self.chosen(case.first):
                continue
            runs, title = {}, self.title(case)
            check(f"{title}, tokens/s", self.turns, case, runs)
            if OURS in runs:
                if len(runs) > 1 or case.goals:
                    check(f"{title}, to others", self.ratio, case, runs)
                check(f"{title}, MFU", self.share_of_peak, runs)
                check(f"{title}, between steps", self.between_steps, runs)
            if sum(case.model == other.model for other in CASES) == 1:  # room on the disk for the next one
                shutil.rmtree(self.trainings.folder(case.model), ignore_errors=True)
        check("codellama on all GPUs, tokens/s", self.on_all_gpus)

    def title(self, case):
        by = f" x {case.micro_batches}" if case.micro_batches > 1 else ""
        return f"{case.name} {case.batch} x {self.length(case)}{by}"

    def length(self, case):
        return self.shapes[case.model]["long" if case.long else "length"]

    def chosen(self, contenders):
        """Returns those that --contenders names and that are possible here."""
        return [each for each in contenders if (not self.stage.contenders or each in self.stage.contenders) and self.is_possible(each)]

    def is_possible(self, contender):
        # Triton compiles the launchers of its kernels and inductor the CPU code with a C compiler.
        if contender in (COMPILED, WHOLE):
            return bool(os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))) and not self.machine.computes_nothing
        if contender == LLMC:
            return self.machine.llmc is not None and not self.machine.small
        if contender == OLD:
            return self.machine.old is not None
        if contender == IN_FP8:
            return self.machine.has_fp8()
        if contender == BY_FLASH:  # elsewhere flash is ours anyway
            return self.machine.device == "cuda" and self.machine.facts["capability"].partition(".")[0] in ("9", "10")
        return contender in (OURS, EAGER, OFFLOADED, ACCUMULATED, PACKED) or self.machine.device == "cuda"

    def make(self, model):
        if not self.trainings.folder(model).exists():
            self.trainings.make_model(model, self.shapes[model], 120)

    def turns(self, case, runs):
        """Lets the contenders run in turns, so that drift of the machine affects all; a turn's rate is the median of its steps."""
        self.make(case.model)
        failed, shape = {}, self.shapes[case.model]
        batch = self.rows_that_fit(case)
        for turn, contenders in enumerate((case.first, case.again)):
            for contender in self.chosen(contenders):
                if contender not in failed:
                    try:
                        self.one_turn(case, contender, turn, runs, batch)
                    except (Late, Trouble) as trouble:  # keep the figures of the others, and of its first turn
                        failed[contender] = trouble
                        if isinstance(trouble, Trouble):
                            runs.pop(contender, None)
        parts = [f"{contender} {spread(found['tokens_per_second'], 0)}{self.prediction(found)}{self.memory(found)}{words(found['clocks'][-1])}"
                 for contender, found in runs.items()]
        parts += [f"{contender} failed: {why}" for contender, why in failed.items()]
        fewer = f", as {case.micro_batches * case.batch // batch} micro-batches of {batch} rows, which fit" if batch < case.batch else ""
        verdict = FAIL if any(isinstance(why, Trouble) for why in failed.values()) else LATE if failed else PASS
        return verdict, f"{', '.join(parts)}; {shape['layers']} layers x {shape['width']}{fewer}", runs

    def rows_that_fit(self, case):
        """Returns the rows of a micro-batch: those of the case, or for an accumulated one a power of two that fsdp-memprobe finds to fit."""
        if case.micro_batches == 1 or self.machine.device != "cuda":
            return case.batch
        log = self.stage.run(f"{case.name} rows", [self.machine.programs / "fsdp-memprobe", "--model", self.trainings.folder(case.model) / "config.json",
                                                   "--precision", "bf16", "--seq-len", self.length(case), "--device", "cuda", "--max-batch", case.batch, "--search",
                                                   "--gradient-accumulation-steps", case.micro_batches, "--json", "--quiet"], 60)
        text = log.read_text(encoding="utf-8")
        most = json.loads(text[text.index("{"):text.rindex("}") + 1])["largest_batch_per_device"]
        return next((case.batch >> i for i in range(8) if case.batch >> i and case.batch >> i <= most), 1)

    def one_turn(self, case, contender, turn, runs, batch):
        what = f"{case.name} {case.batch} {contender} turn {turn + 1}"
        if contender == LLMC:
            llmc.program(self.stage)  # before the clocks are sampled
        micro_batches = max(case.micro_batches, VARIANTS[contender].micro_batches if contender in VARIANTS else 1)
        steps, warm_up = case.steps_of(micro_batches)
        with Sampled(self.machine) as gpu:
            lines, peak, predicted = self.trained(case, contender, what, (batch, micro_batches * case.batch // batch, steps))
        found = runs.setdefault(contender, {key: [] for key in ("tokens_per_second", "predicted_tokens_per_second", "mfu", "reserved_memory_bytes", "clocks",
                                                                "step_seconds", "gap_seconds", "first_step_seconds")})
        usual = statistics.median(line["step_seconds"] for line in lines[warm_up:])
        found["tokens_per_second"].append(micro_batches * case.batch * self.length(case) / usual)
        if predicted:
            found["predicted_tokens_per_second"].append(predicted)
        found["step_seconds"].append(usual)
        found["first_step_seconds"].append(lines[0]["step_seconds"])
        found["gap_seconds"] += [line["device_gap_seconds"] for line in lines[warm_up:] if "device_gap_seconds" in line]
        found["mfu"] += [line["mfu"] for line in lines[warm_up:] if "mfu" in line]
        found["reserved_memory_bytes"].append(peak)
        found["clocks"].append(gpu.found)

    def trained(self, case, contender, what, sizes):
        """Returns a line per step, the peak of reserved memory, and the tokens/s that fsdp-finetune predicted."""
        batch, micro_batches, steps = sizes
        if contender == LLMC:
            return [{"step_seconds": each} for each in llmc.seconds_of_steps(self.stage, what, self.shapes[case.model], batch, steps, 100)], None, None
        if contender in OF_PYTORCH:
            lines, totals = self.trainings.pytorch(what, case.model, ["bf16"], steps, batch, 150, OF_PYTORCH[contender])
            return lines["bf16"], totals.get("reserved_memory_bytes"), None
        folder, variant = self.trainings.folder(case.model), VARIANTS[contender]
        data = ("--train-data", folder / "long.h5") if case.long else ()
        options = (*data, "--seq-len", self.length(case), "--gradient-accumulation-steps", micro_batches, *case.options,
                   *(str(word).replace("{folder}", str(folder)) for word in variant.options))
        lines = self.trainings.ours(what, case.model, "bf16", steps, batch, 100, options, variant.variables, kit=self.machine.old if contender == OLD else None)
        return lines, lines[-1].get("reserved_memory_bytes"), self.trainings.take_prediction(what)

    @staticmethod
    def memory(found):
        peak = found["reserved_memory_bytes"][-1]
        return f" in {peak / 2**30:.1f} GiB" if peak else ""

    @staticmethod
    def prediction(found):
        """Returns " (predicted 51500, +3.2 %)": how far the prediction is above the measured rate."""
        if not found["predicted_tokens_per_second"]:
            return ""
        predicted = statistics.median(found["predicted_tokens_per_second"])
        return f" (predicted {predicted:.0f}, {100 * (predicted / statistics.median(found['tokens_per_second']) - 1):+.1f} %)"

    def ratio(self, case, runs):
        """Compares tokens/s. PASS or FAIL if a goal is set for this GPU and case, else NOTE."""
        rate = {contender: found["tokens_per_second"] for contender, found in runs.items()}
        per_turn = {other: [a / b for a, b in zip(rate[OURS], rate[other])] for other in OTHERS if other in rate and self.compares(other, case, rate)}
        parts = [f"{spread(ratios, 3 if other == OLD else 2)} times {other}" for other, ratios in per_turn.items()]
        parts += [f"{variant} {spread([a / b for a, b in zip(rate[variant], rate[OURS])])} times ours" for variant in VARIANTS if variant in rate and variant not in (OURS, OLD)]
        missing = [f"nothing of {other} ({self.why_not(other)})" for other in case.goals if other not in rate and self.is_wanted(other)]
        text = ", ".join((*parts, *missing))
        asked = {other: goal for other, goal in case.goals.items() if other in rate}
        if not per_turn and not parts:
            return skip(text or "no other ran")
        if asked:
            text += f" (goals: {', '.join(f'{goal} times {other}' for other, goal in asked.items())})"
        if not asked or self.machine.small or not any(name in self.machine.facts["gpu"] for name in GOAL_GPUS):
            return NOTE, text, per_turn
        return verdict_of(all(statistics.median(per_turn[other]) >= goal for other, goal in asked.items())), text, per_turn

    @staticmethod
    def compares(other, case, rate):
        """Returns False for FSDP2 on a model whose yardstick is PyTorch's whole one, unless that ran: its ratio alone would mislead."""
        return other not in (EAGER, COMPILED) or WHOLE not in case.goals or WHOLE in rate

    def is_wanted(self, other):
        return not self.stage.contenders or other in self.stage.contenders

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
