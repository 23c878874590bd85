"""fsdp-finetune repeats PyTorch's minGPT training runs (tests/fixtures/numerics/mingpt_tiny)."""

import json

import fsdp_cli

with fsdp_cli.needed():
    from safetensors.numpy import load_file

STEPS = 20
TOLERANCE = 1e-4
# The fixture's README: plain torch AdamW.
OPTIMIZER = ["--lr", "1e-3", "--betas", "0.9", "0.999", "--weight-decay", "0.01", "--decay-all", "--clip-grad-norm", "1.0",
             "--lr-schedule", "constant"]


class Fixture(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = fsdp_cli.folder("FSDP_FIXTURES") / "numerics" / "mingpt_tiny"
        cls.truth = json.loads((cls.model / "trajectory.json").read_text())
        ids = load_file(cls.model / "batches.safetensors")["ids"]
        cls.eight_rows = fsdp_cli.write_tokens(cls.folder / "eight.h5", ids.reshape(-1, ids.shape[2]))
        cls.four_rows = fsdp_cli.write_tokens(cls.folder / "four.h5", ids[:, :4].reshape(-1, ids.shape[2]))

    def compare(self, case, data, ranks, batch, *options):
        name = f"{case}-{ranks}-{batch}"
        result = fsdp_cli.run("fsdp-finetune", [
            "--model", self.model, "--train-data", data, "--no-shuffle", "--max-steps", STEPS, "--batch-size", batch, "--seq-len", 32,
            "--out-dir", self.runs, "--run-name", name, "--no-save", *fsdp_cli.COMMON, *OPTIMIZER, *options], ranks)
        self.assertEqual(result.code, 0, str(result))
        truth = self.truth[case]["f32"]
        loss = fsdp_cli.difference(fsdp_cli.losses(self.runs / name), truth["loss"])
        norms = [r["grad_norm"] for r in fsdp_cli.steps(self.runs / name)]
        norm = max(abs(a - b) / b for a, b in zip(norms, truth["grad_norm_before_clip"]))
        fsdp_cli.say(f"{case}, {ranks} ranks x {batch} {' '.join(map(str, options))}: loss within {loss:.3g}, gradient norm within {norm:.3g} (relative)")
        self.assertLess(loss, TOLERANCE)
        self.assertLess(norm, TOLERANCE)

    def test_one_rank(self):
        self.compare("rank1_b8", self.eight_rows, 1, 8)
        self.compare("rank1_b4", self.four_rows, 1, 4)

    def test_two_ranks(self):
        self.compare("rank2_b4", self.eight_rows, 2, 4)

    def test_four_ranks(self):
        self.compare("rank4_b2", self.eight_rows, 4, 2)

    def test_accumulation(self):
        self.compare("rank1_b8", self.eight_rows, 2, 1, "--total-batch-size", 8)

    def test_strategies(self):
        self.compare("rank2_b4", self.eight_rows, 2, 4, "--sharding", "no-shard", "--activation-checkpointing")
        self.compare("rank4_b2", self.eight_rows, 4, 2, "--sharding", "hybrid-grad-shard", "--shard-group-size", 2)

    def test_without_a_launcher(self):
        self.compare("rank1_b8", self.eight_rows, 0, 8)


if __name__ == "__main__":
    fsdp_cli.main()
