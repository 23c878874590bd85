"""A minGPT export is a GPT-2 for transformers, and our own programs read it: weights, configuration and tokenizer."""

import json
import os
import shutil

import fsdp_cli
import llama_cli

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
with fsdp_cli.needed():
    import torch
    from safetensors.torch import load_file, save_file

MODEL = ["--num-layers", 2, "--num-heads", 2, "--embed-size", 32, "--ffn-hidden-size", 80, "--vocab-size", 50257, "--seq-len", fsdp_cli.SEQ_LEN]


class Gpt2(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hf = cls.runs / "first" / "hf"
        result = fsdp_cli.run("fsdp-finetune", ["--train-data", cls.train_data, "--out-dir", cls.runs, "--run-name", "first", "--max-steps", 4, "--lr", "1e-2",
                                                "--save-final-hf", cls.hf, *MODEL, *fsdp_cli.COMMON], 2)
        assert result.code == 0, str(result)
        cls.checkpoint = cls.runs / "first" / "checkpoints" / "latest"

    def finetune(self, name, *arguments, ranks=0, code=0):
        result = fsdp_cli.run("fsdp-finetune", ["--out-dir", self.runs, "--run-name", name, *arguments, *fsdp_cli.COMMON], ranks)
        self.assertEqual(result.code, code, str(result))
        return result

    def copy_of(self, name, config=None, change=lambda tensors: tensors):
        directory = shutil.copytree(self.hf, self.folder / name)
        (directory / "config.json").write_text(json.dumps({**json.loads((self.hf / "config.json").read_text()), **(config or {})}))
        save_file({k: v.contiguous() for k, v in change(load_file(self.hf / "model.safetensors")).items()}, directory / "model.safetensors",
                  metadata={"format": "pt"})
        return directory

    def test_the_loss_is_the_checkpoints(self):
        truth = self.evaluate(self.checkpoint, "--data", self.val_data)
        for ranks in (0, 3):
            report = self.evaluate(self.hf, "--data", self.val_data, ranks=ranks)
            self.assertEqual(report["tokens"], truth["tokens"])
            self.assertAlmostEqual(report["loss"], truth["loss"], delta=1e-6)
        # Names as in openai-community/gpt2, with the buffers of old files.
        bare = self.copy_of("bare", change=lambda tensors: {
            **{name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}, "h.0.attn.bias": torch.ones(1, 1, 4, 4)})
        self.assertAlmostEqual(self.evaluate(bare, "--data", self.val_data)["loss"], truth["loss"], delta=1e-6)

    def test_it_is_a_model_to_start_from(self):
        truth = self.evaluate(self.checkpoint, "--data", self.val_data)["loss"]
        for name, arguments in (("model", ["--model", self.hf]), ("restart", ["--restart-checkpoint-file", self.hf])):
            again, data = self.folder / f"{name}-hf", ["--train-data", self.train_data, "--val-data", self.val_data]
            result = self.finetune(name, *arguments, *data, "--max-epochs", -1, "--json", ranks=2)
            self.assertAlmostEqual(result.json()["val_loss"], truth, delta=1e-6)
            self.finetune(name, *arguments, *data, "--max-steps", 3, "--lr", "1e-3", "--save-final-hf", again, ranks=2)
            found = self.evaluate(again, "--data", self.val_data)["loss"]
            self.assertAlmostEqual(found, self.evaluate(self.checkpoints(name) / "latest", "--data", self.val_data)["loss"], delta=1e-6)
            self.assertNotEqual(found, truth)
        result = fsdp_cli.run("fsdp-memprobe", ["--model", self.hf, "--ranks", 2, "--batch-size", 2, "--memory", "64GiB", "--json"])
        self.assertEqual(result.code, 0, str(result))

    def test_its_tokenizer(self):
        reference = fsdp_cli.folder("FSDP_DATA") / "gpt2"
        self.assertEqual(json.loads((self.hf / "vocab.json").read_text()), json.loads((reference / "vocab.json").read_text()))
        self.assertEqual((self.hf / "merges.txt").read_bytes(), (reference / "merges.txt").read_bytes())
        converted = self.folder / "converted"
        result = fsdp_cli.run("fsdp-ckpt-convert", [self.checkpoint, converted, "--to", "hf"])
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual((converted / "vocab.json").read_bytes(), (self.hf / "vocab.json").read_bytes())
        self.assertEqual((converted / "model.safetensors").read_bytes(), (self.hf / "model.safetensors").read_bytes())
        texts = self.folder / "texts.txt"
        texts.write_text("To be, or not to be, that is the question: Zoë\n")
        losses = [self.evaluate(model, "--data", texts)["loss"] for model in (self.hf, self.checkpoint)]
        self.assertAlmostEqual(*losses, delta=1e-6)
        # If the vocabulary is not the tokenizer's, the export has no tokenizer, and the program says so.
        result = self.train("small", "--max-steps", 1, "--save-final-hf", self.folder / "small")
        self.assertIn("no tokenizer goes along: the run named gpt2, which has 50257 ids, the model has 97", result.err)
        self.assertFalse((self.folder / "small" / "vocab.json").exists())

    def test_transformers_opens_it(self):
        try:
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError as missing:
            self.skipTest(str(missing))
        model = AutoModelForCausalLM.from_pretrained(self.hf, dtype=torch.float32).eval()
        with fsdp_cli.h5py.File(self.val_data) as file:
            ids = torch.from_numpy(file["input_ids"][:].astype("int64"))
        with torch.no_grad():
            scores = model(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1).double(), ids[:, 1:].flatten()).item()
        self.assertAlmostEqual(loss, self.evaluate(self.hf, "--data", self.val_data)["loss"], places=5)
        self.assertEqual(AutoTokenizer.from_pretrained(self.hf)("To be, or not")["input_ids"], [2514, 307, 11, 393, 407])

    def test_what_is_no_mingpt_is_refused_by_name(self):
        for config, word in (({"activation_function": "gelu"}, "activation_function"), ({"n_head": 2.5}, "'n_head' is 2.5"),
                             ({"n_layer": 2**63}, "'n_layer' is 9223372036854775808"), ({"scale_attn_by_inverse_layer_idx": True}, "inverse_layer"),
                             ({"model_type": "gpt_neo"}, "gpt_neo")):
            with self.subTest(word):
                wrong = self.copy_of(f"wrong-{len(list(self.folder.iterdir()))}", config)
                self.assert_refused(self.evaluate(wrong, "--data", self.val_data, code=4), 4, "config.json", word)
                self.assert_refused(self.finetune("wrong", "--model", wrong, "--train-data", self.train_data, ranks=2, code=4), 4, word)
        more = self.copy_of("more", change=lambda tensors: {**tensors, "transformer.h.0.adapter.weight": torch.ones(2)})
        self.assert_refused(self.evaluate(more, "--data", self.val_data, code=4), 4, "adapter")


class Llama(llama_cli.Case):
    def test_a_conversion_carries_the_tokenizer_of_the_run(self):
        model = llama_cli.make_snapshot(self.folder / "with-tokenizer")
        self.tune("llama", self.games, "--max-steps", 1, "--batch-size", 1, "--max-rows", 4, model=model)
        checkpoint, out = self.checkpoints("llama") / "latest", self.folder / "out"
        result = fsdp_cli.run("fsdp-ckpt-convert", [checkpoint, out, "--to", "hf"])
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual((out / "tokenizer.model").read_bytes(), (model / "tokenizer.model").read_bytes())
        self.assertNotIn("no tokenizer", result.err)
        report = self.evaluate(out, "--data", self.validation, "--max-rows", 2)
        self.assertAlmostEqual(report["loss"], self.evaluate(checkpoint, "--data", self.validation, "--max-rows", 2)["loss"], delta=1e-6)
        shutil.rmtree(model)
        result = fsdp_cli.run("fsdp-ckpt-convert", [checkpoint, self.folder / "without", "--to", "hf"])
        self.assertEqual(result.code, 0, str(result))
        self.assertIn(f"no tokenizer goes along: the run used that of {model}", result.err)


if __name__ == "__main__":
    fsdp_cli.main()
