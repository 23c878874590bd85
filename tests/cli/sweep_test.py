"""fsdp-finetune --sweep: several runs in one job, each the same as if it were alone."""

import itertools
import json
import shlex
import signal

import fsdp_cli

STEPS = ["--max-steps", 6, "--eval-every", 2]


class Sweep(fsdp_cli.Case):
    def validated(self, *more):
        return [*STEPS, "--val-data", self.val_data, *more]

    def job(self, name, label):
        return json.loads((self.run_directory(f"{name}/{label}") / "job.json").read_text())

    def assert_equal_runs(self, one, other):
        """The losses, the weights with the optimizer's state, and the options that the checkpoint keeps."""
        self.assertEqual(self.losses(one), self.losses(other))
        kept = []
        for name in (one, other):
            latest = self.checkpoints(name) / "latest"
            kept.append([json.loads((latest / "run.json").read_text())["options"],
                         {file.name: file.read_bytes() for file in latest.iterdir() if file.suffix == ".distcp"}])
        self.assertTrue(kept[0][1])
        self.assertEqual(kept[0], kept[1])

    def test_a_grid_has_the_runs_that_its_combinations_are_alone(self):
        rates, norms = ("1e-2", "3e-3"), ("0.5", "1.0")
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                name = f"grid-{ranks}"
                arguments = self.validated("--batch-size", 4 // max(ranks, 1), "--sweep", f"lr={','.join(rates)}", "--sweep",
                                           f"--grad_clip={','.join(norms)}", "--json")
                report = self.train(name, *arguments, ranks=ranks).json()
                labels = [f"lr-{rate},clip-grad-norm-{norm}" for rate, norm in itertools.product(rates, norms)]
                self.assertEqual([run["name"] for run in report["runs"]], labels)
                self.assertEqual([run["state"] for run in report["runs"]], ["done"] * 4)
                self.assertEqual(report["differ"], ["lr", "clip-grad-norm"])
                # The last one came after three others in the same process.
                alone = f"alone-{ranks}"
                self.train(alone, *self.validated("--batch-size", 4 // max(ranks, 1), "--lr", rates[1], "--clip-grad-norm", norms[1]), ranks=ranks)
                self.assert_equal_runs(f"{name}/{labels[-1]}", alone)
                rss = [fsdp_cli.steps(self.run_directory(f"{name}/{label}"))[-1]["peak_rss_bytes"] for label in labels]
                fsdp_cli.say(f"resident memory after each run, MiB: {[round(bytes / 2**20, 1) for bytes in rss]}")
                self.assertLess(rss[-1] - rss[0], 8 * 2**20)
        self.assert_winner("grid-0", report=self.train("grid-0", *self.validated("--batch-size", 4, "--sweep", f"lr={','.join(rates)}", "--sweep",
                                                                                 f"clip-grad-norm={','.join(norms)}", "--json")).json())

    def assert_winner(self, name, report):
        compared = fsdp_cli.run("fsdp-eval", ["--runs", self.run_directory(name), "--json"]).json()
        self.assertEqual(report["sentences"], compared["sentences"])
        losses = sorted((run["best_val_loss"], run["name"]) for run in compared["runs"])
        winner = report["winner"]
        self.assertEqual((winner["loss"], winner["run"], winner["next"], winner["by"]), (*losses[0], losses[1][1], "validation"))
        self.assertAlmostEqual(winner["distance"], losses[1][0] - losses[0][0])
        self.assertTrue(compared["sentences"][0].startswith(f"Best validation: {winner['run']}, "))
        command = winner["command"].removesuffix(" N").split()
        self.assertEqual(command[-1], "--max-steps")
        result = fsdp_cli.run("fsdp-finetune", [*command[1:], 8])
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual(len(self.losses(f"{name}/{winner['run']}")), 8)

    def test_a_run_that_was_trained_on_counts_with_the_steps_of_the_sweep(self):
        arguments = self.validated("--sweep", "lr=1e-2,3e-3,1e-4", "--json")
        before = self.train("longer", *arguments).json()
        self.assertEqual((before["winner"]["run"], before["trained_on"]), ("lr-1e-2", {}))
        self.assertTrue("largest" in before["winner"]["at_edge"][0] and "1e-2" in before["winner"]["at_edge"][0])
        self.train("longer/lr-3e-3", "--restart", "latest", "--max-steps", 60)
        runs = fsdp_cli.run("fsdp-eval", ["--runs", self.run_directory("longer"), "--json"]).json()
        self.assertTrue(runs["sentences"][0].startswith("Best validation: lr-3e-3, "))
        self.assertTrue(runs["sentences"][1].startswith("At equal length, 6 steps: lr-1e-2, "))
        again = self.train("longer", *arguments)
        report = again.json()
        self.assertEqual({key: report["winner"][key] for key in ("run", "loss", "next")}, {key: before["winner"][key] for key in ("run", "loss", "next")})
        self.assertEqual([run["val_loss"] for run in report["runs"]], [run["val_loss"] for run in before["runs"]])
        self.assertEqual([run["step"] for run in report["runs"]], [6, 6, 6])
        self.assertEqual(report["trained_on"], {"lr-3e-3": 60})
        self.assertIn("lr-3e-3 was trained on to step 60", again.err)

    def test_a_schedule_that_has_ended_is_begun_anew_for_a_longer_run(self):
        report = self.train("fallen", *self.validated("--sweep", "lr=1e-3,1e-2,3e-2", "--lr-schedule", "cosine", "--betas", "0.9", "0.99", "--json")).json()
        winner = report["winner"]
        self.assertNotIn("--restart", winner["command"])
        words = shlex.split(winner["command"].removesuffix(" N"))
        self.assertEqual(words[-1], "--max-steps")
        result = fsdp_cli.run("fsdp-finetune", [*words[1:], 12, "--dry-run", "--print-config"])
        self.assertEqual(result.code, 0, str(result))
        rate = winner["run"].removeprefix("lr-")
        for line in (f"lr={rate}", "max-steps=12", f'run-name="fallen-{winner["run"]}"', "betas=[0.9, 0.99]", 'lr-schedule="cosine"'):
            self.assertIn(line, result.out.splitlines())

    def test_the_same_command_again_trains_what_is_missing(self):
        self.train("again", "--max-steps", 3, "--sweep", "lr=1e-2,3e-3")
        before = (self.run_directory("again/lr-1e-2") / "metrics.jsonl").stat().st_mtime_ns
        result = self.train("again", "--max-steps", 3, "--sweep", "lr=1e-2,3e-3,1e-3", "--json")
        self.assertEqual((self.run_directory("again/lr-1e-2") / "metrics.jsonl").stat().st_mtime_ns, before)
        self.assertEqual(result.err.count("is done"), 2)
        self.assertEqual(len(self.losses("again/lr-1e-3")), 3)
        report = result.json()
        self.assertEqual(report["winner"]["by"], "training")
        self.assertEqual(report["winner"]["loss"], min(run["last_loss"] for run in report["runs"]))
        self.assertIn("No run was validated", result.err)
        # Other options would make runs that do not compare.
        self.assert_refused(self.train("again", "--max-steps", 4, "--sweep", "lr=1e-2,3e-3", code=2), 2, "--max-steps 3", "--max-steps 4")

    def test_a_stop_signal_ends_the_sweep_and_the_same_command_goes_on(self):
        arguments = ["--max-steps", 300, "--sweep", "lr=1e-2,3e-3"]
        self.train("alone", "--max-steps", 300, "--lr", "3e-3")
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                name = f"stop-{ranks}"
                log = self.folder / f"{name}.log"
                arguments = ["--max-steps", 300, "--batch-size", 4 // max(ranks, 1), "--sweep", "lr=1e-2,3e-3"]
                process = fsdp_cli.start("fsdp-finetune", self.train_arguments(name, *arguments), ranks, log)
                self.addCleanup(fsdp_cli.end_group, process)
                metrics = self.run_directory(f"{name}/lr-3e-3") / "metrics.jsonl"
                fsdp_cli.wait_for(process, log, lambda: metrics.exists() and metrics.read_bytes().count(b"\n") > 5)
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(30), fsdp_cli.STOPPED_EARLY, log.read_text())
                self.assertIn("1 of 2 runs done; the same command goes on with it", log.read_text())
                self.assertEqual((self.job(name, "lr-1e-2")["outcome"], self.job(name, "lr-3e-3")["outcome"]), ("done", "stopped"))
                self.assertLess(len(self.losses(f"{name}/lr-3e-3")), 300)
                result = self.train(name, *arguments, ranks=ranks)
                self.assertIn("lr-3e-3   goes on", result.err)
                self.assertLess(fsdp_cli.difference(self.losses(f"{name}/lr-3e-3"), self.losses("alone")), 1e-9 if ranks == 0 else 1e-3)

    def test_a_killed_run_comes_after_the_others_and_goes_on(self):
        arguments = ["--max-steps", 200, "--save-every", 10, "--keep-last", 1, "--sweep", "lr=1e-2,3e-3"]
        log = self.folder / "killed.log"
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments("killed", *arguments), 0, log)
        self.addCleanup(fsdp_cli.end_group, process)
        fsdp_cli.wait_for(process, log, (self.checkpoints("killed/lr-1e-2") / "latest").exists)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        self.assertNotIn("outcome", self.job("killed", "lr-1e-2"))
        said = self.train("killed", *arguments).err
        self.assertLess(said.index("run 2 of 2   lr-3e-3"), said.index("run 1 of 2   lr-1e-2   goes on"))
        self.train("not-killed", "--max-steps", 200, "--lr", "1e-2")
        self.assertEqual(self.losses("killed/lr-1e-2"), self.losses("not-killed"))

    def test_pruning(self):
        arguments = self.validated("--sweep", "lr=1e-2,8e-3,1e-7,9e-3", "--sweep-prune", "--json")
        result = self.train("prune", *arguments)
        report = result.json()
        self.assertEqual([run["state"] for run in report["runs"]], ["done", "done", "pruned", "done"])
        self.assertEqual([run["step"] for run in report["runs"]][2], 2)
        job = self.job("prune", "lr-1e-7")
        self.assertEqual(job["outcome"], "pruned")
        evals = [[r["val_loss"] for r in fsdp_cli.records(self.run_directory(f"prune/lr-{rate}")) if "val_loss" in r and r["step"] == 2]
                 for rate in ("1e-2", "8e-3", "1e-7")]
        self.assertIn(f"{evals[2][0]:.4f} is above {(evals[0][0] + evals[1][0]) / 2:.4f}, the median of 2 earlier runs", job["ended_early"])
        self.assertTrue((self.checkpoints("prune/lr-1e-7") / "latest").exists())
        # A pruned run is not begun again.
        self.assertEqual(self.train("prune", *arguments).err.count("is done"), 4)
        # Without pruning it makes all of its steps.
        self.train("whole", *self.validated("--sweep", "lr=1e-2,8e-3,1e-7"))
        self.assertEqual(len(self.losses("whole/lr-1e-7")), 6)

    def test_a_run_that_fails_leaves_the_others_their_turn(self):
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                name = f"fails-{ranks}"
                arguments = ["--max-steps", 6, "--max-nonfinite-steps", 2, "--clip-grad-norm", 0, "--sweep", "lr=1e30,1e-2", "--json"]
                result = self.train(name, *arguments, ranks=ranks, code=1)
                report = result.json()
                self.assertEqual(list(report["failures"]), ["lr-1e30"])
                self.assertIn("finite", report["failures"]["lr-1e30"])
                self.assertEqual(report["winner"]["run"], "lr-1e-2")
                self.assertEqual(len(self.losses(f"{name}/lr-1e-2")), 6)

    def test_dry_run_and_config_file(self):
        file = self.folder / "sweep.ini"
        for number, text in enumerate(('sweep="lr=1e-2,3e-3"\n', "sweep=lr=1e-2,3e-3\n")):
            file.write_text(text)
            result = self.train(f"dry-{number}", "--config", file, "--max-steps", 2, "--dry-run")
            for label in ("lr-1e-2", "lr-3e-3"):
                self.assertIn(f"of 2   {label}", result.err)
            self.assertEqual(result.err.count("\nmodel "), 2)
            self.assertFalse(self.run_directory(f"dry-{number}").exists())
        self.train("by-file", "--config", file, "--max-steps", 2)
        self.assertEqual([len(self.losses(f"by-file/{label}")) for label in ("lr-1e-2", "lr-3e-3")], [2, 2])

    def test_what_is_refused_before_anything_runs(self):
        (self.folder / "runs").mkdir(exist_ok=True)
        self.train("a-run", "--max-steps", 1)
        for words, *told in ((["lr=1e-2,fast"], "lr-fast", "--lr"), (["lr=1e-2,,3e-3"], "missing"), (["lr=1e-2,1e-2"], "1e-2"), (["lr"], "NAME=VALUE"),
                             (["lerning-rate=1,2"], "lerning-rate", "learning-rate"), (["out-dir=a,b"], "out-dir", "vary"),
                             (["run-name=a,b"], "vary"), (["config=a,b"], "vary"), (["json=true,false"], "vary"), (["sweep=a,b"], "vary"),
                             (["tf32=true,false"], "vary"), (["val-data=a,b"], "vary"), (["output_dir=a,b"], "--out-dir"),
                             (["lr=1e-2,3e-3", "--lr", "1e-3"], "--lr"), (["lr=1e-2", "--sweep", "learning_rate=1e-3"], "twice"),
                             (["optimizer=adamw,adamx"], "optimizer-adamx", "lion"), (["batch-size=4,5", "--total-batch-size", 8], "batch-size-5"),
                             (["lr=1e-2", "--save-final-hf", "x"], "--save-final-hf"), (["lr=1e-2", "--restart", "latest"], "--restart"),
                             (["lr=1e-2", "--max-steps", 0, "--max-epochs", -1], "--max-epochs"), (["lr=1e-2", "--sweep-prune"], "--eval-every"),
                             (["lr=1e-2", "--sweep-prune", "--eval-every", 2], "--val-data"),
                             (["seed=" + ",".join(map(str, range(1001)))], "1000"), (["lr=1e-2", "--run-name", "a-run"], "a-run")):
            with self.subTest(words=words[:3]):
                result = self.train("refused", "--max-steps", 2, "--sweep", *words, code=2)
                self.assert_refused(result, 2, *told)
                self.assertFalse(self.run_directory("refused").exists())
        self.assert_refused(self.train("refused", "--sweep-prune", code=2), 2, "--sweep")
        # Job scripts ask so before they submit.
        self.assert_refused(self.train("refused", "--sweep", "lr=fast", "--print-config", code=2), 2, "lr-fast")


if __name__ == "__main__":
    fsdp_cli.main()
