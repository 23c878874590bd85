"""A run's folder belongs to one job, where owners are processes: running, killed, suspended. The rest is in
tests/unit/apps/run_owner_test.cpp."""

import os
import signal
import subprocess
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
        before = self.steps("twice")
        second = self.train("twice", "--max-steps", 3, "--takeover-after", 6, ranks=2, code=4)
        self.assert_refused(second, 4, "runs/twice", "PBS job 77.head", os.uname().nodename, "since 20", "--run-name")
        self.assertGreater(self.steps("twice"), before, "the first one goes on")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(30), fsdp_cli.STOPPED_EARLY, log.read_text())
        fsdp_cli.losses(self.run_directory("twice"))  # every step once
        self.assertFalse(list(self.run_directory("twice").glob("previous-*")))

    def test_a_killed_owner_is_followed_at_once(self):
        process, log = self.start("killed", "--max-steps", 1000000, "--save-every", 20, "--log-every", 1000000)
        self.wait_for(process, log, lambda: self.steps("killed") > 60)
        for pid in fsdp_cli.rank_processes(process.pid, "fsdp-finetune"):
            os.kill(pid, signal.SIGKILL)
        process.wait(30)
        result = self.train("killed", "--max-steps", 1, "--restart-checkpoint-file", "latest", ranks=2)
        self.assertNotIn("waiting", result.err)

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


class OlderRun(fsdp_cli.Case):
    def contents(self, run):
        folder = self.run_directory(run)
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and ".owner" not in p.parts}

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


if __name__ == "__main__":
    fsdp_cli.main()
