"""--on-event: which events a command hears of, what it is told, and that it harms no job."""

import os
import signal
import subprocess
import time

import fsdp_cli

VARIABLES = ("FSDP_EVENT", "FSDP_RUN", "FSDP_RUN_DIR", "FSDP_STEP", "FSDP_TOTAL_STEPS", "FSDP_LOSS", "FSDP_MESSAGE", "FSDP_EXIT_CODE")


class OnEvent(fsdp_cli.Case):
    def recorder(self, name):
        """Returns a command that appends its variables to a file, a line each."""
        return "printf '%s\\n' " + " ".join(f'"${variable}"' for variable in VARIABLES) + f" >>{self.folder / name}.events"

    def events(self, name):
        lines = (self.folder / f"{name}.events").read_text().splitlines()
        self.assertEqual(len(lines) % len(VARIABLES), 0, lines)
        return [dict(zip(VARIABLES, lines[i:])) for i in range(0, len(lines), len(VARIABLES))]

    def start_training(self, name, command, *more, ranks=0):
        log = self.folder / f"{name}.log"
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments(name, "--max-steps", 1000000, "--on-event", command, *more), ranks, log)
        return self.trains(name, process, log)

    def trains(self, name, process, log):
        self.addCleanup(fsdp_cli.end_group, process)
        metrics = self.run_directory(name) / "metrics.jsonl"
        fsdp_cli.wait_for(process, log, lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 10)
        return process, log

    @staticmethod
    def rank_of(pid):
        with open(f"/proc/{pid}/environ", encoding="utf-8") as file:
            variables = dict(word.split("=", 1) for word in file.read().split("\0") if "=" in word)
        return int(next(variables[name] for name in fsdp_cli.RANK_VARIABLES if name in variables))

    @staticmethod
    def has_ended(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                return file.read().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    def test_start_and_end_are_told_once_for_all_ranks(self):
        self.train("done", "--max-steps", 8, "--on-event", self.recorder("done"), ranks=2)
        start, done = self.events("done")
        loss = fsdp_cli.losses(self.run_directory("done"))[-1]
        self.assertEqual((start["FSDP_EVENT"], start["FSDP_STEP"], start["FSDP_LOSS"], start["FSDP_EXIT_CODE"]), ("start", "0", "", ""))
        self.assertEqual((done["FSDP_EVENT"], done["FSDP_STEP"], done["FSDP_EXIT_CODE"]), ("done", "8", "0"))
        self.assertAlmostEqual(float(done["FSDP_LOSS"]), loss, delta=1e-5 * loss)
        for event in (start, done):
            self.assertEqual((event["FSDP_RUN"], event["FSDP_RUN_DIR"], event["FSDP_TOTAL_STEPS"]), ("done", str(self.run_directory("done")), "8"))
        self.train("done", "--max-steps", 12, "--restart", "latest", "--on-event", self.recorder("again"), ranks=2)
        self.assertEqual([(event["FSDP_EVENT"], event["FSDP_STEP"]) for event in self.events("again")], [("start", "8"), ("done", "12")])

    def test_a_job_that_stops_to_be_requeued(self):
        process, log = self.start_training("stopped", self.recorder("stopped"), ranks=2)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), fsdp_cli.STOPPED_EARLY, log.read_text())
        start, stopped = self.events("stopped")
        self.assertEqual((start["FSDP_EVENT"], stopped["FSDP_EVENT"], stopped["FSDP_EXIT_CODE"]), ("start", "stopped", "85"))
        self.assertIn("by signal 15", stopped["FSDP_MESSAGE"])
        self.assertEqual(int(stopped["FSDP_STEP"]), len(fsdp_cli.losses(self.run_directory("stopped"))))

    def test_a_time_limit_leaves_time_for_the_command(self):
        began = time.monotonic()
        self.train("limit", "--max-steps", 1000000, "--time-limit", "0:38", "--on-event", self.recorder("limit"), code=fsdp_cli.STOPPED_EARLY)
        self.assertLess(time.monotonic() - began, 20)
        self.assertIn("out of time", self.events("limit")[-1]["FSDP_MESSAGE"])

    def test_a_run_that_diverges(self):
        result = self.train("nan", "--max-steps", 100, "--lr", "1e38", "--clip-grad-norm", 0, "--max-nonfinite-steps", 2, "--on-event",
                            self.recorder("nan"), ranks=2, code=1)
        start, failed = self.events("nan")
        self.assertEqual((start["FSDP_EVENT"], failed["FSDP_EVENT"], failed["FSDP_EXIT_CODE"]), ("start", "failed", "1"))
        self.assertIn(failed["FSDP_MESSAGE"][:60], result.err)
        self.assertIn("finite", failed["FSDP_MESSAGE"])

    def test_a_job_that_fails_before_it_starts(self):
        missing = self.folder / "missing.h5"
        for ranks in (0, 2):
            name = f"input-{ranks}"
            self.train(name, "--train-data", missing, "--on-event", self.recorder(name), ranks=ranks, code=4)
            failed, = self.events(name)
            self.assertEqual((failed["FSDP_EVENT"], failed["FSDP_EXIT_CODE"], failed["FSDP_RUN"]), ("failed", "4", name))
            self.assertIn(str(missing), failed["FSDP_MESSAGE"])

    def test_a_rank_that_is_killed(self):
        """Whichever rank dies, one that lives tells once. By itself Hydra would end all ranks at once, so that they run in
        sessions of their own here."""
        mpiexec = os.environ["FSDP_MPIEXEC"]
        if "-disable-auto-cleanup" not in subprocess.run([mpiexec, "-help"], capture_output=True, text=True, check=False).stdout:
            self.skipTest("this mpiexec ends all ranks when one is killed")
        for victim in (0, 1):
            with self.subTest(victim=victim):
                name = f"killed-{victim}"
                log = self.folder / f"{name}.log"
                log.touch()
                line = fsdp_cli.command("fsdp-finetune", self.train_arguments(name, "--max-steps", 1000000, "--on-event", self.recorder(name)), 0)
                launcher = [mpiexec, "-disable-auto-cleanup", "-n", "3", "sh", "-c", f'setsid --fork --wait "$0" "$@" >>{log} 2>&1']
                process = subprocess.Popen([*launcher, *line], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=fsdp_cli.environment(), start_new_session=True)
                self.trains(name, process, log)
                ranks = fsdp_cli.rank_processes(process.pid, "fsdp-finetune")
                self.assertEqual(len(ranks), 3)
                os.kill(next(pid for pid in ranks if self.rank_of(pid) == victim), signal.SIGKILL)
                deadline = time.monotonic() + 60
                while not all(self.has_ended(pid) for pid in ranks) and time.monotonic() < deadline:
                    time.sleep(0.1)
                self.assertEqual([event["FSDP_EVENT"] for event in self.events(name)], ["start", "failed"], log.read_text())
                self.assertRegex(self.events(name)[-1]["FSDP_MESSAGE"], f"did not (arrive|answer): rank {victim}")

    def test_a_command_that_never_ends_is_killed_with_what_it_started(self):
        pids = self.folder / "pids"
        command = f'test "$FSDP_EVENT" = start || exit 0; echo $$ >{pids}; sleep 1000 & echo $! >>{pids}; wait'
        began = time.monotonic()
        result = self.train("hangs", "--max-steps", 4, "--on-event", command, ranks=2)
        self.assertTrue(29 < time.monotonic() - began < 60, result)
        self.assertIn("took more than 30 s and was killed", result.err)
        time.sleep(0.5)
        for pid in pids.read_text().split():
            self.assertTrue(self.has_ended(pid), pid)

    def test_a_command_that_fails_is_a_warning(self):
        result = self.train("fails", "--max-steps", 4, "--on-event", "echo to the log; echo and this >&2; exit 3")
        self.assertEqual(result.err.count("event     to the log"), 2, str(result))
        self.assertEqual(result.err.count("event     and this"), 2, str(result))
        self.assertEqual(result.err.count("failed with exit code 3"), 2, str(result))
        self.assertEqual(result.out, "")

    def test_output_without_end_is_cut(self):
        result = self.train("flood", "--max-steps", 2, "--on-event", "yes | head -c 1000000")
        self.assertLess(len(result.err), 1_500_000)
        self.assertIn("the rest is not logged", result.err)

    def test_a_command_in_the_background_is_not_waited_for(self):
        began = time.monotonic()
        self.train("background", "--max-steps", 2, "--on-event", "sleep 25 &", ranks=2)
        self.assertLess(time.monotonic() - began, 20)

    def test_signals_files_and_environment_are_as_in_a_shell(self):
        show = "grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd | wc -l; env | grep -c ^PMI_; echo run $MY_VARIABLE"
        result = self.train("shell", "--max-steps", 2, "--on-event", show, ranks=2, env={"MY_VARIABLE": "17"})
        lines = [line.split()[1:] for line in result.err.splitlines() if line.startswith("event ")]
        lines = [line for line in lines if line[-1] != "s"]
        for start in (lines[:5], lines[5:]):
            self.assertEqual(start[0], ["SigBlk:", "0" * 16], str(result))
            ignored = int(start[1][1], 16)
            self.assertFalse(ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGTERM - 1 | 1 << signal.SIGXFSZ - 1), str(result))
            self.assertEqual(start[2:], [["4"], ["0"], ["run", "17"]], str(result))  # 0, 1, 2 and that of ls

    def test_a_dry_run_has_no_events(self):
        self.train("dry", "--max-steps", 2, "--dry-run", "--on-event", self.recorder("dry"))
        self.assertFalse((self.folder / "dry.events").exists())


if __name__ == "__main__":
    fsdp_cli.main()
