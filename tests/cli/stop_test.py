"""Stopping early: signals to processes end a run with exit code 85 and a checkpoint. What follows from a signal or a time
limit is in tests/unit/apps/stop_test.cpp."""

import itertools
import os
import signal
import subprocess
import time

import fsdp_cli


class Stop(fsdp_cli.Case):
    def start_and_wait(self, name, *options, ranks=2, steps=20):
        log = self.folder / f"{name}.log"
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments(name, *options), ranks, log)
        self.addCleanup(fsdp_cli.end_group, process)
        end = time.monotonic() + 60
        metrics = self.run_directory(name) / "metrics.jsonl"
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < steps:
            self.assertIsNone(process.poll(), log.read_text())
            self.assertLess(time.monotonic(), end, log.read_text())
            time.sleep(0.01)
        return process, log

    def assert_stopped(self, name, process, log, number):
        self.assertEqual(process.wait(20), fsdp_cli.STOPPED_EARLY, log.read_text())
        text = log.read_text()
        if "mpirun of Open MPI" in text and number in (signal.SIGTERM, signal.SIGINT):
            number = signal.SIGUSR1  # by scripts/jobs/open_mpi.sh
        self.assertRegex(text, rf"stopped   by signal {int(number)}( to rank 1)?   step")
        self.assertTrue((self.checkpoints(name) / "latest" / "run.json").exists())

    def test_signals_to_the_launcher(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            with self.subTest(signal=number.name):
                process, log = self.start_and_wait(number.name, "--max-steps", 100000)
                process.send_signal(number)
                self.assert_stopped(number.name, process, log, number)
        self.evaluate(self.checkpoints("SIGTERM") / "latest", "--data", self.val_data)

    def test_signals_to_one_rank_and_without_a_launcher(self):
        signals = (signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR2)
        for number, ranks in fsdp_cli.share(itertools.product(signals, (0, 2)), 3):
            with self.subTest(signal=number.name, ranks=ranks):
                name = f"{number.name}-{ranks}"
                process, log = self.start_and_wait(name, "--max-steps", 100000, ranks=ranks)
                targets = fsdp_cli.rank_processes(process.pid, "fsdp-finetune") if ranks else [process.pid]
                self.assertEqual(len(targets), ranks or 1)
                os.kill(targets[-1], number)
                self.assert_stopped(name, process, log, number)

    def test_what_nohup_and_background_jobs_of_a_script_ignore_stays_ignored(self):
        process = subprocess.Popen(["sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh", *fsdp_cli.command(
            "fsdp-finetune", self.train_arguments("nohup", "--max-steps", 100000), 0)], stderr=subprocess.DEVNULL, env=fsdp_cli.environment())
        self.addCleanup(fsdp_cli.end_group, process)
        metrics = self.run_directory("nohup") / "metrics.jsonl"
        end = time.monotonic() + 60
        while (not metrics.exists() or metrics.read_bytes().count(b"\n") < 20) and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        with self.assertRaises(subprocess.TimeoutExpired):
            process.wait(2)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(20), fsdp_cli.STOPPED_EARLY)

    def test_a_log_that_nobody_reads(self):
        """`2>&1 | head -n 1`, or a tee that died: the run continues to its end."""
        reader, writer = os.pipe()
        command = fsdp_cli.command("fsdp-finetune", self.train_arguments("pipe", "--max-steps", 300, "--log-every", 1), 0)
        process = subprocess.Popen(command, stdout=writer, stderr=writer, env=fsdp_cli.environment(), start_new_session=True)
        self.addCleanup(fsdp_cli.end_group, process)
        os.close(writer)
        os.read(reader, 10)
        os.close(reader)
        self.assertEqual(process.wait(60), 0)
        self.assertEqual(os.readlink(self.checkpoints("pipe") / "latest"), "step-00000300")

    def test_the_schedulers_end_time(self):
        env = {"SLURM_JOB_END_TIME": str(int(time.time()) + 7)}
        self.train("slurm", "--max-steps", 1000000, code=fsdp_cli.STOPPED_EARLY, env=env, ranks=2)
        self.assertTrue((self.checkpoints("slurm") / "latest" / "run.json").exists())


if __name__ == "__main__":
    fsdp_cli.main()
