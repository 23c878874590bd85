"""Every family in the programs other than training: evaluation, greedy text, samples during training, sharded checkpoints and back, memory.

FSDP_ALL=1: memory of all families, not of one of each kind."""

import json
import string

import families_cli
import fsdp_cli
import memprobe_cli
from families_cli import FAMILIES, SOME, TOLERANCE, folder_of, truth

with fsdp_cli.needed():
    import torch
    from safetensors.torch import load_file, save_file

# Texts of one token each: a letter for ids below 256, a letter and a digit, which are merged, for other ids.
LETTERS = string.ascii_lowercase
PAIRS = [letter + digit for letter in string.ascii_uppercase for digit in string.digits]


def bytes_as_characters():
    """Returns GPT-2's characters for bytes, in its order."""
    own = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in own]
    return {**{b: chr(b) for b in own}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def tokenizer_for(ids, size):
    """Returns a tokenizer.json of `size` ids and the text of each of `ids`: the fixtures' models have no tokenizer."""
    narrow, wide = sorted(i for i in set(ids) if i < 256), range(256, size)
    name = {**dict(zip(narrow, LETTERS)), **dict(zip(wide, PAIRS))}
    others = [c for c in bytes_as_characters().values() if c not in name.values()]
    vocabulary = {name[i] if i in name else others.pop(): i for i in range(min(size, 256))}
    vocabulary |= {name[i]: i for i in wide}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [list(name[i]) for i in wide]}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model}, name


class Programs(families_cli.Case):
    def speaking(self, model):
        """Returns a copy of the model with a tokenizer, the prompt and the text that transformers generates."""
        greedy = families_cli.expected(model)["greedy"]
        config = json.loads((folder_of(model) / "config.json").read_text())
        size = max(256, config["vocab_size"])  # a tokenizer has an id for every byte
        tokenizer, name = tokenizer_for(greedy["prompt"] + greedy["tokens"], size)
        copy = self.folder / f"{model}-speaks"
        copy.mkdir(exist_ok=True)
        (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
        (copy / "config.json").write_text(json.dumps({**config, "vocab_size": size}))
        weights = load_file(folder_of(model) / "model.safetensors")
        for key in weights:
            if key.endswith(("embed_tokens.weight", "lm_head.weight", "wte.weight")):
                # The additional ids have logit 0, and some other id always has a higher one.
                weights[key] = torch.nn.functional.pad(weights[key], (0, 0, 0, size - config["vocab_size"]))
        save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
        return copy, greedy, *("".join(name[i] for i in greedy[key]) for key in ("prompt", "tokens"))

    def test_greedy_text_is_that_of_transformers(self):
        for model in FAMILIES:
            with self.subTest(model):
                copy, greedy, prompt, text = self.speaking(model)
                report = self.evaluate(copy, "--precision", "float32", "--prompt", prompt, "--num-tokens", len(greedy["tokens"]), "--temperature", 0)
                self.assertEqual(report["prompt_tokens"], greedy["prompt"])
                self.assertEqual(report["tokens_generated"], greedy["tokens"])
                self.assertEqual(report["text"], text)

    def test_samples_of_a_family_with_windows(self):
        """With learning rate 0 the samples equal the greedy text."""
        for model in ("mistral_window", "gemma3"):
            with self.subTest(model):
                copy, greedy, prompt, text = self.speaking(model)
                self.tune(f"{model}-samples", self.documents(model), "--lr", 0, "--weight-decay", 0, "--max-steps", 1, "--batch-size", 1, "--no-save",
                          "--sample-prompt", prompt, "--sample-tokens", len(greedy["tokens"]), model=copy, ranks=2)
                sample = json.loads((self.run_directory(f"{model}-samples") / "samples.jsonl").read_text())
                self.assertEqual((sample["tokens_generated"], sample["text"]), (greedy["tokens"], text))

    def test_evaluated_as_they_are_and_there_and_back_through_a_sharded_checkpoint(self):
        for model in FAMILIES:
            with self.subTest(model):
                sharded, back = self.folder / f"{model}-dcp", self.folder / f"{model}-back"
                self.convert(folder_of(model), sharded, "--to", "dcp")
                self.convert(sharded, back, "--to", "hf", "--config-from", folder_of(model))
                for at in (folder_of(model), back):
                    report = self.evaluate(at, "--precision", "float32", "--data", self.documents(model), "--batch-size", 2)
                    self.assertLess(abs(report["loss"] - truth(model)["loss"]), TOLERANCE)

    def test_memory_is_predicted(self):
        for model in SOME:
            i = FAMILIES.index(model)
            with self.subTest(model):
                wide = json.loads((folder_of(model) / "config.json").read_text())
                if model == "gpt2":
                    wide.update(n_embd=128, n_inner=384, vocab_size=2048, n_positions=1024, n_layer=4, n_head=4)
                else:
                    wide.update(hidden_size=128, intermediate_size=384, vocab_size=2048, max_position_embeddings=1024, num_hidden_layers=4,
                                num_attention_heads=4, num_key_value_heads=2)
                if wide.get("sliding_window"):
                    wide["sliding_window"] = 96
                wide.pop("layer_types", None)
                config = memprobe_cli.write_config(self.folder, wide, f"{model}.json")
                report = memprobe_cli.report(["--model", config, "--seq-len", (256, 640)[i % 2], "--batch-size", 2, "--measure",
                                              "--precision", ("bf16", "float32")[i // 2 % 2]], ranks=1 + i % 2)
                fsdp_cli.say(f"{model}: predicted {100 * report['relative_error']:+.2f} %")
                self.assertLess(abs(report["relative_error"]), 0.005, report)


if __name__ == "__main__":
    fsdp_cli.main()
