"""transformers opens the directories that fsdp-ckpt-convert writes and computes the expected results; and the way back."""

import json
import os

import fsdp_cli
from convert_fixtures import ConvertCase, all_fixtures

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
with fsdp_cli.needed():
    import numpy
    import torch
    import transformers

# GPT-2's Conv1D stores these matrices as [in, out]; torch.nn.Linear, and therefore minGPT, as [out, in].
TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]])


def tiny_gpt2():
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=fsdp_cli.VOCAB, n_positions=fsdp_cli.SEQ_LEN, n_embd=32, n_layer=2, n_head=2,
                                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # including those that start at 0 or 1, so that an exchange shows
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def tiny_llama(**changes):
    torch.manual_seed(2)
    sizes = dict(vocab_size=61, hidden_size=32, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=64)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **changes})).eval()


def logits(model, ids=IDS):
    with torch.no_grad():
        return model(ids).logits


class TransformersCase(ConvertCase):
    def save(self, model, name):
        directory = self.folder / name
        model.save_pretrained(directory)
        return directory

    def open(self, directory, kind=transformers.AutoModelForCausalLM):
        """Opens the model and checks that no parameter was missing, left over or of another shape."""
        model, info = kind.from_pretrained(directory, output_loading_info=True, local_files_only=True)
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(info[what], f"{directory}: {what}")
        return model.eval()


class Converted(TransformersCase):
    def test_gpt2_and_back(self):
        original = tiny_gpt2()
        theirs = self.save(original, "gpt2")
        full = self.convert(theirs, "mingpt.pt", "--map", "gpt2-to-mingpt")
        state = torch.load(full, weights_only=True)
        # transformers saves no tensor twice: the tied head is saved as the embedding.
        expected = {name: tensor for name, tensor in original.state_dict().items() if name != "lm_head.weight"}
        self.assertEqual(sorted(name for name in state if name != "lm_head.weight"), sorted(expected))
        for name, tensor in expected.items():
            self.assertTrue(torch.equal(state[name], tensor.t() if name.endswith(TRANSPOSED) else tensor), name)
        back = self.convert(full, "gpt2-back", "--to", "hf", "--map", "mingpt-to-gpt2", "--config-from", theirs, "--max-shard-size", "20KB")
        self.assertGreater(len(list(back.glob("*.safetensors"))), 3)
        self.assertTrue(torch.equal(logits(self.open(back)), logits(original)))

    def test_llama_through_a_sharded_checkpoint(self):
        for name, changes in (("llama", {}), ("tied", {"tie_word_embeddings": True}), ("bf16", {"dtype": "bfloat16"})):
            with self.subTest(name):
                original = tiny_llama(**changes)
                theirs = self.save(original.bfloat16() if name == "bf16" else original, name)
                original = self.open(theirs)
                (theirs / "tokenizer_config.json").write_text('{"note": "carried along"}')
                sharded = self.convert(theirs, f"{name}-dcp", "--to", "dcp", "--shards", "3")
                back = self.convert(sharded, f"{name}-back", "--to", "hf", "--config-from", theirs)
                self.assertEqual((back / "tokenizer_config.json").read_text(), '{"note": "carried along"}')
                opened = self.open(back)
                self.assertEqual(opened.dtype, original.dtype)
                self.assertTrue(torch.equal(logits(opened), logits(original)))

    def test_other_types(self):
        """--dtype bf16 equals .bfloat16() bit for bit."""
        original = tiny_llama()
        back = self.convert(self.save(original, "f32"), "as-bf16", "--to", "hf", "--dtype", "bf16")
        opened = self.open(back)
        for name, tensor in original.bfloat16().state_dict().items():
            self.assertTrue(torch.equal(opened.state_dict()[name], tensor), name)

    def test_gpt_fixtures_with_their_sizes(self):
        """A minGPT .pt and the model's sizes suffice for a directory that opens; so does local state."""
        for name in ("full_t113_ws2_gpt", "local_t211_ws4_gpt_pad"):
            with self.subTest(name):
                fixture = next(f for f in all_fixtures() if f.name == name)
                sizes = fixture.truth["model"]
                config = self.folder / f"{name}.json"
                config.write_text(json.dumps({"n_layer": sizes["n_layer"], "n_head": sizes["n_head"], "n_embd": sizes["n_embd"],
                                              "n_hidden": sizes["n_hidden"], "vocab_size": sizes["vocab"], "block_size": sizes["block"]}))
                opened = self.open(self.convert(fixture.input, f"{name}-hf", "--to", "hf", "--model-config", config), transformers.GPT2LMHeadModel)
                state = opened.state_dict()
                for key, (_, shape, data) in fixture.tensors().items():
                    found = state[key].t() if key.endswith(TRANSPOSED) else state[key]
                    self.assertEqual(list(found.shape), shape, key)
                    self.assertTrue(found.contiguous().numpy().tobytes() == data, key)
                self.assertTrue(torch.isfinite(logits(opened)).all())

    def test_llama_fixture_with_its_sizes(self):
        fixture = next(f for f in all_fixtures() if f.name == "full_t211_ws3_llama")
        sizes, heads = fixture.truth["model"], fixture.truth["model"]["n_head"]
        config = transformers.LlamaConfig(vocab_size=sizes["vocab"], hidden_size=sizes["n_embd"], intermediate_size=sizes["n_hidden"],
                                          num_hidden_layers=sizes["n_layer"], num_attention_heads=heads, num_key_value_heads=sizes["n_kv"])
        config.save_pretrained(self.folder / "llama-config")
        opened = self.open(self.convert(fixture.input, "llama-hf", "--to", "hf", "--config-from", self.folder / "llama-config"))
        state = opened.state_dict()
        for key, (_, _, data) in fixture.tensors().items():
            self.assertTrue(state[key].numpy().tobytes() == data, key)


class Trained(TransformersCase):
    """fsdp-finetune and transformers compute the same loss."""

    def loss_of(self, model):
        """Computes the loss as fsdp-eval does: nats per token over all rows of val.h5."""
        with fsdp_cli.h5py.File(self.val_data) as file:
            ids = torch.from_numpy(file["input_ids"][:].astype(numpy.int64))
        scores = logits(model, ids[:, :-1])
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1).double(), ids[:, 1:].flatten()).item()

    def test_training_checkpoint_to_transformers(self):
        self.train("run", "--max-steps", "5", "--lr", "1e-2", "--warmup-steps", "1", ranks=2)
        checkpoint = self.checkpoints("run") / "latest"
        directory = self.convert(checkpoint, "trained-hf", "--to", "hf")
        self.assertAlmostEqual(self.loss_of(self.open(directory)), self.evaluate(checkpoint, "--data", self.val_data)["loss"], places=5)

    def test_transformers_to_training(self):
        original = tiny_gpt2()
        theirs = self.save(original, "start")
        full = self.convert(theirs, "start.pt", "--map", "gpt2-to-mingpt")
        before = self.loss_of(original)
        arguments = ["--restart-checkpoint-file", full, "--num-heads", "2", "--val-data", self.val_data]
        self.train("from-transformers", *arguments, "--max-steps", "20", "--lr", "1e-2", "--warmup-steps", "1", ranks=2)
        checkpoint = self.checkpoints("from-transformers") / "latest"
        after = self.evaluate(checkpoint, "--data", self.val_data)["loss"]
        self.assertLess(after, before)
        directory = self.convert(checkpoint, "finished-hf", "--to", "hf")
        self.assertAlmostEqual(self.loss_of(self.open(directory)), after, places=5)


if __name__ == "__main__":
    fsdp_cli.main()
