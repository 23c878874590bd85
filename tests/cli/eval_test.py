"""fsdp-eval: one loss for every number of ranks and batch size, and text from a prompt."""

import json
import math
import pathlib
import shutil

import fsdp_cli


class Evaluate(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # The GPT-2 vocabulary, so that prompts can be encoded; 24 positions.
        cls.tokens = fsdp_cli.write_tokens(cls.folder / "gpt2.h5", fsdp_cli.random_tokens(rows=21, width=25, seed=3, vocab=50257))
        result = fsdp_cli.run("fsdp-finetune", [
            "--train-data", cls.tokens, "--out-dir", cls.runs, "--run-name", "gpt2", "--max-steps", 4, "--num-layers", 2, "--num-heads", 2,
            "--embed-size", 16, "--seq-len", 24, "--batch-size", 2, "--lr", "0.02", *fsdp_cli.COMMON], ranks=2)
        assert result.code == 0, str(result)
        cls.checkpoint = cls.runs / "gpt2" / "checkpoints" / "latest"

    def generate(self, *options, prompt="First Citizen:", ranks=0):
        return self.evaluate(self.checkpoint, "--prompt", prompt, *options, ranks=ranks)

    def test_one_loss_for_all_ranks_and_batch_sizes(self):
        reports = {(ranks, batch): self.evaluate(self.checkpoint, "--data", self.tokens, "--batch-size", batch, ranks=ranks)
                   for ranks in (1, 2, 3) for batch in (1, 3, 8)}
        losses = [r["loss"] for r in reports.values()]
        fsdp_cli.say(f"loss {losses[0]:.9f}, over ranks and batch sizes within {max(losses) - min(losses):.3g}")
        # The float32 sum of a row does not depend on the batch; the double sum over rows differs in its last digits.
        self.assertLess(max(losses) - min(losses), 1e-6)
        for key, report in reports.items():
            self.assertEqual((report["tokens"], report["rows"], report["world_size"]), (21 * 24, 21, key[0]))
            self.assertAlmostEqual(report["perplexity"], math.exp(report["loss"]), delta=1e-9 * report["perplexity"])

    def test_sequence_length(self):
        report = self.evaluate(self.checkpoint, "--data", self.tokens, "--seq-len", 7, ranks=2)
        self.assertEqual(report["tokens"], 21 * 7)
        self.assert_refused(self.evaluate(self.checkpoint, "--data", self.tokens, "--seq-len", 25, code=2), 2, "--seq-len 25", 24)
        self.assert_refused(self.evaluate(self.checkpoint, "--data", self.tokens, "--batch-size", 0, code=2), 2, "--batch-size")

    def test_it_is_the_loss_that_training_reported(self):
        result = self.train("trained", "--max-steps", 3, "--val-data", self.val_data, "--json", ranks=2)
        report = self.evaluate(self.checkpoints("trained") / "latest", "--data", self.val_data, ranks=3)
        self.assertAlmostEqual(report["loss"], result.json()["val_loss"], delta=1e-6)
        self.assertEqual(report["model"]["n_embd"], 32)

    def test_strategies_and_precision(self):
        plain = self.evaluate(self.checkpoint, "--data", self.tokens)["loss"]
        self.assertAlmostEqual(self.evaluate(self.checkpoint, "--data", self.tokens, "--sharding", "no-shard", ranks=2)["loss"], plain, delta=1e-6)
        self.assertAlmostEqual(self.evaluate(self.checkpoint, "--data", self.tokens, "--precision", "bf16")["loss"], plain, delta=0.03)

    def test_cache_changes_nothing(self):
        for count in (10, 40):  # 40 exceeds the model's 24 positions
            cached = self.generate("--num-tokens", count, "--temperature", 0)
            plain = self.generate("--num-tokens", count, "--temperature", 0, "--no-cache")
            self.assertEqual(len(cached["tokens_generated"]), count)
            self.assertEqual(cached["tokens_generated"], plain["tokens_generated"])

    def test_the_models_ends_end_the_text(self):
        """End marks come from generation_config.json or config.json beside the tokenizer; the run's own folder has neither."""
        said = self.generate("--num-tokens", 6, "--temperature", 0)["tokens_generated"]
        end = next(i for i in range(1, 6) if said[i] not in said[:i])
        own = self.folder / "own"
        own.mkdir()
        for name in ("vocab.json", "merges.txt"):
            shutil.copyfile(fsdp_cli.folder("FSDP_DATA") / "gpt2" / name, own / name)
        for name, value in (("config.json", said[end]), ("generation_config.json", [50255, said[end]])):
            (own / name).write_text(json.dumps({"eos_token_id": value}))
            report = self.generate("--num-tokens", 6, "--temperature", 0, "--tokenizer", own)
            self.assertEqual((report["tokens_generated"], report["ended"]), (said[: end + 1], "eos"))

    def test_a_prompt_longer_than_the_model(self):
        report = self.generate("--num-tokens", 5, prompt="to be or not to be " * 10)
        self.assertEqual(len(report["tokens_generated"]), 5)

    def test_same_text_on_every_number_of_ranks(self):
        for options in (["--temperature", 0], ["--temperature", 0.8, "--top-k", 40, "--top-p", 0.9, "--seed", 3]):
            texts = [self.generate("--num-tokens", 12, *options, ranks=ranks)["text"] for ranks in (0, 2, 3)]
            self.assertEqual(len(set(texts)), 1, texts)

    def test_sampling(self):
        greedy = self.generate("--num-tokens", 12, "--temperature", 0)["tokens_generated"]
        self.assertEqual(self.generate("--num-tokens", 12, "--temperature", 1, "--top-k", 1)["tokens_generated"], greedy)
        self.assertEqual(self.generate("--num-tokens", 12, "--temperature", 1, "--top-p", 1e-9)["tokens_generated"], greedy)
        drawn = [self.generate("--num-tokens", 12, "--temperature", 1, "--seed", seed)["tokens_generated"] for seed in (1, 1, 2)]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])
        self.assertEqual(self.generate("--num-tokens", 0)["tokens_generated"], [])
        for option, value in (("--temperature", -1), ("--top-k", -1), ("--top-p", 0), ("--top-p", 1.5), ("--num-tokens", -1)):
            result = self.evaluate(self.checkpoint, "--prompt", "a", option, value, ranks=2, code=2)
            self.assert_refused(result, 2, option)

    def test_unicode(self):
        prompt = "Où est naïve 東京 🎭?"
        report = self.generate("--num-tokens", 6, prompt=prompt, ranks=2)
        self.assertEqual(report["prompt"], prompt)
        result = fsdp_cli.run("fsdp-eval", [self.checkpoint, "--prompt", prompt, "--num-tokens", 6, *fsdp_cli.COMMON], ranks=2)
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual(result.out.count(prompt), 1, "printed by one rank")
        self.assertTrue(result.out.startswith(prompt))

    def test_text_and_json_outputs(self):
        result = fsdp_cli.run("fsdp-eval", [self.checkpoint, "--data", self.tokens, *fsdp_cli.COMMON], ranks=2)
        self.assertEqual((result.code, len(result.out.splitlines())), (0, 2), str(result))
        self.assertRegex(result.out, r"^loss \d+\.\d+   perplexity \d+\.\d+   504 tokens in 21 rows")
        self.assertRegex(result.out.splitlines()[1], r"^     95 %: \d+\.\d+ to \d+\.\d+   perplexity \d+\.\d+ to \d+\.\d+   standard error \d")
        report = self.evaluate(self.checkpoint, "--data", self.tokens, "--prompt", "a", ranks=2)
        self.assertEqual({"loss", "perplexity", "tokens", "rows", "text", "model", "checkpoint", "world_size"} - report.keys(), set())
        self.assertEqual(pathlib.Path(report["checkpoint"]).name, "step-00000004", "the link is followed")

    def test_a_directory_of_weights(self):
        model = fsdp_cli.folder("FSDP_FIXTURES") / "numerics" / "mingpt_tiny"
        expected = None
        for ranks in (0, 2, 3):
            report = self.evaluate(model, "--data", self.val_data, ranks=ranks)
            expected = expected or report["loss"]
            self.assertAlmostEqual(report["loss"], expected, delta=1e-6)
        self.assertEqual(report["tokens"], 21 * 32)

    def test_finetune_from_weights_starts_at_their_loss(self):
        model = fsdp_cli.folder("FSDP_FIXTURES") / "numerics" / "mingpt_tiny"
        loss = self.evaluate(model, "--data", self.val_data)["loss"]
        result = self.train("only", "--model", model, "--max-epochs", "-1", "--val-data", self.val_data, "--json", ranks=2)
        self.assertAlmostEqual(result.json()["val_loss"], loss, delta=1e-6)

    def test_a_tokenizer_that_is_not_the_models(self):
        self.train("small", "--max-steps", 1)
        result = self.evaluate(self.checkpoints("small") / "latest", "--prompt", "wherefore", ranks=2, code=4)
        self.assert_refused(result, 4, "50257 ids", "97 only")
        self.assert_refused(self.evaluate(self.checkpoint, "--prompt", "", code=2), 2, "--prompt ''", "empty")


if __name__ == "__main__":
    fsdp_cli.main()
