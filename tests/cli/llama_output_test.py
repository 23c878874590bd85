"""Outputs of a fine-tuned Llama: checkpoints that any number of ranks resumes, and a directory that transformers opens."""

import json
import os

import fsdp_cli
import llama_cli

with fsdp_cli.needed():
    import torch
    from safetensors.torch import load_file

OPTIONS = ["--total-batch-size", 6, "--lr", "3e-3", "--max-steps", 6, "--max-seq-length", 64, "--documents"]


class Output(llama_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hf = cls.folder / "hf"
        result = fsdp_cli.run("fsdp-finetune", ["--model", cls.model, "--train-data", cls.games, "--out-dir", cls.runs, "--run-name", "whole", *OPTIONS,
                                                "--batch-size", 3, "--save-every", 3, "--save-final-hf", cls.hf, *fsdp_cli.COMMON], 2)
        assert result.code == 0, str(result)
        cls.whole = fsdp_cli.losses(cls.runs / "whole")

    def test_goes_on_with_other_ranks_and_strategies(self):
        half = self.checkpoints("whole") / "step-00000003"
        for ranks, *more in [(1, "--batch-size", 6), (2, "--batch-size", 3), (3, "--batch-size", 2, "--sharding", "grad-shard"),
                             (4, "--batch-size", 2, "--sharding", "no-shard")]:
            name = f"on-{ranks}"
            # The model, data, schedule and seed come from the checkpoint.
            result = fsdp_cli.run("fsdp-finetune", ["--restart-checkpoint-file", half, "--out-dir", self.runs, "--run-name", name, *more, *fsdp_cli.COMMON], ranks)
            self.assertEqual(result.code, 0, str(result))
            found = [r["loss"] for r in fsdp_cli.steps(self.run_directory(name))]
            apart = fsdp_cli.difference(found, self.whole[3:])
            fsdp_cli.say(f"{ranks} ranks: losses after the restart within {apart:.2g}")
            # The same number of ranks repeats losses bit for bit; others sum in another order (float32, losses of about 6).
            self.assertLessEqual(apart, 0.0 if ranks == 2 else 1e-4)

    def test_hf_directory_holds_the_model(self):
        self.assertTrue((self.hf / "tokenizer.model").exists())
        self.assertEqual(json.loads((self.hf / "config.json").read_text())["rope_theta"], 1000000)
        tensors = load_file(self.hf / "model.safetensors")
        self.assertEqual({name: tuple(t.shape) for name, t in tensors.items()}, llama_cli.shapes(llama_cli.CONFIG))
        self.assertEqual({t.dtype for t in tensors.values()}, {torch.bfloat16})
        # The export is itself a model to start from.
        self.tune("again", self.games, *OPTIONS, "--batch-size", 6, "--no-save", model=self.hf)
        self.assertLess(abs(self.losses("again")[0] - self.whole[-1]), 0.5)

    def test_a_run_that_was_resumed_twice_knows_its_model(self):
        half = self.checkpoints("whole") / "step-00000003"
        name = ["--out-dir", self.runs, "--run-name", "twice", "--batch-size", 3, *fsdp_cli.COMMON]
        again = self.folder / "again-hf"
        for more in (["--restart", half, "--max-steps", 4], ["--restart", "latest", "--max-steps", 5], ["--restart", "latest", "--save-final-hf", again]):
            result = fsdp_cli.run("fsdp-finetune", [*more, *name], 2)
            self.assertEqual(result.code, 0, str(result))
        self.assertEqual((again / "config.json").read_text(), (self.hf / "config.json").read_text())
        table = fsdp_cli.run("fsdp-eval", ["--runs", self.run_directory("whole"), self.run_directory("twice"), "--json"]).json()
        self.assertEqual([run["settings"]["model"] for run in table["runs"]], [str(self.model), str(self.model)])

    def test_generated_bytes_are_the_text_of_transformers(self):
        """At this temperature many ids stand for single bytes, and most runs of these are no UTF-8."""
        try:
            from transformers import AutoTokenizer
        except ImportError as missing:
            self.skipTest(str(missing))
        for seed in range(10):
            options = ["--prompt", "e2e4", "--num-tokens", 150, "--temperature", 5, "--seed", seed]
            report = self.evaluate(self.hf, *options)
            if 0 not in report["tokens_generated"]:  # <unk>, which SentencePiece shows and transformers leaves out
                break
        tokenizer = AutoTokenizer.from_pretrained(self.hf, local_files_only=True)
        prompt, generated = report["prompt_tokens"], report["tokens_generated"]
        text = tokenizer.decode(prompt + generated, skip_special_tokens=True)[len(tokenizer.decode(prompt, skip_special_tokens=True)):]
        self.assertGreater(text.count("\ufffd"), 10)
        self.assertEqual(report["text"], text)
        streamed = fsdp_cli.run("fsdp-eval", [self.hf, *options, *fsdp_cli.COMMON])
        self.assertIn("e2e4" + text + "\n", streamed.out)

    def test_transformers_gives_the_same_loss(self):
        os.environ["HF_HUB_OFFLINE"] = "1"
        try:
            from transformers import AutoModelForCausalLM
        except ImportError as missing:
            self.skipTest(str(missing))
        model = AutoModelForCausalLM.from_pretrained(self.hf, dtype=torch.float32)
        rows = [list(range(3 + i, 3 + i + n)) for i, n in enumerate([40, 7, 64, 2])]
        data = llama_cli.write_documents(self.folder / "rows.h5", rows)
        total = tokens = 0
        with torch.no_grad():
            for row in rows:
                ids = torch.tensor([row])
                total += model(input_ids=ids, labels=ids).loss.item() * (len(row) - 1)
                tokens += len(row) - 1
        for weights in (self.hf, self.checkpoints("whole") / "latest"):
            report = self.evaluate(weights, "--data", data, ranks=2)
            self.assertEqual(report["tokens"], tokens)
            # The checkpoint has float32 weights, the directory bf16 weights like the original model.
            self.assertAlmostEqual(report["loss"], total / tokens, delta=1e-5 if weights == self.hf else 2e-2)

    def test_foreign_checkpoints_of_a_llama(self):
        """A full .pt and a distributed checkpoint without run.json continue with the config of --model."""
        full = self.folder / "full.pt"
        converted = fsdp_cli.run("fsdp-ckpt-convert", [self.checkpoints("whole") / "step-00000003", full, "--exclude", "run*"])
        self.assertEqual(converted.code, 0, str(converted))
        state = torch.load(full, weights_only=True)
        self.assertNotIn("run", state)
        result = fsdp_cli.run("fsdp-finetune", ["--model", self.model, "--restart-checkpoint-file", full, "--train-data", self.games, "--out-dir", self.runs,
                                                "--run-name", "foreign", *OPTIONS, "--batch-size", 3, *fsdp_cli.COMMON], 2)
        self.assertEqual(result.code, 0, str(result))
        found = [r["loss"] for r in fsdp_cli.steps(self.run_directory("foreign"))]
        self.assertLess(fsdp_cli.difference(found[-3:], self.whole[3:]), 1e-5, result.err)
        # A folder with only config.json does not state the dtype of weights: the checkpoint decides.
        bare = self.folder / "bare"
        bare.mkdir()
        (bare / "config.json").write_bytes((self.model / "config.json").read_bytes())
        half = self.folder / "half.pt"
        model = {name: tensor.bfloat16() for name, tensor in state["model"].items()}
        torch.save({"model": model}, half)
        for file, dtype in ((full, torch.float32), (half, torch.bfloat16)):
            out = self.folder / f"hf-{file.stem}"
            arguments = ["--model", bare, "--restart-checkpoint-file", file, "--train-data", self.games, "--out-dir", self.runs, "--tokenizer", self.model,
                         "--run-name", f"bare-{file.stem}", *OPTIONS, "--batch-size", 3, *fsdp_cli.COMMON]
            result = fsdp_cli.run("fsdp-finetune", [*arguments, "--save-final-hf", out])
            self.assertEqual(result.code, 0, str(result))
            self.assertEqual({tensor.dtype for tensor in load_file(out / "model.safetensors").values()}, {dtype})
            # A later job of the run, which reads only the run's own checkpoint, writes the same dtype.
            result = fsdp_cli.run("fsdp-finetune", ["--restart-checkpoint-file", "latest", "--out-dir", self.runs, "--run-name", f"bare-{file.stem}",
                                                    "--save-final-hf", out, *fsdp_cli.COMMON])
            self.assertEqual(result.code, 0, str(result))
            self.assertEqual({tensor.dtype for tensor in load_file(out / "model.safetensors").values()}, {dtype})
        # Unreadable weights are reported before the first step, also by --dry-run.
        (bare / "model.safetensors").write_bytes(b"cut")
        for more in ([], ["--dry-run"]):
            refused = fsdp_cli.run("fsdp-finetune", [*arguments, "--run-name", "refused", "--save-final-hf", self.folder / "no", *more])
            self.assert_refused(refused, 4, bare)
        refused = fsdp_cli.run("fsdp-eval", [full, "--data", self.folder / "train.h5", *fsdp_cli.COMMON])
        self.assert_refused(refused, 2, "config.json")


if __name__ == "__main__":
    fsdp_cli.main()
