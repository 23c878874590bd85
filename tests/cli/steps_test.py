"""Records of a run, the ranks that read its rows, and memory per strategy. Steps: tests/unit/apps/steps_test.cpp."""

import math

import fsdp_cli

STEP_FIELDS = {"step", "loss", "grad_norm", "lr", "tokens", "step_seconds", "tokens_per_second", "data_wait_seconds",
               "peak_memory_bytes"}


class Metrics(fsdp_cli.Case):
    def test_records(self):
        result = self.train("metrics", "--val-data", self.val_data, "--max-steps", 6, "--eval-every", 2, "--json", ranks=2)
        records = fsdp_cli.records(self.run_directory("metrics"))
        steps = [r for r in records if "loss" in r]
        evaluations = [r for r in records if "val_loss" in r]
        self.assertEqual([r["step"] for r in steps], [1, 2, 3, 4, 5, 6])
        self.assertEqual([r["step"] for r in evaluations], [2, 4, 6])
        self.assertEqual(len(records), 9)
        for r in steps:
            self.assertEqual(STEP_FIELDS - r.keys(), set())
            self.assertEqual(r["tokens"], 2 * 4 * 32, "targets of the step over all ranks")
            self.assertAlmostEqual(r["tokens_per_second"], r["tokens"] / r["step_seconds"], delta=1e-3 * r["tokens_per_second"])
            self.assertTrue(0 <= r["data_wait_seconds"] <= r["step_seconds"])
            self.assertTrue(r["peak_memory_bytes"] > 0 and r["grad_norm"] > 0)
        for r in evaluations:
            self.assertNotIn("loss", r)
        report = result.json()
        self.assertEqual((report["steps"], report["samples"], report["loss"]), (6, 48, steps[-1]["loss"]))
        self.assertEqual(report["val_loss"], evaluations[-1]["val_loss"])
        self.assertGreater((self.run_directory("metrics") / "loss.svg").stat().st_size, 1000)

    def test_a_row_of_n_ids_gives_n_minus_1_pairs(self):
        rows = fsdp_cli.write_tokens(self.folder / "narrow.h5", fsdp_cli.random_tokens(width=20), "uint32")
        self.train("narrow", "--train-data", rows, "--max-steps", 1)
        self.assertEqual(fsdp_cli.steps(self.run_directory("narrow"))[0]["tokens"], 4 * 19)
        self.train("short", "--seq-len", 8, "--max-steps", 1)
        self.assertEqual(fsdp_cli.steps(self.run_directory("short"))[0]["tokens"], 4 * 8)

    def test_evaluate_only_writes_no_checkpoint(self):
        result = self.train("only", "--max-epochs", "-1", "--val-data", self.val_data, "--json", ranks=2)
        self.assertAlmostEqual(result.json()["val_loss"], math.log(fsdp_cli.VOCAB), delta=0.1)
        self.assertFalse(self.checkpoints("only").exists())


class DataOrder(fsdp_cli.Case):
    """The rows that make up each step."""

    def test_micro_batches_and_ranks_read_in_turn(self):
        # The rank that reads a row reports its id outside the vocabulary: row (m * W + r) * b + i of a step.
        for row, rank in ((1, 0), (2, 1), (4, 0), (11, 1)):
            ids = fsdp_cli.random_tokens(rows=16)
            ids[row, 3] = fsdp_cli.VOCAB
            file = fsdp_cli.write_tokens(self.folder / "marked.h5", ids, vocab_size=fsdp_cli.VOCAB)
            result = self.train("turn", "--train-data", file, "--no-shuffle", "--batch-size", 2, "--total-batch-size", 8, "--max-steps", 2,
                                "--no-save", ranks=2, code=4)
            self.assert_refused(result, 4, f"row {row},")
            self.assertEqual("[rank 1]" in result.errors()[0], rank == 1, str(result))


class Costs(fsdp_cli.Case):
    def test_peak_memory_of_full_shard(self):
        model = ["--num-layers", 4, "--num-heads", 4, "--embed-size", 256, "--seq-len", 16]
        def peak(name, *options):
            self.train(name, *model, "--batch-size", 1, "--max-steps", 3, "--no-save", *options, ranks=4)
            return max(r["peak_memory_bytes"] for r in fsdp_cli.steps(self.run_directory(name)))
        none, full, grad = peak("none", "--sharding", "no-shard"), peak("full"), peak("grad", "--sharding", "grad-shard")
        fsdp_cli.say(f"peak memory per rank of 4: no-shard {none / 1e6:.1f} MB, full-shard {full / none:.3f} of it, grad-shard {grad / none:.3f}")
        self.assertLess(full, 0.45 * none)
        self.assertLessEqual(full, grad)


if __name__ == "__main__":
    fsdp_cli.main()
