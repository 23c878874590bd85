"""--keep-best, --patience and --final: the checkpoint that is kept, the end of a run, requeues, and exports."""

import json
import os
import shutil
import subprocess

import fsdp_cli
import numpy

import llama_cli
from safetensors.torch import load_file, save_file

VALIDATE = ["--eval-every", 2, "--lr", "1e-2"]


def verify(a, b):
    return fsdp_cli.run("fsdp-ckpt-convert", ["--verify", a, b, "--exclude", "run*"])


class KeepBest(llama_cli.WeightsCase):
    """Training makes the loss on `noise`, which has no pattern, worse and the loss on val.h5 better."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.noise = fsdp_cli.write_tokens(cls.folder / "noise.h5", numpy.random.default_rng(7).integers(0, fsdp_cli.VOCAB, (9, 33)))

    def train_arguments(self, name, *more):
        return fsdp_cli.Case.train_arguments(self, name, *more)

    def best(self, name):
        return os.readlink(self.checkpoints(name) / "best")

    def names(self, name):
        return sorted(p.name for p in self.checkpoints(name).iterdir())

    def losses_on_validation(self, name):
        return {r["step"]: r["val_loss"] for r in fsdp_cli.records(self.run_directory(name)) if "val_loss" in r}

    def state(self, name, checkpoint="latest"):
        return json.loads((self.checkpoints(name) / checkpoint / "run.json").read_text())["state"].get("validation")

    def job(self, name):
        return json.loads((self.run_directory(name) / "job.json").read_text())

    def test_the_best_is_kept_and_is_the_checkpoint_of_its_step(self):
        self.train("all", "--max-steps", 8, *VALIDATE, "--val-data", self.noise, "--save-every", 2, ranks=2)
        self.assertFalse((self.checkpoints("all") / "best").exists(), "nobody asked")
        self.assertIsNone(self.state("all"))
        result = self.train("rising", "--max-steps", 8, *VALIDATE, "--val-data", self.noise, "--keep-best", "--save-every", 3, "--keep-last", 1, "--json",
                            ranks=2)
        losses = self.losses_on_validation("rising")
        self.assertEqual(losses, self.losses_on_validation("all"))
        self.assertEqual(min(losses, key=losses.get), 2, "the data is meant to be so")
        self.assertEqual((self.best("rising"), self.names("rising")), ("step-00000002", ["best", "latest", "step-00000002", "step-00000008"]))
        report = result.json()
        self.assertEqual((report["best_step"], report["best_value"], report["best_checkpoint"]),
                         (2, losses[2], str(self.checkpoints("rising") / "best")))
        equal = verify(self.checkpoints("rising") / "best", self.checkpoints("all") / "step-00000002")
        self.assertEqual(equal.code, 0, str(equal))
        self.assertEqual(verify(self.checkpoints("rising") / "best", self.checkpoints("all") / "step-00000004").code, 3)
        self.assertAlmostEqual(self.evaluate(self.checkpoints("rising") / "best", "--data", self.noise, ranks=3)["loss"], losses[2], delta=1e-6)
        # It is a checkpoint like any other: a run can continue from its step.
        self.train("rising", "--restart-checkpoint-file", "best", "--max-steps", 4, ranks=2)
        self.assertEqual(self.losses("rising"), self.losses("all")[:4])
        self.assertEqual(self.best("rising"), "step-00000002")

    def test_what_was_saved_for_the_best_alone_goes_with_the_next(self):
        self.train("falling", "--max-steps", 8, *VALIDATE, "--val-data", self.val_data, "--keep-best")
        losses = self.losses_on_validation("falling")
        self.assertEqual(sorted(losses.values(), reverse=True), list(losses.values()), "the data is meant to be so")
        self.assertEqual((self.best("falling"), self.names("falling")), ("step-00000008", ["best", "latest", "step-00000008"]))
        self.assertEqual(self.state("falling")["best_value"], losses[8])
        self.assertNotIn("only_as_best", json.loads((self.checkpoints("falling") / "best" / "run.json").read_text()))
        self.train("unsaved", "--max-steps", 4, *VALIDATE, "--val-data", self.val_data, "--keep-best", "--no-save")
        self.assertEqual(self.best("unsaved"), "step-00000004")
        # Starting a finished run again changes nothing.
        self.train("falling", "--restart", "latest", "--max-steps", 8)
        self.assertEqual((self.best("falling"), self.state("falling")["best_value"]), ("step-00000008", losses[8]))

    def test_it_survives_requeues_on_other_ranks_and_strategies(self):
        self.train("moved", "--max-steps", 4, *VALIDATE, "--val-data", self.noise, "--keep-best", "--batch-size", 4, ranks=3)
        self.train("moved", "--max-steps", 8, "--restart", "latest", "--sharding", "grad-shard", "--batch-size", 6, ranks=2)
        losses = self.losses_on_validation("moved")
        self.assertEqual(sorted(losses), [2, 4, 6, 8], "eval-every is the run's")
        self.assertEqual((self.best("moved"), self.state("moved")["best_value"]), ("step-00000002", losses[2]))
        # Losses on other data cannot be compared with the earlier ones.
        self.train("moved", "--max-steps", 10, "--restart", "latest", "--val-data", self.val_data)
        self.assertEqual(self.best("moved"), "step-00000010")

    def test_a_run_that_goes_back_knows_no_best_of_steps_to_come(self):
        self.train("back", "--max-steps", 8, *VALIDATE, "--val-data", self.val_data, "--keep-best", "--save-every", 4)
        before = self.losses_on_validation("back")
        self.assertEqual(self.best("back"), "step-00000008")
        # With learning rate 0 the loss stays that of step 4, which is no improvement.
        self.train("back", "--restart", self.checkpoints("back") / "step-00000004", "--lr", 0, "--max-steps", 6)
        self.assertEqual((self.best("back"), self.state("back")["best_value"]), ("step-00000004", before[4]))
        self.assertTrue((self.checkpoints("back") / "step-00000008").exists(), "checkpoints stay")

    def test_a_run_that_goes_back_keeps_what_was_saved_to_stay(self):
        options = [*VALIDATE, "--val-data", self.val_data, "--keep-best"]
        self.train("again", "--max-steps", 6, *options, "--save-every", 4)
        self.train("again", "--restart", self.checkpoints("again") / "step-00000004", "--max-steps", 8, "--eval-every", 1, "--lr", "1e-3")
        losses = self.losses_on_validation("again")
        self.assertEqual(sorted((losses[step] for step in range(4, 9)), reverse=True), [losses[step] for step in range(4, 9)], "the data is meant to be so")
        self.assertEqual(self.names("again"), ["best", "latest", *(f"step-{step:08}" for step in (4, 6, 8))])

    def test_another_checkpoint_of_the_best_step_is_not_the_best(self):
        options = [*VALIDATE, "--val-data", self.noise, "--keep-best"]
        self.train("one", "--max-steps", 4, *options)
        self.assertEqual(self.best("one"), "step-00000002")
        self.train("two", "--max-steps", 2, *options, "--lr", "1e-3")
        full = self.folder / "another.pt"
        result = self.train("two", "--restart", self.checkpoints("one") / "step-00000004", "--max-steps", 6, "--final", "best", "--save-final-full", full)
        self.assertIn("the best checkpoint until now, of step 2 with a loss of", result.err)
        self.assertEqual(self.best("two"), "step-00000006")
        self.assertEqual(verify(self.checkpoints("two") / "step-00000006", full).code, 0)
        self.assertIn("step-00000002", self.names("two"))
        # A restart from a run without --keep-best does not keep the folder's earlier best either.
        self.train("three", "--max-steps", 2, *options, "--lr", "1e-3")
        self.train("unaware", "--max-steps", 4, "--lr", "1e-2")
        self.train("three", "--restart", self.checkpoints("unaware") / "latest", "--max-steps", 6, *options)
        self.assertEqual(self.best("three"), "step-00000006")

    def test_a_second_start_of_a_run_that_is_done_changes_no_options(self):
        self.train("done", "--max-steps", 2, *VALIDATE, "--val-data", self.noise, "--keep-best")
        before = json.loads((self.checkpoints("done") / "latest/run.json").read_text())
        self.train("done", "--restart", "latest", "--max-steps", 2, "--optimizer", "sgd", "--lr", "0.5", ranks=2)
        self.assertEqual(json.loads((self.checkpoints("done") / "latest/run.json").read_text()), before)

    def test_patience_ends_a_run_that_is_then_done(self):
        patience = ["--val-data", self.noise, *VALIDATE, "--patience", 2]
        result = self.train("ends", "--max-steps", 20, *patience, "--json", ranks=2)
        self.assertNotIn("ended_early", self.train("at-its-end", "--max-steps", 6, *patience, "--json").json(), "it is whole")
        self.assertRegex(result.err, r"(?m)^early     step 6 of 20 is the last: 2 validations in a row had no loss below \d\.\d{4}$")
        self.assertEqual(len(self.losses("ends")), 6)
        self.assertEqual(sorted(self.losses_on_validation("ends")), [2, 4, 6])
        self.assertIn("2 validations in a row", result.json()["ended_early"])
        self.assertEqual(self.job("ends")["outcome"], "done")
        self.assertEqual(os.readlink(self.checkpoints("ends") / "latest"), "step-00000006")
        again = self.train("ends", "--max-steps", 20, *patience, "--restart", "latest")
        self.assertRegex(again.err, r"(?m)^done      nothing to do; the run was ended early at step 6 of 20, since 2 validations")
        self.assertEqual((len(self.losses("ends")), sorted(self.losses_on_validation("ends"))), (6, [2, 4, 6]))
        seen = fsdp_cli.run("fsdp-eval", ["--runs", self.run_directory("ends"), "--watch"])
        self.assertIn("early     2 validations in a row", seen.out)
        # With a larger --patience the run continues.
        self.train("ends", "--max-steps", 20, "--patience", 3, "--restart", "latest")
        self.assertEqual(sorted(self.losses_on_validation("ends")), [2, 4, 6, 8])
        self.train("ends", "--max-steps", 10, "--patience", 0, "--restart", "latest")
        self.assertEqual(sorted(self.losses_on_validation("ends")), [2, 4, 6, 8, 10])

    def test_patience_that_is_spent_begins_anew_with_other_data(self):
        self.train("spent", "--max-steps", 8, *VALIDATE, "--val-data", self.noise, "--patience", 1)
        self.assertEqual(sorted(self.losses_on_validation("spent")), [2, 4])
        self.train("spent", "--max-steps", 8, "--restart", "latest", "--val-data", self.val_data)
        self.assertEqual(sorted(self.losses_on_validation("spent")), [2, 4, 6, 8])

    def test_patience_begins_anew_with_a_new_run(self):
        self.train("first", "--max-steps", 8, *VALIDATE, "--val-data", self.noise, "--patience", 1)
        self.assertEqual(self.state("first")["without_improvement"], 1)
        self.train("second", "--max-steps", 8, "--restart", self.checkpoints("first") / "latest")
        self.assertEqual(sorted(self.losses_on_validation("second")), [6, 8], "the first is compared with none")
        self.assertIn("nothing to do", self.train("first", "--max-steps", 8, "--restart", "latest").err)

    def test_patience_counts_over_requeues(self):
        options = ["--val-data", self.noise, *VALIDATE, "--patience", 2, "--total-batch-size", 12]
        self.train("counts", "--max-steps", 4, *options, "--batch-size", 6, ranks=2)
        self.assertEqual(self.state("counts")["without_improvement"], 1, "the validation after the last save counts")
        result = self.train("counts", "--max-steps", 20, "--batch-size", 4, "--restart", "latest", ranks=3)
        self.assertIn("step 6 of 20 is the last", result.err)
        # A decrease by less than --min-delta is no improvement.
        small = self.train("small", "--max-steps", 20, *VALIDATE, "--val-data", self.val_data, "--patience", 1, "--min-delta", 3)
        self.assertIn("step 4 of 20 is the last: 1 validation in a row had no loss below", small.err)
        self.assertIn("by more than 3", small.err)
        self.train("small", "--max-steps", 6, "--patience", 0, "--restart", "latest")
        self.assertEqual(len(self.losses("small")), 6)

    def test_what_is_exported_at_the_end(self):
        full = self.folder / "full.pt"
        for final, step in (("last", 6), ("best", 2)):
            name = f"final-{final}"
            self.train(name, "--max-steps", 6, *VALIDATE, "--val-data", self.noise, "--keep-best", "--final", final, "--save-final-full", full)
            equal = verify(self.checkpoints(name) / f"step-{step:08}", full)
            self.assertEqual(equal.code, 0, str(equal))
            self.assertEqual(os.readlink(self.checkpoints(name) / "latest"), "step-00000006")

    def test_adapters(self):
        # The model never sees these ids in training and unlearns them.
        noise = fsdp_cli.write_tokens(self.folder / "wide-noise.h5", numpy.random.default_rng(8).integers(97, 1016, (9, 33)))
        self.train("adapters", "--model", self.model, "--lora-rank", 4, "--lr-schedule", "constant", "--max-steps", 8, "--eval-every", 2, "--lr", "1", "--val-data", noise,
                   "--keep-best", "--final", "best", "--save-final-hf", self.folder / "hf", "--seq-len", 32, ranks=2)
        losses = self.losses_on_validation("adapters")
        best = min(losses, key=losses.get)
        self.assertLess(best, 8, "the data is meant to be so")
        self.assertEqual(self.best("adapters"), f"step-{best:08}")
        for where in ([self.checkpoints("adapters") / "best"], [self.model, "--adapter", self.run_directory("adapters") / "adapter"]):
            self.assertAlmostEqual(self.evaluate(*where, "--seq-len", 32, "--data", noise)["loss"], losses[best], delta=1e-6)
        # Merged weights are rounded to bf16, the model's own dtype.
        self.assertAlmostEqual(self.evaluate(self.folder / "hf", "--seq-len", 32, "--data", noise)["loss"], losses[best], delta=0.01)

    def test_the_last_is_exported_where_there_is_no_best(self):
        """Only the validation data have the id whose embedding is NaN."""
        model = shutil.copytree(self.model, self.folder / "half")
        for file in model.glob("*.safetensors"):
            tensors = load_file(file)
            if "model.embed_tokens.weight" in tensors:
                unused = len(tensors["model.embed_tokens.weight"]) - 1
                tensors["model.embed_tokens.weight"][unused] = float("nan")
                save_file(tensors, file, metadata={"format": "pt"})
        nothing = llama_cli.write_documents(self.folder / "nothing.h5", [[3, unused, *range(4, 30)]] * 4)
        result = self.train("none", "--model", model, "--lora-rank", 4, "--lr", "1e-2", "--max-steps", 2, "--val-data", nothing, "--keep-best", "--final", "best",
                            "--seq-len", 32, "--json", ranks=2)
        self.assertIn("--final best: no validation of this run had a finite loss: what follows has the weights of the last step", result.err)
        self.assertEqual((result.json()["final"], result.json()["best_step"] if "best_step" in result.json() else None), ("last", None))
        self.assertEqual(self.job("none")["outcome"], "done")
        losses = [self.evaluate(*where, "--seq-len", 32, "--data", self.val_data)["loss"] for where in
                  ([self.checkpoints("none") / "latest"], [model, "--adapter", self.run_directory("none") / "adapter"])]
        self.assertAlmostEqual(*losses, delta=1e-6)

    def test_a_full_disk_leaves_the_former_best(self):
        disk = self.small_disk("1400k")  # two checkpoints of 540 kB
        arguments = [*self.train_arguments("full", "--max-steps", 8, *VALIDATE, "--val-data", self.val_data, "--keep-best", "--save-every", 2), "--out-dir", disk]
        result = fsdp_cli.run("fsdp-finetune", arguments)
        self.assertEqual(result.code, 1, str(result))
        folder = disk / "full" / "checkpoints"
        self.assertEqual(os.readlink(folder / "best"), "step-00000004")
        self.assertEqual(sorted(p.name for p in folder.iterdir()), ["best", "latest", "step-00000002", "step-00000004"])
        self.evaluate(folder / "best", "--data", self.val_data)
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        resumed = fsdp_cli.run("fsdp-finetune", [*arguments, "--restart", "latest"])
        self.assertEqual(resumed.code, 0, str(resumed))
        self.assertEqual(os.readlink(folder / "best"), "step-00000008")

    def test_what_cannot_be_is_told_before_training(self):
        data = ["--val-data", self.noise]
        for options, word in ((["--keep-best"], "--keep-best needs --val-data"), (["--patience", 2, "--eval-every", 2], "--patience needs --val-data"), ([*data, "--patience", 2], "--patience needs --eval-every"),
                              ([*data, "--eval-every", 2, "--patience", -1], "--patience: -1 is negative"), ([*data, "--min-delta", 1], "--min-delta needs --patience"),
                              ([*data, "--final", "best"], "--final best needs --keep-best"), ([*data, "--keep-best", "easy"], "--keep-best easy: choose loss"),
                              ([*data, "--final", "first"], "choose from last, best")):
            self.assert_refused(self.train("refused-more", "--max-steps", 1, *options, code=2), 2, word)
        self.assertFalse(self.run_directory("refused-more").exists())

    def test_what_others_have_put_in_its_place_stays(self):
        self.train("taken", "--max-steps", 2, *VALIDATE, "--val-data", self.noise)
        mine = self.checkpoints("taken") / "best"
        mine.mkdir()
        (mine / "notes").write_text("mine")
        result = self.train("taken", "--max-steps", 4, "--restart", "latest", "--keep-best", "--save-every", 2, "--json")
        self.assertIn("is not the link of --keep-best", result.err)
        self.assertEqual(result.json()["best_checkpoint"], str(self.checkpoints("taken") / "step-00000004"))
        self.assertEqual((mine / "notes").read_text(), "mine")
        # Without its link the best is still known, also across requeues, and is exported.
        best, full = self.state("taken")["best_step"], self.folder / "taken.pt"
        self.assertEqual(best, 4)
        result = self.train("taken", "--max-steps", 8, "--restart", "latest", "--final", "best", "--save-final-full", full)
        self.assertIn("is not the link of --keep-best", result.err)
        self.assertEqual(self.state("taken")["best_step"], best)
        self.assertEqual(verify(self.checkpoints("taken") / f"step-{best:08}", full).code, 0)
        # If the link fails after the last save, the best is still exported.
        self.train("late", "--max-steps", 2, "--lr", "1e-2")
        (self.checkpoints("late") / "best").mkdir()
        result = self.train("late", "--max-steps", 4, "--restart", "latest", "--val-data", self.val_data, "--keep-best", "--final", "best", "--save-final-full", full)
        self.assertIn("is not the link of --keep-best", result.err)
        self.assertEqual(verify(self.checkpoints("late") / "step-00000004", full).code, 0)


if __name__ == "__main__":
    fsdp_cli.main()
