"""GGUF files as models: fsdp-eval reads them, and fsdp-ckpt-convert --to hf makes of them what transformers opens.

The truth are losses of transformers (tests/fixtures/families), ids of the tokenizers library, and blocks of ggml that are computed here with numpy."""

import json
import shutil
import struct

import families_cli
import fsdp_cli
import llama_cli
import numpy
from convert_fixtures import read_safetensors
from convert_gguf_test import FIXTURES, VOCABULARIES, Gguf, write_zeros

with fsdp_cli.needed():
    import tokenizers

# Families whose GGUF file says all that the model is: llama.cpp knows no window of Mistral and Qwen.
FAMILIES = ["mistral_full", "qwen2_tied", "qwen2_untied", "qwen3", "gemma", "gemma2", "gemma3", "gpt2", "olmo2"]
# Gemma's norms are stored as 1 + weight in float32, and the sum is rounded.
ROUNDED = {"gemma", "gemma2", "gemma3"}
TEXTS = ["", " ", "a", "Hello, world.", "  two  spaces ", "one\ntwo\n\n three\t", "I'm you'RE 12345 67", "naïve 東京 🎭 é", "<s> and </s>", "x" * 50, "e2e4 <|im_start|> b"]

KINDS = ["UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "FLOAT32", "BOOL", "STRING", "ARRAY", "UINT64", "INT64", "FLOAT64"]
CODES = "BbHhIif?  Qqd"


def text_of(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value_of(kind, value):
    return text_of(value) if KINDS[kind] == "STRING" else struct.pack("<" + CODES[kind], value)


class GgufModels(families_cli.Case):
    def gguf(self, source, name, *options):
        self.convert(source, self.folder / name, *options)
        return self.folder / name

    def loss(self, model, data):
        return self.evaluate(model, "--precision", "float32", "--data", data)["loss"]

    def test_losses_are_those_of_transformers(self):
        """Fixtures that llama.cpp could not express get other numbers in config.json, and have the loss of their folder."""
        changes = {name: model["changes"] for name, model in json.loads((FIXTURES / "families" / "gguf.json").read_text(encoding="utf-8"))["models"].items()}
        for family in FAMILIES:
            with self.subTest(family):
                folder, data = families_cli.folder_of(family), self.documents(family)
                if changes.get(family):
                    config = {**json.loads((folder / "config.json").read_text()), **changes[family]}
                    folder = shutil.copytree(folder, self.folder / f"changed-{family}")
                    (folder / "config.json").write_text(json.dumps(config))
                file = self.gguf(folder, f"family-{family}.gguf", "--dtype", "f32")
                found, beside = self.loss(file, data), self.loss(folder, data)
                if not changes.get(family):
                    self.assertAlmostEqual(found, families_cli.truth(family)["loss"], delta=families_cli.TOLERANCE)
                self.assertAlmostEqual(found, beside, delta=1e-6 if family in ROUNDED else 0)
                # Back again: the weights and what config.json says of the model.
                back = self.gguf(file, f"family-{family}-hf", "--to", "hf")
                self.assertEqual(self.loss(back, data), found)
                if family not in ROUNDED:
                    self.assertEqual(fsdp_cli.run("fsdp-ckpt-convert", ["--verify", self.gguf(folder, f"family-{family}-f32", "--to", "hf", "--dtype", "float32"), back]).code, 0)

    def test_quantised_files_are_their_blocks(self):
        folder = llama_cli.make_snapshot(self.folder / "wide", tokenizer=False, files=1, dtype="F32", hidden_size=64, intermediate_size=96)
        data = llama_cli.write_documents(self.folder / "wide.h5", [[(7 * i + 3 * j) % 1016 for j in range(40)] for i in range(6)])
        file = self.gguf(folder, "wide.gguf", "--dtype", "q8_0")
        found = read_safetensors(self.gguf(file, "wide-hf", "--to", "hf") / "model.safetensors")
        blocks = {name: data for name, (kind, dims, data) in Gguf(file).tensors.items() if kind == "Q8_0"}
        self.assertEqual(len(blocks), 2 + 3 * 7)
        names = {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight", "blk.2.attn_v.weight": "model.layers.2.self_attn.v_proj.weight",
                 "blk.1.ffn_down.weight": "model.layers.1.mlp.down_proj.weight", "blk.0.attn_q.weight": "model.layers.0.self_attn.q_proj.weight",
                 "blk.0.attn_k.weight": "model.layers.0.self_attn.k_proj.weight"}
        for name, ours in names.items():
            stored = numpy.frombuffer(blocks[name], numpy.uint8).reshape(-1, 34)
            values = stored[:, :2].copy().view(numpy.float16).astype(numpy.float32) * stored[:, 2:].view(numpy.int8).astype(numpy.float32)
            kind, shape, data_bytes = found[ours]
            values = values.reshape(shape)
            if "attn_q" in name or "attn_k" in name:  # pairs of rows of a head become its two halves
                values = values.reshape(-1, 8, 2, shape[1]).swapaxes(1, 2).reshape(shape)
            self.assertEqual(kind, "F32")
            self.assertTrue(data_bytes == values.tobytes(), name)
        self.assertEqual(self.loss(file, data), self.loss(self.folder / "wide-hf", data))
        self.assertNotEqual(self.loss(file, data), self.loss(folder, data))
        for kind in ("f16", "bf16"):
            self.assertEqual(*(self.loss(at, data) for at in (self.gguf(folder, f"wide-{kind}.gguf", "--dtype", kind),
                                                             self.gguf(self.folder / f"wide-{kind}.gguf", f"wide-{kind}-hf", "--to", "hf"))))

    def model_with(self, name, rows, label=""):
        """Returns a Llama of zeros with a tokenizer of the fixtures."""
        source, model = FIXTURES / VOCABULARIES[name], self.folder / "vocabularies" / (label or name)
        model.mkdir(parents=True)
        for file in source.iterdir():
            shutil.copy(file, model)
        (model / "config.json").write_text(json.dumps({
            "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 4, "vocab_size": rows,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True}))
        block = {"self_attn.q_proj": [8, 8], "self_attn.k_proj": [4, 8], "self_attn.v_proj": [4, 8], "self_attn.o_proj": [8, 8], "mlp.gate_proj": [4, 8], "mlp.up_proj": [4, 8],
                 "mlp.down_proj": [8, 4], "input_layernorm": [8], "post_attention_layernorm": [8]}
        write_zeros(model / "model.safetensors", {"model.embed_tokens.weight": [rows, 8], "model.norm.weight": [8],
                                                  **{f"model.layers.0.{key}.weight": shape for key, shape in block.items()}})
        return model

    def test_ids_are_those_of_the_tokenizer(self):
        rows = json.loads((FIXTURES / "families" / "gguf.json").read_text(encoding="utf-8"))["vocabularies"]
        for name in ("gpt2", "qwen", "tekken", "chatml", "llama3", "llama2"):
            with self.subTest(name):
                model = self.model_with(name, rows[name]["rows"])
                file = self.gguf(model, f"{name}.gguf")
                back = self.gguf(file, f"{name}-hf", "--to", "hf")
                before, after = (tokenizers.Tokenizer.from_file(str(at / "tokenizer.json")) for at in (model, back))
                for text in TEXTS:
                    ids = before.encode(text).ids
                    # Flags of added tokens (lstrip, single_word) have no key.
                    if "<mask>" not in text:
                        self.assertEqual(after.encode(text).ids, ids, text)
                    if before.decoder is not None:
                        self.assertEqual(after.decode(ids), before.decode(ids), text)
                data = self.folder / f"{name}.jsonl"
                data.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS if text.strip()))
                reports = [self.evaluate(at, "--data", data) for at in (model, file)]
                self.assertEqual(*[{key: report[key] for key in ("loss", "tokens")} for report in reports])

    def test_a_chat_template_and_prompts(self):
        model = self.model_with("chatml", 512, "chat")
        config = json.loads((model / "tokenizer_config.json").read_text())
        config["chat_template"] = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
        (model / "tokenizer_config.json").write_text(json.dumps(config))
        file = self.gguf(model, "chat.gguf")
        asked = ["--chat", "--prompt", "What?", "--num-tokens", 3, "--temperature", 0]
        found, expected = (self.evaluate(at, *asked) for at in (file, model))
        self.assertEqual(found["prompt_tokens"], expected["prompt_tokens"])
        prompts = self.folder / "prompts.jsonl"
        prompts.write_text('{"prompt": "Hello"}\n{"prompt": "a b"}\n')
        lines = [fsdp_cli.run("fsdp-eval", [at, "--prompts", prompts, "--num-tokens", 3, "--temperature", 0, *fsdp_cli.COMMON]) for at in (file, model)]
        self.assertEqual([line.code for line in lines], [0, 0], str(lines))
        written = [sorted((record["index"], record["text"], record["tokens_generated"]) for record in map(json.loads, line.out.splitlines())) for line in lines]
        self.assertEqual(len(written[0]), 2)
        self.assertEqual(written[0], written[1])

    # --- files that are damaged, or say what is not known ---------------------------------------------------------------
    def refused(self, name, data, *words):
        file = self.folder / f"{name}.gguf"
        file.write_bytes(data)
        for program, arguments in (("fsdp-eval", [file, "--data", self.val_data, "--device", "cpu"]), ("fsdp-ckpt-convert", [file, self.folder / f"{name}-out", "--to", "hf"])):
            self.assert_refused(fsdp_cli.run(program, arguments), 4, file.name, *words)

    def changed(self, file, changes, drop=(), twice=()):
        """Returns the bytes of a GGUF file with other keys: {key: (number of its type, value)}."""
        found, entries = Gguf(file), []
        for key, (types, value) in found.keys.items():
            if not key.startswith("GGUF.") and key not in drop and key not in changes:
                kind = KINDS.index(types[-1])
                entry = text_of(key) + (struct.pack("<IIQ", 9, kind, len(value)) + b"".join(value_of(kind, one) for one in value) if types[0] == "ARRAY"
                                        else struct.pack("<I", kind) + value_of(kind, value))
                entries += [entry] * (2 if key in twice else 1)
        entries += [text_of(key) + struct.pack("<I", kind) + value_of(kind, value) for key, (kind, value) in changes.items()]
        names, offset = [], 0
        for name, (kind, dims, data) in found.tensors.items():
            number = {"F32": 0, "F16": 1, "Q8_0": 8, "BF16": 30}[kind]
            names.append(text_of(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, offset))
            offset += -(-len(data) // 32) * 32
        head = b"GGUF" + struct.pack("<IQQ", 3, len(names), len(entries)) + b"".join(entries) + b"".join(names)
        return head + bytes(-len(head) % 32) + b"".join(data + bytes(-len(data) % 32) for _, _, data in found.tensors.values())

    def test_what_is_not_known_is_named(self):
        model = self.model_with("chatml", 512, "plain")
        file = self.gguf(model, "plain.gguf")
        same = self.folder / "same.gguf"
        same.write_bytes(self.changed(file, {}))
        self.assertIn("loss", self.evaluate(same, "--data", self.write_text("x.txt", "Hello, world.")))
        u32, f32, word = 4, 6, 8
        for name, changes, drop, words in (
                ("architecture", {"general.architecture": (word, "mamba")}, (), ["general.architecture", "mamba"]),
                ("key", {"llama.attention.sliding_window": (u32, 7)}, (), ["llama.attention.sliding_window", "7"]),
                ("experts", {"llama.expert_count": (u32, 8)}, (), ["llama.expert_count"]),
                ("missing", {}, ("llama.embedding_length",), ["llama.embedding_length"]),
                ("type", {"llama.block_count": (word, "one")}, (), ["llama.block_count", "integer"]),
                ("blocks", {"llama.block_count": (u32, 2**32 - 1)}, (), ["llama.block_count"]),
                ("two blocks", {"llama.block_count": (u32, 2)}, (), ["blk.1."]),
                ("no blocks", {"llama.block_count": (u32, 0)}, (), ["llama.block_count"]),
                ("width", {"llama.embedding_length": (u32, 16)}, (), ["token_embd.weight", "shape"]),
                ("heads", {"llama.attention.head_count": (u32, 2**31)}, (), ["llama.attention.head_count"]),
                ("scaling", {"llama.rope.scaling.type": (word, "longrope")}, (), ["llama.rope.scaling.type", "longrope"]),
                ("epsilon", {"llama.attention.layer_norm_rms_epsilon": (f32, float("nan"))}, (), ["layer_norm_rms_epsilon"]),
                ("parts", {"split.count": (u32, 3)}, (), ["split.count"])):
            with self.subTest(name):
                self.refused(name, self.changed(file, changes, drop), *words)
        for name, changes, words in (("pre", {"tokenizer.ggml.pre": (word, "jais-2")}, ["tokenizer.ggml.pre", "jais-2"]),
                                     ("kind", {"tokenizer.ggml.model": (word, "bert")}, ["tokenizer.ggml.model", "bert"])):
            other = self.folder / f"{name}.gguf"
            other.write_bytes(self.changed(file, changes))
            self.assert_refused(fsdp_cli.run("fsdp-eval", [other, "--prompt", "a", "--device", "cpu"]), 4, other.name, *words)

    def write_text(self, name, text):
        (self.folder / name).write_text(text)
        return self.folder / name

    def test_damaged_files_are_refused(self):
        file = self.gguf(self.model_with("chatml", 512, "whole"), "whole.gguf")
        data = file.read_bytes()
        for size in (4, 20, 100, len(data) // 3, len(data) - 40):
            self.refused(f"cut{size}", data[:size])
        huge = struct.pack("<Q", 2**60)
        self.refused("tensors", data[:8] + huge + data[16:])
        self.refused("entries", data[:16] + huge + data[24:])
        at = data.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
        self.refused("tokens", data[:at] + huge + data[at + 8:])
        at = data.index(b"token_embd.weight") + len(b"token_embd.weight")
        self.refused("offset", data[:at + 24] + huge + data[at + 32:], "token_embd.weight")
        self.refused("dims", data[:at] + struct.pack("<I", 77) + data[at + 4:], "token_embd.weight")
        self.refused("size", data[:at + 4] + huge + data[at + 12:], "token_embd.weight")
        self.refused("number", data[:at + 20] + struct.pack("<I", 999) + data[at + 24:], "999")
        self.refused("twice", data.replace(b"blk.0.attn_q.weight", b"blk.0.attn_k.weight"), "blk.0.attn_k.weight", "twice")
        self.refused("key twice", self.changed(file, {}, twice=["llama.block_count"]), "llama.block_count", "twice")

    def test_training_names_the_command(self):
        file = self.gguf(self.model_with("chatml", 512, "train"), "train.gguf")
        result = fsdp_cli.run("fsdp-finetune", ["--model", file, "--train-data", self.train_data, "--out-dir", self.runs, "--run-name", "gguf", *fsdp_cli.COMMON])
        self.assert_refused(result, 4, "train.gguf", "fsdp-ckpt-convert", "--to hf")
        self.assert_refused(fsdp_cli.run("fsdp-ckpt-convert", [file, self.folder / "again.gguf"]), 2, "--to hf")


if __name__ == "__main__":
    fsdp_cli.main()
