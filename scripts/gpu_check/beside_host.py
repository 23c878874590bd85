"""Part of stage rest: jobs of which PyTorch's side has no like, on the GPU and on the CPU. The CPU's numbers are compared
with PyTorch's and peft's by tests/parity and tests/cli; here the CPU's bf16 is the yardstick and its float32 the truth."""

import json

from checks import skip, verdict_of
from training import by_step, judged, read_lines

STEPS, ROWS, LENGTH = 6, 2, 128
TEXTS = 40
# A model from scratch: the initial weights are drawn on the host for every device. The tokenizer gpt2 is built in.
SCRATCH = ("--model", "mingpt", "--tokenizer", "gpt2", "--num-layers", 2, "--num-heads", 4, "--embed-size", 128, "--seq-len", LENGTH, "--seed", 7)
SAMPLED = ("--eval-every", STEPS // 2, "--sample-prompt", "the sea", "--sample-tokens", 12)
WORDS = "the sea is a wide and old thing that no ship has crossed without wind or hope".split()


def write_texts(path):
    """Writes texts of 5 to 80 words, so that several share a row."""
    texts = (" ".join(WORDS[(i * 7 + j * (1 + i % 5)) % len(WORDS)] for j in range(5 + (i * 13) % 76)) for i in range(TEXTS))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def three_runs(truth, name, options, limit):
    """Returns our bf16 run on the GPU, and the CPU's in bf16 and float32, with the runs' names."""
    def run(where, precision, device):
        lines = truth.trainings.ours(f"{name} {where}", "llama", precision, STEPS, ROWS, limit, (*options, "--device", device, "--allow-emulated-bf16"))
        return lines, f"{name} {where}".replace(" ", "-")
    return run("here", "bf16", truth.machine.device), run("host bf16", "bf16", "cpu"), run("host float32", "float32", "cpu")


def compared(truth, name, runs):
    lines = [lines for lines, _ in runs]
    with open(truth.stage.log_of(f"{name} here"), "a", encoding="utf-8") as log:
        log.write(by_step(*lines))
    good, text, figures = judged(*lines)
    return good, text.replace("PyTorch's", "the CPU's"), figures


def packed(truth, limit):
    """Packed texts, validation and a sample. The sample is compared in float32, where near ties are rare."""
    texts = write_texts(truth.machine.work / "texts.jsonl")
    data = (*SCRATCH, "--train-data", texts, "--pack", "--val-data", texts, *SAMPLED)
    runs = three_runs(truth, "packed", data, limit)
    good, text, figures = compared(truth, "packed", runs)
    name = "packed here float32"
    truth.trainings.ours(name, "llama", "float32", STEPS, ROWS, limit, (*data, "--device", truth.machine.device))
    here, host = (truth.machine.work / "runs" / run for run in (name.replace(" ", "-"), runs[2][1]))
    samples = [[line["text"] for line in read_lines(run / "samples.jsonl")] for run in (here, host)]
    validated = [[line["val_loss"] for line in read_lines(run / "metrics.jsonl") if "val_loss" in line] for run in (here, host)]
    far = max(abs(a / b - 1) for a, b in zip(*validated))
    good = good and samples[0] == samples[1] and len(validated[0]) == len(validated[1]) > 0 and far < 1e-4
    same = "the same samples" if samples[0] == samples[1] else f"another sample: {samples[0]} and {samples[1]}"
    return verdict_of(good), f"{text}; float32: validation {far:.1e} from the CPU's, {same}", {**figures, "validation": far}


def qlora(truth, limit):
    """Adapters on 4-bit matrices."""
    truth.make("llama")
    runs = three_runs(truth, "qlora", ("--quantize", "nf4", "--double-quant", "--lora-rank", 8, "--lora-alpha", 16), limit)
    good, text, figures = compared(truth, "qlora", runs)
    return verdict_of(good), text, figures


def check(truth, what, limit):
    if not truth.machine.has_bf16():
        return skip("this GPU has no units for bf16")
    return what(truth, limit)
