"""Prediction against measurement of the very same step: peak tensor bytes on the CPU allocator, within 1 %.

FSDP_ALL=1 measures all combinations of minGPT S and M (86 in all); without it a share of them.
"""

import itertools
import os

import fsdp_cli
import memprobe_cli

STRATEGIES = ["full-shard", "grad-shard", "no-shard", "hybrid-full-shard", "hybrid-grad-shard"]
LIMIT = 0.01


def share(combinations, every):
    """Every n-th of them, n being prime to the length of a run of alike ones."""
    return list(combinations)[::1 if os.environ.get("FSDP_ALL") else every]


class Measure(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.llama = ["--model", memprobe_cli.write_config(cls.folder, memprobe_cli.TINY_LLAMA), "--seq-len", 256]
        cls.worst = 0.0

    @classmethod
    def tearDownClass(cls):
        fsdp_cli.say(f"largest deviation {100 * cls.worst:.2f} %")

    def check(self, arguments, ranks=2):
        with self.subTest(arguments=" ".join(map(str, arguments)), ranks=ranks):
            report = memprobe_cli.report([*arguments, "--measure"], ranks=ranks)
            type(self).worst = max(self.worst, abs(report["relative_error"]))
            self.assertAlmostEqual(report["peak_bytes"] / report["measured_peak_bytes"] - 1, report["relative_error"], 9)
            self.assertLess(abs(report["relative_error"]), LIMIT, report)
            self.assertEqual(sum(report["breakdown"].values()), report["peak_bytes"])

    def check_all(self, model, every=1):
        for sharding, precision, recompute in share(itertools.product(STRATEGIES, ["float32", "bf16"], ["none", "all"]), every):
            self.check([*model, "--sharding", sharding, "--precision", precision, "--activation-checkpointing", recompute])

    def test_mingpt_s(self):
        self.check_all([*memprobe_cli.MINGPT_S, "--batch-size", 2], every=3)

    def test_tiny_llama(self):
        self.check_all([*self.llama, "--batch-size", 4])

    def test_mingpt_m(self):
        for sharding, (precision, recompute) in share(itertools.product(STRATEGIES, [("float32", "none"), ("bf16", "all")]), 3):
            self.check([*memprobe_cli.MINGPT_M, "--batch-size", 1, "--sharding", sharding, "--precision", precision,
                        "--activation-checkpointing", recompute])

    def test_prefetch_where_units_are_gathered(self):
        # In shared memory nothing is gathered; over MPI the units in flight count.
        for model in ([*memprobe_cli.MINGPT_S, "--batch-size", 2], [*self.llama, "--batch-size", 4]):
            for precision, prefetch in itertools.product(["float32", "bf16"], ["pre", "none", "post"]):
                self.check([*model, "--precision", precision, "--backward-prefetch", prefetch, "--collectives", "host-staged"])
            self.check([*model, "--forward-prefetch", "--no-limit-all-gathers", "--collectives", "host-staged"])

    def test_accumulation(self):
        for model in ([*memprobe_cli.MINGPT_S, "--batch-size", 1], [*self.llama, "--batch-size", 2]):
            for precision, more in itertools.product(["float32", "bf16"], [[], ["--reduce-every-micro-batch"]]):
                self.check([*model, "--precision", precision, "--gradient-accumulation-steps", 3, *more])

    def test_other_numbers_of_ranks(self):
        for ranks in (0, 3):
            self.check([*memprobe_cli.MINGPT_S, "--batch-size", 2], ranks=ranks)
        self.check([*memprobe_cli.MINGPT_S, "--batch-size", 1, "--sharding", "hybrid-full-shard", "--shard-group-size", 2], ranks=4)

    def test_long_rows_dropout_and_units(self):
        for precision in ("float32", "bf16"):
            self.check([*memprobe_cli.MINGPT_S, "--seq-len", 1024, "--batch-size", 1, "--precision", precision])
            self.check([*memprobe_cli.MINGPT_S, "--dropout", 0.1, "--batch-size", 2, "--precision", precision])
            self.check([*self.llama[:2], "--seq-len", 1024, "--batch-size", 1, "--precision", precision])
        for more in (["--wrap", "none"], ["--wrap", "size:2000000"], ["--activation-checkpointing", "every:2"],
                     ["--param-dtype", "bf16", "--reduce-dtype", "float32"], ["--reduce-dtype", "bf16"]):
            self.check([*memprobe_cli.MINGPT_S, "--batch-size", 2, *more])


if __name__ == "__main__":
    fsdp_cli.main()
