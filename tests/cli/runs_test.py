"""fsdp-eval --runs and --watch: reports from the files that runs have left."""

import contextlib
import json
import os
import pty
import re
import signal
import statistics
import subprocess

import fsdp_cli


class Runs(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        case = cls("compare")
        for name, more in (("full", []), ("replicated", ["--sharding", "no-shard"])):
            case.train(name, "--max-steps", 8, "--val-data", cls.val_data, *more, ranks=2)

    def eval(self, *arguments, code=0, **how):
        result = fsdp_cli.run("fsdp-eval", arguments, **how)
        self.assertEqual(result.code, code, str(result))
        return result

    def compare(self, *arguments, **how):
        return self.eval("--runs", *arguments, "--json", **how).json()

    def test_figures_are_those_of_the_files(self):
        report = self.compare(self.run_directory("full"), self.run_directory("replicated"))
        self.assertEqual(report["differ"], ["sharding"])
        for name, run in zip(("full", "replicated"), report["runs"]):
            steps = fsdp_cli.steps(self.run_directory(name))
            rates = [s["tokens_per_second"] for s in steps[2:]]
            self.assertEqual((run["name"], run["state"], run["step"], run["total_steps"]), (name, "done", 8, 8))
            self.assertAlmostEqual(run["tokens_per_second"]["median"], statistics.median(rates), delta=1e-6 * rates[0])
            quartiles = statistics.quantiles(rates, n=4, method="inclusive")
            self.assertAlmostEqual(run["tokens_per_second"]["spread"], (quartiles[2] - quartiles[0]) / 2, delta=1e-6 * rates[0])
            self.assertEqual((run["first_loss"], run["last_loss"]), (steps[0]["loss"], steps[-1]["loss"]))
            self.assertEqual(run["val_loss"], fsdp_cli.records(self.run_directory(name))[-1]["val_loss"])
            memory = json.loads((self.run_directory(name) / "memory.json").read_text())
            self.assertEqual((run["memory_bytes"], run["predicted_bytes"]), (memory["measured_bytes"], memory["predicted_bytes"]))
            received = [s["collectives"]["shard"]["bytes"] + s["collectives"]["replicate"]["bytes"] for s in steps]
            self.assertEqual(run["received_bytes_per_step"], statistics.median(b - a for a, b in zip(received[1:], received[2:])))
            save, = run["saves"]
            self.assertEqual(save["step"], 8)
            checkpoint = self.checkpoints(name) / "latest"
            files = sum(f.stat().st_size for f in checkpoint.iterdir() if f.suffix == ".distcp")
            self.assertAlmostEqual(save["bytes"], files, delta=0.1 * files)
        # Bytes received with two ranks, relative to the parameters' bytes: half in each of two gathers and in a reduce-scatter
        # (the last unit is gathered once), or all of them in an all-reduce.
        full, replicated = report["runs"]
        self.assertAlmostEqual(full["received_bytes_per_step"], 1.5 * replicated["received_bytes_per_step"],
                               delta=0.1 * full["received_bytes_per_step"])
        self.assertEqual(full["settings"]["ranks"], "2")

    def test_table_markdown_and_picture(self):
        picture = self.folder / "runs.svg"
        both = [self.run_directory("full"), self.run_directory("replicated")]
        text = self.eval("--runs", *both, "--plot", picture).out
        self.assertRegex(text.splitlines()[0], r"^run +validation +last loss +sharding +steps +tokens/s +s/step .*received/step")
        self.assertRegex(text, r"Against full: replicated is ")
        self.assertIn("</svg>", picture.read_text())
        fastest_first = self.compare(*both, "--sort", "s/step")
        self.assertEqual([run["name"] for run in fastest_first["runs"]],
                         sorted(("full", "replicated"), key=lambda name: next(r["step_seconds"]["median"] for r in fastest_first["runs"] if r["name"] == name)))
        self.assertIn("last-loss", self.eval("--runs", *both, "--sort", "beauty", code=2).err)
        table = self.eval("--runs", *both, "--markdown").out.splitlines()
        self.assertEqual({line.count(" | ") for line in table[:4]}, {table[0].count(" | ")})
        self.assertRegex(table[1], r"^\| --- \| ---: \| ---: \| --- \| ---:")

    def test_a_run_that_goes_on_and_one_that_was_killed(self):
        log = self.folder / "live.log"
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments("live", "--max-steps", 1000000, "--log-every", 1000000), 0, log)
        self.addCleanup(fsdp_cli.end_group, process)
        metrics = self.run_directory("live") / "metrics.jsonl"
        fsdp_cli.wait_for(process, log, lambda: metrics.exists() and metrics.stat().st_size > 5000)
        run, = self.compare(self.run_directory("live"))["runs"]
        self.assertEqual(run["state"], "running")
        self.assertGreater(run["tokens_per_second"]["median"], 0)
        view = self.eval("--runs", self.run_directory("live"), "--watch").out
        self.assertRegex(view, r"live   running .* step \d+/1000000 .* eta ")
        speed = re.search(r"^speed     ([\d,]+) ± [\d,]+ tok/s   [\d.]+ s/step   last step ([\d,]+) tok/s", view, re.MULTILINE)
        self.assertIsNotNone(speed, view)
        # The run continues between the two commands, so the figures cover different steps, and one step may have waited.
        for rate, factor in zip(speed.groups(), (10, 1000)):
            self.assertTrue(1 / factor < int(rate.replace(",", "")) / run["tokens_per_second"]["median"] < factor, view)
        last = fsdp_cli.steps(self.run_directory("live"))[-1]
        job = json.loads((self.run_directory("live") / "job.json").read_text())
        self.assert_memory(view, last["peak_memory_bytes"], job["predicted_bytes"])
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        with open(metrics, "a", encoding="utf-8") as file:
            file.write('{"step": 99, "lo')
        run, = self.compare(self.run_directory("live"))["runs"]
        self.assertEqual((run["state"], run["bad_lines"]), ("ended", 0))

    def assert_memory(self, view, peak, predicted):
        """The view shows these figures, within its printed digits."""
        line = re.search(r"^memory    peak ([\d.]+) (\w+)   predicted ([\d.]+) (\w+)   resident [\d.]+ \w+$", view, re.MULTILINE)
        self.assertIsNotNone(line, view)
        units = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
        for number, unit, wanted in ((*line.groups()[:2], peak), (*line.groups()[2:], predicted)):
            self.assertLess(abs(float(number) * units[unit] / wanted - 1), 0.06, line[0])

    def test_the_view_of_a_run_that_is_done_has_its_figures(self):
        run, = self.compare(self.run_directory("full"))["runs"]
        view = self.eval("--runs", self.run_directory("full"), "--watch").out
        rates = run["tokens_per_second"]
        last = fsdp_cli.steps(self.run_directory("full"))[-1]["tokens_per_second"]
        speed = f"speed     {rates['median']:,.0f} ± {rates['spread']:,.0f} tok/s"
        self.assertIn(speed, view)
        self.assertIn(f"last step {last:,.0f} tok/s", view)
        memory = json.loads((self.run_directory("full") / "memory.json").read_text())
        self.assert_memory(view, memory["measured_bytes"], memory["predicted_bytes"])

    def test_a_resumed_run(self):
        self.train("parts", "--max-steps", 4, ranks=2)
        self.train("parts", "--max-steps", 8, "--restart", "latest", ranks=2)
        run, = self.compare(self.run_directory("parts"))["runs"]
        self.assertEqual((run["state"], run["step"]), ("done", 8))
        self.assertEqual(run["tokens_per_second"]["steps"], 4, "two of each job are left out")

    def test_watch_on_a_terminal_ends_with_the_run(self):
        for program, arguments in (("fsdp-eval", ["--runs", self.run_directory("full"), "--watch"]), ("fsdp-finetune", ["--watch", self.run_directory("full")])):
            with self.subTest(program=program):
                leader, follower = pty.openpty()
                process = subprocess.run(fsdp_cli.command(program, arguments, 0), stdout=follower, stderr=subprocess.PIPE, env=fsdp_cli.environment(), timeout=30)
                os.close(follower)
                text = b""
                with contextlib.suppress(OSError):  # the other side has closed the terminal
                    while piece := os.read(leader, 65536):
                        text += piece
                os.close(leader)
                text = text.decode()
                self.assertEqual(process.returncode, 0, process.stderr)
                self.assertRegex(text, r"full   done   █+   step 8/8   100 %")
                self.assertRegex(text, r"loss +\d\.\d{4}   [▁▂▃▄▅▆▇█]+   from ")
                self.assertRegex(text, r"eval +\d\.\d{4}")

    def test_what_is_no_run_and_what_contradicts(self):
        nothing = self.folder / "nothing"
        nothing.mkdir()
        self.assertIn("holds no run", self.eval("--runs", nothing, code=4).err)
        self.assertIn("is not there", self.eval("--runs", self.folder / "absent", code=4).err)
        for more, words in ((["--data", self.val_data], "goes without --data"), (["--plot", "a.gif"], "ends in .svg"),
                            (["--watch", "--json"], "--watch"), (["--json", "--markdown"], "contradict")):
            with self.subTest(more=more):
                self.assertIn(words, self.eval("--runs", self.runs, *more, code=2).err)
        self.assertIn("goes with --runs", self.eval("--watch", code=2).err)

    def test_files_of_others_are_no_harm(self):
        odd = self.runs / "odd"
        odd.mkdir()
        self.addCleanup(lambda: [f.unlink() for f in odd.iterdir()] and odd.rmdir())
        (odd / "metrics.jsonl").write_text('[1]\n{"step": "x", "loss": {}}\n' + "[" * 100000 + "\n" + '{"step": 1, "loss": null}\n')
        (odd / "job.json").write_text('{"format": "fsdp-job", "options": [3], "saves": {"a": 1}, "total_steps": "many"}')
        (odd / "memory.json").write_text("\0" * 100)
        run, = self.compare(odd)["runs"]
        self.assertEqual((run["step"], run["last_loss"], run["bad_lines"]), (1, None, 2))

    def test_under_a_launcher_it_speaks_once(self):
        result = self.eval("--runs", self.run_directory("full"), ranks=2)
        self.assertEqual(len(re.findall("tokens/s", result.out)), 1)


if __name__ == "__main__":
    fsdp_cli.main()
