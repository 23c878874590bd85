"""kill -9 of a random rank at random instants of a run that saves every step: the job ends, `latest` always loads.

6 instants; FSDP_ALL=1: 100.
"""

import os
import random
import signal
import subprocess
import time

import fsdp_cli

KILLS = 100 if fsdp_cli.ALL else 6
RANKS = 2


class Kill(fsdp_cli.Case):
    def start(self, restart):
        options = ["--max-steps", 100000, "--save-every", 1, "--keep-last", 3, "--batch-size", 1, "--log-every", 100000]
        options += ["--restart-checkpoint-file", "latest"] if restart else []
        log = self.folder / "run.log"
        return fsdp_cli.start("fsdp-finetune", self.train_arguments("killed", *options), RANKS, log), log

    def wait_for_ranks(self, process, log):
        end = time.monotonic() + 60
        while len(fsdp_cli.rank_processes(process.pid, "fsdp-finetune")) < RANKS:
            self.assertIsNone(process.poll(), log.read_text())
            self.assertLess(time.monotonic(), end, log.read_text())
            time.sleep(0.01)
        return fsdp_cli.rank_processes(process.pid, "fsdp-finetune")

    def test_kill(self):
        choice = random.Random(20)
        folder = self.checkpoints("killed")
        longest, steps = 0.0, []
        for attempt in range(KILLS):
            before = os.readlink(folder / "latest") if (folder / "latest").is_symlink() else None
            for left_over in folder.glob(".step-*"):  # marked to be distinguished, since --keep-last renames what it removes to such names too
                (left_over / "left-over").touch()
            process, log = self.start(restart=before is not None)
            self.addCleanup(fsdp_cli.end_group, process)
            ranks = self.wait_for_ranks(process, log)
            # A few instants lie in the start, most in the phase where steps and saves follow each other every few milliseconds.
            if choice.random() < 0.85:
                end = time.monotonic() + 60
                while not (folder / "latest").is_symlink() or os.readlink(folder / "latest") == before:
                    self.assertIsNone(process.poll(), log.read_text())
                    self.assertLess(time.monotonic(), end, log.read_text())
                    time.sleep(0.001)
                self.assertFalse(list(folder.glob(".step-*/left-over")), "temporary directories of earlier runs are gone")
            time.sleep(choice.random() * 0.4)
            os.kill(choice.choice(ranks), signal.SIGKILL)
            killed = time.monotonic()
            try:
                code = process.wait(10)
            except subprocess.TimeoutExpired:
                self.fail(f"attempt {attempt}: no end within 10 s of the kill\n{log.read_text()}")
            longest = max(longest, time.monotonic() - killed)
            self.assertNotIn(code, (0, fsdp_cli.STOPPED_EARLY))
            if (folder / "latest").is_symlink():
                report = self.evaluate(folder / "latest", "--data", self.val_data)
                self.assertTrue(1 < report["loss"] < 6)
                steps.append(int(os.readlink(folder / "latest")[5:]))
                self.assertGreaterEqual(steps[-1], max(steps), "never an older checkpoint than before")
        fsdp_cli.say(f"{KILLS} kills, {len(steps)} with a checkpoint, the last at step {steps[-1]}; the job ended within {longest:.2f} s")
        self.assertGreater(steps[-1], steps[0])
        # The run continues to its end and leaves no temporary files.
        self.train("killed", "--max-steps", steps[-1] + 3, "--batch-size", 1, "--restart-checkpoint-file", "latest", ranks=RANKS)
        self.assertFalse(list(folder.glob(".*")), "nothing temporary is left")
        self.assertEqual(len(fsdp_cli.losses(self.run_directory("killed"))), steps[-1] + 3)


if __name__ == "__main__":
    fsdp_cli.main()
