"""--verify-every finds the rank whose numbers are wrong. Truth is planted: a bit is flipped in the memory of a rank that
trains, and a rank computes with other instructions than the others."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess

import numpy

import fsdp_cli


def regions(pid):
    """Yields begin and end of the writable memory of a process."""
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        place, access = line.split()[:2]
        if access.startswith("rw"):
            yield tuple(int(part, 16) for part in place.split("-"))


def flip_a_bit(pid, values):
    """Flips a bit of the second number in each copy of the bytes `values` in a process. Returns the number of copies."""
    count = 0
    os.kill(pid, signal.SIGSTOP)
    try:
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            for begin, end in regions(pid):
                try:
                    memory.seek(begin)
                    data = memory.read(end - begin)
                except OSError:
                    continue
                at = data.find(values)
                while at >= 0:
                    memory.seek(begin + at + 6)
                    memory.write(bytes([data[at + 6] ^ 0x10]))
                    count += 1
                    at = data.find(values, at + 1)
    finally:
        os.kill(pid, signal.SIGCONT)
    return count


class Verify(fsdp_cli.Case):
    def frozen_row(self):
        """Returns the bytes of a row of the token embedding in every run of the same seed."""
        self.train("start", "--max-steps", 1, "--freeze", "transformer.wte.weight")
        whole = self.folder / "start.safetensors"
        result = fsdp_cli.run("fsdp-ckpt-convert", [self.checkpoints("start") / "latest", whole, "--model-only"])
        self.assertEqual(result.code, 0, str(result))
        data = whole.read_bytes()
        header = int.from_bytes(data[:8], "little")
        begin, end = json.loads(data[8:8 + header])["transformer.wte.weight"]["data_offsets"]
        table = numpy.frombuffer(data[8 + header + begin:8 + header + end], dtype=numpy.float32).reshape(fsdp_cli.VOCAB, -1)
        return table[7].tobytes()

    def test_equal_ranks_train_on_with_the_same_losses(self):
        for number, (ranks, more) in enumerate((
                (2, ("--sharding", "full-shard")), (2, ("--sharding", "no-shard", "--precision", "bf16")),
                (4, ("--sharding", "hybrid-full-shard", "--shard-group-size", 2, "--optimizer", "adamw8bit")),
                (3, ("--sharding", "grad-shard", "--collectives", "host-staged", "--cpu-offload", "--seed", 5)))):
            with self.subTest(more=more):
                plain = ("--max-steps", 6, "--save-every", 2, *more)
                self.train(f"plain-{number}", *plain, ranks=ranks)
                result = self.train(f"verified-{number}", *plain, "--verify-every", 2, ranks=ranks)
                self.assertEqual(re.findall(r"verified +step (\d+) on (\d) ranks in", result.err), [(str(step), str(ranks)) for step in (2, 4, 6)])
                self.assertEqual(self.losses(f"verified-{number}"), self.losses(f"plain-{number}"))

    def test_a_flipped_bit_in_one_copy(self):
        values = self.frozen_row()
        excluded = self.folder / "excluded"
        log = self.folder / "flipped.log"
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments(
            "flipped", "--freeze", "transformer.wte.weight", "--sharding", "no-shard", "--max-steps", 1000000, "--save-every", 1, "--keep-last", 2,
            "--verify-every", 1, "--exclude-file", excluded), 3, log)
        self.addCleanup(fsdp_cli.end_group, process)
        fsdp_cli.wait_for(process, log, lambda: "verified  step 3 " in log.read_text())
        pids = fsdp_cli.processes_of_ranks(process.pid)
        self.assertGreater(flip_a_bit(pids[1], values), 0)
        self.assertEqual(process.wait(60), 1, log.read_text())
        text = log.read_text()
        error = next(line for line in text.splitlines() if "error:" in line)
        if "the loss of the same micro-batch" in error:  # the bit was flipped after the parameters were compared
            self.assertRegex(error, r"differs between ranks: (rank 1 \(|ranks (0, 1|1, 2|0-2) \()")
            return
        found = re.search(rf"the (?:gathered|copy of) transformer\.wte\.weight differs between ranks: rank 1 \({socket.gethostname()}\) has not what the "
                          r"others have; step (\d+) is not saved, step (\d+) was the last one to be verified", error)
        self.assertIsNotNone(found, error)
        step = int(found[1])
        self.assertEqual(int(found[2]), step - 1)
        self.assertEqual(text.count("error:"), 1, text)
        saved = sorted(int(path.name[5:]) for path in self.checkpoints("flipped").glob("step-*"))
        self.assertLess(saved[-1], step)
        self.assertEqual(excluded.read_text(), socket.gethostname() + "\n")

    def test_a_rank_that_computes_otherwise(self):
        older = {"MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41", "DNNL_MAX_CPU_ISA": "SSE41"}
        self.train("usual", "--max-steps", 5)
        self.train("older", "--max-steps", 5, env=older)
        if self.losses("usual") == self.losses("older"):
            self.skipTest("this processor computes the same with older instructions")
        exports = " ".join(f"{name}={value}" for name, value in older.items())
        programs = fsdp_cli.wrap(self.folder / "programs", "fsdp-finetune", f'if [ {fsdp_cli.SHELL_RANK} = 2 ]; then export {exports}; fi')
        line = fsdp_cli.command("fsdp-finetune", self.train_arguments("otherwise", "--max-steps", 20, "--verify-every", 5), 4, programs)
        result = subprocess.run(line, capture_output=True, text=True, env=fsdp_cli.environment(), check=False, timeout=90)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, r"the loss of the same micro-batch differs between ranks: rank 2 \(")


fsdp_cli.main()
