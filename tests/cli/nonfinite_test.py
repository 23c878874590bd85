"""Losses that are not finite: no update, good checkpoints stay, bad models neither become `latest` nor are exported."""

import os

import fsdp_cli
import numpy

# After one step with this rate the parameters are finite, around 1e38, and the next loss is not finite.
EXPLODES = ["--lr", "1e38"]


class NonFinite(fsdp_cli.Case):
    def names(self, run):
        return sorted(p.name for p in self.checkpoints(run).iterdir())

    def latest(self, run):
        return os.readlink(self.checkpoints(run) / "latest")

    def test_a_run_that_explodes_ends_and_keeps_the_good_checkpoint(self):
        for precision in ("float32", "fp16"):
            for ranks in (1, 2):
                with self.subTest(ranks=ranks, precision=precision):
                    run = f"bad-{precision}-{ranks}"
                    common = ["--total-batch-size", 4, "--batch-size", 4 // ranks, "--precision", precision]
                    self.train(run, "--max-steps", 4, *common, ranks=ranks)
                    result = self.train(run, "--max-steps", 60, *common, *EXPLODES, "--restart-checkpoint-file", "latest", "--save-every", 1,
                                        "--keep-last", 1, "--save-final-hf", self.folder / f"hf-{run}", ranks=ranks, code=1)
                    self.assert_refused(result, 1, "10 steps in a row, 6 to 15", "samples 20 to 59", "step-00000004")
                    self.assertIn("step 6: the loss is nan, nothing was updated (samples 20 to 23", result.err)
                    self.assertEqual(self.latest(run), "step-00000004")
                    # The state after the last finite loss was saved before its loss was known; it may be inspected, but not used.
                    self.assertEqual(self.names(run), ["latest", "step-00000004", "step-00000005"])
                    self.assertFalse((self.folder / f"hf-{run}").exists())
                    self.assertLess(self.evaluate(self.checkpoints(run) / "latest", "--data", self.val_data)["loss"], 6)
                    # With a reasonable learning rate the run continues as if nothing had happened.
                    self.train(run, "--max-steps", 8, *common, "--lr", "1e-3", "--restart-checkpoint-file", "latest", "--keep-last", 1, ranks=ranks)
                    self.assertEqual(self.names(run), ["latest", "step-00000008"])
                    self.train("whole", "--max-steps", 8, *common, ranks=ranks)
                    self.assertEqual(fsdp_cli.losses(self.run_directory(run)), fsdp_cli.losses(self.run_directory("whole")))

    def test_the_last_update_is_looked_at_too(self):
        for more in ([], ["--no-save"]):
            with self.subTest(more=more):
                export, full = self.folder / "last-hf", self.folder / "last.pt"
                result = self.train("last", "--max-steps", 1, *EXPLODES, "--save-final-hf", export, "--save-final-full", full, *more, code=1, ranks=2)
                self.assert_refused(result, 1, "after step 1", "neither saved nor exported")
                self.assertEqual(self.names("last"), [])
                self.assertFalse(export.exists() or full.exists())

    def test_the_limit_is_an_option(self):
        result = self.train("limit", "--max-steps", 60, *EXPLODES, "--max-nonfinite-steps", 3, code=1)
        self.assert_refused(result, 1, "3 steps in a row, 2 to 4", "no checkpoint was saved")
        self.assertEqual([r.get("skipped", False) for r in fsdp_cli.steps(self.run_directory("limit"))], [False, True, True])
        for value in ("0", "-1", "nan"):
            self.assertEqual(self.train("limit", "--max-steps", 1, "--max-nonfinite-steps", value, code=2).code, 2)

    def test_a_stop_between_bad_steps_leaves_the_good_checkpoint(self):
        self.train("stop", "--max-steps", 3)
        # 100000 bad steps are allowed, so that the time limit ends the run.
        self.train("stop", *EXPLODES, "--max-steps", 1000000, "--restart-checkpoint-file", "latest", "--save-every", 1, "--keep-last", 1,
                   "--max-nonfinite-steps", 100000000, "--time-limit", "0:09", "--log-every", 1000000, code=fsdp_cli.STOPPED_EARLY)
        self.assertEqual(self.latest("stop"), "step-00000003")

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
