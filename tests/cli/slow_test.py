"""A rank that makes the others wait is named with what slows it down. Truth is planted: other processes on its
processor, a slow disk under its samples or under its part of the checkpoints, and interruptions of no visible cause."""

import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

import fsdp_cli

EVERY = ("--straggler-every", 0.4, "--log-every", 1000000, "--max-steps", 1000000)


class Slow(fsdp_cli.Case):
    def start(self, name, *more, ranks=2, env=None):
        log = self.folder / f"{name}.log"
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments(name, *EVERY, *more), ranks, log, env)
        self.addCleanup(fsdp_cli.end_group, process)
        fsdp_cli.wait_for(process, log, lambda: (self.run_directory(name) / "metrics.jsonl").exists()
                          and any("ranks" in record for record in fsdp_cli.records(self.run_directory(name))))
        return process, log, fsdp_cli.processes_of_ranks(process.pid)

    def named(self, process, log, rank):
        """Waits until the rank is named; returns the line."""
        begin = f"slow      rank {rank} ({socket.gethostname()}) makes the others wait, "
        fsdp_cli.wait_for(process, log, lambda: begin in log.read_text())
        return next(line for line in log.read_text().splitlines() if begin in line)

    def ranks(self):
        return [record["ranks"] for record in fsdp_cli.records(self.run_directory("crowded")) if "ranks" in record]

    def share_waited_for(self, rank):
        """The part of the time that the others waited for a rank, as a run's last line counts it."""
        ranks = self.ranks()
        return sum(one["wait_share"] or 0 for one in ranks if one["slowest"] == rank) / max(1, len(ranks))

    def is_waited_for_now(self, rank):
        last = self.ranks()[-1]
        return last["slowest"] == rank and (last["wait_share"] or 0) > 0.1

    @staticmethod
    def is_named_now(log):
        lines = [line for line in log.read_text().splitlines() if "slow      rank" in line]
        return "makes the others wait" in lines[-1]

    def stop(self, process, log):
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), fsdp_cli.STOPPED_EARLY, log.read_text())

    def slow_files(self, rank, file, ms):
        shim = os.environ.get("TEST_SLOW_FILES")
        if not shim:
            self.skipTest("tests/support/slow_files.c was not built")
        return {"LD_PRELOAD": shim, "TEST_SLOW_RANK": str(rank), "TEST_SLOW_FILE": file, "TEST_SLOW_MS": str(ms)}

    def test_other_processes_on_its_processor(self):
        processors = sorted(os.sched_getaffinity(0))
        if len(processors) < 2:
            self.skipTest("one processor")
        excluded = self.folder / "excluded"
        excluded.write_text("node9")
        # Long steps: the kernel prefers a rank that often sleeps.
        process, log, pids = self.start("crowded", "--exclude-file", excluded, "--embed-size", 192, "--batch-size", 16)
        for rank, pid in pids.items():
            for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {processors[rank]})
        others = []
        for _ in range(5):
            other = subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True,
                                     preexec_fn=lambda: os.sched_setaffinity(0, {processors[1]}))
            others.append(other)
            self.addCleanup(other.kill)
        line = self.named(process, log, 1)
        self.assertRegex(line, r"it computes [\d.]+ times as long as the median rank: a thread of it was without a processor for "
                               r"[\d.]+ s more: other processes, or too many threads, run there")
        ranks = self.ranks()
        slow = [one for one in ranks if one["slowest"] == 1 and one["wait_share"] > 0.1]
        self.assertGreaterEqual(len(slow), 3, ranks)
        self.assertTrue(any("without a processor" in one["cause"] for one in slow), ranks)
        report = fsdp_cli.run("fsdp-eval", ["--runs", self.run_directory("crowded"), "--json"]).json()
        self.assertIn(report["runs"][0]["ranks"]["slowest"], (0, 1))
        # Other tests may crowd the other processor for a while, and three such intervals take the name back: the run is
        # stopped right after an interval in which this rank made the others wait.
        fsdp_cli.wait_for(process, log, lambda: self.share_waited_for(1) > 0.15 and self.is_named_now(log)
                          and self.is_waited_for_now(1))
        self.stop(process, log)
        for other in others:
            other.kill()
            other.wait()
        self.assertIn("slow      the others waited ", log.read_text())
        self.assertEqual(excluded.read_text(), f"node9\n{socket.gethostname()}\n")

    def test_a_slow_disk_under_its_samples(self):
        data = fsdp_cli.write_tokens(self.folder / "large.h5", fsdp_cli.random_tokens(rows=20000))  # more than HDF5 keeps
        process, log, _ = self.start("reads", "--train-data", data, env=self.slow_files(1, "/large.h5", 20))
        self.assertRegex(self.named(process, log, 1), r"it waits [\d.]+ s longer for its samples than the median rank")
        self.stop(process, log)

    def test_a_slow_disk_under_its_part_of_checkpoints(self):
        process, log, _ = self.start("writes", "--save-every", 4, "--keep-last", 1, env=self.slow_files(1, ".distcp", 60))
        self.assertRegex(self.named(process, log, 1), r"it writes [\d.]+ s longer than the median rank")
        self.stop(process, log)

    def test_interruptions_without_a_visible_cause(self):
        process, log, pids = self.start("interrupted", ranks=3)
        goes_on = True

        def interrupt():
            while goes_on:
                os.kill(pids[2], signal.SIGSTOP)
                time.sleep(0.03)
                os.kill(pids[2], signal.SIGCONT)
                time.sleep(0.02)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            line = self.named(process, log, 2)
        finally:
            goes_on = False
            thread.join()
        self.assertRegex(line, "it computes |longer for its samples")  # what it did most of the time when it was stopped
        fsdp_cli.wait_for(process, log, lambda: "keeps up again" in log.read_text())
        self.stop(process, log)


fsdp_cli.main()
