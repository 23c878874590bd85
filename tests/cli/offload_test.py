"""--offload-optimizer: losses and checkpoints as in memory, within a memory limit that the states exceed, and behaviour
when the disk is full or disappears, or the program is killed.

FSDP_ALL=1: a model whose states are four times the limit (8 GB of memory for the reference run), and every change of the
states' place on 1 and on 3 ranks.
"""

import os
import pathlib
import re
import shutil
import signal
import tempfile
import time

import fsdp_cli
from memory_group import MemoryGroup

BATCH = ["--total-batch-size", 12]
BF16 = ["--precision", "bf16", "--allow-emulated-bf16"]


def target_of(link):
    """Returns the target of a file descriptor's link; empty if it is closed."""
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


class Offload(fsdp_cli.Case):
    def on_disk(self, directory=None):
        return ["--offload-optimizer", f"nvme:{directory or self.folder / 'scratch'}"]

    def norms_and_losses(self, name):
        return [(r["loss"], r["grad_norm"]) for r in fsdp_cli.steps(self.run_directory(name))]

    def start(self, name, *more):
        """Starts two ranks in the background and waits for a checkpoint. Returns process, log and the ranks' process ids."""
        log = self.folder / f"{name}.log"
        options = ["--max-steps", 1000000, "--save-every", 5, "--keep-last", 2, "--log-every", 1000000, *more]
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments(name, *options), 2, log)
        self.addCleanup(fsdp_cli.end_group, process)
        end = time.monotonic() + 60
        while not (self.checkpoints(name) / "latest").exists():
            self.assertIsNone(process.poll(), log.read_text())
            self.assertLess(time.monotonic(), end, log.read_text())
            time.sleep(0.01)
        return process, log, fsdp_cli.rank_processes(process.pid, "fsdp-finetune")

    def test_same_losses_and_checkpoints(self):
        for ranks, precision in ((1, ["--precision", "float32"]), (3, BF16)):
            options = [*BATCH, "--batch-size", 12 // ranks, *precision, "--save-every", 2]
            plain, cpu, disk = (f"{kind}-{ranks}" for kind in ("plain", "cpu", "disk"))
            self.train(plain, "--max-steps", 6, *options, ranks=ranks)
            self.train(cpu, "--max-steps", 6, *options, "--offload-optimizer", "cpu", ranks=ranks)
            result = self.train(disk, "--max-steps", 6, *options, *self.on_disk(), "--json", ranks=ranks)
            self.assertEqual(self.norms_and_losses(disk), self.norms_and_losses(plain))
            self.assertEqual(self.norms_and_losses(cpu), self.norms_and_losses(plain))
            offload = result.json()["offload"]
            self.assertGreater(offload["bytes_written"], 6 * offload["file_bytes"] // 2)
            written = [r["offload"]["bytes_written"] for r in fsdp_cli.steps(self.run_directory(disk))]
            self.assertTrue(all(n > offload["file_bytes"] // 2 for n in written), written)
            self.assertLessEqual(sum(written), offload["bytes_written"])
            # Threads replace io_uring on kernels without it.
            threads = self.train(f"threads-{ranks}", "--max-steps", 6, *options, *self.on_disk(), "--json", ranks=ranks, env={"FSDP_OFFLOAD_IO": "threads"})
            self.assertTrue(threads.json()["offload"]["io"].startswith("threads"))
            self.assertEqual(self.norms_and_losses(f"threads-{ranks}"), self.norms_and_losses(plain))
            self.assertEqual(list((self.folder / "scratch").iterdir()), [], "a scratch file has no name")
            # A run continues from either kind of checkpoint: weights, states, steps.
            moves = [([], self.on_disk()), (self.on_disk(), []), (self.on_disk(), self.on_disk())]
            for first, second in moves if fsdp_cli.ALL else moves[:1] if ranks == 1 else moves[1:]:
                name = f"moved-{ranks}-{len(first)}-{len(second)}"
                self.train(name, "--max-steps", 4, *options, *first, ranks=ranks)
                self.train(name, "--max-steps", 6, "--batch-size", 12 // ranks, *second, "--restart", "latest", ranks=ranks)
                self.assertEqual(self.norms_and_losses(name), self.norms_and_losses(plain))

    def test_other_ways_to_train(self):
        for index, (ranks, *options) in enumerate(fsdp_cli.share([
                (3, "--optimizer", "adamw8bit", "--min-8bit-size", 1, "--sharding", "grad-shard"),
                (2, "--optimizer", "muon", "--collectives", "host-staged"),
                (4, "--optimizer", "adafactor", "--sharding", "hybrid-full-shard", "--shard-group-size", 2),
                (2, "--freeze", "transformer.h.0*", "--child-tuning", "d", "--child-tuning-p", 0.3, "--fisher-samples", 24),
                (2, "--gradient-accumulation-steps", 2, "--reduce-every-micro-batch", "--optimizer", "lion")], 2)):
            batch = ["--batch-size", 12 // ranks // (2 if "lion" in options else 1)]
            self.train(f"memory-{index}", "--max-steps", 5, *batch, *options, ranks=ranks)
            self.train(f"nvme-{index}", "--max-steps", 5, *batch, *options, *self.on_disk(), ranks=ranks)
            self.assertEqual(self.norms_and_losses(f"nvme-{index}"), self.norms_and_losses(f"memory-{index}"), options)

    def test_memory_limit(self):
        """States of two (or four) times the limit: memory holds little more than bf16 rows of the whole model."""
        layers, ratio = (120, 4) if fsdp_cli.ALL else (36, 2)
        width, steps = 512, 3
        model = ["--num-layers", layers, "--num-heads", 8, "--embed-size", width, "--vocab-size", 512, "--seq-len", 32, "--batch-size", 1,
                 "--activation-checkpointing", "all", *BF16, "--max-steps", steps, "--no-save"]
        state_bytes = 12 * (layers * (12 * width + 13) + 2 * 512 + 32 + 2) * width
        limit = state_bytes // ratio
        group = MemoryGroup("fsdp-offload", limit)
        self.addCleanup(group.remove)
        scratch = tempfile.mkdtemp(dir="/var/tmp")  # files in memory would count
        self.addCleanup(shutil.rmtree, scratch)
        self.train("limited", *model, *self.on_disk(scratch), before=group.enter, limit_seconds=400)
        peak = group.peak_bytes()
        self.train("unlimited", *model, limit_seconds=400)
        self.assertEqual(self.norms_and_losses("limited"), self.norms_and_losses("unlimited"))
        self.assertEqual(len(self.norms_and_losses("limited")), steps)
        if peak is not None:
            self.assertLessEqual(peak, limit)
        fsdp_cli.say(f"states of {state_bytes / 1e6:.0f} MB under a limit of {limit / 1e6:.0f} MB, of which {(peak or 0) / 1e6:.0f} MB were used")

    def test_a_kill_leaves_nothing(self):
        process, log, ranks = self.start("killed", *self.on_disk(self.folder / "killed-scratch"))
        files = [target_of(link) for link in pathlib.Path(f"/proc/{ranks[0]}/fd").iterdir()]
        self.assertEqual([name.endswith("(deleted)") for name in files if "killed-scratch" in name], [True], files)
        os.kill(ranks[1], signal.SIGKILL)
        self.assertNotIn(process.wait(30), (0, fsdp_cli.STOPPED_EARLY), log.read_text())
        self.assertEqual(list((self.folder / "killed-scratch").iterdir()), [])
        self.evaluate(self.checkpoints("killed") / "latest", "--data", self.val_data)

    def test_a_stop_saves(self):
        process, log, _ = self.start("stopped", *self.on_disk())
        process.terminate()
        self.assertEqual(process.wait(60), fsdp_cli.STOPPED_EARLY, log.read_text())
        step = int(os.readlink(self.checkpoints("stopped") / "latest")[5:])
        self.train("stopped", "--max-steps", step + 2, "--restart", "latest", *self.on_disk(), ranks=2)
        self.assertEqual(len(self.losses("stopped")), step + 2)

    def test_a_disk_that_goes_away(self):
        """Reading past the end of a file emulates a disk that disappears."""
        process, log, ranks = self.start("gone", *self.on_disk())
        (file,) = [link for link in pathlib.Path(f"/proc/{ranks[0]}/fd").iterdir() if str(self.folder / "scratch") in target_of(link)]
        end = time.monotonic() + 60
        while process.poll() is None:  # each step writes the whole file
            self.assertLess(time.monotonic(), end, log.read_text())
            try:
                os.truncate(file, 0)
            except FileNotFoundError:
                break
        self.assertEqual(process.wait(60), 1, log.read_text())
        errors = [line for line in log.read_text().splitlines() if "error:" in line]
        self.assertEqual(len(errors), 1, log.read_text())
        self.assertIn(f"{self.folder / 'scratch'}: the scratch file of offloaded values cannot be read", errors[0])
        self.assertIn("--restart-checkpoint-file latest", errors[0])
        step = int(os.readlink(self.checkpoints("gone") / "latest")[5:])
        self.train("gone", "--max-steps", step + 2, "--restart", "latest", ranks=2)

    def test_a_disk_that_is_too_small(self):
        disk = self.small_disk("200k")
        result = self.train("small", "--max-steps", 2, *self.on_disk(disk), ranks=2, code=1)
        self.assertEqual(len(result.errors()), 1, str(result))
        for word in (str(disk), "needs", "are free", "--offload-optimizer nvme:DIR"):
            self.assertIn(word, result.errors()[0])
        refused = self.train("small", "--max-steps", 2, *self.on_disk("/dev/null/x"), ranks=2, code=1)
        self.assert_refused(refused, 1, "/dev/null/x: no scratch file can be made there")

    def test_a_disk_without_room_for_two(self):
        """A rank's scratch file has 560 KiB, its part of a checkpoint 430 KiB."""
        disk = self.small_disk("1600k")
        options = ["--max-steps", 6, "--save-every", 2]
        self.train("roomy", *options, ranks=2)
        result = self.train("tight", *options, *self.on_disk(disk), ranks=2)
        self.assertEqual(self.losses("tight"), self.losses("roomy"))
        self.assertEqual(result.err.count("training waits while a checkpoint is written"), 1, str(result))
        self.assertEqual(result.err.count("is in memory itself (tmpfs)"), 1, str(result))
        self.train("tight", "--max-steps", 8, "--restart", "latest", ranks=2)
        self.train("roomy", "--max-steps", 8, "--restart", "latest", ranks=2)
        self.assertEqual(self.losses("tight"), self.losses("roomy"))

    def test_dry_run_and_memprobe_tell(self):
        result = self.train("dry", "--dry-run", *self.on_disk(self.folder / "never-made"), ranks=2)
        self.assertTrue(re.search(r"disk      per rank in .*never-made: 560 KiB, and \d+ KiB more while a checkpoint is saved", result.err), str(result))
        self.assertFalse((self.folder / "never-made").exists())


if __name__ == "__main__":
    fsdp_cli.main()
