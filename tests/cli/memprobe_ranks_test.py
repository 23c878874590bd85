"""fsdp-memprobe on several ranks: a rank is killed or stopped, the search is interrupted, trials fail, the launcher is another MPI's.

Nothing may hang and no process may stay behind. Limits only catch hangs: what they guard ends within seconds, or would run
for many minutes. FSDP_ALL=1: each rank, each launcher; without it one or some.
"""

import os
import pathlib
import re
import resource
import signal
import time

import fsdp_cli
import memprobe_cli

LIMIT = 90
MIB = 2**20
# A step takes a second; three steps are measured.
STEPS = [*memprobe_cli.MINGPT_M, "--num-layers", 4, "--vocab-size", 12007, "--seq-len", 512, "--batch-size", 1, "--measure", *fsdp_cli.COMMON]
# The first trial takes many minutes: recomputed activations are small, so many sequences fit.
TRIALS = [*memprobe_cli.MINGPT_M, "--num-layers", 4, "--ranks", 8, "--activation-checkpointing", "all", "--memory", "3GiB", "--measure", "--search",
          *fsdp_cli.COMMON]
SMALL = ["--num-layers", 2, "--num-heads", 2, "--embed-size", 64, "--vocab-size", 1000, "--seq-len", 512, *fsdp_cli.COMMON]


def read(pid, name):
    """Returns the contents of a file of /proc/PID; empty if the process has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def alive(pid):
    state = read(pid, "stat").rpartition(")")[2].split()
    return bool(state) and state[0] not in "ZX"


def resident_bytes(pid):
    found = re.search(r"VmRSS:\s+(\d+) kB", read(pid, "status"))
    return int(found[1]) * 1024 if found else 0


def number_of(pid):
    found = re.search(r"\0(?:PMI|PMIX|OMPI_COMM_WORLD)_RANK=(\d+)\0", "\0" + read(pid, "environ") + "\0")
    return int(found[1]) if found else None


class Job:
    """Runs fsdp-memprobe in the background and tracks all processes it starts."""

    def __init__(self, case, arguments, ranks):
        self.case, self.seen = case, set()
        self.log = case.folder / f"{case.id()}.{len(list(case.folder.iterdir()))}.log"
        self.process = fsdp_cli.start("fsdp-memprobe", arguments, ranks, self.log)
        case.addCleanup(self.end)

    def end(self):
        self.seen.update(fsdp_cli.descendants(self.process.pid))
        fsdp_cli.end_group(self.process)
        self.process.wait()
        for pid in filter(alive, self.seen):
            os.kill(pid, signal.SIGKILL)

    def look(self):
        below = fsdp_cli.descendants(self.process.pid)
        self.seen.update(below)
        return below

    def wait_for(self, what, find):
        """Returns the first true result of `find`; fails if the job ends before."""
        end = time.monotonic() + LIMIT
        while True:
            found = find()
            if found:
                return found
            self.case.assertIsNone(self.process.poll(), f"ended before {what}:\n{self.log.read_text()}")
            self.case.assertLess(time.monotonic(), end, f"no {what}:\n{self.log.read_text()}")
            time.sleep(0.02)

    def rank(self, number):
        return self.wait_for(f"rank {number}", lambda: next((p for p in self.look() if number_of(p) == number), 0))

    def rank_in_a_step(self, number):
        """Waits until the rank has states and activations, recognised by its memory."""
        pid = self.rank(number)
        self.wait_for(f"step on rank {number}", lambda: resident_bytes(pid) > 400 * MIB)
        return pid

    def trial(self, resident=0):
        """Waits for a trial with at least `resident` bytes."""
        return self.wait_for("trial", lambda: next(
            (p for p in self.look() if "\0--trial\0" in read(p, "cmdline") and resident_bytes(p) >= resident), 0))

    def kill(self, pid, number):
        self.look()
        os.kill(pid, number)

    def ends(self):
        """Returns the exit code; checks that no started process is left."""
        end = time.monotonic() + LIMIT
        while self.process.poll() is None or any(map(alive, self.seen)):
            if time.monotonic() > end:
                left = [f"{p} {read(p, 'cmdline')[-300:]}".replace("\0", " ") for p in sorted(self.seen) if alive(p)]
                self.case.fail(f"exit code {self.process.poll()} after {LIMIT} s; left over: {left}\n{self.log.read_text()}")
            time.sleep(0.02)
        return self.process.returncode


class Measure(fsdp_cli.Case):
    def fails(self, job):
        self.assertNotEqual(job.ends(), 0)
        log = job.log.read_text()
        self.assertNotIn("measured  ", log)
        return log

    def test_a_killed_rank_ends_the_job(self):
        for rank in fsdp_cli.share((0, 2), 2, 1):
            job = Job(self, STEPS, 3)
            job.kill(job.rank_in_a_step(rank), signal.SIGKILL)
            self.assertRegex(self.fails(job), "signal 9|rank .*did not arrive")

    def test_a_stopped_rank_is_named(self):
        jobs = {}  # by stopped rank; they wait at the same time
        for rank, more in ((1, []), (2, ["--collectives", "host-staged"])):
            jobs[rank] = Job(self, [*STEPS, "--collective-timeout", 3, *more], 3)
            jobs[rank].kill(jobs[rank].rank_in_a_step(rank), signal.SIGSTOP)
        for rank, job in jobs.items():
            log = self.fails(job)
            self.assertRegex(log, rf"rank {rank} did not arrive at .* within 3 s|within 3 s .*did not arrive: rank {rank}\b")
            self.assertIn("--collective-timeout", log)

    def test_a_rank_that_is_stopped_while_it_starts(self):
        job = Job(self, [*STEPS, "--init-timeout", 3, "--collective-timeout", 3], 3)
        job.kill(job.rank(1), signal.SIGSTOP)
        self.assertRegex(self.fails(job), "--(init|collective)-timeout")


class Search(fsdp_cli.Case):
    def test_a_killed_rank_takes_the_trial_along(self):
        for ranks, rank in fsdp_cli.share(((0, 0), (2, 0), (2, 1)), 2):
            job = Job(self, TRIALS, ranks)
            job.trial(resident=300 * MIB)
            job.kill(job.rank(rank) if ranks else job.process.pid, signal.SIGKILL)
            self.assertNotEqual(job.ends(), 0)

    def test_an_interrupt_ends_everything(self):
        for number in fsdp_cli.share((signal.SIGINT, signal.SIGTERM), 2):
            job = Job(self, TRIALS, 2)
            job.trial()
            job.kill(job.process.pid, number)
            self.assertNotEqual(job.ends(), 0)

    def test_a_rank_that_is_stopped_during_a_trial_is_named(self):
        jobs = {}  # by stopped rank; they wait at the same time
        for rank in (0, 1):
            jobs[rank] = Job(self, [*TRIALS, "--collective-timeout", 4], 2)
            trial = jobs[rank].trial()
            jobs[rank].kill(jobs[rank].rank(rank), signal.SIGSTOP)
            jobs[rank].kill(trial, signal.SIGSTOP)  # an endless one that needs no processor
        for rank, job in jobs.items():
            self.assertNotEqual(job.ends(), 0)
            self.assertRegex(job.log.read_text(), rf"--collective-timeout.*did not arrive: rank {rank}\b")

    def test_a_trial_may_take_longer_than_a_collective(self):
        found = memprobe_cli.report([*STEPS, "--search", "--max-batch", 1, "--collective-timeout", 1], ranks=2)
        self.assertEqual((found["largest_batch_per_device"], found["predicted_largest_batch_per_device"]), (1, 1))

    def test_a_trial_that_the_kernel_ends_does_not_fit(self):
        job = Job(self, [*SMALL, "--measure", "--search", "--memory", "600MiB", "--ranks", 2], 0)
        first = job.trial(resident=200 * MIB)
        self.assertEqual(read(first, "oom_score_adj").strip(), "1000")  # the kernel kills it first
        job.kill(first, signal.SIGKILL)
        self.assertEqual(job.ends(), 0)
        found = re.search(r"largest batch size per device: (\d+) \(measured; predicted (\d+)\)", job.log.read_text())
        self.assertEqual(int(found[1]), int(found[2]) - 1, found[0])

    def test_a_trial_that_ends_otherwise_is_an_error(self):
        job = Job(self, [*SMALL, "--measure", "--search", "--memory", "600MiB", "--ranks", 2], 0)
        job.kill(job.trial(), signal.SIGTERM)
        self.assertEqual(job.ends(), 1)
        self.assertRegex(job.log.read_text(), r"error: .*batch size \d+ .*signal 15")

    def test_trials_that_run_out_of_memory(self):
        """The system allows less than --memory says: the search finds what really fits."""
        def limit():
            resource.setrlimit(resource.RLIMIT_DATA, (400 * MIB, 400 * MIB))

        def run(*arguments):
            return fsdp_cli.run("fsdp-memprobe", [*SMALL, "--measure", "--ranks", 2, "--json", *arguments], before=limit, limit_seconds=LIMIT)

        result = run("--search", "--memory", "600MiB")
        self.assertEqual(result.code, 0, str(result))
        found = result.json()
        largest = found["largest_batch_per_device"]
        fsdp_cli.say(f"predicted {found['predicted_largest_batch_per_device']}, measured {largest}")
        self.assertLess(largest, found["predicted_largest_batch_per_device"] * 3 / 4)
        self.assertGreater(largest, 0)
        # Within 10 %: libraries and threads take a few MiB more in one process than in another.
        margin = max(2, largest // 10)
        self.assertEqual(run("--alone", "--batch-size", largest - margin).code, 0)
        self.assert_refused(run("--alone", "--batch-size", largest + margin), 1, "out of memory")


class OtherLaunchers(fsdp_cli.Case):
    """Environment variables that other launchers set in N processes that MPI does not know."""

    def launched(self, arguments=("--measure",), **variables):
        return fsdp_cli.run("fsdp-memprobe", [*SMALL, *arguments], env=variables)

    def test_jobs_of_one_rank_are_explained(self):
        launchers = (("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"), ("PALS_SIZE", "PALS_RANKID"), ("PMI_SIZE", "PMI_RANK"),
                     ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("FLUX_JOB_SIZE", "FLUX_TASK_RANK"), ("WORLD_SIZE", "RANK"))
        for arguments, known in (((), launchers), (("--search", "--measure", "--memory", "600MiB"), launchers[:1])):
            for size, rank in fsdp_cli.share(known, 4):
                with self.subTest(arguments=arguments, size=size):
                    result = self.launched(arguments, **{size: "4", rank: "0"})
                    self.assert_refused(result, 4, "MPI sees only this one")
                    self.assertEqual(result.out, "")
                    # The other processes leave the message to the first one.
                    other = self.launched(arguments, **{size: "4", rank: "3"})
                    self.assertEqual((other.code, other.err), (4, ""))

    def test_a_rank_that_the_first_does_not_know_of_speaks_itself(self):
        for name in fsdp_cli.share(("ALPS_APP_PE", "PALS_RANKID", "PBS_TASKNUM"), 3):
            with self.subTest(name=name):
                self.assert_refused(self.launched(**{name: "3"}), 4, "MPI sees only this one", f"{name}=3")

    def test_what_another_process_left_over_is_told_and_forgotten(self):
        result = self.launched(PMI_FD="99", PMI_RANK="0", PMI_SIZE="1")
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("PMI_FD=99", result.err)
        self.assert_refused(self.launched(PMI_FD="99", PMI_RANK="0", PMI_SIZE="2"), 4, "PMI_SIZE=2")

    def test_srun_is_told_what_to_give(self):
        result = self.launched(SLURM_STEP_NUM_TASKS="4", SLURM_PROCID="0", SLURM_NTASKS="4")
        self.assert_refused(result, 4, "srun started 4 tasks", "srun --mpi=pmi2", "srun --mpi=list")

    def test_a_batch_script_may_ask_without_a_launcher(self):
        # In a batch script Slurm's variables describe the job's tasks, but this process is not one of them.
        result = self.launched(("--ranks", 4), SLURM_JOB_ID="7", SLURM_NTASKS="4", SLURM_NPROCS="4", SLURM_PROCID="0")
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("4 ranks x", result.out)

    def test_one_task_is_one_rank(self):
        result = self.launched(SLURM_STEP_NUM_TASKS="1", SLURM_PROCID="0", SLURM_NTASKS="1")
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("measured  ", result.out)


if __name__ == "__main__":
    fsdp_cli.main()
