"""A rank stops or is killed while gathers are in flight over NCCL: the other ranks end and name it.

On the stub driver (stub_stall.hpp) no queued work completes from that moment on, so a wait for the device without a time
limit never returns.
"""

import concurrent.futures
import os
import pathlib
import subprocess
import time
import unittest

import chess_cli
import fsdp_cli
import memprobe_cli

TIMEOUT_S = 3


def missing(kinds="all-gather|reduce-scatter", rank=1):
    """Returns the other ranks' message about a rank that did not take part in a collective of these kinds."""
    return (rf"({kinds}) number [0-9]+ .* made no progress within {TIMEOUT_S} s \(--collective-timeout\); "
            rf"did not answer: rank {rank}\b")


MISSING = missing()


def left_over(name):
    """Returns the processes whose command line contains `name`."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if name in path.read_text(errors="replace") and int(path.parent.name) != os.getpid():
                found.append(path.parent.name)
        except OSError:
            pass  # the process has ended
    return found


@unittest.skipUnless(os.environ.get("FSDP_STUB_CUDA"), "the CUDA back end was not built, or not for CUDA 12.8 or 13 on x86-64")
class DeadPeer(chess_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokens = fsdp_cli.write_tokens(cls.folder / "tokens.h5", fsdp_cli.random_tokens(240))

    def ends(self, name, stall, arguments, expected, launcher=(), log=None, ranks=2):
        """The job ends by itself, leaves no process, and prints `expected`. `stall` selects the collective, the rank and the kind of failure."""
        stub = {"LD_PRELOAD": os.environ["FSDP_STUB_CUDA"], "FSDP_STUB_GPU": "a100-40g", "FSDP_STUB_STALL": stall}
        line = [*arguments, "--out-dir", self.runs, "--run-name", name, "--device", "cuda", "--collective-timeout", TIMEOUT_S]
        # The limit only catches hangs: a job without unlimited waits ends within seconds.
        result = fsdp_cli.run("fsdp-finetune", line, ranks=0 if launcher else ranks, env=stub, limit_seconds=60, within=launcher)
        self.assertNotEqual(result.code, 0, str(result))
        for _ in range(300):  # mpiexec may end before its ranks, which end by their own timeout and only then print the reason
            if not left_over(name):
                break
            time.sleep(0.1)
        self.assertEqual(left_over(name), [])
        self.assertRegex(log.read_text() if log else result.out + result.err, expected, str(result))
        return result

    def check(self, *cases, every=1):
        """Runs six cases at once, because the jobs mostly wait."""
        cases = fsdp_cli.share(cases, every)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            started = {case[0]: pool.submit(self.ends, *case) for case in cases}
            for name, end in started.items():
                with self.subTest(name=name):
                    end.result()

    def job(self, *more):
        return [*memprobe_cli.MINGPT_S, "--vocab-size", fsdp_cli.VOCAB, "--train-data", self.tokens, "--batch-size", 1, *more]

    def test_a_stopped_rank_is_named(self):
        fifty = self.job("--max-steps", 50)
        disk = ["--offload-optimizer", f"nvme:{self.folder / 'scratch'}"]
        self.check(("stopped-forward", "41:1:stop", fifty, MISSING, (), None, 3),
                   ("stopped-host-decides", "42:1:stop", [*fifty, "--optimizer", "lion"], MISSING),
                   ("stopped-accumulating", "43:1:stop", [*fifty, "--gradient-accumulation-steps", 2, "--activation-checkpointing", "all"], MISSING),
                   ("stopped-offload", "41:1:stop", [*fifty, "--cpu-offload"], MISSING),
                   ("stopped-replicas", "23:1:stop", [*fifty, "--cpu-offload", "--sharding", "no-shard", "--precision", "bf16"], missing("all-reduce|reduce-scatter")),
                   # Gradients on their way to a disk, in the first and in later steps; sums that the replicas write to a disk.
                   ("stopped-disk", "41:1:stop", [*fifty, *disk], MISSING),
                   ("stopped-disk-at-once", "11:1:stop", [*fifty, *disk], MISSING),
                   ("stopped-disk-accumulating", "31:1:stop", [*fifty, *disk, "--gradient-accumulation-steps", 2, "--reduce-every-micro-batch"], MISSING),
                   ("stopped-disk-replicas", "9:1:stop", [*fifty, *disk, "--sharding", "no-shard"], missing("all-reduce")),
                   # Collectives of optimizers, on the host.
                   ("stopped-adafactor", "18:1:stop", [*fifty, "--cpu-offload", "--optimizer", "adafactor"], missing("all-reduce")),
                   ("stopped-muon", "18:1:stop", [*fifty, "--cpu-offload", "--optimizer", "muon"], missing("all-to-all")),
                   ("stopped-adamw8bit", "18:1:stop", [*fifty, "--cpu-offload", "--optimizer", "adamw8bit"], MISSING), every=5)

    def test_a_full_queue_of_launches(self):
        """The layers launch more than a driver takes, so the host would block in a launch. Limited to the collectives of a few
        layers ahead it does not; where half of the layers are one unit it does, and the watchdog's abort ends the block."""
        def layers(number):
            return ["--num-layers", number, "--num-heads", 2, "--embed-size", 64, "--vocab-size", fsdp_cli.VOCAB, "--train-data", self.tokens,
                    "--batch-size", 1, "--max-steps", 50, "--activation-checkpointing", "all"]
        self.check(("stopped-deep", "175:1:stop", layers(40), MISSING),
                   ("stopped-deep-replicas", "86:1:stop", [*layers(40), "--sharding", "no-shard"], missing("all-reduce|reduce-scatter")),
                   ("stopped-deep-units", "13:1:stop", [*layers(100), "--wrap", f"size:{50 * 49984}"], MISSING), every=2)

    def test_a_rank_that_stops_in_a_validation_or_a_text(self):
        """The stall counts select collectives after the first step and before the second."""
        behind = r"(?s)step +1/.*" + MISSING
        short = fsdp_cli.write_tokens(self.folder / "short.h5", [[1 + i for i in range(20)] for _ in range(3)])
        words = ["--vocab-size", 50257]  # the tokenizer's
        validated = ["--val-data", self.tokens, "--eval-every", 1]
        chess = ["--model", self.model, "--train-data", self.data, "--documents", "--max-seq-length", 64, "--val-chess", self.data, "--eval-every", 1]
        self.check(("stopped-validating", "60:1:stop", self.job("--max-steps", 1, *validated), behind),
                   ("stopped-prompt", "26:1:stop", self.job("--max-steps", 1, *words, "--prompt", "5 6", "--num-tokens", 4), "(?s)done +1 step.*" + MISSING),
                   ("stopped-sample", "33:1:stop", self.job("--max-steps", 1, *words, "--val-data", short, "--eval-every", 1, "--sample-prompt", "5 6"), behind),
                   ("stopped-chess", "24:1:stop", [*chess, "--max-steps", 1, "--batch-size", 2], "(?s)saved .*" + MISSING), every=2)

    def test_a_killed_rank_ends_the_job(self):
        """mpiexec may end the others before they notice; without its clean-up they name the killed rank themselves."""
        job, mpiexec = self.job("--max-steps", 50), os.environ["FSDP_MPIEXEC"]
        cases = [("killed", "41:2:kill", job, "[Ss]ignal 9|EXIT CODE: 9|did not answer: rank 2", (), None, 3)]
        if "-disable-auto-cleanup" in subprocess.run([mpiexec, "-help"], capture_output=True, text=True, check=False).stdout:
            # Even so mpiexec sometimes ends the others, or itself before them: ranks in sessions of their own survive that.
            log = self.folder / "killed-alone.log"
            launcher = [mpiexec, "-disable-auto-cleanup", "-n", "3", "sh", "-c", f'setsid --fork --wait "$0" "$@" >> {log} 2>&1']
            cases += [("killed-alone", "41:2:kill", job, r"did not arrive: rank 2 \(process [0-9]+ on .*\), whose process has ended", launcher, log)]
        self.check(*cases)


if __name__ == "__main__":
    fsdp_cli.main()
