"""Stage sanitizers: this project's kernels under compute-sanitizer, in a training step of minGPT in bf16."""

import eight_bits
from checks import NOTE, PASS, Trouble, skip

TOOL_FAILED = "Internal Sanitizer Error"


def check(truth):
    machine = truth.machine
    program = machine.tool("compute-sanitizer")
    if not truth.on_gpu or program is None:
        return skip("no compute-sanitizer on PATH or in CUDA_HOME/bin" if truth.on_gpu else "needs a GPU")
    if machine.computes_nothing:
        return skip("needs a GPU that computes")
    truth.make("mingpt")
    more = ["--seq-len", 64, "--dropout", 0.1, "--allow-emulated-bf16", *(eight_bits.ARGUMENTS if machine.has_fp8() else ())]
    command = truth.trainings.ours_command("mingpt", "sanitizer", "bf16", 1, 1, more)
    # Mangled names of this project's kernels contain `fsdp`. NVIDIA's and PyTorch's are slow to check and not judged here.
    options = ["--tool", "memcheck", "--kernel-name", "kns=fsdp", "--report-api-errors", "no", "--error-exitcode", 9]
    try:
        # Without the caching allocator each tensor is an allocation of its own, whose bounds memcheck sees.
        truth.stage.run("sanitizer", [program, *options, *command], 110, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    except Trouble:
        if TOOL_FAILED not in truth.stage.log_of("sanitizer").read_text(encoding="utf-8", errors="replace"):
            raise
        return NOTE, "memcheck itself fails on this program: nothing is known", {}
    return PASS, "a step of minGPT in bf16: no errors in kernels of this project", {}
