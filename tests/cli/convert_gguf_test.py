"""GGUF files equal those of llama.cpp's own converter: every key, every tensor's type, dims and bytes. tests/fixtures/doors/gguf.tar.xz
has what that converter made of three small models, tests/fixtures/families/gguf.json what it made of other families and vocabularies;
../shared/fixtures/doors has its files, which are compared byte for byte."""

import hashlib
import json
import math
import pathlib
import shutil
import struct
import tarfile

import fsdp_cli
from convert_fixtures import PROGRAM, ConvertCase, read_safetensors

FIXTURES = fsdp_cli.folder("FSDP_FIXTURES")
SHARED = FIXTURES.resolve().parents[2] / "shared" / "fixtures" / "doors"
# Name and struct's code of each type, in the order of their numbers.
KINDS = [("UINT8", "B"), ("INT8", "b"), ("UINT16", "H"), ("INT16", "h"), ("UINT32", "I"), ("INT32", "i"), ("FLOAT32", "f"), ("BOOL", "?"), ("STRING", ""),
         ("ARRAY", ""), ("UINT64", "Q"), ("INT64", "q"), ("FLOAT64", "d")]
TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 8: ("Q8_0", 32, 34), 30: ("BF16", 1, 2)}
ALIGNMENT = 32


class Gguf:
    """A GGUF file: `keys` {key: (names of types, value)} and `tensors` {name: (type, dims, bytes)}."""

    def __init__(self, path):
        self.data, self.at = pathlib.Path(path).read_bytes(), 4
        assert self.data[:4] == b"GGUF"
        version, num_tensors, num_keys = self.number("I"), self.number("Q"), self.number("Q")
        self.keys = {"GGUF.version": (["UINT32"], version), "GGUF.tensor_count": (["UINT64"], num_tensors), "GGUF.kv_count": (["UINT64"], num_keys)}
        for _ in range(num_keys):
            key = self.text()
            self.keys[key] = self.value(self.number("I"))
        infos = []
        for _ in range(num_tensors):
            name = self.text()
            dims = [self.number("Q") for _ in range(self.number("I"))]
            infos.append((name, dims, self.number("I"), self.number("Q")))
        self.begin = -(-self.at // ALIGNMENT) * ALIGNMENT
        self.tensors = {}
        for name, dims, number, offset in infos:
            kind, block, size = TYPES[number]
            first = self.begin + offset
            self.tensors[name] = (kind, dims, self.data[first:first + math.prod(dims) // block * size])

    def number(self, code):
        size = struct.calcsize("<" + code)
        self.at += size
        return struct.unpack("<" + code, self.data[self.at - size:self.at])[0]

    def text(self):
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def value(self, kind):
        name, code = KINDS[kind]
        if name == "STRING":
            return [name], self.text()
        if name != "ARRAY":
            return [name], self.number(code)
        element = self.number("I")
        return [name, KINDS[element][0]], [self.value(element)[1] for _ in range(self.number("Q"))]


def short(value):
    """Returns a value as expected.json has it: long arrays by their first elements and their checksum."""
    if not isinstance(value, list) or len(value) <= 40:
        return value
    return {"array_of": len(value), "first": value[:8], "sha256_of_json": hashlib.sha256(json.dumps(value).encode()).hexdigest()}


def write_zeros(path, shapes):
    """Writes a safetensors file of float32 zeros."""
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


# Where the vocabularies of gguf.json are; some have files of their own beside them.
VOCABULARIES = {"gpt2": "tokenizers/json/gpt2", "qwen": "tokenizers/json/qwen", "tekken": "tokenizers/json/tekken", "olmo2": "tokenizers/json/olmo2",
                "chatml": "families/tokenizers/chatml", "llama3": "families/tokenizers/llama3", "llama2": "families/tokenizers/llama2", "spm": "tokenizers/tokenizer.model"}
BESIDE = {"spm": {"tokenizer_config.json": {"add_bos_token": True, "add_eos_token": False, "add_prefix_space": False, "chat_template": "T",
                                            "added_tokens_decoder": {"1": {"content": "<s>", "special": True}, "302": {"content": "▁<x> y", "special": False},
                                                                     "303": {"content": "<|role|>", "special": False}}},
                  "added_tokens.json": {"<pad0>": 301}}}


class GgufFiles(ConvertCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with tarfile.open(FIXTURES / "doors" / "gguf.tar.xz") as archive:
            archive.extractall(cls.folder, filter="data")
        cls.models = sorted((cls.folder / "gguf").iterdir())

    def model(self, name):
        return self.folder / "gguf" / name / "ckpt"

    def options(self, folder, kind):
        pre = json.loads((folder / "expected.json").read_text())["options"].get("pre")
        return ["--dtype", kind, *(["--pre-tokenizer", pre] if pre else [])]

    def assert_same(self, path, truth, label):
        found = Gguf(path)
        self.assertEqual({key: [types, short(value)] for key, (types, value) in found.keys.items()}, truth["kv"], label)
        self.assertEqual(list(found.keys), list(truth["kv"]), label)
        for name, tensor in truth["tensors"].items():
            kind, dims, data = found.tensors[name]
            self.assertEqual((kind, dims, hashlib.sha256(data).hexdigest()), (tensor["type"], tensor["ne"], tensor["sha256"]), f"{label}: {name}")
        self.assertEqual(list(found.tensors), list(truth["tensors"]), label)

    def test_every_key_and_tensor_equals_llama_cpp(self):
        for folder in self.models:
            for kind, truth in json.loads((folder / "expected.json").read_text())["gguf"].items():
                with self.subTest(f"{folder.name} {kind}"):
                    made = self.convert(folder / "ckpt", f"{folder.name}-{kind}/tiny.gguf", *self.options(folder, kind))
                    self.assert_same(made, truth, f"{folder.name} {kind}")
                    self.assertEqual(fsdp_cli.run(PROGRAM, ["--check", made]).code, 0)
                    self.assertEqual(fsdp_cli.run(PROGRAM, ["--verify", folder / "ckpt", made]).code, 0)

    def test_families_equal_llama_cpp(self):
        """Without their tokenizers, which are larger than the models; the file then says how many ids there are."""
        truths = json.loads((FIXTURES / "families" / "gguf.json").read_text(encoding="utf-8"))["models"]
        for name, truth in truths.items():
            model = self.folder / "families" / name
            model.mkdir(parents=True)
            shutil.copy(FIXTURES / "families" / name / "model.safetensors", model)
            config = {**json.loads((FIXTURES / "families" / name / "config.json").read_text()), **truth["changes"]}
            (model / "config.json").write_text(json.dumps(config))
            for kind in ("f32", "q8_0"):
                with self.subTest(f"{name} {kind}"):
                    found = Gguf(self.convert(model, f"families/{name}-{kind}/tiny.gguf", "--dtype", kind))
                    keys = {key: [types, value] for key, (types, value) in found.keys.items() if not key.startswith("GGUF.")}
                    if not truth[kind]["kv"].keys() & {"llama.vocab_size"}:
                        del keys[f"{keys['general.architecture'][1]}.vocab_size"]
                    self.assertEqual(keys, truth[kind]["kv"])
                    self.assertEqual({key: [tensor, dims, hashlib.sha256(data).hexdigest()[:16]] for key, (tensor, dims, data) in found.tensors.items()},
                                     truth[kind]["tensors"])

    def test_vocabularies_equal_llama_cpp(self):
        truths = json.loads((FIXTURES / "families" / "gguf.json").read_text(encoding="utf-8"))["vocabularies"]
        block = {"self_attn.q_proj": [8, 8], "self_attn.k_proj": [4, 8], "self_attn.v_proj": [4, 8], "self_attn.o_proj": [8, 8], "mlp.gate_proj": [4, 8], "mlp.up_proj": [4, 8],
                 "mlp.down_proj": [8, 4], "input_layernorm": [8], "post_attention_layernorm": [8]}
        for name, truth in truths.items():
            model, source = self.folder / "vocabularies" / name, FIXTURES / VOCABULARIES[name]
            model.mkdir(parents=True)
            for file in [source] if source.is_file() else source.iterdir():
                shutil.copy(file, model)
            for file, content in BESIDE.get(name, {}).items():
                (model / file).write_text(json.dumps(content))
            (model / "config.json").write_text(json.dumps({
                "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 4, "vocab_size": truth["rows"],
                "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2}))
            write_zeros(model / "model.safetensors", {"model.embed_tokens.weight": [truth["rows"], 8], "model.norm.weight": [8],
                                                      **{f"model.layers.0.{key}.weight": shape for key, shape in block.items()}})
            with self.subTest(name):
                keys = Gguf(self.convert(model, f"{name}.gguf")).keys
                self.assertEqual({key: [keys[key][0], short(keys[key][1])] for key in keys if key in truth["kv"]}, truth["kv"])
                more = {key for key in keys if key.startswith("tokenizer.")} - set(truth["kv"])
                # Scores that follow the merges of tokenizer.json are ours alone.
                self.assertEqual(more, {f"tokenizer.ggml.{key}" for key in ("tokens", "scores", "token_type")} if name == "llama2" else set())
        merged = Gguf(self.folder / "llama2.gguf").keys
        scores = dict(zip(merged["tokenizer.ggml.tokens"][1], merged["tokenizer.ggml.scores"][1]))
        merges = json.loads((FIXTURES / VOCABULARIES["llama2"] / "tokenizer.json").read_text(encoding="utf-8"))["model"]["merges"]
        first, last = ("".join(merge if isinstance(merge, list) else merge.split()) for merge in (merges[0], merges[-1]))
        self.assertGreater(scores[first], scores[last])

    def test_every_shared_file_equals_byte_for_byte(self):
        if not SHARED.is_dir():
            self.skipTest(f"{SHARED} is not there; tests/fixtures/doors has the checksums of its tensors")
        files = sorted(SHARED.glob("gguf_*/expected-*.gguf"))
        for file in files:
            kind = file.stem.removeprefix("expected-")
            made = self.convert(file.parent / "ckpt", f"shared/{file.parent.name}-{kind}/tiny.gguf", *self.options(file.parent, kind))
            self.assertEqual(made.read_bytes(), file.read_bytes(), str(file))
        fsdp_cli.say(f"{len(files)} GGUF files compared")
        self.assertGreater(len(files), 9)

    def test_the_types_of_a_model_stay_without_dtype(self):
        made = Gguf(self.convert(self.model("gguf_llama_bpe_tied_rope3"), "plain.gguf"))
        self.assertEqual((made.keys["general.file_type"][1], made.tensors["token_embd.weight"][0]), (32, "BF16"))
        self.assertEqual(made.keys["tokenizer.ggml.pre"][1], "gpt-2")  # how its tokenizer.json splits texts
        self.assertEqual(made.keys["general.name"][1], "plain")

    def test_a_mingpt_of_a_run(self):
        """Our names and matrices of [out, in], with the optimizer beside them."""
        model = self.model("gguf_gpt2_bpe")
        ours = self.convert(model, "ours.pt", "--map", "gpt2-to-mingpt")
        for kind in ("f16", "q8_0"):
            made = self.convert(ours, f"ours-{kind}/tiny.gguf", "--config-from", model, "--dtype", kind)
            other = self.convert(model, f"theirs-{kind}/tiny.gguf", "--dtype", kind)
            self.assertEqual(made.read_bytes(), other.read_bytes())
            self.assertEqual(fsdp_cli.run(PROGRAM, ["--verify", ours, made, "--model-config", model]).code, 0)
        result = fsdp_cli.run("fsdp-finetune", ["--train-data", self.train_data, "--out-dir", self.runs, "--run-name", "run", "--max-steps", 1, "--batch-size", 2,
                                                *fsdp_cli.COMMON, *fsdp_cli.TINY_MODEL])
        self.assertEqual(result.code, 0, str(result))
        result = fsdp_cli.run(PROGRAM, [self.runs / "run", self.folder / "run.gguf"])
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("no tokenizer goes along", result.err)
        made = Gguf(self.folder / "run.gguf")
        self.assertEqual((made.keys["general.architecture"][1], made.keys["tokenizer.ggml.model"][1]), ("gpt2", "none"))
        self.assertEqual(fsdp_cli.run(PROGRAM, ["--verify", self.runs / "run", self.folder / "run.gguf"]).code, 0)

    def test_a_change_is_found(self):
        model = self.model("gguf_llama_spm")
        made = self.convert(model, "changed.gguf", "--dtype", "q8_0")
        data = bytearray(made.read_bytes())
        data[-100] ^= 1
        made.write_bytes(bytes(data))
        result = fsdp_cli.run(PROGRAM, ["--verify", model, made])
        self.assertEqual((result.code, "1 of" in result.out), (3, True), str(result))

    def test_gguf_as_input(self):
        model = self.model("gguf_llama_spm")
        made = self.convert(model, "input.gguf", "--dtype", "f32")
        report = fsdp_cli.run(PROGRAM, ["--inspect", "--json", made]).json()
        self.assertEqual((report["format"], report["metadata"]["llama.block_count"], len(report["tensors"])), ("GGUF", "1", 12))
        back = read_safetensors(self.convert(made, "back.safetensors"))
        self.assertEqual(back["output.weight"], read_safetensors(model / "model.safetensors")["lm_head.weight"])
        small = self.convert(model, "small.gguf", "--dtype", "q8_0")
        self.assertIn("Q8_0", fsdp_cli.run(PROGRAM, ["--inspect", small]).out)
        for name in ("no.safetensors", "no.pt"):
            self.assert_refused(fsdp_cli.run(PROGRAM, [small, self.folder / name]), 2 if "safe" in name else 4, "Q8_0")
        cut = self.folder / "cut.gguf"
        cut.write_bytes(made.read_bytes()[:-200])
        self.assert_refused(fsdp_cli.run(PROGRAM, ["--inspect", cut]), 4, "cut.gguf", "cut short")

    def test_chat_templates_and_marks(self):
        model = pathlib.Path(shutil.copytree(self.model("gguf_llama_bpe_tied_rope3"), self.folder / "chat"))
        config = json.loads((model / "tokenizer_config.json").read_text())
        config.update(chat_template=[{"name": "default", "template": "A"}, {"name": "tool use", "template": "B"}], add_bos_token=True, pad_token="<|end|>")
        (model / "tokenizer_config.json").write_text(json.dumps(config))
        keys = Gguf(self.convert(model, "chat.gguf")).keys
        self.assertEqual([keys[f"tokenizer.chat_template{name}"][1] for name in ("", ".tool_use", "s")], ["A", "B", ["tool_use"]])
        self.assertEqual((keys["tokenizer.ggml.add_bos_token"][1], keys["tokenizer.ggml.padding_token_id"][1]), (True, 130))
        (model / "chat_template.jinja").write_text("C")
        self.assertEqual(Gguf(self.convert(model, "jinja.gguf")).keys["tokenizer.chat_template"][1], "C")
        (model / "additional_chat_templates").mkdir()
        (model / "additional_chat_templates" / "tool_use.jinja").write_text("D")
        keys = Gguf(self.convert(model, "files.gguf")).keys
        self.assertEqual([keys[f"tokenizer.chat_template{name}"][1] for name in ("", ".tool_use")], ["C", "D"])
        self.assertEqual((self.convert(model, "hf", "--to", "hf") / "additional_chat_templates" / "tool_use.jinja").read_text(), "D")

    def test_the_space_before_a_text_follows_the_vocabulary(self):
        """llama.cpp's converter tells of none for every Gemma, and says nothing for other families."""
        for prepends in (True, False):
            for family in ("gemma", "qwen3", "mistral_full"):
                model = pathlib.Path(shutil.copytree(FIXTURES / "families" / family, self.folder / f"{family}-{prepends}"))
                # A normalizer_spec with add_dummy_prefix
                (model / "tokenizer.model").write_bytes((self.model("gguf_llama_spm") / "tokenizer.model").read_bytes() + bytes([0x1A, 2, 0x18, prepends]))
                keys = Gguf(self.convert(model, f"{family}-{prepends}.gguf")).keys
                found = keys.get("tokenizer.ggml.add_space_prefix", (None, True))[1]
                self.assertEqual(found, prepends, family)

    def test_the_end_mark_that_only_a_name_tells(self):
        """Without the mark's id, llama.cpp ends texts at token 11."""
        model = pathlib.Path(shutil.copytree(self.model("gguf_gpt2_bpe"), self.folder / "named"))
        bpe = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))["model"]
        (model / "tokenizer.json").unlink()
        (model / "vocab.json").write_text(json.dumps(bpe["vocab"]))
        (model / "merges.txt").write_text("\n".join(merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]), encoding="utf-8")
        name, number = list(bpe["vocab"].items())[-1]
        (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": name}))
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key not in ("bos_token_id", "eos_token_id")}))
        keys = Gguf(self.convert(model, "named.gguf")).keys
        self.assertEqual((keys["tokenizer.ggml.eos_token_id"][1], "tokenizer.ggml.bos_token_id" in keys), (number, False))

    def test_a_vocabulary_without_marks(self):
        """llama.cpp must neither end texts at token 11 nor begin them with it."""
        model = pathlib.Path(shutil.copytree(self.model("gguf_gpt2_bpe"), self.folder / "unmarked"))
        bpe = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))["model"]
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (model / file).unlink()
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key not in ("bos_token_id", "eos_token_id")}))
        (model / "merges.txt").write_text("\n".join(merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]), encoding="utf-8")
        pieces = list(bpe["vocab"])
        self.assertEqual(len(pieces) + 2, config["vocab_size"])
        for more, end, said in ((["<|endoftext|>"], "<|endoftext|>", ""), ([], "[PAD125]", "no end"), (["ÿ", "more"], "ÿ", "token 125"), (["some", "more"], None, "token 11")):
            with self.subTest(end):
                (model / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces + more)}))
                out = self.folder / f"unmarked-{end == 'ÿ'}-{said}.gguf"
                result = fsdp_cli.run(PROGRAM, [model, out])
                self.assertEqual(result.code, 0, str(result))
                keys = Gguf(out).keys
                number = keys.get("tokenizer.ggml.eos_token_id", (None, None))[1]
                self.assertEqual(number if number is None else keys["tokenizer.ggml.tokens"][1][number], end)
                self.assertEqual((keys["tokenizer.ggml.add_bos_token"][1], "tokenizer.ggml.bos_token_id" in keys), (False, False))
                self.assertIn(said, result.err)
                self.assertEqual("no end of a text" in result.err, said != "")

    def refused(self, model, code, *words, options=()):
        self.assert_refused(fsdp_cli.run(PROGRAM, [model, self.folder / "refused.gguf", *options]), code, *words)
        self.assertFalse((self.folder / "refused.gguf").exists())

    def changed(self, name, file, change):
        model = pathlib.Path(shutil.copytree(self.model(name), self.folder / f"changed-{len(list(self.folder.iterdir()))}"))
        path = model / file
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
        return model

    def with_scaling(self, family, name, scaling, **changes):
        model = pathlib.Path(shutil.copytree(FIXTURES / "families" / family, self.folder / f"{family}-{name}"))
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").unlink()
        (model / "config.json").write_text(json.dumps({**config, **changes, "rope_scaling": scaling}))
        return model

    def test_yarn_has_the_keys_of_the_converter(self):
        """conversion/base.py (set_gguf_parameters): the kind, factor and trained length, and further numbers where config.json has them."""
        plain = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
        some = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "beta_fast": 24, "beta_slow": 2}
        for family, architecture in (("mistral_full", "llama"), ("qwen2_tied", "qwen2"), ("qwen3", "qwen3"), ("olmo2", "olmo2")):
            with self.subTest(family):
                for name, scaling in (("yarn", plain), ("yarn-more", some)):
                    found = Gguf(self.convert(self.with_scaling(family, name, scaling), f"{family}-{name}.gguf")).keys
                    keys = {key.removeprefix(f"{architecture}.rope.scaling."): [types, value] for key, (types, value) in found.items() if ".rope.scaling." in key}
                    wanted = {"type": [["STRING"], "yarn"], "factor": [["FLOAT32"], scaling["factor"]],
                              "original_context_length": [["UINT32"], scaling["original_max_position_embeddings"]]}
                    more = {f"yarn_{key}": [["FLOAT32"], float(scaling[key])] for key in ("beta_fast", "beta_slow") if key in scaling}
                    self.assertEqual(list(keys.items()), list((wanted | more).items()))
                    listed = fsdp_cli.run(PROGRAM, ["--inspect", self.folder / f"{family}-{name}.gguf"]).out
                    self.assertIn(f"{architecture}.rope.scaling.original_context_length", listed)
        said = self.with_scaling("qwen3", "yarn-attention", {**plain, "attention_factor": 1.5})
        result = fsdp_cli.run(PROGRAM, [said, self.folder / "attention.gguf"])
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("attention_factor of 1.5", result.err)
        self.assertEqual(Gguf(self.folder / "attention.gguf").keys["qwen3.rope.scaling.yarn_attn_factor"], (["FLOAT32"], 1.5))
        self.refused(self.with_scaling("qwen3", "yarn-mscale", {**plain, "mscale": 1.0, "mscale_all_dim": 0.5}), 2, "mscale")
        self.refused(self.with_scaling("qwen3", "yarn-truncate", {**plain, "truncate": False}), 2, "truncate")
        changes = json.loads((FIXTURES / "families" / "gguf.json").read_text(encoding="utf-8"))["models"]["gemma3"]["changes"]
        self.refused(self.with_scaling("gemma3", "yarn", plain, **changes), 2, "yarn")

    def test_what_llama_cpp_lacks_is_refused(self):
        bpe, spm = "gguf_llama_bpe_tied_rope3", "gguf_llama_spm"
        families = FIXTURES / "families"
        self.refused(families / "phi3", 2, "phi3")
        self.refused(families / "gemma3_scaled", 2, "gemma3_text", "window")
        self.refused(families / "gemma2", 2, "gemma2", "query_pre_attn_scalar")
        self.refused(self.changed(bpe, "config.json", lambda c: c.update(vocab_size=99)), 4, "shape")
        splits = {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated", "invert": False}
        odd = self.changed(bpe, "tokenizer.json", lambda c: c.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [splits, c["pre_tokenizer"]]}))
        self.refused(odd, 2, "--pre-tokenizer")
        self.convert(odd, "odd.gguf", "--pre-tokenizer", "dbrx")
        more = {"id": 131, "content": "<more>", "special": True}
        self.refused(self.changed(bpe, "tokenizer.json", lambda c: c["added_tokens"].append(more)), 4, "131", "another model")
        self.refused(self.model(spm), 2, "q8_0", options=["--quantize", "nf4"])
        self.refused(self.model(spm), 2, "float64", options=["--dtype", "float64"])
        alone = pathlib.Path(shutil.copy(self.model(spm) / "model.safetensors", self.folder / "alone.safetensors"))
        self.refused(alone, 2, "--config-from")
        self.refused(self.model(spm), 4, "missing", options=["--exclude", "*.up_proj.*"])
        broken = pathlib.Path(shutil.copytree(self.model(spm), self.folder / "broken"))
        data = bytearray((broken / "model.safetensors").read_bytes())
        begin = 8 + struct.unpack("<Q", data[:8])[0]
        data[begin:begin + 4] = b"\x00\x00\xc0\x7f"  # NaN in lm_head.weight
        (broken / "model.safetensors").write_bytes(bytes(data))
        self.refused(broken, 4, "lm_head.weight", "not finite", options=["--dtype", "q8_0"])
        data[begin:begin + 4] = struct.pack("<f", 70000)  # beyond float16's 65504
        (broken / "model.safetensors").write_bytes(bytes(data))
        self.refused(broken, 4, "lm_head.weight", "70000", "65504", "bfloat16", options=["--dtype", "f16"])
        result = fsdp_cli.run(PROGRAM, [self.model(spm), self.folder / "x.pt", "--pre-tokenizer", "gpt-2"])
        self.assert_refused(result, 2, "--pre-tokenizer")


if __name__ == "__main__":
    fsdp_cli.main()
