"""scripts/lessons: what it would run, a tiny lesson, how it goes on where it was ended, and what its page says."""

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
    def environment(self, out, **more):
        return fsdp_cli.environment({"OUT_DIR": str(out), "FSDP_BIN": str(fsdp_cli.folder("FSDP_BIN")),
                                     "LAUNCHER": f"{os.environ['FSDP_MPIEXEC']} -n {more.get('RANKS', 2)}", **TINY, **more})

    def lessons(self, out, *arguments, code=0, **more):
        run = subprocess.run([SCRIPT, *arguments], env=self.environment(out, **more), capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(run.returncode, code, run.stdout + run.stderr)
        return run

    def made(self, run):
        """The runs that it says it made."""
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
        rows = dict(re.findall(r"^\| (batch-\d) \| \d \| 5 \| ([\d,]+) ± ", page, re.M))
        best = max(rows, key=lambda name: int(rows[name].replace(",", "")))
        self.assertRegex(page, rf"Of these, {best[-1]} sequences per rank are the fastest")
        self.assertIn("into 768MiB per rank is 3 or more (MAX_BATCH", page)
        self.assertRegex(page, r"Against limit: no-limit is .*\.\nTheir last losses are equal")
        for number in (4, 8):
            self.assertIn("</svg>", (out / f"lesson-{number}.svg").read_text())
        # Again: nothing is made; lesson 9 has its runs from lesson 4; with another number of steps all are made anew.
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
        self.assertIn("Gone on from the local checkpoint the last loss is the one that the uninterrupted run has, from the full one too.", page)
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
        # What a killed one has saved is gone on from, not made anew.
        if (out / "runs/limit/checkpoints/latest").exists():
            before = fsdp_cli.steps(out / "runs/limit")[-1]["step"]
            process = subprocess.Popen([SCRIPT, "--only", "8"], env=self.environment(out, STEPS="100000"), stderr=subprocess.DEVNULL, start_new_session=True)
            self.addCleanup(fsdp_cli.end_group, process)
            end = time.monotonic() + 60
            while fsdp_cli.steps(out / "runs/limit")[-1]["step"] <= before and time.monotonic() < end:
                time.sleep(0.05)
            self.assertFalse((out / "runs/limit/previous-1").exists())
            self.assertEqual(fsdp_cli.losses(out / "runs/limit")[0], fsdp_cli.steps(out / "runs/limit")[0]["loss"])

    def test_a_run_that_fails_is_told_and_tried_again(self):
        out = self.folder / "failing"
        run = self.lessons(out, "--only", "5", code=1, NUM_HEADS="3")
        self.assertRegex(run.stderr, r"full-shard ended with code \d, see .*full-shard\.log:\n.*error: ")
        self.assertIn("5 run(s) failed", run.stderr)
        self.assertFalse((out / "lessons.md").exists())

    def test_usage(self):
        for arguments, more in ((["--only", "10"], {}), (["--only"], {}), (["--fast"], {}), ([], {"STEPS": "3"}), ([], {"RANKS": "two"})):
            with self.subTest(arguments=arguments, more=more):
                self.lessons(self.folder / "usage", *arguments, code=2, **more)
        self.assertIn("9 batch size against time per step", self.lessons(self.folder / "usage", "--help").stdout)


if __name__ == "__main__":
    fsdp_cli.main()
