"""Exported models of every family open in transformers 4.57, 5.23 and 5.24, each of which gives the ids and the greedy text of fsdp-eval.

Models have SentencePiece's tokenizer.model alone, or tokenizer.json, by family. scripts/setup --full installs the versions.
FSDP_ALL=1: all families, and 5.23."""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys

import families_cli
import fsdp_cli
import tokens_cli

with fsdp_cli.needed():
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = fsdp_cli.folder("FSDP_FIXTURES")
LLAMA = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
# Settings beside tokenizer.model that decide about spaces and marks.
SETTINGS = {"phi3": {"add_eos_token": False, "pad_token": "<unk>"}, "mistral_full": {"add_bos_token": True, "legacy": True},
            "gemma": {"add_bos_token": False}, "gemma2": {"legacy": False}, "gemma3": {"add_eos_token": True}}
BYTE_LEVEL = ("qwen2_tied", "qwen3", "olmo2", "gpt2") if fsdp_cli.ALL else ("qwen3", "olmo2", "gpt2")
BY_MODEL = (*SETTINGS, "mistral_window") if fsdp_cli.ALL else ("phi3", "gemma2", "gemma3")
MODELS = [*BY_MODEL, *BYTE_LEVEL, "falcon/falcon_7b"]
VERSIONS = ("4.57.6", "5.23.0", "5.24.0") if fsdp_cli.ALL else ("4.57.6", "5.24.0")
NEW_TOKENS = 12
OPEN = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, logging
logging.set_verbosity_error()
texts = json.load(open(sys.argv[1], encoding="utf-8"))
found = {}
for folder in sys.argv[2:]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32, attn_implementation="eager")
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    ids = [id for id in tokenizer(texts[0]).input_ids if id != tokenizer.eos_token_id]
    ids = torch.tensor([ids])
    written = model.generate(ids, do_sample=False, max_new_tokens=%d, eos_token_id=None, pad_token_id=0)[0, ids.shape[1] :]
    found[folder] = {"ids": tokenizer(texts)["input_ids"], "written": written.tolist()}
print(json.dumps(found))
""" % NEW_TOKENS


def some_texts(count):
    """Returns prose, games and random characters, none of which spells a mark."""
    draw = random.Random(3)
    prose = (ROOT / "LICENSE").read_text() + (ROOT / "data/chess/validation.jsonl").read_text()[:20000]
    texts = ["e2e4 e7e5 g1f3"]
    while len(texts) < count:
        begin = draw.randrange(len(prose))
        texts.append(prose[begin : begin + draw.randrange(1, 200)] if len(texts) % 2 else
                     "".join(draw.choice("aehklmz  \n\t.,é漢字☃𝔘\u0301AB01") for _ in range(draw.randrange(1, 50))))
    return texts


def with_rows(weights, rows):
    """Adds rows of small numbers to embedding and head, so that each id has one."""
    torch.manual_seed(4)
    for key, tensor in weights.items():
        if key.endswith(("embed_tokens.weight", "lm_head.weight", "wte.weight", "word_embeddings.weight")):
            weights[key] = torch.cat([tensor, 0.3 * torch.randn(rows - tensor.shape[0], tensor.shape[1]).to(tensor.dtype)])
    return weights


class Exports(families_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.texts = some_texts(200)
        cls.file = cls.folder / "texts.json"
        cls.file.write_text(json.dumps(cls.texts))
        tokens_cli.write_jsonl(cls.folder / "texts.jsonl", cls.texts)

    def export(self, model):
        """Returns the folder of the export and of what was exported."""
        source = FIXTURES / model if "/" in model else families_cli.folder_of(model)
        base = self.folder / model.replace("/", "-")
        base.mkdir()
        config = json.loads((source / "config.json").read_text())
        if model in BY_MODEL:
            shutil.copyfile(FIXTURES / "tokenizers/tokenizer.model", base / "tokenizer.model")
            (base / "tokenizer_config.json").write_text(json.dumps({**LLAMA, **SETTINGS.get(model, {})}))
            rows = 1000
        else:
            shutil.copytree(FIXTURES / "families/tokenizers/chatml", base, dirs_exist_ok=True)
            rows = 1300
        (base / "config.json").write_text(json.dumps({**config, "vocab_size": rows}))
        if (source / "model.safetensors").exists():
            save_file(with_rows(load_file(source / "model.safetensors"), rows), base / "model.safetensors", metadata={"format": "pt"})
        else:
            torch.manual_seed(5)
            transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(base)).save_pretrained(base)
        out = self.folder / f"{base.name}-export"
        self.convert(base, out, "--to", "hf")
        return out, base

    def ours(self, folder):
        """Returns ids of all texts and what is generated after the first."""
        tokens = self.folder / f"{folder.name}.h5"
        made = fsdp_cli.run("fsdp-download", ["tokens", "--input", self.folder / "texts.jsonl", "--tokenizer", folder, "--documents", "--output", tokens])
        self.assertEqual(made.code, 0, str(made))
        report = self.evaluate(folder, "--precision", "float32", "--prompt", self.texts[0], "--num-tokens", NEW_TOKENS, "--temperature", 0)
        return {"ids": tokens_cli.documents(tokens), "written": report["tokens_generated"]}

    def theirs(self, version, folders):
        apart = ROOT / ".deps" / f"transformers=={version}"
        if version != transformers.__version__ and not apart.exists():
            self.skipTest(f"no transformers {version} in .deps: scripts/setup --full installs it")
        environment = {**os.environ, "PYTHONPATH": str(apart), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run([sys.executable, "-c", OPEN, self.file, *folders], env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, f"transformers {version}:\n{done.stderr}")
        return json.loads(done.stdout)

    def test_every_version_gives_the_same(self):
        pairs = [self.export(model) for model in MODELS]
        expected = {str(base): self.ours(base) for _, base in pairs}
        for out, base in pairs:
            self.assertEqual(self.ours(out), expected[str(base)], out)
            self.assertTrue((out / "tokenizer.json").exists(), out)
        for version in VERSIONS:
            with self.subTest(version):
                found = self.theirs(version, [out for out, _ in pairs])
                for out, base in pairs:
                    ours, there = expected[str(base)], found[str(out)]
                    wrong = [(text, a, b) for text, a, b in zip(self.texts, ours["ids"], there["ids"]) if a != b]
                    self.assertFalse(wrong, f"{out}, {version}: {len(wrong)} texts have other ids, as {wrong[:1]}")
                    count = len(ours["written"])  # fewer where an end mark was written
                    self.assertGreater(count, 0, out)
                    self.assertEqual(there["written"][:count], ours["written"], f"{out}, {version}")

    def test_what_only_the_model_can_say(self):
        """A model whose normalizer maps characters has no tokenizer.json, and a line says why."""
        out, base = self.folder / "mapped-export", self.folder / "mapped"
        shutil.copytree(families_cli.folder_of("gemma"), base)
        shutil.copyfile(FIXTURES / "tokenizers/sentencepiece/nmt_nfkc.model", base / "tokenizer.model")
        done = fsdp_cli.run("fsdp-ckpt-convert", [base, out, "--to", "hf"])
        self.assertEqual(done.code, 0, str(done))
        self.assertIn("no tokenizer.json goes along with tokenizer.model: its normalizer maps characters", done.err)
        self.assertFalse((out / "tokenizer.json").exists())


if __name__ == "__main__":
    fsdp_cli.main()
