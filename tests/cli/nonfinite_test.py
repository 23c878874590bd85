"""Losses that are not finite, of weights that torch has made; all else is in tests/unit/apps/nonfinite_test.cpp."""

import fsdp_cli
import numpy


class NonFinite(fsdp_cli.Case):
    def test_without_saves(self):
        """It fails as with saves, in the log and by its exit code; a NaN has no sign."""
        for ranks in (0, 2):
            result = self.train("none", "--max-steps", 4, "--lr", "1e38", "--no-save", "--log-every", 1, "--val-data", self.val_data, "--eval-every", 2,
                                ranks=ranks, code=1)
            self.assertIn("the model after step 4 has a loss that is not finite", result.err)
            self.assertRegex(result.err, r"step +4/4   loss nan   norm ")
            self.assertRegex(result.err, r"eval +2   loss nan   perplexity nan ")
            self.assertNotIn("-nan", result.err)

    def test_single_bad_steps_are_passed_over(self):
        """Makes weights with a NaN in the last position's embedding: only sequences that reach it have a loss that is not finite."""
        try:
            import torch
        except ImportError as missing:
            self.skipTest(str(missing))
        self.train("weights", "--max-steps", 1, "--save-final-full", self.folder / "weights.pt")
        state = torch.load(self.folder / "weights.pt", weights_only=True)
        model = {name: value.clone() for name, value in state["model"].items()}
        model["transformer.wpe.weight"][fsdp_cli.SEQ_LEN - 2] = float("nan")
        torch.save({"model": model, "args": {"num_heads": 2}}, self.folder / "nan.pt")
        with fsdp_cli.h5py.File(self.folder / "documents.h5", "w") as file:
            lengths = numpy.array([20, 20, fsdp_cli.SEQ_LEN + 1, 20, 20, fsdp_cli.SEQ_LEN + 1, 20, 20])  # steps 2 and 3 are bad
            file["offsets"] = numpy.concatenate([[0], numpy.cumsum(lengths)]).astype("int64")
            file["tokens"] = (numpy.arange(lengths.sum()) % fsdp_cli.VOCAB).astype("uint16")
        for ranks in (1, 2):
            result = self.train("passed", "--train-data", self.folder / "documents.h5", "--restart-checkpoint-file", self.folder / "nan.pt",
                                "--no-shuffle", "--max-epochs", 1, "--batch-size", 2 // ranks, "--max-nonfinite-steps", 3, ranks=ranks, code=1)
            self.assertEqual([r.get("skipped", False) for r in fsdp_cli.steps(self.run_directory("passed"))], [False, True, True, False])
            self.assertEqual(result.err.count("nothing was updated"), 2)
            self.assertIn("transformer.wpe.weight' has values that are not finite", result.err)
            self.assertFalse((self.checkpoints("passed") / "latest").exists())


if __name__ == "__main__":
    fsdp_cli.main()
