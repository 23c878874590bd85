"""The contenders of stage speed, and the cases in which they take turns: fsdp-finetune with its options, an older one, PyTorch, llm.c."""

import dataclasses

SHAPES = {
    "codellama": dict(kind="llama", layers=8, width=4096, heads=32, ffn=11008, vocab=32016, length=512, rows=128, long=4096),
    "mingpt": dict(kind="mingpt", layers=12, width=768, heads=12, ffn=3072, vocab=50257, length=1024, rows=32),
    "Qwen2.5-1.5B": dict(kind="qwen2", layers=28, width=1536, heads=12, kv_heads=2, ffn=8960, vocab=151936, length=1024, rows=256),
    "Qwen2.5-3B": dict(kind="qwen2", layers=36, width=2048, heads=16, kv_heads=2, ffn=11008, vocab=151936, length=1024, rows=256)}
REHEARSAL = dict(layers=2, width=64, heads=4, ffn=176, vocab=1000, length=64)
OURS, OLD, EAGER, COMPILED, WHOLE, LLMC = "ours", "old", "FSDP2", "FSDP2 compiled", "PyTorch compiled, not sharded", "llm.c"
IN_FP8, BY_FLASH, PLAIN, OFFLOADED = "ours with fp8", "ours with flash attention", "ours with plain operators", "ours with CPU offload"
GRAPHS_ON, GRAPHS_OFF, ACCUMULATED, PACKED = "ours with graphs", "ours without graphs", "ours accumulated", "ours packed"
# Words of --contenders.
WORDS = {"ours": OURS, "old": OLD, "fsdp2": COMPILED, "eager": EAGER, "whole": WHOLE, "llmc": LLMC, "fp8": IN_FP8, "flash": BY_FLASH, "plain": PLAIN,
         "offload": OFFLOADED, "graphs": GRAPHS_ON, "no-graphs": GRAPHS_OFF, "accumulated": ACCUMULATED, "packed": PACKED}


@dataclasses.dataclass
class Variant:
    """A contender that is fsdp-finetune: options, variables, and micro-batches per step. {folder} is the model's."""
    options: tuple = ()
    variables: dict = dataclasses.field(default_factory=dict)
    micro_batches: int = 1


VARIANTS = {OURS: Variant(), OLD: Variant(), IN_FP8: Variant(("--compute-dtype", "fp8")), BY_FLASH: Variant(variables={"FSDP_CUDA_ATTENTION": "flash"}),
            PLAIN: Variant(variables={"FSDP_CUDA_KERNELS": "off"}), OFFLOADED: Variant(("--cpu-offload",)),
            GRAPHS_ON: Variant(("--cuda-graphs", "on")), GRAPHS_OFF: Variant(("--cuda-graphs", "off")), ACCUMULATED: Variant(micro_batches=8),
            PACKED: Variant(("--train-data", "{folder}/documents.h5", "--pack"))}
OF_PYTORCH = {EAGER: (), COMPILED: ("--compile",), WHOLE: ("--whole",)}  # options of reference.py
OTHERS = (OLD, *OF_PYTORCH, LLMC)  # ours are so many times as fast


@dataclasses.dataclass
class Case:
    """`first` takes turns once, then `again`. `goals`: our tokens/s over theirs. `options` of fsdp-finetune for all of a case."""
    name: str
    batch: int
    first: tuple
    again: tuple = ()
    goals: dict = dataclasses.field(default_factory=dict)
    model: str = ""  # the case's name if empty
    options: tuple = ()
    micro_batches: int = 1
    steps: int = 20
    warm_up: int = 8  # the first steps compile, choose kernels and fill the allocator
    long: bool = False  # rows of the shape's `long` tokens

    def __post_init__(self):
        self.model = self.model or self.name

    def steps_of(self, micro_batches):
        """Returns the steps of a contender and its steps of warming up; a step of several micro-batches takes as much longer."""
        return (self.steps, self.warm_up) if micro_batches == self.micro_batches else (8, 3)


# Rows, tokens and micro-batches of llmq's benchmarks (github.com/IST-DASLab/llmq) on one H100.
AS_LLMQ = dict(batch=16, micro_batches=16, steps=4, warm_up=1, first=(OURS,))
LORA = ("--lora-rank", 16, "--lora-alpha", 16)
CASES = [
    Case("codellama", 16, (OURS, OLD, COMPILED, BY_FLASH, IN_FP8, PLAIN, ACCUMULATED), (OURS, OLD, COMPILED), {COMPILED: 1.05}),
    # One GPU needs no FSDP2, whose step of 148 small tensors waits for its host: the model compiled as a whole is the yardstick.
    Case("mingpt", 8, (OURS, OLD, WHOLE, LLMC, COMPILED, GRAPHS_ON, GRAPHS_OFF, PLAIN, OFFLOADED), (OURS, OLD, LLMC), {WHOLE: 1.0, LLMC: 1.0}),
    Case("mingpt", 1, (OURS, OLD, GRAPHS_ON, GRAPHS_OFF)),
    Case("codellama", 4, (OURS, OLD, EAGER, COMPILED)),
    Case("lora", 16, (OURS, OLD), (OURS, OLD), model="codellama", options=LORA),
    Case("qlora", 16, (OURS, OLD), (OURS, OLD), model="codellama", options=("--quantize", "nf4", "--double-quant", *LORA)),
    Case("packed", 4, (OURS, PACKED, OLD), model="codellama", long=True),
    Case("Qwen2.5-1.5B", **AS_LLMQ), Case("Qwen2.5-3B", **AS_LLMQ)]


def layers_that_fit(gpu_bytes, shape):
    """Returns 8, 4, 2 or 1 layers, at 20 bytes per parameter (16 of states on PyTorch's side, 4 of copies) and 8 GiB for
    activations and logits."""
    layer = 4 * shape["width"] ** 2 + 3 * shape["width"] * shape["ffn"]
    rest = 2 * shape["width"] * shape["vocab"]
    return next((n for n in (8, 4, 2) if 20 * (n * layer + rest) + 2**33 <= gpu_bytes), 1)


def shapes(machine):
    """Returns the models of this machine by name: small ones for a rehearsal, else CodeLlama with the layers that fit."""
    found = {name: dict(shape) for name, shape in SHAPES.items()}
    if machine.small:
        for shape in found.values():
            shape |= {**REHEARSAL, **({"long": 128} if "long" in shape else {})}
    else:
        found["codellama"]["layers"] = layers_that_fit(machine.facts["gpu_bytes"], SHAPES["codellama"])
    return found
