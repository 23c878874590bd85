"""Ranks that differ: fsdp-finetune on the stub driver (stub_card.hpp).

Each job ends by itself; the limits of time only catch hangs.
"""

import os
import re
import socket
import subprocess
import unittest

import fsdp_cli
import memprobe_cli

CARD = "a100-40g"


@unittest.skipUnless(os.environ.get("FSDP_STUB_CUDA"), "the CUDA back end was not built, or not for CUDA 12.8 or 13 on x86-64")
class Ranks(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokens = fsdp_cli.write_tokens(cls.folder / "tokens.h5", fsdp_cli.random_tokens(240))

    def arguments(self, name, *more):
        return [*memprobe_cli.MINGPT_S, "--vocab-size", fsdp_cli.VOCAB, "--train-data", self.tokens, "--batch-size", 1, "--max-steps", 4, "--no-save",
                "--out-dir", self.runs, "--run-name", name, *map(str, more)]

    def line(self, name, *environments, more=(), launcher=(), within=()):
        """Returns a line that starts a rank with each of the environments: None is one without a driver."""
        program = [*within, str(fsdp_cli.folder("FSDP_BIN") / "fsdp-finetune"), *map(str, self.arguments(name, *more))]
        line = [os.environ["FSDP_MPIEXEC"], *launcher]
        for number, env in enumerate(environments):
            stub = {} if env is None else {"LD_PRELOAD": os.environ["FSDP_STUB_CUDA"], "FSDP_STUB_GPU": CARD, **env}
            line += [":"] * (number > 0) + ["-n", "1", "env", *(f"{key}={value}" for key, value in stub.items()), *program]
        return line

    def ranks(self, name, *environments, **more):
        line = self.line(name, *environments, **more)
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=fsdp_cli.environment(), start_new_session=True)
        try:
            out, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            fsdp_cli.end_group(process)
            raise AssertionError(f"no end: {line}\n{process.communicate()}") from None
        return fsdp_cli.Result(line, process.returncode, out, err)

    def refused(self, name, *environments, more=()):
        """The job ends on all ranks with one message, before its first step."""
        result = self.ranks(name, *environments, more=more)
        self.assertEqual(result.code, 2, str(result))
        self.assertEqual(len(result.errors()), 1, str(result))
        return result.errors()[0]

    def test_a_rank_without_a_gpu_ends_the_job(self):
        host = re.escape(socket.gethostname().partition(".")[0])
        for name, environments, number in ("second", ({}, None), 1), ("first", (None, {}), 0):
            error = self.refused(name, *environments)
            self.assertRegex(error, rf"rank {1 - number} \({host}\) has a GPU, and rank {number} has none that can be used, on {host}: .*driver.*--device cpu")
        self.assertRegex(self.refused("asked", {}, None, more=["--device", "cuda"]), rf"--device cuda: no GPU can be used by rank 1 on {host}: ")
        result = self.ranks("cpus", {}, None, more=["--device", "cpu"])
        self.assertEqual(result.code, 0, str(result))

    def test_another_environment_ends_the_job(self):
        for variable, value in ("FSDP_CUDA_KERNELS", "off"), ("NCCL_ALGO", "Ring"), ("FSDP_CUDA_ATTENTION", "flash"):
            error = self.refused(variable, {}, {}, {variable: value})
            self.assertRegex(error, rf"variable {variable}: rank 0 \(.*\) has no value, rank 2 \(.*\) has {value}\b")

    def test_other_cards_are_predicted_for_the_smallest(self):
        for name, cards in ("mixed", ("a100-80g", "a100-40g")), ("alike", ("a100-40g", "a100-40g")):
            result = self.ranks(name, *({"FSDP_STUB_GPU": card} for card in cards))
            self.assertEqual(result.code, 0, str(result))
            self.assertRegex(result.err, r"predicted peak .* of 39\.[0-9]+ GiB")
            self.assertEqual(len(re.findall(r"gpus +they differ: rank 0 has .*a100-80g.* predicted for the smallest, .*a100-40g.* of rank 1", result.err)),
                             1 if name == "mixed" else 0, result.err)


if __name__ == "__main__":
    fsdp_cli.main()
