"""scripts/gpu-check on a CPU: right numbers pass, wrong ones are found, results are gathered; a stop leaves nothing behind.
FSDP_ALL=1: all checks of stage truth, whose every start of PyTorch takes seconds; without it a few of minGPT's."""

import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

import fsdp_cli

torch = importlib.util.find_spec("torch")  # an import would cost as much as a training of this test
if torch is None or not (pathlib.Path(torch.origin).parent / "distributed/fsdp").is_dir():
    sys.exit(print("SKIPPED: no complete PyTorch: scripts/setup --full") or fsdp_cli.SKIPPED)

ALL = os.environ.get("FSDP_ALL")
SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/gpu-check"
# A stand-in that predicts 10 % too little memory, and trains in no time with numbers unlike PyTorch's the runs whose names
# contain one of these words, or all.
FINETUNE = """#!{python}
import json, os, pathlib, sys
words = sys.argv
value = lambda name: words[words.index(name) + 1]
if "--version" in words or not any(wrong in value("--run-name") for wrong in {wrong}): os.execv("{real}", words)
run = pathlib.Path(value("--out-dir")) / value("--run-name")
run.mkdir(parents=True)
lines = [json.dumps(dict(loss=7.0, grad_norm=1.0)) + "\\n" for _ in range(int(value("--max-steps")))]
(run / "metrics.jsonl").write_text("".join(lines))
"""
MEMPROBE = """#!/bin/sh
echo '{"peak_bytes": 900, "measured_peak_bytes": 1000, "relative_error": -0.1}'
"""


class GpuCheck(fsdp_cli.Case):
    def command(self, *arguments):
        return [str(SCRIPT), *map(str, arguments)]

    def environment(self, **more):
        (self.folder / "tmp").mkdir(exist_ok=True)
        return fsdp_cli.environment({"FSDP_PYTHON": sys.executable, "MPIEXEC": os.environ["FSDP_MPIEXEC"], "TMPDIR": str(self.folder / "tmp"), **more})

    def check(self, *arguments, code=0, **more):
        done = subprocess.run(self.command(*arguments), env=self.environment(**more), capture_output=True, text=True, timeout=400, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(list((self.folder / "tmp").iterdir()), [], "temporary files are left")
        return done

    def rows(self, out, stage="truth"):
        found = json.loads((out / "gpu-check.json").read_text())
        return {row["check"]: row for row in found["stages"][stage]["checks"]}

    def planted(self, *wrong):
        folder = self.folder / "-".join(("planted", *wrong))
        folder.mkdir()
        real = fsdp_cli.folder("FSDP_BIN") / "fsdp-finetune"
        for name, text in (("fsdp-finetune", FINETUNE.format(python=sys.executable, real=real, wrong=wrong or ("",))), ("fsdp-memprobe", MEMPROBE)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        return str(folder)

    def test_a_right_and_a_wrong_number(self):
        """One call, whose programs give wrong numbers for bf16 alone."""
        out = self.folder / "few"
        done = self.check("truth", "--device", "cpu", "--out", out, "--json", self.folder / "few.json", "--only", "own MINGPT", "minGPT float32", "minGPT bf16",
                          "racecheck", code=3, FSDP_BIN=self.planted("bf16"))
        rows = self.rows(out)
        self.assertEqual({name: row["verdict"] for name, row in rows.items()},
                         {"PyTorch's own mingpt": "PASS", "minGPT float32": "PASS", "minGPT bf16": "FAIL", "compute-sanitizer racecheck": "SKIP"})
        self.assertRegex(done.stdout, "(?m)^FAIL  minGPT bf16 .* from float32: loss ")
        self.assertRegex((out / "logs/truth-mingpt-float32.log").read_text(), r"(?m)^   8  [+-]\d")  # differences of the last step
        self.assertEqual((self.folder / "few.json").read_text(), (out / "gpu-check.json").read_text())
        self.assertRegex((out / "gpu-check.md").read_text(), r"\| minGPT bf16 \| FAIL \| from float32: loss ")

    @unittest.skipUnless(ALL, "the whole stage takes a minute of a processor: FSDP_ALL=1")
    def test_numbers_are_pytorchs_and_wrong_ones_are_found(self):
        out = self.folder / "out"
        self.check("profile", "--device", "cpu", "--out", out)
        done = self.check("truth", "--device", "cpu", "--out", out, "--json", self.folder / "copy.json")
        fsdp_cli.say(done.stdout)
        rows = self.rows(out)
        self.assertEqual({row["verdict"] for row in rows.values()}, {"PASS", "SKIP"})
        for name in ("llama float32", "llama bf16", "llama fp16", "llama float32, recomputed", "llama float32, CPU offload", "llama float32, accumulated",
                     "minGPT float32", "gemma2 float32: windows, caps", "gemma2 bf16: windows, caps", "two ranks, full-shard", "two ranks, no-shard", "memory of llama, bf16", "llama float32, saved and resumed", "a learning rate 1 % off is noticed",
                     "gradients of llama, fp16", "gradients of mingpt, bf16"):
            self.assertEqual(rows[name]["verdict"], "PASS", rows[name])
        log = (out / "logs/truth-minGPT-bf16.log".lower()).read_text()
        self.assertRegex(log, r"(?m)^   8  [+-]\d")  # differences of the last step
        self.assertRegex((out / "logs/truth-gradients-of-mingpt-bf16.log").read_text(), r"(?m)^\S+ \S+ +\d\.\d\d  transformer\.wte\.weight$")
        for name in ("device tests", "compute-sanitizer memcheck", "llama bf16, plain operators", "mistral bf16: windows", "CUDA graphs of mingpt, bf16"):
            self.assertEqual(rows[name]["verdict"], "SKIP", rows[name])
            self.assertIn("GPU", rows[name]["text"])
        self.assertEqual((self.folder / "copy.json").read_text(), (out / "gpu-check.json").read_text())
        # Rows of other stages stay; a stage that runs again replaces its own rows.
        self.assertEqual(self.rows(out, "profile")["time by kernel"]["verdict"], "SKIP")
        wrong = ("llama float32", "llama fp16", "minGPT bf16", "two ranks, full-shard", "memory of llama, bf16", "gradients of mingpt, bf16")
        done = self.check("truth", "--device", "cpu", "--out", out, "--only", *wrong, code=3, FSDP_BIN=self.planted())
        rows = self.rows(out)
        for name in wrong:
            self.assertEqual(rows[name]["verdict"], "FAIL", rows[name])
            self.assertRegex(done.stdout, f"(?m)^FAIL  {name} ")
        self.assertAlmostEqual(rows["memory of llama, bf16"]["figures"]["relative_error"], -0.1)
        page = (out / "gpu-check.md").read_text()
        self.assertIn("## profile: 1 SKIP", page)
        self.assertRegex(page, r"\| llama float32 \| FAIL \| from float32: loss ")
        # --only repeats some checks, with what they need, and keeps the other rows.
        done = self.check("truth", "--device", "cpu", "--out", out, "--only", "mingpt BF16", "racecheck")
        self.assertEqual(re.findall(r"(?m)^[A-Z]{4}  (.*?)  ", done.stdout), ["minGPT bf16", "compute-sanitizer racecheck"])
        again = self.rows(out)
        self.assertEqual(list(again), list(rows))
        self.assertEqual((again["minGPT bf16"]["verdict"], again["llama fp16"]["verdict"]), ("PASS", "FAIL"))
        done = self.check("truth", "--out", self.folder / "none", code=1, CUDA_VISIBLE_DEVICES="")
        self.assertIn("--device cpu rehearses", done.stderr)

    def test_what_the_time_does_not_allow_is_late(self):
        stage = self.stage(seconds=2)
        stage.check("cut short", lambda: stage.run("sleep", ["sleep", 60], 60))
        stage.check("not begun", lambda: stage.run("true", ["true"], 60))
        self.assertEqual([row["verdict"] for row in stage.rows], ["LATE", "LATE"])
        stage = self.stage(seconds=60)
        stage.check("too slow", lambda: stage.run("sleep", ["sleep", 60], 1))
        self.assertEqual([row["verdict"] for row in stage.rows], ["FAIL"])

    def stage(self, seconds):
        sys.path.insert(0, str(SCRIPT.parent / "gpu_check"))
        from checks import Stage
        machine = type("Machine", (), {"logs": self.folder, "environment": dict(os.environ)})
        return Stage("any", machine, seconds)

    def test_kernels_with_shared_memory_are_listed(self):
        sys.path.insert(0, str(SCRIPT.parent / "gpu_check"))
        from sanitizers import SHARED_MEMORY
        found = set()
        for source in (SCRIPT.parents[1] / "lib/compute/cuda/kernels").glob("*.cu"):
            kernels = re.split(r"__global__ void (?:__launch_bounds__\(\w+\) )?", source.read_text())[1:]
            found |= {re.match(r"\w+", kernel)[0] for kernel in kernels if "__shared__" in kernel}
        self.assertEqual(found, set(SHARED_MEMORY))

    def test_a_stop_leaves_nothing(self):
        out = self.folder / "stopped"
        started = subprocess.Popen(self.command("truth", "--device", "cpu", "--out", out), env=self.environment(), stdout=subprocess.PIPE, text=True)
        for line in started.stdout:
            if line.startswith("PASS"):
                break
        time.sleep(0.3)  # until the next check runs
        below = fsdp_cli.descendants(started.pid)
        started.send_signal(signal.SIGINT)
        self.assertEqual(started.wait(timeout=30), 1)
        started.stdout.close()
        self.assertEqual([pid for pid in below if pathlib.Path(f"/proc/{pid}").exists()], [])
        self.assertEqual([path.name for path in out.iterdir()], ["logs"])
        self.assertEqual(list((self.folder / "tmp").iterdir()), [])

    def test_what_cannot_run(self):
        self.assertIn("--device cuda|cpu", self.check("--help").stdout)
        self.assertIn("no stage is called 'speeed'", self.check("speeed", code=2).stderr)
        self.assertIn("no fsdp-finetune", self.check("truth", "--out", self.folder / "none", code=1, FSDP_BIN=str(self.folder)).stderr)
        self.assertIn("stages are given before --only", self.check("--only", "bf16", "truth", code=2).stderr)
        self.assertIn("there is no folder", self.check("truth", "--json", "none/x.json", code=2).stderr)
        (self.folder / "other").mkdir()
        (self.folder / "other/gpu-check.json").write_text("[1]")
        self.assertIn("none of this program's results", self.check("truth", "--out", self.folder / "other", code=1).stderr)


if __name__ == "__main__":
    fsdp_cli.main()
