"""The same global batch on 1 to 4 MPI ranks gives the same losses under pairwise combinations of options.

FSDP_ALL=1: under all of them; without it under a few that have each value of each option.
"""

import fsdp_cli

STEPS = 20
TOLERANCE = 2e-5

# A pairwise covering, as far as 17 runs allow.
# ranks, sharding, backward prefetch, forward prefetch, checkpointing, meta-init, wrap, micro-batches per step
SELECTION = [
    (1, "no-shard", "none", False, "none", False, "block", 1),
    (1, "full-shard", "pre", True, "all", True, "none", 2),
    (1, "grad-shard", "post", False, "every:2", False, "size:10000", 4),
    (1, "hybrid-full-shard", "none", True, "every:2", True, "size:10000", 1),
    (2, "full-shard", "none", False, "all", False, "size:10000", 4),
    (2, "grad-shard", "pre", True, "none", True, "block", 2),
    (2, "no-shard", "post", True, "every:2", True, "none", 1),
    (2, "hybrid-grad-shard", "post", False, "none", True, "none", 4),
    (3, "full-shard", "post", True, "none", False, "block", 2),
    (3, "hybrid-full-shard", "pre", False, "all", True, "none", 1),
    (3, "no-shard", "none", False, "every:2", False, "block", 2),
    (3, "grad-shard", "none", True, "all", True, "size:10000", 1),
    (4, "full-shard", "pre", False, "every:2", True, "block", 1),
    (4, "grad-shard", "none", False, "none", False, "none", 3),
    (4, "hybrid-full-shard", "post", True, "none", False, "block", 3),
    (4, "hybrid-grad-shard", "pre", False, "all", False, "size:10000", 1),
    (4, "no-shard", "pre", True, "all", False, "none", 1),
]
if not fsdp_cli.ALL:
    SELECTION = [SELECTION[i] for i in (2, 5, 6, 8, 11, 14, 15)]
GLOBAL_BATCH = 12


def options_of(ranks, sharding, backward, forward, checkpointing, meta, wrap, micro_batches):
    options = ["--sharding", sharding, "--backward-prefetch", backward, "--activation-checkpointing", checkpointing,
               "--wrap", wrap, "--total-batch-size", GLOBAL_BATCH, "--batch-size", GLOBAL_BATCH // ranks // micro_batches]
    options += ["--forward-prefetch"] if forward else []
    options += ["--meta-init"] if meta else []
    options += ["--shard-group-size", "2"] if sharding.startswith("hybrid") and ranks == 4 else []
    return options


class Strategies(fsdp_cli.Case):
    def losses(self, name, ranks, *options):
        self.train(name, "--max-steps", STEPS, "--no-save", "--lr", "3e-3", *options, ranks=ranks)
        return fsdp_cli.losses(self.run_directory(name))

    def test_same_losses(self):
        reference = self.losses("reference", 0, "--batch-size", GLOBAL_BATCH)
        self.assertLess(reference[-1], reference[0] - 0.2, "the reference learns")
        norms = [r["grad_norm"] for r in fsdp_cli.steps(self.run_directory("reference"))]
        worst = 0.0
        for index, row in enumerate(SELECTION):
            with self.subTest(options=row):
                difference = fsdp_cli.difference(self.losses(f"run-{index}", row[0], *options_of(*row)), reference)
                worst = max(worst, difference)
                self.assertLess(difference, TOLERANCE)
                found = [r["grad_norm"] for r in fsdp_cli.steps(self.run_directory(f"run-{index}"))]
                self.assertLess(max(abs(x - y) / y for x, y in zip(found, norms)), 1e-4, "gradient norms")
        fsdp_cli.say(f"{len(SELECTION)} runs of {STEPS} steps: largest difference of a loss {worst:.3g}")

    def test_full_shard_and_grad_shard_are_bitwise_equal(self):
        for ranks, micro_batches in ((2, 1), (3, 2), (4, 3)) if fsdp_cli.ALL else ((3, 2),):
            batch = ["--batch-size", GLOBAL_BATCH // ranks // micro_batches, "--total-batch-size", GLOBAL_BATCH]
            full = self.losses("full", ranks, "--sharding", "full-shard", *batch)
            grad = self.losses("grad", ranks, "--sharding", "grad-shard", *batch)
            self.assertEqual(full, grad, f"{ranks} ranks, {micro_batches} micro-batches")

    def test_collectives_through_mpi_give_the_same_losses(self):
        batch = ["--batch-size", GLOBAL_BATCH // 3]
        shared = self.losses("shared", 3, *batch)
        staged = self.losses("staged", 3, *batch, "--collectives", "host-staged")
        self.assertLess(fsdp_cli.difference(shared, staged), TOLERANCE)

    def test_reduced_precision_learns_and_stays_near(self):
        reference = self.losses("float32", 0, "--batch-size", GLOBAL_BATCH)
        for index, (ranks, *options) in enumerate([
                (2, "--precision", "bf16"),
                (3, "--param-dtype", "bf16", "--reduce-dtype", "float32", "--sharding", "grad-shard"),
                (2, "--precision", "fp16", "--activation-checkpointing", "--sharding", "full-shard")]):
            with self.subTest(options=options):
                found = self.losses(f"reduced-{index}", ranks, "--batch-size", GLOBAL_BATCH // ranks, *options)
                # bf16 has 8 significant bits: half a per cent of a loss near 4.6.
                self.assertLess(fsdp_cli.difference(found, reference), 0.025)
                self.assertNotEqual(found, reference)

    def test_reduce_every_micro_batch(self):
        batch = ["--batch-size", 2, "--total-batch-size", GLOBAL_BATCH]
        late = self.losses("late", 2, *batch)
        each = self.losses("each", 2, *batch, "--reduce-every-micro-batch")
        self.assertLess(fsdp_cli.difference(late, each), TOLERANCE)
        counts = [fsdp_cli.steps(self.run_directory(name))[-1]["collectives"]["shard"]["reduce_scatters"] for name in ("late", "each")]
        self.assertEqual(counts[1], 3 * counts[0], "one reduction per micro-batch instead of one per step")

    def test_cpu_offload(self):
        batch = ["--batch-size", GLOBAL_BATCH // 2]
        self.assertEqual(self.losses("plain", 2, *batch), self.losses("offload", 2, *batch, "--cpu-offload"))


if __name__ == "__main__":
    fsdp_cli.main()
