"""A run's folder belongs to one job: a second job learns the owner, the folder of a dead owner is taken over, and a new run
leaves an older run of the same name alone until it has made a step."""

import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import fsdp_cli


class Owner(fsdp_cli.Case):
    def start(self, name, *options, ranks=2, **env):
        log = self.folder / f"{name}-{len(list(self.folder.iterdir()))}.log"
        old = dict(os.environ)
        os.environ.update(env)
        try:
            process = fsdp_cli.start("fsdp-finetune", self.train_arguments(name, *options), ranks, log)
        finally:
            os.environ.clear()
            os.environ.update(old)
        self.addCleanup(fsdp_cli.end_group, process)
        return process, log

    def wait_for(self, process, log, condition):
        end = time.monotonic() + 60
        while not condition():
            self.assertIsNone(process.poll(), log.read_text())
            self.assertLess(time.monotonic(), end, log.read_text())
            time.sleep(0.02)

    def names(self, run):
        return sorted(p.name for p in self.checkpoints(run).iterdir() if not p.name.startswith("."))

    def steps(self, name):
        metrics = self.run_directory(name) / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    def test_a_second_job_is_told_who_is_first(self):
        # PBS_JOBID instead of Slurm's variables, which fsdp_cli removes.
        process, log = self.start("twice", "--max-steps", 1000000, "--save-every", 50, "--log-every", 1000000, "--takeover-after", 6,
                                  PBS_JOBID="77.head")
        self.wait_for(process, log, lambda: self.steps("twice") > 60)
        for more in ([], ["--restart-checkpoint-file", "latest"]):
            for ranks in (1, 2):
                before = self.steps("twice")
                second = self.train("twice", "--max-steps", 3, "--takeover-after", 6, *more, ranks=ranks, code=4)
                self.assert_refused(second, 4, "runs/twice", "PBS job 77.head", os.uname().nodename, "since 20", "--run-name")
                self.assertGreater(self.steps("twice"), before, "the first one goes on")
        # Reading needs no ownership: a plan, and an evaluation of the newest checkpoint.
        self.train("twice", "--max-steps", 3, "--dry-run")
        self.train("twice", "--max-epochs", -1, "--val-data", self.val_data, "--restart-checkpoint-file", "latest")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(30), fsdp_cli.STOPPED_EARLY, log.read_text())
        fsdp_cli.losses(self.run_directory("twice"))  # every step once
        self.assertFalse(list(self.run_directory("twice").glob("previous-*")))
        # The job released the folder.
        self.train("twice", "--max-steps", self.steps("twice") + 2, "--restart-checkpoint-file", "latest")

    def test_a_killed_owner_is_followed_at_once(self):
        process, log = self.start("killed", "--max-steps", 1000000, "--save-every", 20, "--log-every", 1000000)
        self.wait_for(process, log, lambda: self.steps("killed") > 60)
        for pid in fsdp_cli.rank_processes(process.pid, "fsdp-finetune"):
            os.kill(pid, signal.SIGKILL)
        process.wait(30)
        result = self.train("killed", "--max-steps", 1, "--restart-checkpoint-file", "latest", ranks=2)
        self.assertNotIn("waiting", result.err)

    def claim_of_another_host(self, name):
        folder = self.run_directory(name) / ".owner"
        folder.mkdir(parents=True)
        claim = folder / "claim.1"
        claim.write_text(json.dumps({"host": "far", "boot_id": "b", "pid_namespace": "pid:[1]", "pid": 7, "start_ticks": 9,
                                     "job": "Slurm job 5", "since": "2026-01-01 00:00:00 UTC"}))
        return claim

    def test_a_silent_owner_on_another_host_is_waited_for(self):
        self.claim_of_another_host("silent")
        result = self.train("silent", "--max-steps", 2, "--takeover-after", 2, ranks=2)
        self.assertIn("claimed by process 7 on far (Slurm job 5), since 2026-01-01 00:00:00 UTC", result.err)
        self.assertEqual(self.names("silent"), ["latest", "step-00000002"])

    def test_a_beating_owner_on_another_host_is_believed(self):
        claim = self.claim_of_another_host("beating")
        done = threading.Event()

        def beat():
            while not done.wait(0.3):
                os.utime(claim)

        thread = threading.Thread(target=beat)
        thread.start()
        try:
            self.assert_refused(self.train("beating", "--max-steps", 2, "--takeover-after", 20, ranks=2, code=4), 4, "process 7 on far (Slurm job 5)")
        finally:
            done.set()
            thread.join()
        self.assertEqual([p.name for p in self.run_directory("beating").iterdir()], [".owner"])

    def test_a_suspended_job_that_was_taken_over_writes_nothing_more(self):
        process, log = self.start("suspended", "--max-steps", 1000000, "--save-every", 10, "--log-every", 1000000, "--takeover-after", 2)
        self.wait_for(process, log, lambda: self.steps("suspended") > 30)
        ranks = fsdp_cli.rank_processes(process.pid, "fsdp-finetune")
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        second = self.train("suspended", "--max-steps", 4, "--takeover-after", 2, ranks=2)
        self.assertIn("moved to", second.err)
        metrics = (self.run_directory("suspended") / "metrics.jsonl").read_bytes()
        for pid in ranks:
            os.kill(pid, signal.SIGCONT)
        self.assertEqual(process.wait(30), 4, log.read_text())
        self.assertIn("was taken over by another job", log.read_text())
        self.assertEqual(self.names("suspended"), ["latest", "step-00000004"])
        self.assertEqual((self.run_directory("suspended") / "metrics.jsonl").read_bytes(), metrics)

    def test_a_start_that_fails_leaves_no_folder(self):
        self.train("nothing", "--train-data", self.folder / "absent.h5", ranks=2, code=4)
        self.assertFalse(self.run_directory("nothing").exists())


class OlderRun(fsdp_cli.Case):
    def contents(self, run):
        folder = self.run_directory(run)
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and ".owner" not in p.parts}

    def test_a_new_run_moves_it_aside_after_its_first_step(self):
        self.train("again", "--max-steps", 3)
        before = self.contents("again")
        # Stopped before the first step.
        result = self.train("again", "--max-steps", 5, "--time-limit", "0:01", code=fsdp_cli.STOPPED_EARLY, ranks=2)
        self.assertIn("as it was", result.err)
        self.assertEqual(self.contents("again"), before)
        # Fails before the first step.
        self.train("again", "--max-steps", 5, "--vocab-size", 50, ranks=2, code=4)
        self.assertEqual(self.contents("again"), before)
        result = self.train("again", "--max-steps", 2, "--no-save", ranks=2)
        self.assertIn("previous-1", result.err)
        moved = {name: data for name, data in self.contents("again").items() if name.startswith("previous-1/")}
        self.assertEqual(moved, {f"previous-1/{name}": data for name, data in before.items()})
        # A user who looks for the moved run is told where it is.
        lost = self.train("again", "--max-steps", 5, "--restart-checkpoint-file", "latest", code=4)
        self.assert_refused(lost, 4, "previous-1/checkpoints/latest")
        self.train("again", "--max-steps", 5, "--restart-checkpoint-file", self.run_directory("again") / "previous-1" / "checkpoints" / "latest")
        self.assertEqual([r["step"] for r in fsdp_cli.steps(self.run_directory("again"))], [1, 2, 4, 5])

    def test_an_old_run_that_cannot_be_moved_stays_whole(self):
        self.train("stuck", "--max-steps", 2)
        before = self.contents("stuck")
        metrics = self.run_directory("stuck") / "metrics.jsonl"
        try:
            if subprocess.run(["chattr", "+i", metrics], capture_output=True, check=False).returncode:
                self.skipTest("no file can be made immutable here")
        except FileNotFoundError:
            self.skipTest("no chattr here")
        self.addCleanup(subprocess.run, ["chattr", "-i", metrics], check=False)
        result = self.train("stuck", "--max-steps", 2, code=1)
        self.assertIn("cannot set the run of that name aside", result.err)
        self.assertEqual(self.contents("stuck"), before)

    def test_restarts_at_step_0_keep_the_only_checkpoint(self):
        limit = ["--max-steps", 5, "--time-limit", "0:01"]
        self.train("zero", *limit, code=fsdp_cli.STOPPED_EARLY)
        for _ in range(3):
            self.train("zero", *limit, "--restart-checkpoint-file", "latest", code=fsdp_cli.STOPPED_EARLY)
            self.assertEqual(sorted(p.name for p in self.checkpoints("zero").iterdir()), ["latest", "step-00000000"])
        self.train("zero", "--max-steps", 3, "--restart-checkpoint-file", "latest")
        self.assertFalse(list(self.run_directory("zero").glob("previous-*")))
        self.assertEqual(len(fsdp_cli.losses(self.run_directory("zero"))), 3)


if __name__ == "__main__":
    fsdp_cli.main()
