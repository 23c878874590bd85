"""A rank stops, or is killed, while gathers are in flight over NCCL: the others end and name it.

On the stub driver (stub_stall.hpp): from that moment on nothing that was queued is done, and a wait for the device without
a limit would be for ever.
"""

import os
import pathlib
import time
import unittest

import fsdp_cli
import memprobe_cli

TIMEOUT_S = 3


def left_over(name):
    """Processes whose command line has `name`."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if name in path.read_text(errors="replace") and int(path.parent.name) != os.getpid():
                found.append(path.parent.name)
        except OSError:
            pass  # it has ended
    return found


@unittest.skipUnless(os.environ.get("FSDP_STUB_CUDA"), "the CUDA back end was not built, or not for CUDA 13 on x86-64")
class DeadPeer(fsdp_cli.Case):
    def train(self, name, stall, *more):
        stub = {"LD_PRELOAD": os.environ["FSDP_STUB_CUDA"], "FSDP_STUB_GPU": "a100-40g", "FSDP_STUB_STALL": stall}
        data = fsdp_cli.folder("FSDP_DATA") / "shakespeare/validation.h5"
        return fsdp_cli.run("fsdp-finetune", [*memprobe_cli.MINGPT_S, "--train-data", data, "--batch-size", 1, "--max-steps", 50, "--out-dir", self.runs,
                                              "--run-name", name, "--device", "cuda", "--collective-timeout", TIMEOUT_S, *more],
                            ranks=3, env=stub, limit_seconds=60)  # against hanging alone: seconds where nothing waits without a limit

    def check(self, name, stall, expected, *more):
        with self.subTest(stall=stall, more=more):
            result = self.train(name, stall, *more)
            self.assertNotEqual(result.code, 0, str(result))
            self.assertRegex(result.out + result.err, expected)
            for _ in range(100):  # mpiexec may be there no longer while what it killed goes
                if not left_over(name):
                    break
                time.sleep(0.1)
            self.assertEqual(left_over(name), [])

    def test_a_stopped_rank_is_named(self):
        missing = rf"(all-gather|reduce-scatter) number [0-9]+ .* made no progress within {TIMEOUT_S} s \(--collective-timeout\); did not answer: rank 1\b"
        self.check("stopped-forward", "41:1:stop", missing)
        self.check("stopped-host-decides", "42:1:stop", missing, "--optimizer", "lion")
        self.check("stopped-accumulating", "43:1:stop", missing, "--gradient-accumulation-steps", 2, "--activation-checkpointing", "all")
        self.check("stopped-offload", "41:1:stop", missing, "--cpu-offload")
        self.check("stopped-replicas", "23:1:stop", missing.replace("all-gather", "all-reduce"), "--cpu-offload", "--sharding", "no-shard", "--precision", "bf16")
        self.check("stopped-validating", "5:1:stop", missing, "--max-epochs", -1, "--val-data",
                   fsdp_cli.folder("FSDP_DATA") / "shakespeare/validation.h5")

    def test_a_killed_rank_ends_the_job(self):
        self.check("killed", "41:2:kill", "[Ss]ignal 9|EXIT CODE: 9|did not answer: rank 2")


if __name__ == "__main__":
    fsdp_cli.main()
