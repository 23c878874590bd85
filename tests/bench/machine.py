"""Describes the machine of a benchmark: the first lines of each table; docs/results.md has a row for each machine."""
import json
import os
import subprocess

# The processor flags that decide which kernels and matrix products are used.
TELLING = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx_vnni", "amx_bf16", "bf16", "sve", "svebf16", "i8mm")


def processor():
    """Returns the name and the flags of TELLING that this processor has, in that order."""
    name, flags = "unknown processor", set()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "CPU part"):
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = set(value.split())
    return name, [flag for flag in TELLING if flag in flags]


def ways(bf16check=None):
    """Measures how training multiplies here: returns fsdp-bf16check's facts of one rank on one thread."""
    program = bf16check or os.path.join(os.path.dirname(os.environ.get("FSDP_FINETUNE", "")), "fsdp-bf16check")
    if not os.access(program, os.X_OK):
        return None
    done = subprocess.run([program, "--device", "cpu", "--json"], env=dict(os.environ, OMP_NUM_THREADS="1"), stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=False)
    try:
        return json.loads(done.stdout)["ranks"][0]
    except (ValueError, KeyError, IndexError):
        return None  # an older program, or one that failed; the benchmark itself will report it


def print_machine(bf16check=None):
    name, flags = processor()
    print(f"machine: {name}, {len(os.sched_getaffinity(0))} cores, {' '.join(flags)}")
    rank = ways(bf16check)
    if rank is not None:
        gemm = rank["gemm"]
        way = "through float32" if gemm["widened"] else f"natively, oneDNN {gemm['implementation']}"
        print(f"products: bf16 {way}; one thread: bf16 {1e3 * gemm['bf16_tflops']:.0f} GFLOP/s (at::mm {1e3 * gemm['bf16_aten_tflops']:.0f}), "
              f"float32 {1e3 * gemm['float32_tflops']:.0f} (at::mm {1e3 * gemm['float32_aten_tflops']:.0f})")
    print(f"LibTorch's limits: ATEN_CPU_CAPABILITY {os.environ.get('ATEN_CPU_CAPABILITY', 'none')}, ONEDNN_MAX_CPU_ISA "
          f"{os.environ.get('ONEDNN_MAX_CPU_ISA', 'none')}; FSDP_CPU_ISA {os.environ.get('FSDP_CPU_ISA', 'none')}, FSDP_BF16_GEMM "
          f"{os.environ.get('FSDP_BF16_GEMM', 'by the processor')}", flush=True)
