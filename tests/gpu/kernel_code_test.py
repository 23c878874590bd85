"""Machine code that nvcc generates for the CUDA kernels: no spills, no local memory, few registers, 128-bit accesses.

Registers and spills come from ptxas's output for each architecture when the kernels were built (FSDP_KERNEL_LOGS is the
folder of its logs). Accesses are read from the machine code of the back end, FSDP_CUDA_LIBRARY, with the cuobjdump beside
FSDP_NVCC, on PATH, or in Triton's wheel, which PyTorch installs. FSDP_ALL=1 reads the machine code of all architectures,
which takes twice as long.
"""

import glob
import importlib.util
import os
import re
import shutil
import subprocess
import unittest

LOGS = os.environ.get("FSDP_KERNEL_LOGS", "")
# Per thread: norm_backward keeps 8 or 16 elements of sums over several rows and of the next row (one block of 512 threads
# per multiprocessor; in float32, LayerNorm's blocks have 288). AdamW keeps eight elements of four tensors: 74 registers for
# compute capability 7.0, where three blocks fit with up to 80; elementwise updates up to five tensors,
# blockwise ones two tensors and two moments. column_pass keeps rows that it has not yet summed.
REGISTERS = {"norm_backward": 144, "adamw": 80, "elementwise": 96, "blockwise": 80, "column_pass": 80}
MOST_REGISTERS = 64
# These kernels access single numbers per row or column.
ONE_BY_ONE = ("column_sums", "sum_losses", "total_sum", "decide_step", "dropout_keys")


def find_cuobjdump():
    beside = [os.path.dirname(os.environ.get("FSDP_NVCC", "")), *os.environ.get("PATH", "").split(":")]
    triton = importlib.util.find_spec("triton")  # found without importing it
    beside += [os.path.join(folder, "backends", "nvidia", "bin") for folder in (triton.submodule_search_locations if triton else [])]
    return shutil.which("cuobjdump", path=":".join(beside))


def kernels_of(cuobjdump, library, architectures):
    """Returns the instructions of each (architecture, kernel), without operands; of all with FSDP_ALL=1."""
    # cuobjdump calls the nvdisasm of its own folder.
    path = os.path.dirname(cuobjdump) + ":" + os.environ.get("PATH", "")
    listing = "".join(subprocess.run([cuobjdump, "-sass", *which, library], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                     text=True, env={**os.environ, "PATH": path}).stdout
                      for which in ([[]] if "FSDP_ALL" in os.environ else [["-arch", arch] for arch in sorted(architectures)]))
    kernels, arch, instructions = {}, "", None
    for line in listing.splitlines():
        if match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?\S+\s+)?([A-Z][A-Z0-9_.]*)", line):
            instructions.append(match[1])
        elif match := re.match(r"\s*arch = (\S+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function : (\S+)", line):
            instructions = kernels.setdefault((arch, match[1]), [])
    return kernels


def architectures_of(nvcc):
    """Returns those of sm_80, sm_90 and sm_100 that nvcc compiles for: the last since CUDA 12.8."""
    known = subprocess.run([nvcc, "--list-gpu-arch"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return {"sm_80"} | {f"sm_{number}" for number in (90, 100) if f"compute_{number}" in known}


@unittest.skipUnless(glob.glob(os.path.join(LOGS, "*.ptxas")), "the CUDA kernels were not built: no nvcc")
class KernelCode(unittest.TestCase):
    def test_registers_and_spills(self):
        found = 0
        for path in sorted(glob.glob(os.path.join(LOGS, "*.ptxas"))):
            with open(path) as file:
                text = file.read()
            for name, properties, registers in re.findall(
                    r"Compiling entry function '(\S+)'.*?\n.*?Function properties.*?\n\s*(.*?)\n.*?Used (\d+) registers", text):
                with self.subTest(kernel=name):
                    found += 1
                    self.assertEqual(properties, "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")
                    most = next((n for part, n in REGISTERS.items() if part in name), MOST_REGISTERS)
                    self.assertLessEqual(int(registers), most)
        print(f"{found} kernels")
        self.assertGreater(found, 100)

    def test_accesses_in_machine_code(self):
        cuobjdump = find_cuobjdump()
        if cuobjdump is None:
            self.skipTest("no cuobjdump: neither beside nvcc, nor in PATH, nor in Triton's wheel")
        architectures = architectures_of(os.environ["FSDP_NVCC"])
        kernels = kernels_of(cuobjdump, os.environ["FSDP_CUDA_LIBRARY"], architectures)
        self.assertGreaterEqual({arch for arch, _ in kernels}, architectures)
        print(f"{len(kernels)} kernels in machine code")
        for (arch, name), instructions in kernels.items():
            with self.subTest(arch=arch, kernel=name):
                self.assertGreater(len(instructions), 8)
                self.assertEqual([op for op in instructions if op.startswith(("LDL", "STL"))], [], "local memory")
                if not any(part in name for part in ONE_BY_ONE):
                    self.assertTrue([op for op in instructions if op.startswith(("LDG", "STG")) and ".128" in op],
                                    "no global access of 128 bits")


if __name__ == "__main__":
    unittest.main()
