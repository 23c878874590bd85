"""fsdp-eval of a Llama on texts: which tokenizer, the same loss as training's, bits per byte, errors, text from a prompt."""

import gzip
import json
import math
import os
import pathlib
import shutil

import fsdp_cli
import llama_cli


class Texts(llama_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.texts = cls.folder / "texts.jsonl"
        games = [json.loads(line)["text"] for line in cls.validation.read_text().splitlines()]
        cls.lines = [game[:60 + 40 * (i % 7)] for i, game in enumerate(games[:23])] + [""]
        cls.texts.write_text("".join(json.dumps({"text": line}) + "\n" for line in cls.lines))
        result = fsdp_cli.run("fsdp-finetune", ["--model", cls.model, "--train-data", cls.games, "--documents", "--max-rows", 64, "--max-seq-length", 128, "--out-dir",
                                                cls.runs, "--run-name", "tuned", "--max-steps", 12, "--batch-size", 4, "--lr", "5e-3", *fsdp_cli.COMMON], 2)
        assert result.code == 0, str(result)
        cls.checkpoint = cls.runs / "tuned" / "checkpoints" / "latest"

    def encoded(self):
        """Returns the texts as a token file."""
        tokens = self.folder / "texts.h5"
        if not tokens.exists():
            result = fsdp_cli.run("fsdp-download", ["tokens", "--input", self.texts, "--tokenizer", self.model, "--documents", "--output", tokens])
            self.assertEqual(result.code, 0, str(result))
        return tokens

    def test_texts_give_the_loss_of_their_tokens_on_any_number_of_ranks(self):
        expected = self.evaluate(self.checkpoint, "--data", self.encoded())
        for ranks, batch in ((1, 8), (2, 3), (3, 1)):
            report = self.evaluate(self.checkpoint, "--data", self.texts, "--batch-size", batch, ranks=ranks)
            for figure in ("loss", "loss_standard_error"):
                self.assertAlmostEqual(report[figure], expected[figure], delta=1e-6)
            self.assertEqual((report["tokens"], report["rows"], report["ids_not_scored"]), (expected["tokens"], 24, 0))
            # The beginning mark precedes every text, so all bytes of the text are predicted.
            self.assertEqual(report["bytes"], sum(map(len, self.lines)))
            self.assertAlmostEqual(report["bits_per_byte"], report["loss"] * report["tokens"] / math.log(2) / report["bytes"], delta=1e-9)
            self.assertLess(report["loss_interval"][0], report["loss"])
        self.assertNotIn("bytes", expected, "token files do not say their bytes")

    def test_standard_error_is_that_of_the_rows(self):
        documents = self.documents()
        rows = [self.evaluate(self.checkpoint, "--data", llama_cli.write_documents(self.folder / f"row{i}.h5", [row])) for i, row in enumerate(documents)]
        whole = self.evaluate(self.checkpoint, "--data", llama_cli.write_documents(self.folder / "rows.h5", documents))
        tokens = [r["tokens"] for r in rows]
        loss = sum(r["loss"] * r["tokens"] for r in rows) / sum(tokens)
        squares = sum((r["loss"] - loss) ** 2 * r["tokens"] ** 2 for r in rows)
        error = math.sqrt(len(rows) / (len(rows) - 1) * squares) / sum(tokens)
        self.assertAlmostEqual(whole["loss"], loss, delta=1e-6)
        self.assertAlmostEqual(whole["loss_standard_error"], error, delta=1e-6)
        self.assertAlmostEqual(whole["loss_interval"][1] - whole["loss"], 1.96 * error, delta=1e-4)
        self.assertIsNone(rows[0]["loss_standard_error"], "one sequence has none")

    def documents(self):
        random = fsdp_cli.numpy.random.default_rng(5)
        return [random.integers(3, 900, 4 + 9 * i) for i in range(5)]

    def test_it_is_the_validation_loss_of_training(self):
        result = self.tune("again", self.games, "--documents", "--max-rows", 16, "--max-steps", 2, "--max-seq-length", 64, "--val-data", self.texts, "--json", ranks=2)
        report = self.evaluate(self.checkpoints("again") / "latest", "--data", self.texts, "--seq-len", 64, ranks=3)
        self.assertAlmostEqual(report["loss"], result.json()["val_loss"], delta=1e-6)
        self.assertGreater(report["ids_not_scored"], 0)

    def test_other_kinds_of_texts_and_the_number_of_rows(self):
        csv = self.folder / "texts.csv"
        csv.write_text("other,text\n" + "".join(f"x,{line}\n" for line in self.lines[:-1]))
        few = self.evaluate(self.checkpoint, "--data", self.texts, "--max-rows", 5)
        self.assertEqual(few["rows"], 5)
        self.assertAlmostEqual(self.evaluate(self.checkpoint, "--data", csv, "--max-rows", 5)["loss"], few["loss"], delta=1e-9)
        self.assertAlmostEqual(self.evaluate(self.checkpoint, "--data", self.encoded(), "--max-rows", 5)["loss"], few["loss"], delta=1e-9)
        self.assertEqual(self.evaluate(self.checkpoint, "--data", csv, "--data-field", "other")["bytes"], 23)

    def test_nothing_is_left_in_the_temporary_folder_and_cache_dir_keeps(self):
        scratch, cache = self.folder / "scratch", self.folder / "cache"
        scratch.mkdir()
        env = {"TMPDIR": str(scratch)}
        for code, data in ((0, self.texts), (4, self.folder / "broken.jsonl")):
            (self.folder / "broken.jsonl").write_text(json.dumps({"text": "a"}) + "\n{\n")
            result = fsdp_cli.run("fsdp-eval", [self.checkpoint, "--data", data, *fsdp_cli.COMMON], ranks=2, env=env)
            self.assertEqual(result.code, code, str(result))
            self.assertEqual(list(scratch.iterdir()), [])
        self.assertIn("line 2", result.errors()[0])
        first = self.evaluate(self.checkpoint, "--data", self.texts, "--cache-dir", cache, ranks=2)
        times = {f: f.stat().st_mtime_ns for f in cache.iterdir()}
        self.assertEqual(len(list(cache.glob("*.h5"))), 1)
        self.assertEqual(self.evaluate(self.checkpoint, "--data", self.texts, "--cache-dir", cache, ranks=2)["loss"], first["loss"])
        self.assertEqual({f: f.stat().st_mtime_ns for f in cache.iterdir()}, times)
        result = fsdp_cli.run("fsdp-eval", [self.checkpoint, "--data", self.texts, *fsdp_cli.COMMON], ranks=2, env={"TMPDIR": str(self.folder / "none")})
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("--cache-dir", result.errors()[0])

    def test_weights_by_directory_and_by_name(self):
        plain = self.evaluate(self.model, "--data", self.texts, ranks=2)
        home = self.folder / "home"
        repo = home / "hub" / "models--some--llama"
        (repo / "refs").mkdir(parents=True)
        (repo / "refs" / "main").write_text("c" * 40)
        (repo / "snapshots").mkdir()
        shutil.copytree(self.model, repo / "snapshots" / ("c" * 40))
        env = {"HF_HOME": str(home)}
        found = fsdp_cli.run("fsdp-eval", ["some/llama", "--data", self.texts, "--json", *fsdp_cli.COMMON], env=env)
        self.assertAlmostEqual(found.json()["loss"], plain["loss"], delta=1e-6)
        self.assertEqual(pathlib.Path(found.json()["tokenizer"]).name, "c" * 40)
        missing = fsdp_cli.run("fsdp-eval", ["some/other", "--data", self.texts, *fsdp_cli.COMMON], ranks=2, env=env)
        self.assert_refused(missing, 4, "fsdp-download some/other")

    def test_the_tokenizer_of_the_run_or_the_one_that_is_named(self):
        report = self.evaluate(self.checkpoint, "--prompt", "e2e4")
        self.assertEqual(report["tokenizer"], str(self.model.resolve()), "run.json names it")
        self.assert_refused(self.evaluate(self.checkpoint, "--prompt", "e2e4", "--tokenizer", "gpt2", ranks=2, code=4), 4, "50257", "1016")
        self.assert_refused(self.evaluate(self.checkpoint, "--data", self.texts, "--tokenizer", "gpt2", code=4), 4, "50257", "1016")
        bare = llama_cli.make_snapshot(self.folder / "bare", tokenizer=False)
        self.assert_refused(self.evaluate(bare, "--prompt", "e2e4", ranks=2, code=2), 2, "--tokenizer", "bare")
        self.assert_refused(self.evaluate(bare, "--data", self.texts, code=2), 2, "--tokenizer", "bare")
        self.assert_refused(self.evaluate(bare, "--chess", self.texts, code=2), 2, "--tokenizer")
        self.assertGreater(self.evaluate(bare, "--data", self.texts, "--tokenizer", self.model)["loss"], 0)
        self.assertGreater(self.evaluate(bare, "--data", self.encoded())["loss"], 0, "tokens need none")

    def test_cache_changes_nothing_and_neither_do_ranks(self):
        for options in (["--temperature", 0], ["--temperature", 0.9, "--top-k", 30, "--top-p", 0.95, "--seed", 4]):
            for count in (20, 270):  # 270 exceeds the 256 positions
                if count == 270 and options[1] != 0:
                    continue
                reports = [self.evaluate(self.checkpoint, "--prompt", "e2e4 e7e5 g1f3", "--num-tokens", count, *options, *more, ranks=ranks)
                           for ranks, more in ((0, []), (0, ["--no-cache"]), (2, []), (3, ["--no-cache"] if count == 20 else []))]
                self.assertEqual(len({json.dumps(r["tokens_generated"]) for r in reports}), 1, [r["text"] for r in reports])
                self.assertEqual(len({r["text"] for r in reports}), 1)

    def test_the_end_mark_ends_the_text(self):
        """Training on texts that consist of the end mark teaches the model to end at once."""
        marks = llama_cli.write_documents(self.folder / "marks.h5", [[1, 2]] * 8)
        self.tune("ends", marks, "--max-steps", 30, "--lr", "2e-2", "--batch-size", 8)
        report = self.evaluate(self.checkpoints("ends") / "latest", "--prompt", "a", "--temperature", 0, "--num-tokens", 30, ranks=2)
        self.assertEqual((report["tokens_generated"][-1], report["ended"]), (2, "eos"), report)
        self.assertLess(len(report["tokens_generated"]), 30)
        self.assertNotIn("</s>", report["text"])
        self.assertEqual(self.evaluate(self.checkpoint, "--prompt", "e2e4", "--num-tokens", 3)["ended"], "length")

    def test_bad_texts(self):
        def refuse(data, *words, code=4):
            self.assert_refused(self.evaluate(self.checkpoint, "--data", data, ranks=2, code=code), code, *words)
        refuse(self.folder / "no-such.jsonl", "no-such.jsonl")
        (self.folder / "empty.jsonl").write_text("")
        refuse(self.folder / "empty.jsonl", "empty")
        (self.folder / "field.jsonl").write_text('{"moves": "e2e4"}\n')
        refuse(self.folder / "field.jsonl", "line 1", "moves")
        (self.folder / "texts.jsonl.gz").write_bytes(gzip.compress(self.texts.read_bytes())[:-9])
        refuse(self.folder / "texts.jsonl.gz", "texts.jsonl.gz")
        (self.folder / "folder").mkdir()
        refuse(self.folder / "folder", "folder")
        for option in ("--max-rows", "--seq-len", "--chess-positions"):
            self.assert_refused(self.evaluate(self.checkpoint, "--data", self.texts, option, -1, ranks=2, code=2), 2, option)
        self.assert_refused(self.evaluate(self.checkpoint, "--data", self.texts, "--seq-len", 257, code=2), 2, "--seq-len 257", 256)
        self.assert_refused(self.evaluate(self.checkpoint, "--data", self.texts, "--seq-len", 1, code=2), 2, "--seq-len")

    def test_unreadable_texts(self):
        if os.geteuid() == 0:
            self.skipTest("root reads everything")
        locked = self.folder / "locked.jsonl"
        locked.write_text("{}")
        locked.chmod(0)
        self.assert_refused(self.evaluate(self.checkpoint, "--data", locked, ranks=2, code=1), 1, "locked.jsonl")


if __name__ == "__main__":
    fsdp_cli.main()
