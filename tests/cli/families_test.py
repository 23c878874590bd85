"""Model families in every program: results equal those of transformers in the fixtures, and transformers opens the exports.

FSDP_ALL=1: of all families, not of one of each kind."""

import json
import os
import shutil

import families_cli
import fsdp_cli
from families_cli import FAMILIES, SOME, TOLERANCE, folder_of, truth

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")

FROZEN = ["--lr", 0, "--max-steps", 1, "--no-shuffle", "--no-save", "--weight-decay", 0]


class Families(families_cli.Case):
    def dropout(self, model):
        return ["--dropout", 0] if model == "gpt2" else []

    def loss_of(self, name):
        step = fsdp_cli.steps(self.run_directory(name))[0]
        return step["loss"], step["grad_norm"]

    def test_training_starts_at_the_loss_of_transformers(self):
        for i, model in enumerate(FAMILIES):
            with self.subTest(model):
                ranks = 1 + i % 2
                self.tune(model, self.documents(model), *FROZEN, "--batch-size", 2 // ranks, *self.dropout(model), model=folder_of(model), ranks=ranks)
                loss, norm = self.loss_of(model)
                self.assertLess(abs(loss - truth(model)["loss"]), TOLERANCE)
                self.assertLess(abs(norm / truth(model)["total_grad_norm"] - 1), 1e-5)

    def test_names_of_the_hub(self):
        """openai-community/gpt2 has names without a prefix, and attention masks among the tensors."""
        model = folder_of("gpt2") / "hub_names"
        self.tune("hub", self.documents("gpt2"), *FROZEN, "--batch-size", 2, "--dropout", 0, model=model)
        self.assertLess(abs(self.loss_of("hub")[0] - truth("gpt2")["loss"]), TOLERANCE)

    def test_a_run_goes_on_and_its_model_is_opened_by_transformers(self):
        try:
            import torch
            import transformers
        except ImportError as missing:
            self.skipTest(str(missing))
        for model in SOME:
            with self.subTest(model):
                data, saved = self.documents(model), self.folder / f"{model}-hf"
                common = ["--batch-size", 2, "--lr", "1e-3", "--lr-schedule", "constant", "--no-shuffle", "--total-batch-size", 2]
                self.tune(model + "-whole", data, "--max-steps", 3, *common, *self.dropout(model), model=folder_of(model))
                self.tune(model + "-parts", data, "--max-steps", 2, *common, *self.dropout(model), model=folder_of(model))
                # Model, data and options come from the checkpoint.
                result = fsdp_cli.run("fsdp-finetune", ["--restart-checkpoint-file", "latest", "--out-dir", self.runs, "--run-name", model + "-parts",
                                                        "--max-steps", 3, "--batch-size", 1, "--save-final-hf", saved, *fsdp_cli.COMMON], 2)
                self.assertEqual(result.code, 0, str(result))
                self.assertLess(fsdp_cli.difference(self.losses(model + "-parts"), self.losses(model + "-whole")), 1e-5)
                opened, info = transformers.AutoModelForCausalLM.from_pretrained(saved, output_loading_info=True, local_files_only=True,
                                                                                 dtype=torch.float32, attn_implementation="eager")
                for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                    self.assertFalse(info[what], what)
                inputs = json.loads((folder_of(model) / "inputs.json").read_text())["a"]
                ids = torch.tensor(inputs["input_ids"])
                with torch.no_grad():
                    theirs = opened.eval()(ids, labels=ids).loss.item()
                self.tune(model + "-again", data, *FROZEN, "--batch-size", 2, *self.dropout(model), model=saved)
                self.assertLess(abs(self.loss_of(model + "-again")[0] - theirs), TOLERANCE)

    def test_a_config_of_our_own_is_opened_by_transformers(self):
        """config.json is generated, because the source is a bare weights file without one."""
        try:
            import torch
            import transformers
        except ImportError as missing:
            self.skipTest(str(missing))
        for model in FAMILIES:
            if model == "gpt2":
                continue  # its matrices are transposed: cli.convert_transformers
            with self.subTest(model):
                saved = self.folder / f"{model}-own"
                result = fsdp_cli.run("fsdp-ckpt-convert", [folder_of(model) / "model.safetensors", saved, "--to", "hf", "--model-config",
                                                            folder_of(model) / "config.json", "--quiet"])
                self.assertEqual(result.code, 0, str(result))
                opened = transformers.AutoModelForCausalLM.from_pretrained(saved, local_files_only=True, dtype=torch.float32,
                                                                           attn_implementation="eager").eval()
                ids = torch.tensor(json.loads((folder_of(model) / "inputs.json").read_text())["a"]["input_ids"])
                with torch.no_grad():
                    self.assertLess(abs(opened(ids, labels=ids).loss.item() - truth(model)["loss"]), TOLERANCE)

    def test_adapters_on_every_matrix(self):
        for model in ("qwen2_window", "gemma2", "phi3", "gpt2"):
            with self.subTest(model):
                data = self.documents(model)
                self.tune(model + "-lora", data, "--batch-size", 1, "--max-steps", 4, "--lr", "1e-2", "--lora-rank", 4, "--lora-targets", "all",
                          "--no-shuffle", "--save-final-hf", self.folder / f"{model}-by-run", model=folder_of(model), ranks=2)
                losses = self.losses(model + "-lora")
                self.assertLess(abs(losses[0] - truth(model)["loss"]), TOLERANCE)
                self.assertLess(losses[-1], losses[0] - 0.05)
                # Base plus adapter, the merge by the run, and the merge by the converter are the same model.
                by_converter, adapter = self.folder / f"{model}-merged", self.run_directory(model + "-lora") / "adapter"
                result = fsdp_cli.run("fsdp-ckpt-convert", [folder_of(model), by_converter, "--merge-adapter", adapter, "--to", "hf", "--quiet"])
                self.assertEqual(result.code, 0, str(result))
                beside, *merged = (self.evaluate(at, "--precision", "float32", "--data", data, *more)["loss"] for at, more in (
                    (folder_of(model), ["--adapter", adapter]), (by_converter, []), (self.folder / f"{model}-by-run", [])))
                self.assertLess(abs(merged[1] - merged[0]), TOLERANCE)
                # Merging rounds to the base's dtype, mostly bf16.
                self.assertLess(abs(merged[0] - beside), TOLERANCE if model == "gpt2" else 2e-3)

    def test_in_4_bits(self):
        """The converter's codes equal those of bitsandbytes; evaluation and training from codes and from numbers agree."""
        try:
            import torch
            from safetensors.torch import load_file
        except ImportError as missing:
            self.skipTest(str(missing))
        for model in ("qwen2_tied", "gemma2", "phi3_partial", "gpt2"):
            with self.subTest(model):
                stored, data, in_4_bits = self.folder / f"{model}-nf4", self.documents(model), ["--quantize", "nf4", "--double-quant"]
                result = fsdp_cli.run("fsdp-ckpt-convert", [folder_of(model), stored, "--to", "hf", *in_4_bits, "--quiet"])
                self.assertEqual(result.code, 0, str(result))
                found = load_file(stored / "model.safetensors")
                for key, want in load_file(folder_of(model).parents[1] / "training/qlora_families" / model / "quantised.safetensors").items():
                    self.assertTrue("quant_state" in key or torch.equal(found[key], want), key)
                losses = [self.evaluate(at, "--precision", "float32", "--data", data, *more)["loss"] for at, more in ((stored, []), (folder_of(model), in_4_bits))]
                for at, more in ((stored, []), (folder_of(model), in_4_bits)):
                    name = f"{model}-{len(more)}"
                    self.tune(name, data, "--batch-size", 1, "--max-steps", 3, "--lr", "1e-2", "--lora-rank", 4, "--no-shuffle", "--save-final-hf", self.folder / f"{name}-hf",
                              *more, model=at, ranks=2)
                    # The export holds the merged adapter, again in 4 bits: its loss is much nearer to the trained than to the initial one.
                    exported = self.evaluate(self.folder / f"{name}-hf", "--precision", "float32", "--data", data)["loss"]
                    self.assertLess(exported, losses[0] - 0.03)
                    losses += self.losses(name)[::2]
                # In a bf16 model the numbers that codes stand for are rounded to bf16 when they are stored.
                for other in (*losses[:2], losses[4]):
                    self.assertLess(abs(other - losses[2]), 2e-3)
                self.assertLess(losses[3], losses[2] - 0.05)
                self.assertLess(abs(losses[5] - losses[3]), 1e-2)

    def test_what_is_not_built_is_refused_by_name(self):
        for key, value, code in (("clip_qkv", 8.0, 4), ("attention_bias", True, 4), ("layer_types", ["sliding_attention", "somewhere"], 4),
                                 ("rope_scaling", {"rope_type": "ntk", "factor": 4.0}, 4), ("hidden_act", "relu", 4)):
            with self.subTest(key):
                copy = self.folder / f"with-{key}"
                shutil.copytree(folder_of("mistral_window"), copy)
                config = json.loads((copy / "config.json").read_text())
                (copy / "config.json").chmod(0o644)
                (copy / "config.json").write_text(json.dumps({**config, key: value}))
                result = self.tune(key, self.documents("mistral_window"), *FROZEN, "--batch-size", 1, model=copy, code=code)
                self.assertIn(key, result.err)

    def test_a_head_that_is_not_the_embedding_is_not_lost(self):
        """config.json says tied, but the file has a different head: transformers keeps the head, and training here must do the same."""
        copy = self.folder / "two-heads"
        shutil.copytree(folder_of("mistral_window"), copy)
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").chmod(0o644)
        (copy / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
        result = self.tune("two-heads", self.documents("mistral_window"), *FROZEN, "--batch-size", 1, model=copy, code=4)
        self.assertIn("lm_head.weight", result.err)
        self.assertIn("tie_word_embeddings", result.err)


if __name__ == "__main__":
    fsdp_cli.main()
