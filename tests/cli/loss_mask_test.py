"""Token files with `loss_mask`: prompts are read but not predicted, in training and in evaluation."""

import shutil

import fsdp_cli
import llama_cli
import numpy

h5py = fsdp_cli.h5py


def with_mask(source, name, mask):
    path = source.with_name(name)
    shutil.copyfile(source, path)
    with h5py.File(path, "r+") as file:
        file["loss_mask"] = numpy.asarray(mask)
    return path


class LossMask(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = llama_cli.make_snapshot(cls.folder / "model", tokenizer=False, dtype="F32")
        generator = numpy.random.default_rng(3)
        cls.lengths = generator.integers(4, 30, 24)
        cls.prompts = [int(generator.integers(1, n)) for n in cls.lengths]
        texts = [generator.integers(3, 1000, n) for n in cls.lengths]
        cls.whole = llama_cli.write_documents(cls.folder / "whole.h5", texts)
        cls.beginnings = llama_cli.write_documents(cls.folder / "prompts.h5", [t[:p] for t, p in zip(texts, cls.prompts)])
        cls.mask = numpy.concatenate([[0] * p + [1] * (n - p) for n, p in zip(cls.lengths, cls.prompts)]).astype(numpy.uint8)
        cls.masked = with_mask(cls.whole, "masked.h5", cls.mask)

    def nats(self, data, **how):
        report = self.evaluate(self.model, "--precision", "fp32", "--data", data, **how)
        return report["loss"] * report["tokens"], report["tokens"]

    def test_truth_values_count_and_labels_are_told(self):
        self.assertEqual(self.nats(with_mask(self.whole, "bool.h5", self.mask.astype(bool))), self.nats(self.masked))
        for source, warned in ((self.whole, True), (self.masked, False)):
            path = source.with_name("labels.h5")
            shutil.copyfile(source, path)
            with h5py.File(path, "r+") as file:
                file["labels"] = numpy.where(self.mask, file["tokens"][:], -100)
            for program, arguments in (("fsdp-eval", [self.model, "--data", path]),
                                       ("fsdp-finetune", ["--model", self.model, "--train-data", path, "--max-steps", 1, "--no-save", "--out-dir", self.runs,
                                                          "--run-name", "labels"])):
                result = fsdp_cli.run(program, [*arguments, *fsdp_cli.COMMON], 2)
                self.assertEqual(result.code, 0, str(result))
                self.assertEqual(result.err.count("labels is not read"), int(warned), result.err)

    def test_evaluation_counts_answers_alone(self):
        (everything, tokens), (prompts, read), (answers, counted) = map(self.nats, (self.whole, self.beginnings, self.masked))
        self.assertEqual((counted, counted), (tokens - read, int(self.mask.sum())))
        # A position's loss depends only on preceding tokens, so the answers' loss is the difference. Sums of 400 float32 losses near 7.
        self.assertAlmostEqual(answers, everything - prompts, delta=2e-3)
        self.assertAlmostEqual(self.nats(self.masked, ranks=3)[0], answers, delta=2e-3)

    def test_training_starts_from_that_loss_whatever_the_ranks(self):
        answers, counted = self.nats(self.masked)
        found = {}
        for ranks, batch in ((1, 24), (2, 4), (3, 8)):
            result = self.train(f"ranks-{ranks}", "--train-data", self.masked, "--model", self.model, "--precision", "fp32", "--max-steps", 2,
                                "--lr", "1e-2", "--lr-schedule", "constant", "--batch-size", batch, "--total-batch-size", 24, ranks=ranks)
            self.assertIn("loss_mask", result.err)
            steps = fsdp_cli.steps(self.run_directory(f"ranks-{ranks}"))
            self.assertEqual(steps[0]["tokens"], counted)
            found[ranks] = [step["loss"] for step in steps]
        self.assertAlmostEqual(found[1][0], answers / counted, delta=1e-5)
        for ranks in (2, 3):
            self.assertLess(fsdp_cli.difference(found[ranks], found[1]), 1e-5)

    def test_data_without_a_target_is_refused_before_the_first_step(self):
        first = numpy.zeros_like(self.mask)
        first[numpy.concatenate([[0], numpy.cumsum(self.lengths)[:-1]])] = 1  # no target predicts the first id of a sequence
        for name, mask in (("nothing.h5", numpy.zeros_like(self.mask)), ("first.h5", first)):
            data = with_mask(self.whole, name, mask)
            for ranks in (0, 2):
                self.assert_refused(self.train("nothing", "--train-data", data, "--model", self.model, code=4, ranks=ranks), 4, name, "target")
                self.assert_refused(self.evaluate(self.model, "--data", data, code=4, ranks=ranks), 4, name, "target")
            self.assert_refused(self.train("nothing", "--train-data", self.whole, "--val-data", data, "--model", self.model, code=4), 4, name, "target")
        self.assertFalse(self.checkpoints("nothing").exists())
        # Only the data within --max-rows and --seq-len counts.
        last = numpy.zeros_like(self.mask)
        last[-1] = 1
        data = with_mask(self.whole, "last.h5", last)
        self.assertEqual(self.evaluate(self.model, "--data", data)["tokens"], 1)
        for cut in (["--max-rows", 3], ["--seq-len", 2]):
            self.assert_refused(self.evaluate(self.model, "--data", data, *cut, code=4), 4, "last.h5", "target")

    def test_a_step_without_targets_has_no_loss(self):
        mask = self.mask.copy()
        mask[self.lengths[:8].sum():self.lengths[:16].sum()] = 0
        data = with_mask(self.whole, "whole_step.h5", mask)
        options = ["--train-data", data, "--model", self.model, "--batch-size", 8, "--no-shuffle", "--log-every", 1]
        result = self.train("gap", *options, "--max-steps", 2)
        self.assertIn("loss none (no targets)", result.err)
        result = self.train("gap", *options, "--max-steps", 3, "--restart", "latest", "--json")
        steps = fsdp_cli.steps(self.run_directory("gap"))
        self.assertEqual([step["tokens"] > 0 for step in steps], [True, False, True])
        self.assertIsNone(steps[1]["loss"])
        self.assertTrue(all(steps[i]["loss"] > 1 for i in (0, 2)), str(steps))
        self.assertEqual(result.json()["loss"], steps[2]["loss"])

    def test_packed_rows(self):
        with h5py.File(self.val_data) as file:
            ids = file["input_ids"][:]
        mask = numpy.ones(ids.shape, numpy.uint8)
        plain = self.evaluate(self.model, "--precision", "fp32", "--data", self.val_data)
        ones = self.evaluate(self.model, "--precision", "fp32", "--data", with_mask(self.val_data, "ones.h5", mask))
        self.assertEqual((ones["loss"], ones["tokens"]), (plain["loss"], plain["tokens"]))
        mask[:, :20] = 0
        half = self.evaluate(self.model, "--precision", "fp32", "--data", with_mask(self.val_data, "half.h5", mask))
        self.assertEqual(half["tokens"], ids.shape[0] * (ids.shape[1] - 20))

    def test_masks_that_cannot_be(self):
        wrong = self.mask.astype(numpy.int64)
        wrong[7] = 2
        for name, mask, words in (("short.h5", self.mask[:-1], ["loss_mask", "has the shape", "as of the ids"]), ("two.h5", wrong, ["loss_mask is 2", "expected 0 or 1"]),
                                  ("floats.h5", self.mask.astype(numpy.float32), ["loss_mask", "floating-point numbers", "expected 0 and 1"])):
            with self.subTest(name):
                result = self.evaluate(self.model, "--data", with_mask(self.whole, name, mask), code=4)
                self.assert_refused(result, 4, name, *words)


if __name__ == "__main__":
    fsdp_cli.main()
