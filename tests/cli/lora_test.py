"""--lora-rank: adapters are written as peft does, read by all programs, and distinguished from models. Restarts: tests/unit/apps/resume_test.cpp."""

import json
import shutil

import fsdp_cli
import llama_cli

with fsdp_cli.needed():
    import torch
    from safetensors.torch import load_file, save_file

LORA = ["--lora-rank", 4, "--lora-alpha", 8]


class Lora(llama_cli.WeightsCase):
    def test_checkpoints_hold_adapters_alone(self):
        self.train("small", "--max-steps", 2, "--model", self.model, *LORA, ranks=2)
        found = fsdp_cli.run("fsdp-ckpt-convert", [self.checkpoints("small") / "latest", "--inspect", "--json"]).json()["tensors"]
        weights = [t["name"] for t in found if t["name"].startswith("model.")]
        self.assertEqual({name.split(".lora_")[1] for name in weights}, {"A.weight", "B.weight"})
        self.assertEqual(len(weights), 3 * 2 * 7)
        report = self.evaluate(self.checkpoints("small") / "latest", "--data", self.val_data, ranks=2)
        beside = self.evaluate(self.model, "--adapter", self.run_directory("small") / "adapter", "--data", self.val_data, ranks=2)
        self.assertEqual(report["loss"], beside["loss"])
        self.assertNotEqual(report["loss"], self.evaluate(self.model, "--data", self.val_data, ranks=2)["loss"])

    def test_a_changed_base_is_refused(self):
        base = self.folder / "base"
        shutil.copytree(self.model, base)
        self.train("base", "--max-steps", 2, "--model", base, *LORA, ranks=2)
        file = sorted(base.glob("*.safetensors"))[0]
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.chmod(0o644)
        file.write_bytes(bytes(data))
        result = fsdp_cli.run("fsdp-finetune", self.train_arguments("base", "--max-steps", 3, "--restart", "latest"), 2)
        self.assert_refused(result, 4, "are not the weights that the adapters in", "name those with --model")
        for run in (self.run_directory("base"), self.checkpoints("base") / "latest"):
            merge = ["--to", "hf", "--merge-adapter", run]
            for program, arguments in (("fsdp-ckpt-convert", [base, self.folder / "other", *merge]),
                                       ("fsdp-eval", [base, "--adapter", run, "--data", self.val_data]),
                                       ("fsdp-finetune", self.train_arguments("other", "--max-steps", 1, "--model", base, "--adapter", run))):
                with self.subTest(f"{program} {run.name}"):
                    self.assert_refused(fsdp_cli.run(program, arguments), 4, str(base), "are not the weights that the adapters in", str(run))
            self.assertFalse((self.folder / "other").exists())
            own = fsdp_cli.run("fsdp-ckpt-convert", [self.model, self.folder / f"own-{run.name}", *merge], 2)
            self.assertEqual(own.code, 0, str(own))
        self.train("base", "--max-steps", 3, "--restart", "latest", "--model", self.model)

    def test_files_go_back_and_forth(self):
        self.train("first", "--max-steps", 3, "--lr", "1e-2", "--lr-schedule", "constant", "--model", self.model, *LORA, "--lora-targets", "v_proj,q_proj", "--save-final-adapter", self.folder / "kept", ranks=2)
        directory = self.run_directory("first") / "adapter"
        config = json.loads((directory / "adapter_config.json").read_text())
        self.assertEqual((config["peft_type"], config["r"], config["lora_alpha"], set(config["target_modules"])), ("LORA", 4, 8, {"q_proj", "v_proj"}))
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            self.assertEqual((directory / name).read_bytes(), (self.folder / "kept" / name).read_bytes())
        result = self.train("second", "--max-steps", 1, "--model", self.model, "--adapter", directory)
        self.assertIn("LoRA of rank 4, alpha 8, of q_proj v_proj", result.err)
        other = self.train("other-owner", "--max-steps", 1, "--model", self.model, *LORA, "--save-final-adapter", self.folder / "kept", code=2)
        self.assert_refused(other, 2, "--save-final-adapter", "holds an adapter", "--overwrite")
        self.train("first", "--max-steps", 4, "--restart", "latest", "--save-final-adapter", self.folder / "again")
        self.train("first", "--max-steps", 4, "--restart", "latest", "--save-final-adapter", self.folder / "again")
        # The second run started from the weights after the first run's third step.
        loss = [self.evaluate(self.model, *adapter, "--data", self.train_data)["loss"] for adapter in ([], ["--adapter", self.folder / "kept"])]
        self.assertLess(loss[1], loss[0])

    def changed(self, name, config=None, more=None):
        """Copies the adapter of a run with changed fields and additional tensors."""
        if not self.run_directory("made").exists():
            self.train("made", "--max-steps", 2, "--lr", "1e-2", "--model", self.model, *LORA, "--lora-targets", "v_proj,q_proj")
        directory = self.folder / name
        shutil.copytree(self.run_directory("made") / "adapter", directory)
        fields = json.loads((directory / "adapter_config.json").read_text()) | (config or {})
        (directory / "adapter_config.json").write_text(json.dumps(fields))
        weights = load_file(directory / "adapter_model.safetensors")
        save_file(weights | (more(weights) if more else {}), directory / "adapter_model.safetensors")
        return directory

    def test_all_programs_read_a_folder_of_peft_alike(self):
        whole = self.evaluate(self.model, "--adapter", self.changed("whole"), "--data", self.val_data)["loss"]
        q_alone = self.changed("q", {"target_modules": ["q_proj"]})
        narrow = self.evaluate(self.model, "--adapter", q_alone, "--data", self.val_data)["loss"]
        self.assertGreater(abs(narrow - whole), 1e-4)
        pattern = self.changed("pattern", {"target_modules": r".*\.self_attn\.(q|v)_proj"})
        self.assertEqual(self.evaluate(self.model, "--adapter", pattern, "--data", self.val_data)["loss"], whole)
        for directory, loss in ((q_alone, narrow), (pattern, whole)):
            merged = self.folder / f"merged-{directory.name}"
            converted = fsdp_cli.run("fsdp-ckpt-convert", [self.model, merged, "--to", "hf", "--merge-adapter", directory, "--dtype", "float32"])
            self.assertEqual(converted.code, 0, str(converted))
            self.assertAlmostEqual(self.evaluate(merged, "--data", self.val_data)["loss"], loss, delta=2e-5)
            trained = self.train(f"on-{directory.name}", "--model", self.model, "--adapter", directory, "--max-epochs", -1, "--val-data", self.val_data, "--json")
            self.assertAlmostEqual(trained.json()["val_loss"], loss, delta=2e-5)
            told = "target_modules does not name" if directory is q_alone else ""
            for result in (converted, trained):
                self.assertIn(told, result.err)
        head = "base_model.model.lm_head.weight"
        for name, config, more, words in (
                ("pissa", {"init_lora_weights": "pissa"}, None, ["init_lora_weights", "pissa", "adapter_config.json"]),
                ("head", None, lambda _: {head: torch.ones(2, 2)}, [head, "adapter_model.safetensors"]),
                ("norms", {"target_modules": ["q_proj", "norm"]}, None, ["target_modules", "model.norm", "adapter_config.json"]),
                ("nan", None, lambda w: {k: v * float("nan") for k, v in w.items() if "lora_B" in k}, ["lora_B", "not finite", "adapter_model.safetensors"])):
            directory = self.changed(name, config, more)
            told = [self.evaluate(self.model, "--adapter", directory, "--data", self.val_data, code=4),
                    self.train("refused", "--model", self.model, "--adapter", directory, "--max-steps", 1, code=4),
                    fsdp_cli.run("fsdp-ckpt-convert", [self.model, self.folder / f"refused-{name}", "--to", "hf", "--merge-adapter", directory])]
            for result in told:
                self.assert_refused(result, 4, directory, *words)

    def test_a_folder_of_weights_and_an_adapter(self):
        both = self.folder / "both"
        shutil.copytree(self.model, both)
        adapter = self.changed("beside")
        for file in adapter.iterdir():
            shutil.copy(file, both)
        said = f"--adapter {both}"
        alone = self.evaluate(self.model, "--data", self.val_data)["loss"]
        result = fsdp_cli.run("fsdp-eval", [both, "--data", self.val_data, "--json", *fsdp_cli.COMMON])
        self.assertEqual(result.json()["loss"], alone)
        for told in (result, self.train("both", "--model", both, "--max-steps", 1), fsdp_cli.run("fsdp-ckpt-convert", [both, self.folder / "both.pt"])):
            self.assertIn(said, told.err)
        result = fsdp_cli.run("fsdp-eval", [both, "--adapter", both, "--data", self.val_data, "--json", *fsdp_cli.COMMON])
        self.assertNotIn("left out", result.err)
        self.assertEqual(result.json()["loss"], self.evaluate(self.model, "--adapter", adapter, "--data", self.val_data)["loss"])
        self.assert_refused(self.evaluate(adapter, "--data", self.val_data, code=4), 4, adapter, "--adapter", self.model)
        self.assert_refused(self.train("alone", "--model", adapter, code=4), 4, adapter, "--adapter")

    def test_bad_choices_are_refused_by_name(self):
        for options, words in ((["--lora-rank", 4], ["--lora-rank"]),
                               (["--model", self.model, "--lora-rank", 4, "--lora-targets", "q_proj,x"], ["lora-targets has 'x'", "down_proj", "--lora-targets"]),
                               (["--model", self.model, "--dora"], ["--dora needs --lora-rank"]),
                               (["--model", self.model, "--lora-rank", 4, "--lora-dropout", 1], ["lora-dropout is 1", "--lora-dropout"]),
                               (["--model", self.model, "--lora-rank", 4, "--save-final-full", "x.pt"], ["--save-final-full is for whole models"]),
                               (["--model", self.model, "--lora-rank", 4, "--train-only", "model.norm"], ["matches no parameter of the adapters"])):
            result = fsdp_cli.run("fsdp-finetune", self.train_arguments("refused", *options))
            self.assert_refused(result, 2, *words)


if __name__ == "__main__":
    fsdp_cli.main()
