"""Part of stage speed: llm.c (github.com/karpathy/llm.c), which trains GPT-2 by CUDA kernels of its own, on the same GPU in the
same minutes. --llmc names its source, from which one call of nvcc makes train_gpt2cu, without cuDNN as its Makefile's default; a
train_gpt2cu that is there is taken as it is."""

import array
import pathlib
import re

from checks import Trouble

# llm.c's source is older than CUDA 13, in which this function takes a place instead of a number.
FOR_CUDA_13 = """#include <cuda_runtime.h>
#if CUDART_VERSION >= 13000
static inline cudaError_t advise_as_before(const void* data, size_t bytes, cudaMemoryAdvise advice, int device) {
  cudaMemLocation place = {};
  place.type = device < 0 ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
  place.id = device < 0 ? 0 : device;
  return cudaMemAdvise(data, bytes, advice, place);
}
#define cudaMemAdvise advise_as_before
#endif
"""
SOURCE, PROGRAM = "train_gpt2.cu", "train_gpt2cu"
LINES = r"step +\d+/\d+ .*?\| *([\d.]+) ms \|"


def program(stage):
    """Returns train_gpt2cu, which is built once."""
    machine = stage.machine
    there, made, source = machine.llmc / PROGRAM, machine.work / PROGRAM, machine.llmc / SOURCE
    if there.exists():
        return there
    if not made.exists():
        nvcc = machine.tool("nvcc")
        if nvcc is None:
            raise Trouble("no nvcc on PATH or in CUDA_HOME/bin, which builds llm.c")
        before = machine.work / "for_cuda_13.h"
        before.write_text(FOR_CUDA_13, encoding="utf-8")
        nvml = ["-lnvidia-ml"] if (pathlib.Path(nvcc).resolve().parents[1] / "include/nvml.h").exists() else []  # its source asks, too
        stage.run("llm.c nvcc", [nvcc, "-O3", "--threads", 0, "--use_fast_math", "-std=c++17", "-DENABLE_BF16", "-include", before,
                                 f"-arch=sm_{machine.facts['capability'].replace('.', '')}", source, "-lcublas", "-lcublasLt", *nvml, "-o", made], 180)
    return made


def write_tokens(path, count, vocab):
    """Writes llm.c's token file: 256 numbers of 32 bits, of which three count, and tokens of 16 bits."""
    header = array.array("i", [20240520, 1, count] + [0] * 253)
    tokens = array.array("H", ((i * 7919 + i // 97) % vocab for i in range(count)))
    path.write_bytes(header.tobytes() + tokens.tobytes())
    return path


def seconds_of_steps(stage, name, shape, batch, steps, limit):
    """Trains GPT-2 from random weights; returns the seconds of each step. Only depths of GPT-2's widths can be trained."""
    if (shape["layers"], shape["width"]) != (12, 768):
        raise Trouble("llm.c trains GPT-2's sizes only")
    made = program(stage)
    tokens = write_tokens(stage.machine.work / "llmc.bin", 4 * batch * shape["length"] + 1, shape["vocab"])
    log = stage.run(name, [made, "-i", tokens, "-j", tokens, "-e", "d12", "-b", batch, "-t", shape["length"], "-d", batch * shape["length"], "-x", steps,
                           "-v", 1000000, "-m", 1, "-s", 0, "-h", 0, "-r", 0], limit)
    found = [float(ms) / 1e3 for ms in re.findall(LINES, log.read_text(encoding="utf-8", errors="replace"))]
    if len(found) != steps:
        raise Trouble(f"{len(found)} of {steps} steps: {log}")
    return found
