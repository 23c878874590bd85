"""scripts/gpu-check on a CPU: right numbers pass, wrong ones are found, results are gathered; a stop leaves nothing behind.
FSDP_ALL=1: all checks that compare numbers, whose every start of PyTorch takes seconds; without it a few of minGPT's."""

import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tarfile
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
        done = subprocess.run(self.command(*arguments), env=self.environment(**more), capture_output=True, text=True, timeout=1800 if ALL else 400, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(list((self.folder / "tmp").iterdir()), [], "temporary files are left")
        return done

    def stages(self, out):
        return json.loads((out / "gpu-check.json").read_text())["stages"]

    def rows(self, out):
        return {row["check"]: row for stage in self.stages(out).values() for row in stage["checks"]}

    def planted(self, *wrong):
        folder = self.folder / "-".join(("planted", *wrong))
        folder.mkdir()
        real = fsdp_cli.folder("FSDP_BIN") / "fsdp-finetune"
        for name, text in (("fsdp-finetune", FINETUNE.format(python=sys.executable, real=real, wrong=wrong or ("",))), ("fsdp-memprobe", MEMPROBE)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        return str(folder)

    def test_a_right_and_a_wrong_number(self):
        """One call, whose programs give wrong numbers for bf16 alone. The stage ends there, and the next one begins."""
        out = self.folder / "few"
        done = self.check("truth", "--device", "cpu", "--out", out, "--json", self.folder / "few.json", "--only", "own MINGPT", "minGPT float32", "minGPT bf16",
                          "learning rate", "memcheck", code=3, FSDP_BIN=self.planted("bf16"))
        rows = self.rows(out)
        self.assertEqual({name: row["verdict"] for name, row in rows.items()},
                         {"PyTorch's own mingpt": "PASS", "minGPT float32": "PASS", "minGPT bf16": "FAIL", "compute-sanitizer memcheck": "SKIP"})
        self.assertRegex(done.stdout, "(?m)^FAIL  minGPT bf16 .* from float32: loss ")
        self.assertIn("-- contact ended at its first wrong number, minGPT bf16: 1 checks did not begin", done.stdout)
        self.assertEqual(self.stages(out)["contact"]["not_begun"], ["a learning rate 1 % off is noticed"])
        self.assertRegex((out / "logs/contact-mingpt-float32.log").read_text(), r"(?m)^   8  [+-]\d")  # differences of the last step
        self.assertEqual((self.folder / "few.json").read_text(), (out / "gpu-check.json").read_text())
        self.assertRegex((out / "gpu-check.md").read_text(), r"\| minGPT bf16 \| FAIL \| from float32: loss ")
        with tarfile.open(out / "gpu-check.tar.gz") as archive:
            self.assertLessEqual({"gpu-check/gpu-check.json", "gpu-check/gpu-check.md", "gpu-check/logs/contact-mingpt-bf16.log"}, set(archive.getnames()))

    @unittest.skipUnless(ALL, "the whole stage takes a minute of a processor: FSDP_ALL=1")
    def test_numbers_are_pytorchs_and_wrong_ones_are_found(self):
        out = self.folder / "out"
        self.check("profile", "--device", "cpu", "--out", out)
        done = self.check("truth", "--device", "cpu", "--out", out)
        fsdp_cli.say(done.stdout)
        rows = self.rows(out)
        self.assertEqual({row["verdict"] for row in rows.values()}, {"PASS", "SKIP", "NOTE"})
        self.assertEqual([name for name, row in rows.items() if row["verdict"] == "NOTE"], ["machine"])
        skipped = {name for name, row in rows.items() if row["verdict"] == "SKIP"}
        for name in skipped - {"back end"}:
            self.assertIn("GPU", rows[name]["text"])
        for name in ("device tests, model", "compute-sanitizer memcheck", "llama bf16, plain operators", "mistral bf16: windows", "CUDA graphs of mingpt, bf16"):
            self.assertIn(name, skipped)
        for name in ("llama float32", "minGPT bf16", "two ranks, no-shard", "four ranks, hybrid-full-shard", "a stopped rank", "a killed rank",
                     "llama float32, saved while it trains", "packed texts, validation, samples", "QLoRA", "largest batch", "two equal runs", "gqa bf16: shared keys"):
            self.assertEqual(rows[name]["verdict"], "PASS", rows[name])
        self.assertRegex((out / "logs/contact-gradients-of-mingpt-bf16.log").read_text(), r"(?m)^\S+ \S+ +\d\.\d\d  transformer\.wte\.weight$")
        # Rows of other stages stay; a stage that runs again replaces its own rows.
        self.assertEqual(rows["time by kernel"]["verdict"], "SKIP")
        wrong = ("llama float32", "llama fp16", "minGPT bf16", "two ranks, full-shard", "memory of llama, bf16", "gradients of mingpt, bf16")
        done = self.check("truth", "--device", "cpu", "--out", out, "--keep-going", "--only", *wrong, code=3, FSDP_BIN=self.planted())
        rows = self.rows(out)
        for name in wrong:
            self.assertEqual(rows[name]["verdict"], "FAIL", rows[name])
            self.assertRegex(done.stdout, f"(?m)^FAIL  {name} ")
        self.assertAlmostEqual(rows["memory of llama, bf16"]["figures"]["relative_error"], -0.1)
        self.assertIn("## profile: 1 SKIP", (out / "gpu-check.md").read_text())
        # --only repeats some checks, with what they need, and keeps the other rows.
        done = self.check("truth", "--device", "cpu", "--out", out, "--only", "mingpt BF16", "memcheck")
        self.assertEqual(re.findall(r"(?m)^[A-Z]{4}  (.*?)  ", done.stdout), ["minGPT bf16", "compute-sanitizer memcheck"])
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

    def test_a_stage_whose_time_is_shortened_keeps_what_it_has(self):
        out = self.folder / "late"
        self.check("contact", "--device", "cpu", "--out", out, "--only", "machine", "minGPT float32", "--seconds", 0.1, code=1)
        self.assertEqual({name: row["verdict"] for name, row in self.rows(out).items()}, {"machine": "NOTE", "minGPT float32": "LATE"})

    def test_a_stage_ends_at_a_wrong_number_and_not_at_a_slow_one(self):
        stage, number = self.stage(60), lambda verdict: (verdict, "text", {})
        from checks import NoNumber

        def not_finite():
            raise NoNumber("a loss that is no number")

        def begun(*given):
            for name, verdict, stops in given:
                stage.check(name, *((number, verdict) if isinstance(verdict, str) else (verdict,)), stops=stops)
            return [(row["check"], row["verdict"]) for row in stage.rows]
        crash = lambda: stage.run("false", ["false"], 9)  # noqa: E731
        self.assertEqual(begun(("slow", "FAIL", False), ("crash", crash, True), ("wrong", "FAIL", True), ("next", "PASS", True)),
                         [("slow", "FAIL"), ("crash", "FAIL"), ("wrong", "FAIL")])
        self.assertEqual((stage.wrong, stage.not_begun), ("wrong", ["next"]))
        stage = self.stage(60)
        self.assertEqual(begun(("no number", not_finite, True), ("next", "PASS", True)), [("no number", "FAIL")])
        stage = self.stage(60)
        stage.keeps_going = True
        self.assertEqual(begun(("wrong", "FAIL", True), ("next", "PASS", True)), [("wrong", "FAIL"), ("next", "PASS")])
        stage = self.stage(60)
        stage.machine.computes_nothing = True
        self.assertEqual(begun(("no number", not_finite, True), ("wrong", "FAIL", True), ("crash", crash, True)),
                         [("no number", "NOTE"), ("wrong", "NOTE"), ("crash", "FAIL")])

    def test_clocks_are_those_of_the_busy_time(self):
        """A stand-in for nvidia-smi prints idle and busy samples, a torn line and a field that is missing."""
        import power
        stage = self.stage(60)
        tool = self.folder / "smi/nvidia-smi"
        tool.parent.mkdir()
        tool.write_text("#!/bin/sh\necho '300, 90.5, 40'\nfor i in 1 2 3; do echo '1980, 650.2, 60'; done\necho '[N/A], 1, 2'\necho '1755, 690.0, 6"
                        "5'\nprintf '17'\nexec sleep 60\n")
        tool.chmod(0o755)
        before = os.environ["PATH"]
        os.environ["PATH"] = f"{tool.parent}:{before}"
        try:
            with power.Sampled(stage.machine) as gpu:
                time.sleep(0.5)
        finally:
            os.environ["PATH"] = before
        self.assertEqual(gpu.found, {"sm_mhz": 1980, "watts": 650, "celsius": 60})
        self.assertEqual(power.words(gpu.found), " at 1980 MHz and 650 W")
        self.assertEqual((power.medians(""), power.words({})), ({}, ""))

    def test_speed_beside_llm_c_and_fsdp2(self):
        """llm.c is built once by a stand-in for nvcc; rates are compared within a turn; goals are judged on some GPUs alone."""
        stage = self.stage(60)
        import contenders
        import llmc
        import speed
        nvcc = self.folder / "nvcc"
        nvcc.write_text("#!/bin/sh\necho \"$*\" >>nvcc.log\nfor last; do :; done\n"
                        "printf '#!/bin/sh\\nfor i in 1 2 3; do echo \"step    $i/3 | loss 10.9 (+nanz)| norm 1.2 (+nanz)| lr 3.00e-04 | 2$i.50 ms | 40.1%% bf16 "
                        "MFU | 400000 tok/s\"; done\\n' >\"$last\"; chmod +x \"$last\"\n".replace("nvcc.log", str(self.folder / "nvcc.log")))
        nvcc.chmod(0o755)
        stage.machine.tool = lambda name: str(nvcc)
        stage.machine.llmc = self.folder
        shape = contenders.SHAPES["mingpt"]
        for _ in range(2):
            self.assertEqual(llmc.seconds_of_steps(stage, "llm.c", shape, 8, 3, 9), [0.0215, 0.0225, 0.0235])
        self.assertEqual(len((self.folder / "nvcc.log").read_text().splitlines()), 1)
        self.assertIn("-arch=sm_90", (self.folder / "nvcc.log").read_text())
        self.assertEqual((self.folder / "llmc.bin").stat().st_size, 1024 + 2 * (4 * 8 * 1024 + 1))
        runs = {name: {"tokens_per_second": rates} for name, rates in (("ours", [100.0, 110.0]), (speed.COMPILED, [90.0, 100.0]), (speed.LLMC, [101.0]))}
        part, case = speed.Speed(stage), next(case for case in speed.CASES if case.name == "mingpt")
        verdict, text, figures = part.ratio(case, runs)
        self.assertEqual(verdict, "FAIL")  # 100 / 101
        self.assertIn("times llm.c", text)
        self.assertNotIn(speed.COMPILED, figures)  # alone it would mislead
        runs[speed.WHOLE] = {"tokens_per_second": [80.0]}
        text, figures = part.ratio(case, runs)[1:]
        self.assertEqual([round(ratio, 2) for ratio in figures[speed.COMPILED]], [1.11, 1.1])
        self.assertIn("1.25 (1.25..1.25) times PyTorch compiled, not sharded", text)
        stage.machine.facts["gpu"] = "NVIDIA A100"
        self.assertEqual(part.ratio(case, runs)[0], "NOTE")
        stage.machine.facts["gpu"] = "NVIDIA H100"
        runs.pop(speed.LLMC)
        stage.machine.llmc = None
        verdict, text, _ = part.ratio(case, runs)
        self.assertEqual(verdict, "PASS")
        self.assertIn("nothing of llm.c (--llmc names no source)", text)
        stage.contenders = [speed.OURS, speed.WHOLE]  # what was not asked for is not missing
        self.assertNotIn("nothing of", part.ratio(case, runs)[1])

    def test_contenders_and_their_rates(self):
        """A stand-in trains at given rates: which contenders run, with which programs, options and steps, and what is said of them."""
        stage = self.stage(60, ["ours", "old", "ours accumulated"])
        import speed
        machine, started = stage.machine, []
        machine.old = type("Kit", (), {"programs": pathlib.Path("/old/bin"), "variables": {"LD_LIBRARY_PATH": "there"}})
        part = speed.Speed(stage)

        def train(name, model, precision, steps, batch, limit, more, env, kit=None):
            started.append((name, steps, [str(word) for word in more], env, kit and kit.programs))
            seconds = 0.1 if "old" in name else 0.8 if "accumulated" in name else 0.08
            return [{"step_seconds": 9.0}] * 3 + [{"step_seconds": seconds, "mfu": 0.5, "reserved_memory_bytes": 2**30}] * (steps - 3)
        part.trainings.ours, part.trainings.make_model = train, lambda *_: None
        part.trainings.take_prediction = lambda name: 112640.0
        case, runs = speed.CASES[0], {}
        verdict, text, figures = part.turns(case, runs)
        self.assertEqual((verdict, list(figures)), ("PASS", ["ours", "old", "ours accumulated"]))
        self.assertEqual(figures["ours"]["tokens_per_second"], [102400.0, 102400.0])
        self.assertEqual(figures["ours accumulated"]["tokens_per_second"], [81920.0])  # eight times the tokens of a step
        self.assertIn("ours 102400 (102400..102400) (predicted 112640, +10.0 %) in 1.0 GiB, old 81920", text)
        self.assertEqual([(name, steps, kit) for name, steps, _, _, kit in started],
                         [("codellama 16 ours turn 1", 20, None), ("codellama 16 old turn 1", 20, pathlib.Path("/old/bin")),
                          ("codellama 16 ours accumulated turn 1", 8, None), ("codellama 16 ours turn 2", 20, None), ("codellama 16 old turn 2", 20, pathlib.Path("/old/bin"))])
        self.assertEqual(started[2][2], ["--seq-len", "512", "--gradient-accumulation-steps", "8"])
        self.assertEqual(part.ratio(case, runs)[1], "1.250 (1.250..1.250) times old, ours accumulated 0.80 (0.80..0.80) times ours")
        self.assertEqual(part.share_of_peak(runs)[1], "ours 50.0 %, old 40.0 %, ours accumulated 40.0 %")
        self.assertEqual([part.title(case) for case in speed.CASES if part.chosen(case.first)],
                         ["codellama 16 x 512", "mingpt 8 x 1024", "mingpt 1 x 1024", "codellama 4 x 512", "lora 16 x 512", "qlora 16 x 512", "packed 4 x 4096",
                          "Qwen2.5-1.5B 16 x 1024 x 16", "Qwen2.5-3B 16 x 1024 x 16"])
        stage.contenders, machine.llmc = ["llm.c"], self.folder
        self.assertEqual([case.name for case in speed.CASES if part.chosen(case.first)], ["mingpt"])

    def test_an_older_kit_and_documents(self):
        """The same programs as those of an older kit; rows of documents; each rate beside the one that the run predicted."""
        out = self.folder / "old"
        done = self.check("speed", "--device", "cpu", "--out", out, "--only", "packed", "--contenders", "ours", "packed", "old", "--old", fsdp_cli.folder("FSDP_BIN").parent)
        self.assertIn(", old: fsdp-finetune ", done.stdout)
        row = self.rows(out)["packed 4 x 128, tokens/s"]
        self.assertEqual((row["verdict"], list(row["figures"])), ("PASS", ["ours", "ours packed", "old"]))
        for found in row["figures"].values():
            self.assertGreater(found["predicted_tokens_per_second"][0], 0)
        self.assertRegex((out / "gpu-check.md").read_text(), r"ours \d+ \(\d+\.\.\d+\) \(predicted \d+, [+-]\d+\.\d %\)")
        self.assertIn("old_programs", self.stages(out)["speed"]["machine"])
        self.assertRegex((out / "logs/speed-packed-4-ours-packed-turn-1.log").read_text(), "(?m)^ *packed +64 texts in 64 rows")

    def test_micro_batches_that_fit(self):
        """A stand-in for fsdp-memprobe finds that six rows fit: a micro-batch has four, and a step as many rows as before."""
        stage = self.stage(60)
        import speed
        probe = self.folder / "fsdp-memprobe"
        probe.write_text("#!/bin/sh\necho '{\"largest_batch_per_device\": 6}'\n")
        probe.chmod(0o755)
        stage.machine.programs = self.folder
        part, started = speed.Speed(stage), []

        def train(name, model, precision, steps, batch, limit, more, env, kit=None):
            started.append((steps, batch, more[more.index("--gradient-accumulation-steps") + 1]))
            return [{"step_seconds": 2.0}] * steps
        part.trainings.ours, part.trainings.make_model = train, lambda *_: None
        case = speed.CASES[-1]
        verdict, text, figures = part.turns(case, {})
        self.assertEqual((verdict, started), ("PASS", [(4, 4, 64)]))
        self.assertEqual(figures["ours"]["tokens_per_second"], [16 * 16 * 1024 / 2])
        self.assertTrue(text.endswith("36 layers x 2048, as 64 micro-batches of 4 rows, which fit"), text)

    def test_rates_in_one_line(self):
        """A stand-in for tests/bench_gpu_rates prints what the program prints, and one that ends early."""
        stage = self.stage(60)
        import rates
        program = self.folder / "bench_gpu_rates"
        lines = ["copy = 2000 GB/s", "SwiGLU = 1500 GB/s", "dropout = 1800 GB/s", "host to device, pageable = 10 GB/s", "launch of a kernel of this project = 2.5 us",
                 "group of collectives = 11 us", "CodeLlama-7b, inner, forward = 700 TFLOP/s", "CodeLlama-7b, inner, forward, sustained = 600 TFLOP/s"]
        program.write_text("#!/bin/sh\n" + "".join(f"echo 'rate: {line}'\n" for line in lines) + "echo done\n")
        program.chmod(0o755)
        asked = []
        stage.machine.test_program = lambda name: asked.append(name) or (program, {})
        verdict, text, figures = rates.check(stage)
        self.assertEqual((verdict, asked), ("NOTE", ["bench_gpu_rates"]))
        self.assertIn("inner, forward 700 TFLOP/s, 600 after a second; copy 2000 GB/s, slowest kernels to it: SwiGLU 75 %, dropout 90 %; host: 2.5 us a launch, 11 us a group", text)
        self.assertEqual(len(figures["rates"]), len(lines))
        program.write_text(program.read_text().replace("echo done", "exit 1"))
        verdict, text, again = rates.check(stage)
        self.assertEqual((verdict, again["rates"]), ("FAIL", figures["rates"]))
        self.assertIn("; but it did not end well: ", text)

    def test_contention_in_one_line(self):
        """A stand-in for tests/gpu_device prints what the suite prints."""
        stage = self.stage(60)
        import contention
        program = self.folder / "gpu_device"
        program.write_text("#!/bin/sh\necho 'contention: 0 blocks, no target: 14.2 ms, 1.000 times'\necho 'contention: 4 blocks, no target: 17.04 ms, 1.200 times'\n"
                           "echo 'contention: 4 blocks, target 128: 14.91 ms, 1.050 times'\necho 'contention: 0 blocks, target 128: 14.6 ms, 1.028 times'\n"
                           "echo 'product: 4 blocks, no target, inner, forward: 3.2 ms, 1.900 times'\necho 'Status: SUCCESS!'\n")
        program.chmod(0o755)
        stage.machine.test_program = lambda name: (program, {})
        verdict, text, figures = contention.check(stage)
        self.assertEqual((verdict, text), ("NOTE", "twelve products 14.20 ms alone; times that: 1.200 beside 4 blocks; with a target: 1.050 beside 4"))
        program.write_text(program.read_text().replace("SUCCESS", "FAILURE") + "exit 1\n")
        verdict, text, again = contention.check(stage)
        self.assertEqual((verdict, again), ("FAIL", figures))
        self.assertIn("; but the suite failed: ", text)
        self.assertEqual([(each["blocks"], each["target"]) for each in figures["contention"]], [(0, None), (4, None), (4, 128), (0, 128)])

    def test_all_gpus_against_one(self):
        """A stand-in trains at given rates: the ratios, the rows per GPU, and which runs have a launcher and variables."""
        stage = self.stage(60)
        import speed
        part, machine = speed.Speed(stage), stage.machine
        machine.facts["gpus"], machine.mpiexec = 1, None
        self.assertEqual(part.on_all_gpus(), ("SKIP", "NCCL needs two GPUs", {}))
        machine.facts["gpus"] = 8
        self.assertEqual(part.on_all_gpus()[0], "SKIP")
        machine.mpiexec = "mpiexec"
        seconds, started = iter((0.5, 0.625, 0.5)), []  # of steps

        def train(name, model, precision, steps, batch, limit, more, env, launch):
            started.append((batch, env, launch and launch(["program"])))
            return [{"step_seconds": 9.0}] * speed.WARM_UP + [{"step_seconds": next(seconds)}] * (steps - speed.WARM_UP)
        part.trainings.ours, part.trainings.make_model = train, lambda *_: None
        verdict, text, figures = part.on_all_gpus()
        self.assertEqual((verdict, text), ("NOTE", "8 GPUs 13107 each, 0.800 times one alone, with 16 blocks for NCCL 1.250 times that; 16 rows per GPU"))
        self.assertEqual((figures["alone"], figures["all"], figures["16 blocks for NCCL"]), (16384.0, 13107.2, 16384.0))
        ranks = ["mpiexec", "-n", 8, "program"]
        self.assertEqual(started, [(16, None, None), (16, None, ranks), (16, {"NCCL_MAX_CTAS": "16"}, ranks)])

    def stage(self, seconds, contenders=()):
        sys.path.insert(0, str(SCRIPT.parent / "gpu_check"))
        from checks import Stage
        machine = type("Machine", (), {"logs": self.folder, "work": self.folder, "environment": dict(os.environ), "computes_nothing": False, "small": False, "old": None, "llmc": None,
                                       "device": "cuda", "facts": {"uuid": "GPU-0", "gpu": "NVIDIA H100", "capability": "9.0", "gpu_bytes": 2**36}})
        return Stage("any", machine(), seconds, contenders=contenders)

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
        end = time.monotonic() + 30  # gpu-check kills them, but waits for its own child alone
        while left := [pid for pid in below if pathlib.Path(f"/proc/{pid}").exists()]:
            self.assertLess(time.monotonic(), end, left)
            time.sleep(0.02)
        self.assertEqual([path.name for path in out.iterdir()], ["logs"])
        self.assertEqual(list((self.folder / "tmp").iterdir()), [])

    def test_what_cannot_run(self):
        self.assertIn("--device cuda|cpu", self.check("--help").stdout)
        self.assertIn("no stage is called 'speeed'", self.check("speeed", code=2).stderr)
        self.assertIn("no fsdp-finetune", self.check("truth", "--out", self.folder / "none", code=1, FSDP_BIN=str(self.folder)).stderr)
        self.assertIn("stages are given before --only", self.check("--only", "bf16", "truth", code=2).stderr)
        self.assertIn("there is no folder", self.check("truth", "--json", "none/x.json", code=2).stderr)
        self.assertIn("there is no train_gpt2.cu", self.check("speed", "--llmc", self.runs, code=2).stderr)
        self.assertIn("a stage needs time", self.check("speed", "--seconds", 0, code=2).stderr)
        self.assertIn("there is no bin/fsdp-finetune", self.check("speed", "--old", self.runs, code=2).stderr)
        self.assertIn("no contender is called 'fast'", self.check("speed", "--contenders", "ours", "fast", code=2).stderr)
        self.assertIn("--contenders old needs --old DIR", self.check("speed", "--contenders", "ours", "old", code=2).stderr)
        self.assertIn("--rehearse is for a stub driver", self.check("--rehearse", "--device", "cpu", code=2).stderr)
        (self.folder / "other").mkdir()
        (self.folder / "other/gpu-check.json").write_text("[1]")
        self.assertIn("none of this program's results", self.check("truth", "--out", self.folder / "other", code=1).stderr)


if __name__ == "__main__":
    fsdp_cli.main()
