"""Stages contact, ranks, rest and sanitizers: are the numbers, the memory and the kernels right?"""

import dataclasses
import itertools
import json
import re
import statistics

import beside_host
import eight_bits
import fits
import gradients
import peers
import resumed
import sanitizers
from checks import FAIL, NOTE, Late, Trouble, reason_in, skip, verdict_of
from machine import NO_MPIEXEC
from training import FURTHER_BY_PRECISION, KEYS, YARDSTICKS, Trainings, by_step, distance, judged

STEPS, ROWS = 8, 4  # optimizer steps; rows per step, over all ranks and micro-batches. There are eight rows: each is seen four times
GPU_SHAPES = {  # heads of width 128, as in CodeLlama
    "llama": dict(kind="llama", layers=4, width=512, heads=4, ffn=1408, vocab=32016, length=512, rows=8),
    # At a learning rate of 1e-3 the sixth step of this model is unstable: the gradient norm is 20 times that of the step
    # before, and rounding in bf16 moves it by 8 % (PyTorch's and ours, on a CPU).
    "mingpt": dict(kind="mingpt", layers=4, width=512, heads=8, ffn=2048, vocab=50257, length=256, rows=8, lr=3e-4),
    # Blocked attention with heads of width 256, as in Gemma 2; flash attention with a window.
    "gemma2": dict(kind="gemma2", layers=4, width=512, heads=4, kv_heads=2, head_width=256, ffn=1408, vocab=32016, length=700, rows=8, window=200),
    "mistral": dict(kind="mistral", layers=4, width=512, heads=4, kv_heads=2, head_width=128, ffn=1408, vocab=32016, length=700, rows=8, window=200),
    # Shared keys as in Llama 3 and Qwen: a window that is longer than the rows is none.
    "gqa": dict(kind="mistral", layers=4, width=512, heads=8, kv_heads=2, head_width=128, ffn=1408, vocab=32016, length=512, rows=8, window=65536),
    "long": dict(kind="llama", layers=2, width=512, heads=4, ffn=1408, vocab=32016, length=4096, rows=8)}
CPU_SHAPES = {
    "llama": dict(kind="llama", layers=2, width=64, heads=4, ffn=176, vocab=1000, length=64, rows=8),
    "mingpt": dict(kind="mingpt", layers=2, width=64, heads=4, ffn=256, vocab=1000, length=64, rows=8),
    "gemma2": dict(kind="gemma2", layers=2, width=64, heads=4, kv_heads=2, head_width=24, ffn=176, vocab=1000, length=64, rows=8, window=20),
    "gqa": dict(kind="mistral", layers=2, width=64, heads=4, kv_heads=2, head_width=16, ffn=176, vocab=1000, length=64, rows=8, window=4096),
    "long": dict(kind="llama", layers=2, width=64, heads=4, ffn=176, vocab=1000, length=256, rows=8)}
MISTRAL = dict(CPU_SHAPES["gemma2"], kind="mistral", head_width=16)  # of a rehearsal with a stub driver
MEMORY_TOLERANCE = 0.03
MEASURED_GPUS = ("H100",)  # where predicted and measured memory were once compared
GRAPHS_FURTHER = 4
FEW_ROUNDINGS = 1e-6  # eight of float32
LIMIT = 90  # seconds per run; most of it for the first start from a slow file system
PLAIN = {"FSDP_CUDA_KERNELS": "off"}
SEPARATE_HOSTS = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


@dataclasses.dataclass
class Run:
    """A run of fsdp-finetune that is compared with PyTorch."""
    name: str
    precision: str = "float32"
    model: str = "llama"
    options: tuple = ()
    batch: int = ROWS
    ranks: int = 1
    variables: dict = dataclasses.field(default_factory=dict)


CONTACT = [Run("llama float32"), Run("llama bf16", "bf16"), Run("minGPT float32", model="mingpt"), Run("minGPT bf16", "bf16", model="mingpt")]
RANKS = [
    Run("two ranks, full-shard", options=("--sharding", "full-shard"), batch=ROWS // 2, ranks=2),
    Run("two ranks, grad-shard", options=("--sharding", "grad-shard"), batch=ROWS // 2, ranks=2),
    Run("two ranks, no-shard", options=("--sharding", "no-shard"), batch=ROWS // 2, ranks=2),
    Run("two ranks, full-shard, bf16", "bf16", options=("--sharding", "full-shard"), batch=ROWS // 2, ranks=2),
    Run("four ranks, hybrid-full-shard", options=("--sharding", "hybrid-full-shard", "--shard-group-size", "2"), batch=ROWS // 4, ranks=4),
    Run("llama float32, CPU offload", options=("--cpu-offload",)), Run("llama bf16, CPU offload", "bf16", options=("--cpu-offload",))]
REST = [
    Run("llama fp16", "fp16"),
    Run("llama float32, plain operators", variables=PLAIN), Run("llama bf16, plain operators", "bf16", variables=PLAIN),
    Run("llama float32, recomputed", options=("--activation-checkpointing", "all")),
    Run("llama bf16, recomputed", "bf16", options=("--activation-checkpointing", "all")),
    Run("llama float32, accumulated", options=("--gradient-accumulation-steps", "2"), batch=ROWS // 2),
    Run("llama bf16, accumulated", "bf16", options=("--gradient-accumulation-steps", "2"), batch=ROWS // 2),
    Run("gqa float32: shared keys", model="gqa"), Run("gqa bf16: shared keys", "bf16", model="gqa"),
    Run("long bf16: 4096 tokens", "bf16", model="long"),
    Run("gemma2 float32: windows, caps", model="gemma2"), Run("gemma2 bf16: windows, caps", "bf16", model="gemma2"),
    Run("gemma2 float32, plain operators", model="gemma2", variables=PLAIN),
    Run("mistral float32: windows", model="mistral"), Run("mistral bf16: windows", "bf16", model="mistral"),
]
SUITES = ("device", "model", "nccl", "fp8")  # of tests/gpu_device
REPEATED = [("float32", None), ("bf16", None), ("bf16", "cudnn"), ("bf16", "flash"), ("bf16", "efficient"), ("bf16", "blocks")]  # precision, attention
# Attention by products and this project's kernels: every sum has a fixed order.
IN_FIXED_ORDER = "blocks"


class Truth:
    def __init__(self, stage):
        self.stage, self.machine, self.trainings = stage, stage.machine, Trainings(stage, "truth")
        self.on_gpu = self.machine.device == "cuda"
        self.trained, self.failed, self.shapes = set(), {}, dict(CPU_SHAPES if self.machine.small else GPU_SHAPES)
        if self.machine.computes_nothing:
            self.shapes["mistral"] = MISTRAL
        for model, shape in self.shapes.items():
            self.trainings.define(model, shape)

    def check_runs(self, runs):
        """Compares runs, and before the first run of each model checks PyTorch's own."""
        for run in runs:
            if run.model in self.shapes and run.model not in self.trained:
                self.trained.add(run.model)
                self.stage.check(f"PyTorch's own {run.model}", self.train_pytorch, run.model)
            self.stage.check(run.name, self.compare, run)

    def check_gradients(self, pairs):
        for model, precision in pairs:
            self.stage.check(f"gradients of {model}, {precision}", gradients.compare, self, model, precision, ROWS, LIMIT)

    def contact(self):
        check = self.stage.check
        check("machine", self.describe)
        check("back end", self.back_end)
        for suite in SUITES:
            check(f"device tests, {suite}", self.device_tests, suite)
        self.check_runs(CONTACT)
        self.check_gradients((("mingpt", "bf16"), ("llama", "bf16")))
        check("a learning rate 1 % off is noticed", self.control)

    def over_ranks(self):
        check = self.stage.check
        self.check_runs(RANKS)
        for how in ("stopped", "killed"):
            check(f"a {how} rank", peers.check, self, how)
        check("llama float32, saved and resumed", resumed.compare, self, "llama", STEPS, ROWS, LIMIT)
        check("llama float32, saved while it trains", resumed.compare_snapshot, self, "llama", STEPS, ROWS, LIMIT)

    def rest(self):
        check = self.stage.check
        for model, precision in (("mingpt", "bf16"), ("llama", "float32")):
            check(f"CUDA graphs of {model}, {precision}", self.graphs, model, precision)
        self.check_runs(REST)
        check("packed texts, validation, samples", beside_host.check, self, beside_host.packed, LIMIT)
        check("QLoRA", beside_host.check, self, beside_host.qlora, LIMIT)
        for model in ("llama", "mingpt"):
            check(f"fp8 of {model}", eight_bits.compare, self, model, STEPS, ROWS, LIMIT)
            check(f"gradients of {model}, fp8", eight_bits.gradients, self, model, ROWS, LIMIT)
        self.check_gradients((("llama", "fp16"), *((("gemma2", "bf16"), ("mistral", "bf16")) if self.on_gpu else ())))
        for model, precision in (("llama", "bf16"), ("mingpt", "float32"), ("gemma2", "bf16")):
            check(f"memory of {model}, {precision}", self.memory, model, precision, stops=False)
        check("largest batch", fits.check, self, stops=False)
        check("two equal runs", self.repeats)

    def sanitizers(self):
        self.stage.check("compute-sanitizer memcheck", sanitizers.check, self)

    def describe(self):
        """States what figures depend on, and what would mislead."""
        found = {name: round(self.machine.facts[name], 1) for name in ("import_seconds", "program_seconds")}
        text = f"import torch {found['import_seconds']} s, fsdp-finetune --version {found['program_seconds']} s"
        if not self.on_gpu:
            return NOTE, text, found
        smi = self.machine.query_gpu("clocks.max.sm", "power.limit", "compute_mode", "driver_version", "ecc.mode.current")
        if not smi:
            return NOTE, f"{text}; no nvidia-smi, so no clocks", found
        text += f"; up to {smi['clocks.max.sm']} MHz, limit {smi['power.limit']} W, driver {smi['driver_version']}"
        if "exclusive" in smi["compute_mode"].lower():
            text += "; compute mode Exclusive: one process alone may use this GPU, stage ranks needs Default"
        return NOTE, text, {**found, **smi}

    def back_end(self):
        """Runs tests/gpu_backend: the CUDA back end loads, or states in one line why it does not."""
        return self.test_program("gpu_backend", [], 60)

    def device_tests(self, suite):
        """Runs a suite of tests/gpu_device: kernels, collectives and whole models on the GPU against the CPU."""
        if not self.on_gpu:
            return skip("needs a GPU")
        return self.test_program("gpu_device", [f"--test-suite=gpu/{suite}"], 60)

    def test_program(self, name, arguments, limit):
        there = self.machine.test_program(name)
        if there is None:
            return skip(f"no tests/{name} beside the programs: scripts/build --with-tests makes it, with a CUDA back end")
        program, variables = there
        log = self.stage.run(" ".join((name, *arguments)), [program, *arguments], limit, variables, may_fail=True)
        said = log.read_text(encoding="utf-8", errors="replace")
        cases = re.search(r"test cases: *(\d+) \| *(\d+) passed \| *(\d+) failed", said)
        if cases is None:
            if reason := re.search("(?m)^skipped: (.*)", said):
                return skip(reason[1])
            raise Trouble(f"it did not end: {reason_in(log)} ({log})")
        asserted = re.search(r"assertions: *(\d+) \|.*?(\d+) failed", said)
        text = f"{cases[2]} test cases passed" + (f", {cases[3]} failed: {asserted[2]} of {asserted[1]} assertions ({log})" if int(cases[3]) else "")
        return verdict_of(cases[3] == "0"), text, {}

    def make(self, model):
        """Makes the model's folder once."""
        if not self.trainings.folder(model).exists():
            self.trainings.make_model(model, self.shapes[model], LIMIT)

    def pytorch(self, model):
        """Returns the lines of PyTorch's runs by precision; trains once per model and call."""
        if model in self.failed:  # do not try again
            raise self.failed[model]
        if model not in self.machine.of_pytorch:
            precisions = ["float32", "float32-in-two", "bf16"] + (["fp16"] if model == "llama" else [])
            try:
                self.machine.of_pytorch[model], _ = self.trainings.pytorch(f"pytorch {model}", model, precisions, STEPS, ROWS, LIMIT)
            except (Late, Trouble) as reason:
                self.failed[model] = type(reason)(f"PyTorch's own run: {reason}")
                raise self.failed[model] from None
        return self.machine.of_pytorch[model]

    def train_pytorch(self, model):
        losses = [line["loss"] for line in self.pytorch(model)["float32"]]
        fell = losses[0] - losses[-1]
        # Repeated rows are learned. If the loss stayed constant, only the first step's numbers would be compared.
        return verdict_of(fell > 0.1), f"FSDP2, {STEPS} steps: float32 loss {losses[0]:.4f} -> {losses[-1]:.4f}", {"fell": fell}

    def compare(self, run):
        if run.model not in self.shapes:
            return skip("a GPU's kernels are what this model is for")
        if run.variables and not self.on_gpu:
            return skip(f"{' and '.join(map('='.join, run.variables.items()))} is a GPU's")
        if run.precision == "bf16" and not self.machine.has_bf16():
            return skip("this GPU has no units for bf16")
        launch, over = None, ""
        if run.ranks > 1:
            if why := self.why_no_ranks(run.ranks):
                return skip(why)
            launch, over = self.ranks(run.ranks)
        self.pytorch(run.model)
        ours = self.trainings.ours(run.name, run.model, run.precision, STEPS, run.batch, LIMIT, run.options,
                                   run.variables, launch)
        good, text, figures = self.judged(run.name, run.model, run.precision, ours)
        return verdict_of(good), text + over, figures

    def judged(self, log_name, model, precision, ours):
        """Judges a run by PyTorch's, and adds a table of the steps to its log."""
        theirs = self.pytorch(model)
        runs = ours, theirs[YARDSTICKS[precision]], theirs["float32"]
        with open(self.stage.log_of(log_name), "a", encoding="utf-8") as log:
            log.write(by_step(*runs))
        return judged(*runs, FURTHER_BY_PRECISION[precision])

    def why_no_ranks(self, number):
        if self.machine.mpiexec is None:
            return NO_MPIEXEC
        alone = self.on_gpu and self.machine.facts["gpus"] < number
        if alone and "exclusive" in self.machine.query_gpu("compute_mode").get("compute_mode", "").lower():
            return "the GPU's compute mode lets one process alone use it: nvidia-smi -c DEFAULT"
        return None

    def ranks(self, number):
        """Returns how to launch ranks. NCCL refuses two ranks of a host on one GPU, so each gets a host id of its own."""
        if not self.on_gpu or self.machine.facts["gpus"] >= number:
            over = f"NCCL on {number} GPUs" if self.on_gpu else "over shared memory"
            return (lambda command: [self.machine.mpiexec, "-n", number, *command]), f", {over}"
        variables = [f"{name}={value}" for name, value in SEPARATE_HOSTS.items()]

        def launch(command):
            each = [["-n", 1, "env", *variables, f"NCCL_HOSTID=host{rank}", *command] for rank in range(number)]
            return [self.machine.mpiexec, *each[0], *(word for line in each[1:] for word in (":", *line))]
        return launch, f", NCCL through sockets on {'one GPU' if self.machine.facts['gpus'] == 1 else 'fewer GPUs'}"

    def graphs(self, model, precision):
        """Compares training with CUDA graphs to three runs without, which differ by the order of sums: some of PyTorch's
        attention kernels sum in the order in which their blocks end. The run with graphs may be GRAPHS_FURTHER times as far
        from their mean as they are from each other, or a few roundings if they are equal."""
        if not self.on_gpu:
            return skip("CUDA graphs are a GPU's")
        if precision == "bf16" and not self.machine.has_bf16():
            return skip("this GPU has no units for bf16")
        self.make(model)
        *without, replaying = [
            self.trainings.ours(f"{model} graphs {i}", model, precision, STEPS, ROWS // 2, LIMIT,
                                ("--gradient-accumulation-steps", "2", "--cuda-graphs", way)) for i, way in enumerate(("off", "off", "off", "on"))]
        mean = [{key: statistics.fmean(line[key] for line in lines) for key in KEYS} for lines in zip(*without)]
        most = {key: max(distance(a, b)[key] for a, b in itertools.combinations(without, 2)) for key in KEYS}
        found, replayed = distance(replaying, mean), replaying[-1].get("cuda_graphs", 0)
        good = replayed > 0 and all(found[key] <= max(GRAPHS_FURTHER * most[key], FEW_ROUNDINGS) for key in KEYS)
        return (verdict_of(good),
                f"{replayed} micro-batches replayed; from the mean of three runs without graphs: loss {found['loss']:.1e}, gradient norm {found['grad_norm']:.1e}; "
                f"these three are {most['loss']:.1e} and {most['grad_norm']:.1e} apart", {"graphs": found, "without": most, "replayed": replayed})

    def control(self):
        """Shows that a comparison can fail, by about the amount expected of a learning rate that is 1 % higher."""
        self.pytorch("llama")
        ours = self.trainings.ours("control", "llama", "float32", STEPS, ROWS, LIMIT, ("--lr", 1.01e-3))
        good, text, figures = self.judged("control", "llama", "float32", ours)
        return verdict_of(not good and figures["ours"]["loss"] < 0.01), text, figures

    def memory(self, model, precision):
        self.make(model)
        arguments = ["--model", self.trainings.folder(model) / "config.json", "--batch-size", ROWS, "--precision", precision,
                     "--seq-len", self.shapes[model]["length"], "--device", self.machine.device,
                     "--measure", "--json", "--quiet"]
        log = self.stage.run(f"memory {model}", [self.machine.programs / "fsdp-memprobe", *arguments], LIMIT)
        text = log.read_text(encoding="utf-8")
        found = json.loads(text[text.index("{"):text.rindex("}") + 1])
        # On a GPU, compare what the allocator reserves; the context and NCCL are outside the allocator.
        predicted, measured = found.get("reserved_peak_bytes", found["peak_bytes"]), found["measured_peak_bytes"]
        if measured <= 0:
            raise Trouble(f"nothing was measured: {log}")
        error = predicted / measured - 1
        verdict = verdict_of(abs(error) <= MEMORY_TOLERANCE)
        # The prediction of workspaces is a guess on GPUs where no one has measured: the first run is to be looked at.
        if self.on_gpu and verdict == FAIL and not any(name in self.machine.facts["gpu"] for name in MEASURED_GPUS):
            verdict = NOTE
        return (verdict,
                f"predicted {predicted / 2**20:.1f} MiB, measured {measured / 2**20:.1f} MiB: {100 * error:+.2f} % of 3 %",
                {"predicted_bytes": predicted, "measured_bytes": measured, "relative_error": error})

    def repeats(self):
        """Runs twice what is the same job. Attention kernels of cuDNN and PyTorch may add in the order in which blocks end."""
        self.make("llama")
        found = {}
        for precision, attention in REPEATED:
            if (attention and not self.on_gpu) or (precision == "bf16" and not self.machine.has_bf16()):
                continue
            name = f"{precision} by {attention}" if attention else precision
            try:
                runs = [self.trainings.ours(f"repeat {name} {i}", "llama", precision, 3, ROWS, LIMIT, (), {"FSDP_CUDA_ATTENTION": attention} if attention else None)
                        for i in range(2)]
                equal = all(a[key] == b[key] for a, b in zip(*runs) for key in KEYS)
                found[name] = "bit for bit" if equal else f"{max(abs(a[key] / b[key] - 1) for a, b in zip(*runs) for key in KEYS):.1e} apart"
            except Trouble as trouble:  # this GPU lacks the kernel
                found[name] = f"did not run: {trouble}"
        text = ", ".join(f"{name} {how}" for name, how in found.items())
        fixed = [how for name, how in found.items() if not self.on_gpu or name.endswith(IN_FIXED_ORDER)]
        return verdict_of(all(how == "bit for bit" for how in fixed)), text, found
