"""Memory of fsdp-ckpt-convert: 0.7 GiB through every format under a limit of 512 MiB; with FSDP_ALL=1 2 GiB.

The input is a sparse file with marks in it, so it costs neither disk nor time; the outputs are whole.
"""

import json
import os
import random
import resource
import shutil
import struct
import subprocess

import fsdp_cli
from convert_fixtures import PROGRAM, ConvertCase

MIB = 1 << 20
LIMIT = 512 * MIB
BEYOND_LARGEST_TENSOR = 256 * MIB
DISK = 6 << 30
LARGEST = 96 * MIB
# Small and large tensors, matrices and vectors.
MANY = 9 if fsdp_cli.ALL else 3
SHAPES = [[LARGEST // 4 // 4096, 4096]] * 2 * MANY + [[32 * MIB // 4 // 1024, 1024]] * MANY + [[8 * MIB]] + [[1024]] * 256
BLOCK = 4 * MIB


def limit_memory():
    """Runs in the child: limits the heap and all other private memory. Resident memory is measured afterwards anyway."""
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))


def in_cgroup():
    """Returns the words that run a command in a memory group of LIMIT bytes; none if that is not allowed."""
    if shutil.which("systemd-run") is None:
        return []
    words = ["systemd-run", *(["--user"] if os.getuid() else []), "--scope", "--quiet", "-p", f"MemoryMax={LIMIT}", "-p", "MemorySwapMax=0"]
    return words if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0 else []


class Memory(ConvertCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if shutil.disk_usage(cls.folder).free < DISK:
            raise fsdp_cli.unittest.SkipTest(f"needs {DISK >> 30} GiB free in {cls.folder.parent}")
        cls.cgroup = in_cgroup()
        fsdp_cli.say(f"limit by {'a control group' if cls.cgroup else 'RLIMIT_DATA'}")
        cls.input = cls.folder / "input.safetensors"
        cls.write_input()

    @classmethod
    def write_input(cls):
        """Writes zeros with marks at the start, the end and in the middle of every tensor."""
        header, at = {}, 0
        for number, shape in enumerate(SHAPES):
            size = 4 * shape[0] * (shape[1] if len(shape) == 2 else 1)
            header[f"layers.{number:03}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        noise = random.Random(7)
        with open(cls.input, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            begin = file.tell()
            file.truncate(begin + at)
            for entry in header.values():
                first, end = entry["data_offsets"]
                for place in (first, (first + end) // 2, end - 1024):
                    file.seek(begin + place)
                    file.write(noise.randbytes(1024))
        cls.header = header

    def convert_limited(self, source, output, *options):
        """Runs one conversion; returns its peak resident memory in bytes."""
        command = [*self.cgroup, *map(str, fsdp_cli.command(PROGRAM, [source, output, *options], 0))]
        with open(self.folder / "log", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=fsdp_cli.environment(),
                                       preexec_fn=None if self.cgroup else limit_memory)
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0, (self.folder / "log").read_text(errors="replace"))
        peak = usage.ru_maxrss * 1024
        fsdp_cli.say(f"{output.name}: peak {peak / MIB:.0f} MiB resident")
        self.assertLessEqual(peak, BEYOND_LARGEST_TENSOR + LARGEST, output.name)
        return peak

    def assert_same_data(self, output):
        """Compares the data of two safetensors files tensor by tensor, in pieces."""
        with open(self.input, "rb") as a, open(output, "rb") as b:
            begin = [8 + struct.unpack("<Q", file.read(8))[0] for file in (a, b)]
            found = json.loads(b.read(begin[1] - 8))
            found.pop("__metadata__", None)
            self.assertEqual(sorted(found), sorted(self.header))
            for name, entry in self.header.items():
                self.assertEqual(found[name]["shape"], entry["shape"], name)
                (first, end), (other, _) = entry["data_offsets"], found[name]["data_offsets"]
                for place in range(0, end - first, BLOCK):
                    size = min(BLOCK, end - first - place)
                    a.seek(begin[0] + first + place)
                    b.seek(begin[1] + other + place)
                    self.assertTrue(a.read(size) == b.read(size), f"{name}: other bytes within {size} of {place}")

    def test_every_format(self):
        total = sum(e["data_offsets"][1] - e["data_offsets"][0] for e in self.header.values())
        self.assertGreater(total, LIMIT)
        sharded, whole, back = self.folder / "sharded", self.folder / "whole.pt", self.folder / "back.safetensors"
        self.convert_limited(self.input, sharded, "--to", "dcp", "--shards", "4")
        self.convert_limited(sharded, whole)
        shutil.rmtree(sharded)
        self.convert_limited(whole, back)
        whole.unlink()
        self.assert_same_data(back)
        back.unlink()


if __name__ == "__main__":
    fsdp_cli.main()
