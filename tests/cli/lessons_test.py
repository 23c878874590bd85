"""scripts/lessons: its dry run, a tiny lesson, continuing after an interruption, and the text of its page."""

import fcntl
import os
import pathlib
import re
import signal
import subprocess
import time

import fsdp_cli

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/lessons"
TINY = {"NUM_LAYERS": "2", "NUM_HEADS": "2", "EMBED_SIZE": "32", "SEQ_LEN": "32", "BATCH_SIZE": "2", "STEPS": "5", "REPEATS": "1", "MAX_BATCH": "3", "DEVICE": "cpu"}


class Lessons(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.programs = fsdp_cli.link_programs(cls.folder / "programs")

    def environment(self, out, **more):
        return fsdp_cli.environment({"OUT_DIR": str(out), **self.programs,
                                     "LAUNCHER": f"{os.environ['FSDP_MPIEXEC']} -n {more.get('RANKS', 2)}", **TINY, **more})

    def lessons(self, out, *arguments, code=0, **more):
        run = subprocess.run([SCRIPT, *arguments], env=self.environment(out, **more), capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(run.returncode, code, run.stdout + run.stderr)
        return run

    def made(self, run):
        """Returns the runs that the script reports to have made."""
        return re.findall(r"^lessons: ([a-z0-9-]+)(?:: --.*)?$", run.stderr, re.M)

    def test_a_dry_run_lists_all_lessons_and_makes_nothing(self):
        out = self.folder / "dry"
        text = self.lessons(out, "--dry-run").stdout
        self.assertEqual(re.findall(r"^lesson (\d)", text, re.M), [str(n) for n in range(1, 10)])
        for words in ("wrap-none              --wrap none", "recompute-all          --activation-checkpointing all", "prefetch-post", "batch-3 ", "no-shard",
                      "bf16 ", "--save-final-full", "--no-limit-all-gathers", f"{os.environ['FSDP_MPIEXEC']} -n 2"):
            self.assertIn(words, text)
        self.assertIn("kept  batch-1", text.split("lesson 9")[1], "lesson 4 will have made it")
        self.assertFalse(out.exists())

    def test_a_lesson_is_made_once_and_told(self):
        out = self.folder / "one"
        self.assertEqual(self.made(self.lessons(out, "--only", "8,4")), ["batch-1", "batch-2", "batch-3", "limit", "no-limit"])
        page = (out / "lessons.md").read_text()
        self.assertEqual(re.findall(r"^## (\d)\. ", page, re.M), ["4", "8"])
        self.assertIn("2 ranks on 1 node", page)
        rows = dict(re.findall(r"^\| (batch-\d) \| [\d.]+ \| \d \| 5 \| ([\d,]+) ± ", page, re.M))
        best = max(rows, key=lambda name: int(rows[name].replace(",", "")))
        self.assertRegex(page, rf"Of these, {best[-1]} sequences per rank are the fastest")
        self.assertIn("into 768MiB per rank is 3 or more (MAX_BATCH", page)
        self.assertRegex(page, r"Against limit: no-limit is .*\.\nTheir last losses are equal")
        for number in (4, 8):
            self.assertIn("</svg>", (out / f"lesson-{number}.svg").read_text())
        # A second call makes nothing; lesson 9 uses runs of lesson 4; another number of steps makes all runs again.
        self.assertEqual(self.made(self.lessons(out, "--only", "4,8,9")), [])
        page = (out / "lessons.md").read_text()
        self.assertEqual(re.findall(r"^## (\d)\. ", page, re.M), ["4", "8", "9"])
        self.assertRegex(page, r"From 1 to 3 sequences per rank, 3\.0 times as many, a step takes \d+\.\d times as long")
        self.assertEqual(self.made(self.lessons(out, "--only", "8", STEPS="6")), ["limit", "no-limit"])
        self.assertEqual(len(fsdp_cli.steps(out / "runs/limit")), 6)
        self.assertEqual(re.findall(r"^## (\d)\. ", (out / "lessons.md").read_text(), re.M), ["8"], "lessons of other settings are no part of this page")

    def test_checkpoints_resume_with_the_same_losses(self):
        out = self.folder / "two words"
        self.lessons(out, "--only", "7")
        page = (out / "lessons.md").read_text()
        self.assertRegex(page, r"\| local, a file per rank \| \d+\.\d MiB \| \d+\.\d\d s \| \d+\.\d\d s \|")
        for kind in ("local", "full"):
            self.assertIn(f"Gone on from the {kind} checkpoint the last loss is the one that the uninterrupted run has.", page)
        self.assertEqual(fsdp_cli.losses(out / "runs/uninterrupted")[2:], [s["loss"] for s in fsdp_cli.steps(out / "runs/resume-full")])

    def test_a_signal_ends_it_and_the_same_command_goes_on(self):
        out = self.folder / "stopped"
        process = subprocess.Popen([SCRIPT, "--only", "8"], env=self.environment(out, STEPS="100000"), stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(fsdp_cli.end_group, process)
        metrics = out / "runs/limit/metrics.jsonl"
        end = time.monotonic() + 60
        while not (metrics.exists() and metrics.stat().st_size > 3000) and time.monotonic() < end:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # Ctrl-C
        self.assertIn("the same command goes on from here", process.communicate(timeout=60)[1])
        self.assertEqual(process.returncode, 130)
        self.assertFalse((out / "lessons.md").exists())
        again = self.lessons(out, "--only", "8", "--dry-run", STEPS="100000").stdout
        self.assertIn("  run   limit", again)
        # A killed run continues from its checkpoint instead of starting again.
        if (out / "runs/limit/checkpoints/latest").exists():
            before = fsdp_cli.steps(out / "runs/limit")[-1]["step"]
            process = subprocess.Popen([SCRIPT, "--only", "8"], env=self.environment(out, STEPS="100000"), stderr=subprocess.DEVNULL, start_new_session=True)
            self.addCleanup(fsdp_cli.end_group, process)
            end = time.monotonic() + 60
            while fsdp_cli.steps(out / "runs/limit")[-1]["step"] <= before and time.monotonic() < end:
                time.sleep(0.05)
            self.assertFalse((out / "runs/limit/previous-1").exists())
            self.assertEqual(fsdp_cli.losses(out / "runs/limit")[0], fsdp_cli.steps(out / "runs/limit")[0]["loss"])

    def test_runs_of_other_ranks_or_threads_are_made_anew(self):
        out = self.folder / "ranks"
        self.assertEqual(self.made(self.lessons(out, "--only", "8", RANKS="1")), ["limit", "no-limit"])
        for more in ({}, {"RANKS_PER_NODE": "1"}, {"OMP_NUM_THREADS": "3"}, {"SLURM_JOB_NUM_NODES": "2"}):
            with self.subTest(more=more):
                self.assertNotIn("kept", self.lessons(out, "--only", "8", "--dry-run", **more).stdout)
        self.assertIn("kept  no-limit", self.lessons(out, "--only", "8", "--dry-run", RANKS="1").stdout)
        self.assertEqual(self.made(self.lessons(out, "--only", "8")), ["limit", "no-limit"])
        self.assertIn("2 ranks on 1 node", (out / "lessons.md").read_text())
        wrong = self.lessons(out, "--only", "8", code=2, RANKS="3", LAUNCHER=f"{os.environ['FSDP_MPIEXEC']} -n 2")
        self.assertIn("limit was made by 2 rank(s), and RANKS is 3", wrong.stderr)

    def test_two_at_once(self):
        out = self.folder / "shared"
        (out / "runs/limit").mkdir(parents=True)
        with open(out / "lock", "w", encoding="utf-8") as lock:
            lock.write("host node7, process 12\n")
            lock.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertIn("host node7, process 12 is at work in", self.lessons(out, "--only", "8", code=4).stderr)
        # The lock of a killed owner is void. A lock on another node is not visible here, but the claim of its run is.
        process = fsdp_cli.start("fsdp-finetune", [*self.train_arguments("limit", "--max-steps", 1000000), "--out-dir", out / "runs"], 0, out / "other.log")
        self.addCleanup(fsdp_cli.end_group, process)
        metrics = out / "runs/limit/metrics.jsonl"
        fsdp_cli.wait_for(process, out / "other.log", metrics.exists)
        (out / "commands/limit").write_text("of the other\n")
        run = self.lessons(out, "--only", "8", code=4)
        self.assertIn("somebody else is at work", run.stderr)
        self.assertNotIn("failed", run.stderr)
        self.assertEqual((out / "commands/limit").read_text(), "of the other\n")
        self.assertIsNone(process.poll())

    def test_a_page_tells_of_the_runs_that_are_there(self):
        out, programs = self.folder / "half", self.folder / "failing-programs"
        fsdp_cli.link_programs(programs)

        def replace(name, text):
            (programs / name).unlink()
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)

        replace("fsdp-finetune", 'case "$* " in *"--run-name checkpoint-local"* | *"--run-name resume-full "*) exit 1 ;; esac\n'
                f'exec {self.programs["FSDP_BIN"]}/fsdp-finetune "$@"')
        run = self.lessons(out, "--only", "7", code=1, REPEATS="2", FSDP_BIN=str(programs))
        self.assertIn("5 run(s) failed", run.stderr)  # none continues from a local checkpoint that does not exist
        text = (out / "lesson-7.md").read_text()
        self.assertRegex(text, r"\n\| full, one file \| \d+\.\d MiB \| [\d.]+ s \|")
        self.assertNotIn("| local", text)
        (out / "logs/checkpoint-full-again-2.log").unlink()  # as a script leaves it that was killed while its run continued
        (out / "logs/checkpoint-full.log").unlink()
        self.assertEqual(re.findall(r"Gone on.*", text), ["Gone on from the full checkpoint the last loss is the one that the uninterrupted run has."])
        self.lessons(out, "--only", "7", code=1, REPEATS="2", FSDP_BIN=str(programs))
        text = (out / "lesson-7.md").read_text()
        self.assertRegex(text, r"\n\| full, one file \| \d+\.\d MiB \| \? s \|")
        replace("fsdp-eval", "exit 1")
        self.lessons(out, "--only", "7", code=1, REPEATS="2", FSDP_BIN=str(programs))
        self.assertEqual((out / "lesson-7.md").read_text(), text, "what cannot be made anew stays")

    def test_a_run_that_fails_is_told_and_tried_again(self):
        out = self.folder / "failing"
        run = self.lessons(out, "--only", "5", code=1, NUM_HEADS="3")
        self.assertRegex(run.stderr, r"full-shard ended with code \d, see .*full-shard\.log:\n.*error: ")
        self.assertIn("5 run(s) failed", run.stderr)
        self.assertFalse((out / "lessons.md").exists())

    def test_gpus_are_counted_as_programs_see_them(self):
        listed = 'nvidia-smi() { printf "GPU 0: A\\nGPU 1: A\\nGPU 2: A\\n"; }; source "$0"; count_gpus "$1"'
        for device, visible, expected in (("/dev/null", None, "3"), ("/dev/null", "1", "1"), ("/dev/null", "GPU-7a,GPU-9f", "2"),
                                          ("/dev/null", "0,-1,2", "1"), ("/dev/null", "", "0"), (str(self.folder / "absent"), "0,1", "0")):
            with self.subTest(device=device, visible=visible):
                environment = {"PATH": os.environ["PATH"], **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})}
                run = subprocess.run(["bash", "-euc", listed, SCRIPT.parent / "jobs/lessons_runs.sh", device], env=environment, capture_output=True, text=True, check=True)
                self.assertEqual(run.stdout.strip(), expected)

    def test_usage(self):
        for arguments, more in ((["--only", "10"], {}), (["--only"], {}), (["--fast"], {}), ([], {"STEPS": "3"}), ([], {"RANKS": "two"})):
            with self.subTest(arguments=arguments, more=more):
                self.lessons(self.folder / "usage", *arguments, code=2, **more)
        self.assertIn("9 batch size against time per step", self.lessons(self.folder / "usage", "--help").stdout)


if __name__ == "__main__":
    fsdp_cli.main()
