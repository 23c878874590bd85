"""Sources of Llamas, tokenizers and texts, the options of the chess fine-tune, and refusals."""

import json
import os
import re
import shutil

import fsdp_cli
import llama_cli

SHORT = ["--max-steps", 2, "--batch-size", 2, "--max-seq-length", 64, "--documents", "--no-save"]


class Inputs(llama_cli.Case):
    def config(self, name):
        return json.loads((self.checkpoints(name) / "latest" / "run.json").read_text())

    def test_options_of_the_chess_fine_tune(self):
        result = self.tune("seed", self.games, "--batch_size_per_device", 2, "--gradient_accumulation_steps", 2, "--learning_rate", "1e-3",
                           "--max_training_steps", 10, "--gradient_checkpointing", "--max_seq_length", 48, "--documents", "--no_fsdp", "--no_layer_wrap_policy",
                           "--log-every", 1)
        lines = re.findall(r"^step +(\d+)/10   loss (\d+\.\d+)   norm", result.err, re.M)
        self.assertEqual([int(step) for step, _ in lines], list(range(1, 11)), result.err)
        self.assertIn("no-shard", result.err)
        self.assertIn("in 1 unit ", result.err)
        records = fsdp_cli.steps(self.run_directory("seed"))
        self.assertEqual(len(records), 10)
        # Linear warm-up over a tenth of the steps, then linear decay to 0.
        rates = [r["lr"] for r in records]
        self.assertAlmostEqual(rates[0], 1e-3)
        self.assertTrue(all(a > b for a, b in zip(rates[1:], rates[2:])))
        self.assertLess(rates[-1], 2e-4)
        self.assertLess(records[-1]["loss"], records[0]["loss"] - 0.2)
        options = self.config("seed")["options"]
        for name, value in {"lr": "0.001", "seed": "42", "lr-schedule": "linear", "weight-decay": "0.01", "warmup-ratio": "0.1"}.items():
            self.assertEqual(float(options[name]) if name != "lr-schedule" else options[name], float(value) if name != "lr-schedule" else value)

    def test_token_files_of_another_tokenizer(self):
        copy = shutil.copytree(self.model, self.folder / "copy")  # the same vocabulary in another place
        texts = self.folder / "few.jsonl"
        texts.write_text("".join(self.games.read_text().splitlines(True)[:20]))
        files = {}
        for name, tokenizer in (("gpt2", "gpt2"), ("own", copy)):
            files[name] = self.folder / f"{name}.h5"
            made = fsdp_cli.run("fsdp-download", ["tokens", "--documents", "--input", texts, "--tokenizer", tokenizer, "--output", files[name]])
            self.assertEqual(made.code, 0, str(made))
        for ranks in (0, 2):
            self.assert_refused(self.tune("other", files["gpt2"], *SHORT, ranks=ranks, code=4), 4, "gpt2.h5", "GPT-2, 50257 ids", "1016",
                                "--allow-other-tokenizer")
        self.assertFalse(self.run_directory("other").exists())
        self.tune("other", files["gpt2"], *SHORT, "--allow-other-tokenizer")  # the ids of these texts fit the model
        self.tune("own", files["own"], *SHORT, ranks=2)
        # The vocabulary is large enough, but the tokenizer is not the model's.
        large = llama_cli.make_snapshot(self.folder / "large", vocab_size=50304)
        result = self.tune("large", files["gpt2"], *SHORT, "--model", large, code=4)
        self.assert_refused(result, 4, "GPT-2, 50257 ids", "SentencePiece")
        self.tune("large", files["gpt2"], *SHORT, "--model", large, "--allow-other-tokenizer")

    def test_contradicting_spellings(self):
        result = self.tune("x", self.games, "--no_fsdp", "--sharding", "grad-shard", code=2)
        self.assert_refused(result, 2, "--no-fsdp", "grad-shard")

    def test_texts_of_every_kind_give_the_same_losses(self):
        rows = [json.loads(line)["text"] for line in self.games.read_text().splitlines()[:40]]
        files = {"jsonl": self.folder / "games.jsonl", "csv": self.folder / "games.csv", "field": self.folder / "moves.jsonl"}
        files["jsonl"].write_text("".join(json.dumps({"text": r}) + "\n" for r in rows))
        files["csv"].write_text("text\n" + "".join(f'"{r}"\n' for r in rows))
        files["field"].write_text("".join(json.dumps({"moves": r.split()}) + "\n" for r in rows))
        for name, file in files.items():
            more = ["--data-field", "moves"] if name == "field" else []
            result = self.tune(name, file, *SHORT, *more, ranks=2)
            self.assertIn("encoded ", result.err)
        self.assertEqual(self.losses("jsonl"), self.losses("csv"))
        self.assertEqual(self.losses("jsonl"), self.losses("field"))
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as missing:
            self.skipTest(f"Parquet not compared: {missing}")
        table = pyarrow.table({"Moves": [r.split() for r in rows], "Result": ["1-0"] * len(rows)})
        pyarrow.parquet.write_table(table, self.folder / "games.parquet")
        self.tune("parquet", self.folder / "games.parquet", *SHORT, ranks=2)
        self.assertEqual(self.losses("jsonl"), self.losses("parquet"))

    def test_texts_are_encoded_once(self):
        first = self.tune("once", self.games, *SHORT, "--max-rows", 30)
        again = self.tune("once", self.games, *SHORT, "--max-rows", 30)
        self.assertIn("30 texts", first.err)
        self.assertNotIn("encoded ", again.err)
        other = self.tune("once", self.games, *SHORT, "--max-rows", 31)
        self.assertIn("31 texts", other.err)

    def test_token_file_of_the_download_program(self):
        tokens = self.folder / "games.h5"
        made = fsdp_cli.run("fsdp-download", ["tokens", "--input", self.games, "--tokenizer", self.model, "--output", tokens, "--documents",
                                              "--max-rows", 40])
        self.assertEqual(made.code, 0, str(made))
        self.tune("text-40", self.games, *SHORT, "--max-rows", 40)
        self.tune("tokens-40", tokens, *SHORT)
        self.assertEqual(self.losses("text-40"), self.losses("tokens-40"))

    def test_gpt2_tokenizer_for_a_mingpt(self):
        result = fsdp_cli.run("fsdp-finetune", ["--train-data", self.games, "--max-rows", 20, "--out-dir", self.runs, "--run-name", "gpt",
                                                "--num-layers", 1, "--num-heads", 2, "--embed-size", 16, "--max-steps", 1, "--seq-len", 32, "--documents", "--no-save",
                                                *fsdp_cli.COMMON])
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("GPT-2", result.err)


class HubCache(llama_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.home = cls.folder / "hf"
        repo = cls.home / "hub" / "models--some--tiny-llama"
        commit = "0123456789abcdef0123456789abcdef01234567"
        shutil.copytree(cls.model, repo / "snapshots" / commit)
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text(commit)
        (repo / "refs" / "v1").write_text(commit)
        data = cls.home / "hub" / "datasets--some--games"
        (data / "snapshots" / commit).mkdir(parents=True)
        (data / "refs").mkdir()
        (data / "refs" / "main").write_text(commit)
        shutil.copyfile(cls.validation, data / "snapshots" / commit / "games.jsonl")

    def test_names_are_found_in_the_cache(self):
        self.tune("by-path", self.validation, *SHORT)
        for name, env in {"some/tiny-llama": {"HF_HOME": self.home}, "some/tiny-llama@v1": {"HF_HUB_CACHE": self.home / "hub"}}.items():
            run = "by-name-" + name.rpartition("@")[2].replace("/", "-")
            self.tune(run, "some/games", *SHORT, model=name, env={k: str(v) for k, v in env.items()})
            self.assertEqual(self.losses(run), self.losses("by-path"))

    def test_run_is_named_after_the_model(self):
        result = fsdp_cli.run("fsdp-finetune", ["--model", "some/tiny-llama", "--train-data", self.validation, "--out-dir", self.runs, *SHORT, *fsdp_cli.COMMON],
                              env={"HF_HOME": str(self.home)})
        self.assertEqual(result.code, 0, str(result))
        self.assertTrue((self.runs / "tiny-llama" / "metrics.jsonl").exists())

    def test_missing_name_says_how_to_get_it(self):
        env = {"HF_HOME": str(self.home)}
        result = self.tune("x", self.validation, model="codellama/CodeLlama-7b-hf", code=4, env=env)
        self.assert_refused(result, 4, "fsdp-download codellama/CodeLlama-7b-hf", self.home / "hub")
        result = self.tune("x", self.validation, model="some/tiny-llama@v2", code=4, env=env)
        self.assert_refused(result, 4, "fsdp-download some/tiny-llama --revision v2")
        result = self.tune("x", "laion/strategic_game_chess", code=4, env=env)
        self.assert_refused(result, 4, "fsdp-download laion/strategic_game_chess --type dataset")


class Refused(llama_cli.Case):
    def refuse(self, name, change, *words, code=4, data=None, ranks=2, more=()):
        model = self.folder / name
        shutil.copytree(self.model, model)
        change(model)
        result = self.tune(name, data or self.validation, *SHORT, *more, model=model, ranks=ranks, code=code)
        self.assert_refused(result, code, *words)

    def edit(self, **changes):
        def change(model):
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps(config | changes))
        return change

    def test_weights(self):
        shard = "model-00002-of-00002.safetensors"
        self.refuse("truncated", lambda m: os.truncate(m / shard, (m / shard).stat().st_size - 64), shard, "cut short")
        self.refuse("no-shard", lambda m: (m / shard).unlink(), shard, "model.safetensors.index.json", "missing")
        self.refuse("no-weights", lambda m: [f.unlink() for f in m.glob("model*")], "model.safetensors")

    def test_config(self):
        self.refuse("no-config", lambda m: (m / "config.json").unlink(), "config.json")
        self.refuse("wider", self.edit(hidden_size=96), "model.embed_tokens.weight", "[1016, 48]", "[1016, 96]")
        self.refuse("deeper", self.edit(num_hidden_layers=4), "model.layers.3.", "missing")
        self.refuse("shallower", self.edit(num_hidden_layers=2), "model.layers.2.", "no place")
        self.refuse("activation", self.edit(hidden_act="gelu"), "hidden_act", "gelu")
        self.refuse("groups", self.edit(num_key_value_heads=3), "num_key_value_heads")
        self.refuse("rope", self.edit(rope_scaling={"type": "ntk", "factor": 2.0}), "ntk", "config.json")

    def test_tokenizer(self):
        self.refuse("vocabulary", lambda m: (self.edit(vocab_size=900)(m), [f.unlink() for f in m.glob("model*")]), "1000 ids", "900")
        self.refuse("no-tokenizer", lambda m: (m / "tokenizer.model").unlink(), "--tokenizer", code=2)
        self.refuse("bad-tokenizer", lambda m: (m / "tokenizer.model").write_bytes(b"no model"), "tokenizer.model")

    def test_texts(self):
        cases = {"empty.jsonl": ("", "no documents"), "malformed.jsonl": ('{"text": "e2e4"}\n{"text": \n', "line 2"),
                 "number.jsonl": ('{"text": "e2e4"}\n\n{"text": 3}\n', "line 3"), "other-key.jsonl": ('{"moves": "e2e4"}\n', "text")}
        for file, (content, word) in cases.items():
            (self.folder / file).write_text(content)
            self.refuse("data-" + file, lambda m: None, file, word, data=self.folder / file)

    def test_sequences(self):
        self.refuse("long", lambda m: None, "300 tokens", "256", "--seq-len", more=("--max-seq-length", 300), code=2)
        ids = llama_cli.write_documents(self.folder / "outside.h5", [[5, 6, 7], [5, 1016, 7]])
        self.refuse("outside", lambda m: None, "outside.h5", "1016", data=ids, more=("--no-shuffle",))
        ids = llama_cli.write_documents(self.folder / "short.h5", [[5], []])
        self.refuse("short", lambda m: None, "short.h5", "2 ids", data=ids)


if __name__ == "__main__":
    fsdp_cli.main()
