"""--keep-best and --final with what needs processes: fsdp-eval reads what adapters came to, disks are full. All else is in
tests/unit/apps/keep_best_test.cpp."""

import json
import os
import shutil
import subprocess

import fsdp_cli
import numpy

import llama_cli

with fsdp_cli.needed():
    from safetensors.torch import load_file, save_file

VALIDATE = ["--eval-every", 2, "--lr", "1e-2"]


class KeepBest(llama_cli.WeightsCase):
    def train_arguments(self, name, *more):
        return fsdp_cli.Case.train_arguments(self, name, *more)

    def best(self, name):
        return os.readlink(self.checkpoints(name) / "best")

    def losses_on_validation(self, name):
        return {r["step"]: r["val_loss"] for r in fsdp_cli.records(self.run_directory(name)) if "val_loss" in r}

    def job(self, name):
        return json.loads((self.run_directory(name) / "job.json").read_text())

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
        self.assertRegex(result.err, "--final best: .* finite loss.* last step")
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


if __name__ == "__main__":
    fsdp_cli.main()
