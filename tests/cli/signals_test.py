"""Signals run no handler on a thread that computes: generated code (oneDNN's float32 products) uses the stack pointer as a
workspace, and the kernel writes a handler's frame there, which corrupts the heap. One thread takes all of them.

The first test looks at the masks of all threads. The second one stops runs at random moments: 12, with FSDP_ALL=1 240.
"""

import contextlib
import fcntl
import itertools
import os
import pathlib
import random
import signal
import subprocess
import time

import fsdp_cli

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGHUP)
# A thread causes these itself: a fault, a write to a pipe without a reader, access to the terminal of another job.
SYNCHRONOUS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS,
               signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTIN, signal.SIGTTOU}
OF_THE_C_LIBRARY = {32, 33}  # for its own use; they cannot be blocked
ASYNCHRONOUS = set(range(1, 65)) - SYNCHRONOUS - OF_THE_C_LIBRARY - {signal.SIGKILL, signal.SIGSTOP}
PROGRAMS = ("fsdp-finetune", "fsdp-eval", "fsdp-memprobe", "fsdp-bf16check", "fsdp-ckpt-convert", "fsdp-download")


def signals_in(mask):
    return {number for number in range(1, 65) if int(mask, 16) >> (number - 1) & 1}


def threads_of(pid):
    """Returns name, blocked and caught signals of each thread."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
            found.append((fields["Name"], signals_in(fields["SigBlk"]), signals_in(fields["SigCgt"])))
    return found


def settled_threads_of(pid):
    """Waits for threads that are just starting: the C library blocks all signals in them until they have."""
    for _ in range(200):
        found = threads_of(pid)
        if not any(blocked & SYNCHRONOUS for _, blocked, _ in found):
            break
        time.sleep(0.05)
    return found


class Signals(fsdp_cli.Case):
    # Sizes whose products of factors go to oneDNN, not to ATen, where the processor has AVX-512.
    SIZES = ("--num-layers", 2, "--num-heads", 4, "--embed-size", 256, "--batch-size", 8, "--precision", "float32", "--total-batch-size", 16)

    def start(self, name, threads, ranks, *more):
        log = self.folder / f"{name}.log"
        arguments = self.train_arguments(name, *self.SIZES, "--max-steps", 1000000, *more)
        with open(log, "wb") as file:
            process = subprocess.Popen(fsdp_cli.command("fsdp-finetune", arguments, ranks), stdout=file, stderr=file, start_new_session=True,
                                       env=fsdp_cli.environment({"OMP_NUM_THREADS": str(threads), "FSDP_FLOAT32_GEMM": "onednn"}))
        self.addCleanup(fsdp_cli.end_group, process)
        metrics = self.run_directory(name) / "metrics.jsonl"
        fsdp_cli.wait_for(process, log, lambda: metrics.exists() and metrics.read_bytes().count(b'"loss"') >= 2)
        return process, log, fsdp_cli.rank_processes(process.pid, "fsdp-finetune") if ranks else [process.pid]

    def assert_one_thread_takes_signals(self, pid, at_least=2):
        threads = settled_threads_of(pid)
        self.assertGreaterEqual(len(threads), at_least, threads)
        for name, blocked, caught in threads:
            self.assertFalse(blocked & SYNCHRONOUS, name)
            self.assertFalse(caught & {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTIN, signal.SIGTTOU}, "they would run anywhere")
            if name != "signals":
                self.assertFalse(ASYNCHRONOUS - blocked, f"thread {name} takes signals")
        self.assertEqual([blocked & ASYNCHRONOUS for name, blocked, _ in threads if name == "signals"], [set()])

    def test_no_thread_that_computes_takes_signals(self):
        for threads, ranks in fsdp_cli.share(itertools.product((2, 1), (2, 0)), 3):
            with self.subTest(threads=threads, ranks=ranks):
                process, log, targets = self.start(f"masks-{threads}-{ranks}", threads, ranks)
                self.assertEqual(len(targets), ranks or 1)
                for pid in targets:
                    self.assert_one_thread_takes_signals(pid, 1 + threads)
                os.kill(targets[0], signal.SIGTERM)
                self.assertEqual(process.wait(60), fsdp_cli.STOPPED_EARLY, log.read_text())

    def test_all_programs(self):
        """They are looked at while they wait for a reader of what they print."""
        for program in PROGRAMS:
            with self.subTest(program=program):
                reader, writer = os.pipe()
                size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
                os.write(writer, bytes(size))
                process = subprocess.Popen(fsdp_cli.command(program, ["--help"], 0), stdout=writer, env=fsdp_cli.environment())
                self.addCleanup(fsdp_cli.end_group, process)
                os.close(writer)
                waits = pathlib.Path(f"/proc/{process.pid}/wchan")
                end = time.monotonic() + 60
                while "pipe" not in waits.read_text() and time.monotonic() < end:
                    time.sleep(0.01)
                self.assert_one_thread_takes_signals(process.pid)
                process.terminate()
                self.assertEqual(process.wait(60), -signal.SIGTERM)
                os.close(reader)

    def test_stops_at_random_moments(self):
        choice = random.Random(7)
        cases = list(itertools.product(STOPS, (1, 2), (0, 2)))
        cases = cases * 10 if fsdp_cli.ALL else fsdp_cli.share(cases, 5) + fsdp_cli.share(cases, 7) + fsdp_cli.share(cases, 11)[:3]
        for i, (number, threads, ranks) in enumerate(cases):
            with self.subTest(stop=i, signal=number.name, threads=threads, ranks=ranks):
                name = f"stop-{i}"
                process, log, targets = self.start(name, threads, ranks)
                time.sleep(choice.random() * 0.5)
                os.kill(choice.choice(targets), number)
                self.assertEqual(process.wait(60), fsdp_cli.STOPPED_EARLY, log.read_text())
                self.assertRegex(log.read_text(), rf"stopped   by signal {int(number)}( to rank 1)?   step")
                checked = fsdp_cli.run("fsdp-ckpt-convert", ["--check", self.checkpoints(name) / "latest"])
                self.assertEqual(checked.code, 0, str(checked))
        fsdp_cli.say(f"{len(cases)} stops")


if __name__ == "__main__":
    fsdp_cli.main()
