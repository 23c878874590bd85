"""--wide-weights: on processors that multiply 16-bit matrices in float32 the results keep their bits, and memory is as predicted."""

import json

import fsdp_cli

WIDENED = {"FSDP_BF16_GEMM": "widened"}  # emulates such a processor
JOB = ["--precision", "bf16", "--max-steps", 4, "--no-save", "--lr", "3e-3"]


class WideWeights(fsdp_cli.Case):
    def train_so(self, name, *options, ranks=0, env=None):
        result = self.train(name, *JOB, *options, ranks=ranks, env=env or WIDENED)
        return result, self.losses(name), json.loads((self.run_directory(name) / "memory.json").read_text())

    def test_same_losses_and_predicted_memory(self):
        for name, ranks, options in (("alone", 0, ["--gradient-accumulation-steps", 2]), ("shared", 2, []),
                                     ("sent", 2, ["--collectives", "host-staged"]),
                                     ("recomputed", 2, ["--sharding", "grad-shard", "--activation-checkpointing", "all"])):
            with self.subTest(name):
                _, packed, without = self.train_so(f"{name}-packed", *options, ranks=ranks)
                result, wide, memory = self.train_so(f"{name}-wide", "--wide-weights", *options, ranks=ranks)
                self.assertIn("multiplied through float32, in which weights are kept", result.err)
                self.assertEqual(wide, packed)
                self.assertGreater(memory["measured_bytes"], without["measured_bytes"])
                if name != "sent":  # memory of the tests' own collectives is not predicted
                    self.assertLess(abs(memory["relative_error"]), 0.005, memory)

    def test_other_processors_say_that_nothing_changes(self):
        result, wide, _ = self.train_so("native", "--wide-weights", env={"FSDP_BF16_GEMM": "native"})
        self.assertRegex(result.err, "--wide-weights changes nothing here: .*natively")
        self.assertEqual(wide, self.train_so("plain", env={"FSDP_BF16_GEMM": "native"})[1])


if __name__ == "__main__":
    fsdp_cli.main()
