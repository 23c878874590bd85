"""Stage sanitizers: this project's kernels under compute-sanitizer, in a training step of minGPT in bf16."""

import re

import eight_bits
from checks import FAIL, NOTE, PASS, Trouble, skip

# Kernels with shared memory, where racecheck can find hazards; tests/cli/gpu_check_test.py compares the list with the source.
SHARED_MEMORY = ("band_softmax", "band_softmax_backward", "column_pass", "column_sums", "cross_entropy", "dequantize_nf4", "embed_backward_tokens",
                 "fp8_cast", "fp8_largest", "fp8_transpose", "norm_backward", "norm_backward_wide", "norm_forward", "norm_forward_wide", "sum_losses",
                 "sum_squares", "total_sum")
IN_THE_STEP = [name for name in SHARED_MEMORY if not re.search("band|nf4|wide", name)]
NONE = "no_kernel_has_this_name"
TOOL_FAILED = "Internal Sanitizer Error"


class Sanitizer:
    """Mangled names of this project's kernels contain `fsdp`. NVIDIA's and PyTorch's are slow to check and not judged here."""

    def __init__(self, truth, program, tool):
        self.truth, self.program, self.tool = truth, program, tool

    def run(self, kernels, log_name):
        """Runs a training step; only kernels whose mangled names contain `kernels` are checked."""
        machine = self.truth.machine
        more = ["--seq-len", 64, "--dropout", 0.1, "--allow-emulated-bf16", *(eight_bits.ARGUMENTS if machine.has_fp8() else ())]
        command = self.truth.trainings.ours_command("mingpt", f"sanitizer-{self.tool}", "bf16", 1, 1, more)
        options = ["--tool", self.tool, "--kernel-name", f"kns={kernels}", "--report-api-errors", "no", "--error-exitcode", 9]
        # Without the caching allocator each tensor is an allocation of its own, whose bounds memcheck sees.
        self.truth.stage.run(log_name, [self.program, *options, *command], 110,
                             {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if self.tool == "memcheck" else None)

    def tool_failed(self, kernels):
        """Returns whether the tool failed rather than found something, which is raised."""
        name = f"sanitizer {self.tool} {kernels}"
        try:
            self.run(kernels, name)
        except Trouble:
            if TOOL_FAILED in self.truth.stage.log_of(name).read_text(encoding="utf-8", errors="replace"):
                return True
            raise
        return False


def check(truth, tool):
    machine = truth.machine
    program = machine.tool("compute-sanitizer")
    if not truth.on_gpu or program is None:
        return skip("no compute-sanitizer on PATH or in CUDA_HOME/bin" if truth.on_gpu else "needs a GPU")
    if machine.computes_nothing:
        return skip("needs a GPU that computes")
    truth.make("mingpt")
    sanitizer = Sanitizer(truth, program, tool)
    if not sanitizer.tool_failed("fsdp"):
        return PASS, "a step of minGPT in bf16: no errors in kernels of this project", {}
    # compute-sanitizer itself failed. Is it because of a kernel of this project, and which one?
    if sanitizer.tool_failed(NONE):
        return NOTE, f"{tool} itself fails on this program while it checks no kernel: nothing is known", {}
    failed = [name for name in IN_THE_STEP if sanitizer.tool_failed(f"{len(name)}{name}")]
    clean = [name for name in IN_THE_STEP if name not in failed]
    if failed:
        return FAIL, f"{tool} itself fails while it checks {', '.join(failed)}; no errors in {', '.join(clean)}", {"failed": failed}
    return NOTE, f"{tool} itself fails while it checks all kernels, but finds no error in each one alone: {', '.join(clean)}", {}
