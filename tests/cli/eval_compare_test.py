"""fsdp-eval --compare: two checkpoints on the same data, differences with their error, gates and exit codes."""

import json
import math

import fsdp_cli
import llama_cli

with fsdp_cli.needed():
    from safetensors.numpy import load_file


class Compare(llama_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = cls.folder / "few.jsonl"
        cls.data.write_text("".join(line + "\n" for line in cls.validation.read_text().splitlines()[:20]))
        result = fsdp_cli.run("fsdp-finetune", ["--model", cls.model, "--train-data", cls.games, "--documents", "--max-rows", 64, "--max-seq-length", 128, "--out-dir",
                                                cls.runs, "--run-name", "tuned", "--max-steps", 20, "--batch-size", 4, "--lr", "5e-3", "--save-every", 18,
                                                *fsdp_cli.COMMON], 2)
        assert result.code == 0, str(result)
        cls.last = cls.runs / "tuned" / "checkpoints" / "step-00000020"
        cls.before = cls.runs / "tuned" / "checkpoints" / "step-00000018"

    def compare(self, a, b, *more, ranks=0, code=0, data=None):
        result = fsdp_cli.run("fsdp-eval", ["--compare", a, b, "--data", data or self.data, "--json", *fsdp_cli.COMMON, *more], ranks)
        self.assertEqual(result.code, code, str(result))
        return result.json() if code in (0, 3) else result

    def test_better_and_worse(self):
        report = self.compare(self.model, self.last, "--gate", "loss:0.01", "--gate", "bits_per_byte:-1")
        self.assertTrue(report["comparison"]["passed"])
        report = self.compare(self.last, self.model, "--gate", "loss:0.01", "--gate", "perplexity:100000%", code=3)
        self.assertEqual([gate["passed"] for gate in report["comparison"]["gates"]], [False, True])
        self.assertFalse(report["comparison"]["passed"])
        for side, path in (("a", self.last), ("b", self.model)):
            alone = self.evaluate(path, "--data", self.data)
            for figure in ("loss", "bits_per_byte", "tokens", "rows"):
                self.assertEqual(report[side][figure], alone[figure])
            self.assertEqual(report[side]["checkpoint"], str(path.resolve()))

    def test_a_limit_is_a_limit(self):
        found = self.compare(self.last, self.before)["comparison"]["metrics"]["loss"]
        worse = found["difference"]
        self.assertGreater(worse, 0)
        share = 100 * worse / found["a"]
        for gate, code in ((f"loss:{worse * 1.001:.9f}", 0), (f"loss:{worse * 0.999:.9f}", 3), (f"loss:{share * 1.001:.9f}%", 0), (f"loss:{share * 0.999:.9f}%", 3)):
            self.compare(self.last, self.before, "--gate", gate, code=code)
        self.compare(self.last, self.last, "--gate", "loss:0", "--gate", "perplexity:0%")
        self.compare(self.last, self.last, "--gate", "loss:-1e-9", code=3)

    def test_the_error_is_paired(self):
        """Compares with figures from evaluating one row at a time."""
        a, b, tokens = [], [], []
        for i, line in enumerate(self.data.read_text().splitlines()[:6]):
            row = self.folder / f"row{i}.jsonl"
            row.write_text(line + "\n")
            report = self.compare(self.before, self.last, data=row)
            a.append(report["a"]["loss"]), b.append(report["b"]["loss"]), tokens.append(report["a"]["tokens"])
        report = self.compare(self.before, self.last, "--max-rows", 6)["comparison"]["metrics"]["loss"]
        difference = sum((y - x) * n for x, y, n in zip(a, b, tokens)) / sum(tokens)
        squares = sum(((y - x - difference) * n) ** 2 for x, y, n in zip(a, b, tokens))
        error = math.sqrt(6 / 5 * squares) / sum(tokens)
        self.assertAlmostEqual(report["difference"], difference, delta=1e-6)
        self.assertAlmostEqual(report["standard_error"], error, delta=1e-6)
        self.assertAlmostEqual(report["interval"][1] - report["interval"][0], 2 * 1.96 * error, delta=1e-4)
        alone = self.evaluate(self.before, "--data", self.data, "--max-rows", 6)["loss_standard_error"]
        self.assertLess(report["standard_error"], alone / 2, "what is hard for both cancels")

    def test_ranks_and_chess(self):
        reports = [self.compare(self.model, self.last, "--chess", self.data, "--chess-positions", 12, "--max-seq-length", 128, "--gate", "chess_accuracy:0",
                                "--gate", "chess_legal:1%", ranks=ranks) for ranks in (1, 3)]
        for side in "ab":
            for report in reports:
                report[side]["chess"].pop("seconds")
            self.assertEqual(reports[0][side]["chess"], reports[1][side]["chess"])
        metrics = [r["comparison"]["metrics"] for r in reports]
        self.assertEqual(set(metrics[0]), {"loss", "perplexity", "bits_per_byte", "chess_accuracy", "chess_legal"})
        self.assertEqual(metrics[0]["chess_accuracy"], metrics[1]["chess_accuracy"])
        self.assertAlmostEqual(metrics[0]["loss"]["difference"], metrics[1]["loss"]["difference"], delta=1e-6)
        accuracy = metrics[0]["chess_accuracy"]
        self.assertAlmostEqual(accuracy["worsening"], -accuracy["difference"], delta=1e-15)

    def test_nan_never_passes(self):
        sick = llama_cli.make_snapshot(self.folder / "sick", dtype="F32", files=1)
        tensors = load_file(sick / "model.safetensors")
        tensors["model.norm.weight"][3] = math.nan
        llama_cli.save_file(tensors, sick / "model.safetensors", "F32")
        report = self.compare(self.last, sick, "--gate", "loss:1000000", code=3)
        self.assertIsNone(report["b"]["loss"])
        self.assertFalse(report["comparison"]["gates"][0]["passed"])
        self.compare(sick, self.last, "--gate", "loss:1000000%", code=3)

    def test_other_tokenizers_compare_by_bytes(self):
        """Encodes the same words as bytes: another vocabulary."""
        other = llama_cli.make_snapshot(self.folder / "other", tokenizer=False)
        vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{i:02X}>": 3 + i for i in range(256)} | {"▁": 259}
        vocabulary |= {character: 260 + i for i, character in enumerate("abcdefgh12345678qrn")}
        (other / "tokenizer.json").write_text(json.dumps({
            "version": "1.0", "added_tokens": [{"id": i, "content": t, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
                                               for i, t in enumerate(("<unk>", "<s>", "</s>"))],
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "pre_tokenizer": None,
            "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                               "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                               "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
            "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                                                         {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
                      "byte_fallback": True, "vocab": vocabulary, "merges": []}}))
        (other / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}))
        short = self.folder / "short.jsonl"
        short.write_text("".join(json.dumps({"text": json.loads(line)["text"][:90]}) + "\n" for line in self.data.read_text().splitlines()))
        report = self.compare(self.last, other, "--gate", "bits_per_byte:100", data=short)
        self.assertNotEqual(report["a"]["tokens"], report["b"]["tokens"])
        self.assertEqual(report["a"]["bytes"], report["b"]["bytes"])
        self.assertEqual(set(report["comparison"]["metrics"]), {"bits_per_byte"})
        self.assert_refused(self.compare(self.last, other, "--gate", "loss:100", data=short, code=2), 2, "bits_per_byte")

    def test_in_words(self):
        result = fsdp_cli.run("fsdp-eval", ["--compare", self.last, self.model, "--data", self.data, "--gate", "loss:1%", *fsdp_cli.COMMON], ranks=2)
        self.assertEqual(result.code, 3, str(result))
        self.assertEqual(result.errors(), [])
        for pattern in (r"(?m)^metric +A +B +B - A +std. error", r"(?m)^loss +\d+\.\d+ +\d+\.\d+ +\+\d", r"(?m)^gate loss:1% +FAILED   B is worse by"):
            self.assertRegex(result.out, pattern)

    def test_wrong_use(self):
        def refuse(arguments, *words):
            self.assert_refused(fsdp_cli.run("fsdp-eval", [*arguments, *fsdp_cli.COMMON], ranks=2), 2, *words)
        both = ["--compare", self.last, self.model]
        refuse([*both], "--data")
        refuse([*both, "--data", self.data, "--gate", "lose:1"], "lose:1", "bits_per_byte")
        refuse([*both, "--data", self.data, "--gate", "loss:nan"], "loss:nan")
        refuse([*both, "--data", self.data, "--gate", "chess_legal:0"], "--chess")
        refuse([*both, "--chess", self.data, "--gate", "loss:0"], "--data")
        refuse([*both, "--data", self.train_data, "--gate", "bits_per_byte:0"], "texts")
        refuse([*both, "--data", self.data, "--prompt", "a"], "--prompt")
        refuse([self.last, "--data", self.data, "--gate", "loss:1"], "--compare")
        refuse([self.last, *both, "--data", self.data], "--compare")
        refuse(["--compare", self.last, "--data", self.data], "--compare")
        self.assert_refused(fsdp_cli.run("fsdp-eval", ["--compare", self.last, self.folder / "none", "--data", self.data, *fsdp_cli.COMMON], ranks=2), 4, "none")


if __name__ == "__main__":
    fsdp_cli.main()
