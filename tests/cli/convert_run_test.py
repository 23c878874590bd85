"""Runs of fsdp-finetune as inputs of the other programs: a run's folder stands for its newest checkpoint, an export equals the
checkpoint that it was made from, and a checkpoint of adapters is no model."""

import json
import shutil

import fsdp_cli
from convert_fixtures import PROGRAM, ConvertCase


class Runs(ConvertCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.full = cls.folder / "full.pt"
        for name, options in (("whole", [*fsdp_cli.TINY_MODEL, "--save-final-full", cls.full]),
                              ("lora", ["--model", cls.folder / "base", "--lora-rank", 2, "--lr", "1e-2", "--seq-len", fsdp_cli.SEQ_LEN])):
            if name == "lora":
                made = fsdp_cli.run(PROGRAM, [cls.runs / "whole", cls.folder / "base", "--to", "hf"])
                assert made.code == 0, str(made)
            result = fsdp_cli.run("fsdp-finetune", ["--train-data", cls.train_data, "--out-dir", cls.runs, "--run-name", name, "--max-steps", 3,
                                                    "--batch-size", 4, *fsdp_cli.COMMON, *options])
            assert result.code == 0, str(result)

    def verify(self, a, b, *options, code=0):
        result = fsdp_cli.run(PROGRAM, ["--verify", a, b, *options])
        self.assertEqual(result.code, code, str(result))
        return result

    def test_a_runs_folder_is_its_newest_checkpoint(self):
        run, latest = self.runs / "whole", self.runs / "whole" / "checkpoints" / "latest"
        for folder in (run, run / "checkpoints"):
            reports = [fsdp_cli.run(PROGRAM, ["--inspect", "--json", place]).json() for place in (folder, latest)]
            self.assertEqual(reports[0]["tensors"], reports[1]["tensors"])
            self.assertEqual(fsdp_cli.run(PROGRAM, ["--check", folder]).code, 0)
            self.verify(folder, latest)
        losses = [self.evaluate(place, "--data", self.val_data)["loss"] for place in (run, latest)]
        self.assertEqual(losses[0], losses[1])
        empty = self.folder / "empty" / "checkpoints"
        empty.mkdir(parents=True)
        (empty / "latest").symlink_to("step-00000003")  # which is gone
        self.assertEqual(fsdp_cli.run(PROGRAM, ["--inspect", empty.parent]).code, 4)

    def test_an_export_equals_its_checkpoint(self):
        """Names and matrices of GPT-2, the tied head and what only the checkpoint has make no difference, a changed element does."""
        exported = self.folder / "base"
        for whole in (self.runs / "whole", self.full):
            for a, b in ((whole, exported), (exported, whole)):
                self.assertIn("equal: 28 tensors", self.verify(a, b).out)
            self.verify(whole, exported, "--model-only")
        half = self.convert(self.runs / "whole", "half", "--to", "hf", "--dtype", "bf16")
        self.verify(self.runs / "whole", half, "--dtype", "bf16")
        self.verify(self.runs / "whole", half, "--tolerance", "0.01")
        self.assertIn("dtype", self.verify(self.runs / "whole", half, code=3).out)
        alone = self.convert(self.full, "alone.safetensors", "--model-only")
        self.verify(self.full, alone, "--model-only")
        other = shutil.copytree(exported, self.folder / "other")
        file = other / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(bytes(data))
        self.assertIn("1 of", self.verify(self.runs / "whole", other, code=3).out)
        # A checkpoint that lacks its optimizer is not an export: this is a difference.
        without = self.convert(self.full, "without.pt", "--exclude", "optim.*")
        self.assertIn("in A only", self.verify(self.full, without, code=3).out)

    def test_long_lists_are_cut(self):
        renamed = self.convert(self.full, "renamed.pt", "--rename", "^optim=moved")
        result = self.verify(self.full, renamed, code=3)
        self.assertLess(len(result.out.splitlines()), 60)
        self.assertIn("more tensors in A only", result.out)
        report = fsdp_cli.run(PROGRAM, ["--verify", self.full, renamed, "--json"]).json()
        self.assertGreater(len(report["only_in_a"]), 60)

    def test_a_full_file_brings_its_own_config(self):
        """Also beside the config.json of another model."""
        folder = self.folder / "beside"
        folder.mkdir()
        shutil.copy(self.full, folder)
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 7}))
        for number, source in enumerate((self.full, folder / self.full.name)):
            output = self.convert(source, f"hf{number}", "--to", "hf")
            config = json.loads((output / "config.json").read_text())
            self.assertEqual((config["model_type"], config["n_embd"]), ("gpt2", 32))
            self.verify(source, output)

    def test_prune(self):
        """Older checkpoints keep weights, which all programs read; the newest one resumes the run."""
        options = ["--train-data", self.train_data, "--out-dir", self.runs, "--run-name", "long", "--batch-size", 4, "--save-every", 2, *fsdp_cli.COMMON, *fsdp_cli.TINY_MODEL]
        self.assertEqual(fsdp_cli.run("fsdp-finetune", [*options, "--max-steps", 6]).code, 0)
        run = self.runs / "long"
        folder = run / "checkpoints"
        weights = {step: self.convert(folder / f"step-{step:08}", f"before{step}.pt", "--model-only") for step in (2, 4, 6)}
        size = lambda step: sum(file.stat().st_size for file in (folder / f"step-{step:08}").iterdir())
        before = {step: size(step) for step in weights}
        dry = fsdp_cli.run(PROGRAM, ["--prune", run, "--dry-run", "--json"])
        self.assertEqual((dry.code, len(dry.json()["checkpoints"]), size(2)), (0, 2, before[2]), str(dry))
        made = fsdp_cli.run(PROGRAM, ["--prune", run, "--json"]).json()
        self.assertEqual(made["freed_bytes"], dry.json()["freed_bytes"])
        self.assertEqual(size(6), before[6])
        for step in (2, 4):
            self.assertLess(size(step), before[step] * 0.6)
            self.verify(folder / f"step-{step:08}", weights[step], "--model-only")
        self.evaluate(folder / "step-00000002", "--data", self.val_data)
        self.convert(folder / "step-00000004", "of-pruned", "--to", "hf")
        refused = fsdp_cli.run("fsdp-finetune", [*options, "--max-steps", 7, "--restart", folder / "step-00000004"])
        self.assert_refused(refused, 4, "step-00000004", "weights alone")
        self.assertEqual(fsdp_cli.run("fsdp-finetune", [*options, "--max-steps", 8, "--restart", "latest", "--keep-optimizer", 1]).code, 0)
        self.assertEqual(fsdp_cli.run(PROGRAM, ["--prune", run, "--json"]).json()["checkpoints"], [])  # --keep-optimizer did it
        self.assertLess(size(6), before[6] * 0.6)
        self.assert_refused(fsdp_cli.run(PROGRAM, ["--prune", self.folder / "base"]), 4, "no run")
        self.assert_refused(fsdp_cli.run(PROGRAM, ["--prune", run, "--keep-optimizer", 0]), 2, "--keep-optimizer")

    def test_adapters_alone_are_no_model(self):
        latest = self.runs / "lora" / "checkpoints" / "latest"
        for source in (latest, self.runs / "lora"):
            result = fsdp_cli.run(PROGRAM, [source, self.folder / "no", "--to", "hf"])
            self.assert_refused(result, 2, "--merge-adapter", "adapters", self.folder / "base")
        self.assertFalse((self.folder / "no").exists())
        merged = [self.convert(self.folder / "base", f"merged{number}", "--to", "hf", "--merge-adapter", adapter)
                  for number, adapter in enumerate((latest, self.runs / "lora", self.runs / "lora" / "adapter"))]
        for other in merged[1:]:
            self.verify(merged[0], other)
        self.verify(self.folder / "base", merged[0], code=3)
        kept = self.convert(latest, "adapters.pt", "--model-only")
        self.assertEqual(fsdp_cli.run(PROGRAM, ["--inspect", kept]).code, 0)
        # The same model: the adapters beside their base, and merged into it.
        losses = [self.evaluate(place, "--data", self.val_data)["loss"] for place in (latest, merged[0])]
        self.assertAlmostEqual(losses[0], losses[1], delta=1e-5)


if __name__ == "__main__":
    fsdp_cli.main()
