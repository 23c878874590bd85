"""Checkpoints of programs with another environment; all else is in tests/unit/apps/checkpoint_test.cpp."""

import json

import fsdp_cli


class Checkpoints(fsdp_cli.Case):
    def test_how_matrices_are_multiplied_is_kept_and_a_change_is_told(self):
        given = ["--precision", "bf16", "--batch-size", 4]
        first = self.train("ways", "--max-steps", 2, *given, env={"FSDP_BF16_GEMM": "native"})
        self.assertNotRegex(first.err, r"(?m)^products")
        manifest = json.loads((self.checkpoints("ways") / "step-00000002" / "run.json").read_text())
        self.assertEqual(manifest["products"], "bf16 natively")
        changed = self.train("ways", "--max-steps", 4, "--restart-checkpoint-file", "latest", *given, env={"FSDP_BF16_GEMM": "widened"})
        self.assertRegex(changed.err, "products  bf16 through float32 by (onednn|aten); the saved run had bf16 natively")
        ways = [r["products"] for r in fsdp_cli.steps(self.run_directory("ways"))]
        self.assertEqual(ways[:2], ["bf16 natively"] * 2)
        self.assertTrue(all(way.startswith("bf16 through float32") for way in ways[2:]), ways)


if __name__ == "__main__":
    fsdp_cli.main()
