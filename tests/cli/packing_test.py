"""Several documents per row: loss and gradients equal those of separate documents, on any number of ranks."""

import json
import os
import re
import shutil

import fsdp_cli
import llama_cli
import numpy

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

FIXTURES = fsdp_cli.folder("FSDP_FIXTURES")
MODELS = {name: FIXTURES / ("numerics" if name == "llama_nano" else "families") / name for name in ("llama_nano", "mistral_window", "gemma3", "gpt2")}
# Sums of 29 float32 losses near 7 in another order: up to 1e-6 was seen; transformers' packed and separate losses differ by 4e-7.
LOSS = 5e-6
# Relative to each gradient's norm: up to 1e-6 was seen. The smallest possible mistake changes a gradient by more than 1e-2.
GRADIENT = 1e-5


def truth(name):
    return json.loads((FIXTURES / "families" / "packing" / f"{name}.json").read_text())


def tensors_of(directory):
    from safetensors.torch import load_file
    return {name: values.double() for name, values in load_file(directory / "model.safetensors").items()}


class Packing(llama_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        generator = numpy.random.default_rng(5)
        # Long and short documents, one of a single id, one empty, and two that are longer than a row.
        cls.lengths = [1, 0, 40, 90, 64, 63, *generator.integers(2, 60, 90)]
        cls.texts = [generator.integers(3, 1000, n) for n in cls.lengths]
        cls.data = llama_cli.write_documents(cls.folder / "documents.h5", cls.texts)
        cls.cut = sum(min(n, 48) - 1 for n in cls.lengths if n > 1)

    def documents(self, name):
        expected, documents, first = truth(name), [], 0
        for length in expected["lengths"]:
            documents.append(expected["input_ids"][first:first + length])
            first += length
        return llama_cli.write_documents(self.folder / f"{name}.h5", documents)

    def in_float32(self, model):
        """Copies the model in float32: saved weights have the loaded dtype, and bf16 would round the gradients."""
        copy = self.folder / f"{model.name}-float32"
        if not copy.exists():
            shutil.copytree(model, copy, copy_function=shutil.copyfile)
            config = json.loads((model / "config.json").read_text())
            (copy / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32"}))
            llama_cli.save_file({name: values.float().numpy() for name, values in tensors_of(model).items()}, copy / "model.safetensors", "F32")
        return copy

    def step_of(self, name):
        return fsdp_cli.steps(self.run_directory(name))[0]

    def pack(self, name, *more, **how):
        return self.tune(name, self.data, "--pack", "--seq-len", 48, "--lr", "1e-3", "--lr-schedule", "constant", *more, **how)

    def test_loss_and_gradients_are_those_of_the_documents_apart(self):
        """One step of SGD leaves the gradient in the weights, scaled by 1000, so that rounding beside the weights loses nothing."""
        for name, stored in MODELS.items():
            expected, model = truth(name), self.in_float32(stored)
            for how, ranks, more in (("packed", 1, ["--pack", "--batch-size", 1]), ("recomputed", 1, ["--pack", "--batch-size", 1, "--activation-checkpointing", "all"]),
                                     ("apart", 3, ["--batch-size", 1])):
                with self.subTest(model=name, how=how):
                    run, saved = f"{name}-{how}", self.folder / f"{name}-{how}"
                    dropout = ["--dropout", 0] if name == "gpt2" else []
                    self.tune(run, self.documents(name), "--seq-len", 32, "--optimizer", "sgd", "--lr", 1000, "--lr-schedule", "constant", "--weight-decay",
                              0, "--clip-grad-norm", 0, "--max-steps", 1, "--save-final-hf", saved, "--no-save", *dropout, *more, model=model, ranks=ranks)
                    step = self.step_of(run)
                    self.assertEqual(step["tokens"], expected["targets"])
                    for side in ("packed", "numpy_f64"):
                        self.assertLess(abs(step["loss"] - expected[side]["loss"]), LOSS)
                        self.assertLess(abs(step["grad_norm"] / expected[side]["total_grad_norm"] - 1), GRADIENT)
                    before, after = tensors_of(model), tensors_of(saved)
                    for parameter, norm in expected["packed"]["grad_norm"].items():
                        found = ((before[parameter] - after[parameter]) / 1000).norm().item()
                        self.assertLess(abs(found / norm - 1), GRADIENT, parameter)

    def test_ranks_strategies_and_accumulation_change_nothing(self):
        arguments = ["--total-batch-size", 4, "--max-steps", 6]
        self.pack("one", "--batch-size", 4, *arguments)
        steps = fsdp_cli.steps(self.run_directory("one"))
        for name, ranks, more in (("two", 2, ["--batch-size", 2]), ("four", 4, ["--batch-size", 1, "--sharding", "hybrid-full-shard", "--shard-group-size", 2]),
                                  ("accumulated", 2, ["--batch-size", 1, "--sharding", "grad-shard"]),
                                  ("recomputed", 1, ["--batch-size", 2, "--activation-checkpointing", "all", "--reduce-every-micro-batch"])):
            with self.subTest(name):
                self.pack(name, *more, *arguments, ranks=ranks)
                found = fsdp_cli.steps(self.run_directory(name))
                self.assertEqual([s["tokens"] for s in found], [s["tokens"] for s in steps])
                self.assertLess(fsdp_cli.difference([s["loss"] for s in found], [s["loss"] for s in steps]), 1e-5)

    def test_an_epoch_reads_every_document_once(self):
        result = self.pack("epochs", "--batch-size", 2, "--max-epochs", 2, "--json")
        steps = fsdp_cli.steps(self.run_directory("epochs"))
        rows = int(re.search(r"(\d+) rows x 48 tokens", result.err).group(1))
        # The plan also predicted the speed of rows that are not completely full; ids are counted per text, not per row.
        self.assertEqual(json.loads((self.run_directory("epochs") / "speed.json").read_text()), result.json()["speed"])
        self.assertEqual(result.json()["ids_not_trained_on"], sum(max(0, n - 48) for n in self.lengths) + 0)
        self.assertEqual(sum(s["tokens"] for s in steps), 2 * self.cut)
        self.assertEqual(len(steps), rows)  # two rows per step, for two epochs
        self.assertLessEqual(rows, 1.03 * self.cut / 48 + 1)  # as full as documents of these lengths allow
        # Another seed distributes the same documents differently over the rows.
        self.pack("seed", "--batch-size", 2, "--max-epochs", 1, "--seed", 4)
        other = fsdp_cli.steps(self.run_directory("seed"))
        self.assertEqual(sum(s["tokens"] for s in other), self.cut)
        self.assertNotEqual([s["tokens"] for s in other], [s["tokens"] for s in steps[:len(other)]])

    def test_a_run_goes_on_at_the_exact_row(self):
        """Stops in the middle of the second epoch, whose rows hold other documents than the first epoch's, and continues on other ranks."""
        arguments = ["--total-batch-size", 6, "--max-epochs", 2]
        self.pack("whole", "--batch-size", 6, *arguments)
        whole = fsdp_cli.steps(self.run_directory("whole"))
        stop = len(whole) - 3
        self.pack("parts", "--batch-size", 3, "--max-steps", stop, "--total-batch-size", 6, ranks=2)
        result = fsdp_cli.run("fsdp-finetune", ["--restart-checkpoint-file", "latest", "--out-dir", self.runs, "--run-name", "parts", "--max-epochs", 2,
                                                "--batch-size", 2, *fsdp_cli.COMMON], 3)
        self.assertEqual(result.code, 0, str(result))
        parts = fsdp_cli.steps(self.run_directory("parts"))
        self.assertEqual([s["tokens"] for s in parts], [s["tokens"] for s in whole])
        self.assertLess(fsdp_cli.difference([s["loss"] for s in parts], [s["loss"] for s in whole]), 1e-5)
        half = len(whole) // 2
        self.assertNotEqual([s["tokens"] for s in whole[:half]], [s["tokens"] for s in whole[half:2 * half]])

    def test_a_checkpoint_counts_in_its_own_rows(self):
        self.pack("rows", "--batch-size", 2, "--max-steps", 2)
        result = fsdp_cli.run("fsdp-finetune", ["--restart-checkpoint-file", "latest", "--out-dir", self.runs, "--run-name", "rows", "--no-pack",
                                                "--max-steps", 3, *fsdp_cli.COMMON])
        self.assert_refused(result, 2, "--no-pack", "rows")
        result = fsdp_cli.run("fsdp-finetune", ["--restart-checkpoint-file", "latest", "--out-dir", self.runs, "--run-name", "rows", "--seq-len", 32,
                                                "--max-steps", 3, *fsdp_cli.COMMON])
        self.assert_refused(result, 2, "--seq-len", "repeated")

    def test_validation_is_that_of_the_documents_apart(self):
        losses = {}
        for name, ranks, more in (("val-apart", 1, ["--batch-size", 3]), ("val-packed", 2, ["--pack", "--batch-size", 2])):
            result = self.tune(name, self.data, "--val-data", self.data, "--seq-len", 48, "--max-epochs", -1, "--json", *more, ranks=ranks)
            losses[name] = result.json()["val_loss"]
        self.assertAlmostEqual(losses["val-packed"], losses["val-apart"], delta=LOSS)

    def test_prompts_that_are_read_alone(self):
        """loss_mask is packed together with its ids."""
        generator = numpy.random.default_rng(6)
        mask = generator.integers(0, 2, sum(self.lengths)).astype(numpy.uint8)
        masked = self.folder / "masked.h5"
        shutil.copyfile(self.data, masked)
        with llama_cli.h5py.File(masked, "r+") as file:
            file["loss_mask"] = mask
        report = self.evaluate(self.model, "--precision", "fp32", "--data", masked, "--seq-len", 48)
        self.tune("masked", masked, "--pack", "--seq-len", 48, "--precision", "fp32", "--max-epochs", 1, "--lr", 0, "--batch-size", 100, ranks=2)
        step = self.step_of("masked")
        self.assertEqual(step["tokens"], report["tokens"])
        self.assertAlmostEqual(step["loss"], report["loss"], delta=LOSS)

    def test_rows_cannot_be_packed_again(self):
        result = self.tune("rows-again", self.train_data, "--pack", code=2)
        self.assert_refused(result, 2, "--pack", self.train_data.name, "--documents")

    def test_a_dry_run_tells_how_full_rows_are(self):
        result = self.pack("dry", "--dry-run")
        self.assertIn("96 texts", result.err)
        self.assertIn("% full", result.err)


if __name__ == "__main__":
    fsdp_cli.main()
