"""What nvcc makes of the CUDA kernels: no spills, no local memory, few registers, accesses of 128 bits.

Registers and spills are what ptxas said of every architecture when the kernels were built; accesses are read from PTX,
whose vectors ptxas does not take apart. FSDP_KERNEL_LOGS is the folder of the logs, FSDP_NVCC the compiler with its
arguments, a | between them.
"""

import glob
import os
import re
import subprocess
import unittest

LOGS = os.environ.get("FSDP_KERNEL_LOGS", "")
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
# A thread keeps eight elements, or sixteen, of several rows' sums: one block of 512 threads on a multiprocessor.
REGISTERS = {"norm_backward": 128, "adamw": 72}  # AdamW: eight elements of four tensors
MOST_REGISTERS = 64
# Single numbers of a column or a row each.
ONE_BY_ONE = ("column_sums", "sum_losses", "total_sum", "decide_step", "dropout_keys")


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

    def test_accesses_of_128_bits(self):
        command = os.environ["FSDP_NVCC"].split("|")
        for source in sorted(glob.glob(os.path.join(ROOT, "lib", "cuda", "kernels", "*.cu"))):
            ptx = subprocess.run([*command, "-arch=compute_80", "-ptx", "-I", ROOT, "-o", "/dev/stdout", source],
                                 check=True, capture_output=True, text=True).stdout
            kernels = re.split(r"\.entry\s+", ptx)[1:]
            self.assertTrue(kernels, source)
            for text in kernels:
                name = text.split("(")[0].strip()
                if any(part in name for part in ONE_BY_ONE):
                    continue
                with self.subTest(kernel=name):
                    self.assertRegex(text, r"(ld|st)\.global(\.nc)?\.v4")


if __name__ == "__main__":
    unittest.main()
