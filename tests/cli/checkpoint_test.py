"""Checkpoints: resuming on the same and on other numbers of ranks, options that a resume restores, and housekeeping."""

import json
import os
import pathlib
import shutil

import fsdp_cli

BATCH = ["--total-batch-size", 12, "--lr", "3e-3", "--lr-schedule", "cosine", "--warmup-steps", 3, "--schedule-steps", 12]


class Checkpoints(fsdp_cli.Case):
    def names(self, run):
        return sorted(p.name for p in self.checkpoints(run).iterdir())

    def test_resume_on_the_same_ranks_is_bitwise_equal(self):
        for ranks, batch, *options in ((1, 12), (2, 3), (3, 4, "--dropout", 0.1), (2, 6, "--precision", "bf16", "--sharding", "grad-shard"),
                                       (2, 6, "--precision", "fp16")):
            with self.subTest(ranks=ranks, options=options):
                common = ["--batch-size", batch, *BATCH, *options]
                self.train("whole", "--max-steps", 8, *common, ranks=ranks)
                self.train("parts", "--max-steps", 3, *common, ranks=ranks)
                self.train("parts", "--max-steps", 8, "--restart-checkpoint-file", "latest", "--batch-size", batch, *options[-2:], ranks=ranks)
                self.assertEqual(self.losses("parts"), self.losses("whole"))
                a, b = (self.checkpoints(run) / "step-00000008" for run in ("whole", "parts"))
                for file in sorted(p.name for p in a.glob("*.distcp")):
                    self.assertEqual((a / file).read_bytes(), (b / file).read_bytes(), file)

    def test_other_ranks_and_strategies_continue(self):
        self.train("whole", "--max-steps", 9, "--batch-size", 12, *BATCH)
        self.train("moved", "--max-steps", 3, "--batch-size", 3, *BATCH, ranks=4)
        self.train("moved", "--max-steps", 6, "--batch-size", 6, "--restart-checkpoint-file", "latest", "--sharding", "no-shard", ranks=2)
        self.train("moved", "--max-steps", 9, "--batch-size", 4, "--restart-checkpoint-file", "latest", "--sharding", "grad-shard",
                   "--wrap", "none", ranks=3)
        difference = fsdp_cli.difference(self.losses("moved"), self.losses("whole"))
        fsdp_cli.say(f"4 -> 2 -> 3 ranks: losses within {difference:.3g} of an undisturbed run")
        self.assertLess(difference, 2e-5)

    def test_a_number_of_ranks_that_does_not_divide_the_batch_continues(self):
        common = ["--total-batch-size", 8, "--lr", "3e-3"]
        self.train("even", "--max-steps", 6, "--batch-size", 8, *common)
        self.train("odd", "--max-steps", 3, "--batch-size", 2, *common, ranks=2)
        self.train("odd", "--max-steps", 6, "--batch-size", 2, "--restart-checkpoint-file", "latest", ranks=3)
        self.assertLess(fsdp_cli.difference(self.losses("odd"), self.losses("even")), 2e-5)
        self.assertEqual({r["tokens"] for r in fsdp_cli.steps(self.run_directory("odd"))}, {8 * 32})

    def test_a_resume_takes_the_saved_options(self):
        spaced = self.folder / "with space.h5"
        shutil.copy(self.train_data, spaced)
        given = ["--train-data", spaced, "--lr", "0.5", "--lr", "0.004", "--weight-decay", 0.3, "--betas", 0.7, 0.8, "--seed", 5,
                 "--clip-grad-norm", 0.5, "--decay-all", "--lr-schedule", "linear", "--warmup-steps", 2, "--schedule-steps", 20]
        self.train("whole", "--max-steps", 6, *given)
        self.train("saved", "--max-steps", 3, *given)
        bare = ["--out-dir", self.runs, "--run-name", "saved", "--device", "cpu", "--restart-checkpoint-file", "latest", "--max-steps", 6]
        result = fsdp_cli.run("fsdp-finetune", bare)
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual(self.losses("saved"), self.losses("whole"))
        # Options of the command line take precedence over saved ones.
        self.train("saved", "--restart-checkpoint-file", "latest", "--max-steps", 7, "--lr", 0.1, "--lr-schedule", "constant")
        self.assertEqual(fsdp_cli.steps(self.run_directory("saved"))[-1]["lr"], 0.1)

    def test_a_resume_saves_and_samples_as_before_and_names_what_it_leaves(self):
        vocabulary = ["--vocab-size", 50257, "--tokenizer", "gpt2"]
        given = ["--save-every", 2, "--keep-last", 2, "--sample-prompt", "two words", "--sample-prompt", "[a, 'b']", "--sample-tokens", 3,
                 "--eval-every", 2, "--val-data", self.val_data]
        self.train("kept", *vocabulary, *given, "--max-steps", 2, "--batch-size", 2, "--total-batch-size", 8, "--gradient-checkpointing")
        result = fsdp_cli.run("fsdp-finetune", ["--out-dir", self.runs, "--run-name", "kept", "--restart", "latest", "--max-steps", 7, *fsdp_cli.COMMON])
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual(sorted(p.name for p in self.checkpoints("kept").glob("step-*")), ["step-00000006", "step-00000007"])
        samples = [json.loads(line) for line in (self.run_directory("kept") / "samples.jsonl").read_text().splitlines()]
        self.assertEqual({(s["step"], s["prompt"]) for s in samples if s["step"] > 2}, {(n, p) for n in (4, 6, 7) for p in ("two words", "[a, 'b']")})
        line = next(line for line in result.err.splitlines() if line.startswith("options "))
        self.assertIn("--batch-size 2", line)
        self.assertIn("--activation-checkpointing", line)
        for taken in ("--save-every", "--sample-prompt", "--total-batch-size", "--tokenizer", "--vocab-size", "--run-name"):
            self.assertNotIn(taken, line)
        again = fsdp_cli.run("fsdp-finetune", ["--out-dir", self.runs, "--run-name", "kept", "--restart", "latest", "--max-steps", 8, *fsdp_cli.COMMON])
        self.assertNotIn("options   the run", again.err)
        # Evaluation alone makes no samples, but the run's sample options are no reason to refuse.
        evaluated = fsdp_cli.run("fsdp-finetune", ["--out-dir", self.runs, "--run-name", "kept", "--restart", "latest", "--max-epochs", -1, *fsdp_cli.COMMON])
        self.assertEqual(evaluated.code, 0, str(evaluated))

    def test_how_matrices_are_multiplied_is_kept_and_a_change_is_told(self):
        given = ["--precision", "bf16", "--batch-size", 4]
        first = self.train("ways", "--max-steps", 2, *given, env={"FSDP_BF16_GEMM": "native"})
        self.assertNotRegex(first.err, r"(?m)^products")
        manifest = json.loads((self.checkpoints("ways") / "step-00000002" / "run.json").read_text())
        self.assertEqual(manifest["products"], "bf16 natively")
        changed = self.train("ways", "--max-steps", 4, "--restart-checkpoint-file", "latest", *given, env={"FSDP_BF16_GEMM": "widened"})
        self.assertRegex(changed.err, "products  bf16 through float32 by (onednn|aten); the saved run had bf16 natively")
        ways = [r["products"] for r in fsdp_cli.steps(self.run_directory("ways"))]
        self.assertEqual(ways[:2], ["bf16 natively"] * 2)
        self.assertTrue(all(way.startswith("bf16 through float32") for way in ways[2:]), ways)

    def test_a_resume_cuts_metrics_to_the_checkpoint(self):
        self.train("cut", "--max-steps", 8, "--save-every", 3, "--val-data", self.val_data, "--eval-every", 4)
        before = fsdp_cli.records(self.run_directory("cut"))
        with open(self.run_directory("cut") / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write('{"step": 9, "lo')  # a line that a killed run left
        self.train("cut", "--max-steps", 5, "--restart-checkpoint-file", self.checkpoints("cut") / "step-00000003")
        after = fsdp_cli.records(self.run_directory("cut"))
        self.assertEqual(after[:3], before[:3])
        self.assertEqual([r["step"] for r in after if "loss" in r], [1, 2, 3, 4, 5])
        self.assertEqual([r for r in after if "loss" in r][4]["loss"], [r for r in before if "loss" in r][4]["loss"])
        self.assertEqual([r["step"] for r in after if "val_loss" in r], [4, 5], "--eval-every is the checkpoint's")

    def test_latest_is_a_relative_link_and_a_restart_path(self):
        self.train("link", "--max-steps", 4, "--save-every", 2)
        latest = self.checkpoints("link") / "latest"
        self.assertEqual(os.readlink(latest), "step-00000004")
        moved = self.folder / "moved-elsewhere"
        shutil.copytree(self.run_directory("link"), moved, symlinks=True)
        self.train("other", "--max-steps", 6, "--restart-checkpoint-file", moved / "checkpoints" / "latest", ranks=2)
        self.assertEqual([r["step"] for r in fsdp_cli.steps(self.run_directory("other"))], [5, 6])
        self.train("link", "--max-steps", 6, "--restart-checkpoint-file", latest)
        self.assertEqual(os.readlink(latest), "step-00000006")

    def test_a_finished_run_restarts_into_nothing(self):
        self.train("finished", "--max-steps", 3)
        before = self.losses("finished")
        result = self.train("finished", "--max-steps", 3, "--restart-checkpoint-file", "latest", "--json", ranks=2)
        self.assertEqual((result.json()["steps"], self.losses("finished")), (3, before))
        self.assertEqual(pathlib.Path(result.json()["checkpoint"]).name, "step-00000003")

    def test_keep_last(self):
        self.train("keep", "--max-steps", 9, "--save-every", 2, "--keep-last", 2, ranks=2)
        self.assertEqual(self.names("keep"), ["latest", "step-00000008", "step-00000009"])
        self.train("all", "--max-steps", 5, "--save-every", 2)
        self.assertEqual(self.names("all"), ["latest", "step-00000002", "step-00000004", "step-00000005"])
        self.train("none", "--max-steps", 3, "--no-save")
        self.assertFalse(list(self.checkpoints("none").glob("step-*")))

    def test_save_interval(self):
        self.train("interval", "--max-steps", 6, "--save-interval-minutes", "0.000001")
        self.assertEqual(len(list(self.checkpoints("interval").glob("step-*"))), 6)

    def test_leftovers_of_a_killed_run_go_at_the_next_start(self):
        self.train("leftover", "--max-steps", 2)
        folder = self.checkpoints("leftover")
        (folder / ".step-00000003.tmp").mkdir()
        (folder / ".step-00000003.tmp" / "__0_0.distcp").write_bytes(b"half")
        os.rename(folder / "step-00000002", folder / ".step-00000002.old")  # killed between the two renames of a repeated save
        self.train("leftover", "--max-steps", 4, "--restart-checkpoint-file", "latest")
        self.assertEqual(self.names("leftover"), ["latest", "step-00000002", "step-00000004"])
        self.assertEqual(len(self.losses("leftover")), 4)

    def test_another_model_than_the_checkpoints_is_refused(self):
        self.train("model", "--max-steps", 2)
        for option, value, has in (("--num-layers", 3, 2), ("--embed-size", 64, 32), ("--vocab-size", 98, 97), ("--num-heads", 4, 2),
                                   ("--ffn-hidden-size", 64, 128)):
            result = self.train("model", "--restart-checkpoint-file", "latest", "--max-steps", 4, option, value, ranks=2, code=2)
            self.assert_refused(result, 2, option, value, has, "step-00000002")
        result = self.train("model", "--restart-checkpoint-file", "latest", "--max-steps", 4, "--seq-len", 64, code=2)
        self.assert_refused(result, 2, "--seq-len 64", 32)
        self.assertEqual(len(self.losses("model")), 2, "nothing was lost")


if __name__ == "__main__":
    fsdp_cli.main()
