"""Behaviour and records of a run: metrics, data order, learning rate, collectives and memory per strategy."""

import math

import numpy

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

    def test_epochs_use_every_sample_once(self):
        self.train("epochs", "--max-epochs", 2, "--batch-size", 5, ranks=2)
        steps = fsdp_cli.steps(self.run_directory("epochs"))
        self.assertEqual(sum(r["tokens"] for r in steps), 2 * 64 * 32)
        self.assertEqual([r["tokens"] // 32 for r in steps], [10] * 12 + [8], "only the last step is short")
        self.train("half", "--max-epochs", 0.5, "--batch-size", 4)
        self.assertEqual(sum(r["tokens"] for r in fsdp_cli.steps(self.run_directory("half"))), 32 * 32)

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

    def test_learning_rate_schedules(self):
        expected = {
            "constant": [0.5, 1, 1, 1, 1, 1, 1, 1],
            "linear": [0.5, 1] + [1 - i / 6 for i in range(6)],
            "cosine": [0.5, 1] + [0.5 + 0.5 * math.cos(math.pi * i / 6) for i in range(6)],
        }
        for shape, factors in expected.items():
            self.train(shape, "--lr-schedule", shape, "--warmup-steps", 2, "--max-steps", 8, "--lr", 0.01, "--no-save")
            found = [r["lr"] / 0.01 for r in fsdp_cli.steps(self.run_directory(shape))]
            self.assertLess(fsdp_cli.difference(found, factors), 1e-9, f"{shape}: {found}")
        self.train("longer", "--lr-schedule", "linear", "--schedule-steps", 100, "--max-steps", 3, "--lr", 0.01, "--no-save")
        self.assertGreater(fsdp_cli.steps(self.run_directory("longer"))[-1]["lr"], 0.0095)


class DataOrder(fsdp_cli.Case):
    """The rows that make up each step."""

    def rows_of_steps(self, name, *options, ranks=0, steps=3):
        """Identifies the rows of each step by the loss: with --lr 0 it is the mean of the rows' losses."""
        self.train(name, "--max-steps", steps, "--lr", 0, "--no-save", *options, ranks=ranks)
        return fsdp_cli.losses(self.run_directory(name))

    def test_no_shuffle_reads_rows_in_the_order_step_micro_batch_rank(self):
        # Losses of single rows, from a run with one row per step on one rank in file order.
        single = self.rows_of_steps("single", "--no-shuffle", "--batch-size", 1, steps=64)
        self.assertGreater(len(set(single)), 60, "rows are told apart by their losses")
        for ranks, batch, total in ((1, 2, 8), (2, 2, 8), (3, 1, 6), (4, 2, 16)):
            found = self.rows_of_steps(f"order-{ranks}", "--no-shuffle", "--batch-size", batch, "--total-batch-size", total, ranks=ranks)
            expected = [numpy.mean(single[s * total:(s + 1) * total]) for s in range(3)]
            self.assertLess(fsdp_cli.difference(found, expected), 1e-5)

    def test_micro_batches_and_ranks_read_in_turn(self):
        # The rank that reads a row reports its id outside the vocabulary: row (m * W + r) * b + i of a step.
        for row, rank in ((0, 0), (1, 0), (2, 1), (3, 1), (4, 0), (6, 1), (9, 0), (11, 1)):
            ids = fsdp_cli.random_tokens(rows=16)
            ids[row, 3] = fsdp_cli.VOCAB
            file = fsdp_cli.write_tokens(self.folder / "marked.h5", ids)
            result = self.train("turn", "--train-data", file, "--no-shuffle", "--batch-size", 2, "--total-batch-size", 8, "--max-steps", 2,
                                "--no-save", ranks=2, code=4)
            self.assert_refused(result, 4, f"row {row},")
            self.assertEqual("[rank 1]" in result.errors()[0], rank == 1, str(result))

    def test_the_seed_alone_decides_order_and_weights(self):
        def losses(name, *options, ranks=0):
            return self.rows_of_steps(name, "--total-batch-size", 12, *options, ranks=ranks, steps=8)
        one = losses("one", "--batch-size", 12)
        self.assertLess(fsdp_cli.difference(one, losses("three", "--batch-size", 2, ranks=3)), 1e-5)
        self.assertEqual(one, losses("again", "--batch-size", 12), "bitwise equal when run again")
        self.assertGreater(fsdp_cli.difference(one, losses("seed", "--batch-size", 12, "--seed", 2)), 1e-3)
        self.assertGreater(fsdp_cli.difference(one, losses("file", "--batch-size", 12, "--no-shuffle")), 1e-4)


class Costs(fsdp_cli.Case):
    def collectives_per_step(self, name, ranks, *options):
        self.train(name, "--max-steps", 3, "--no-save", "--batch-size", 2, *options, ranks=ranks)
        counts = [r["collectives"] for r in fsdp_cli.steps(self.run_directory(name))]
        per_step = [{axis + "." + kind: b[axis][kind] - a[axis][kind] for axis in b for kind in b[axis]} for a, b in zip(counts, counts[1:])]
        self.assertEqual(per_step[0], per_step[1])
        return per_step[1]

    def test_collectives_per_step(self):
        units, blocks = 3, 2  # the root and two blocks
        gathers, reductions, all_reduces = "shard.all_gathers", "shard.reduce_scatters", "replicate.all_reduces"
        full = self.collectives_per_step("full", 2, "--sharding", "full-shard")
        # The forward pass gathers every unit; the backward pass gathers again the units that the forward pass released: the
        # blocks, but not the root, which the head still uses.
        self.assertEqual((full[gathers], full[reductions], full[all_reduces]), (units + blocks, units, 0))
        grad = self.collectives_per_step("grad", 2, "--sharding", "grad-shard")
        self.assertEqual((grad[gathers], grad[reductions], grad[all_reduces]), (units, units, 0))
        none = self.collectives_per_step("none", 2, "--sharding", "no-shard")
        self.assertEqual((none[gathers], none[reductions], none[all_reduces]), (0, 0, units))
        hybrid = self.collectives_per_step("hybrid", 4, "--sharding", "hybrid-full-shard", "--shard-group-size", 2)
        self.assertEqual((hybrid[gathers], hybrid[reductions], hybrid[all_reduces]), (units + blocks, units, units))
        hybrid = self.collectives_per_step("hybrid-grad", 4, "--sharding", "hybrid-grad-shard", "--shard-group-size", 2)
        self.assertEqual((hybrid[gathers], hybrid[reductions], hybrid[all_reduces]), (units, units, units))
        whole = self.collectives_per_step("whole", 2, "--sharding", "full-shard", "--wrap", "none")
        self.assertEqual((whole[gathers], whole[reductions]), (1, 1))
        accumulated = self.collectives_per_step("accumulated", 2, "--sharding", "full-shard", "--total-batch-size", 12)
        self.assertEqual(accumulated[reductions], units, "no reduction on the inner micro-batches")

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
