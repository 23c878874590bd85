"""Llama in fsdp-finetune: transformers' losses (tests/fixtures/numerics), token-weighted accumulation, equal on all numbers of ranks."""

import json

import fsdp_cli
import llama_cli
import numpy

# Float32 sums in another order; the fixtures' float32 and float64 losses differ by 1e-7.
TOLERANCE = 1e-5
FROZEN = ["--lr", 0, "--max-steps", 1, "--no-shuffle", "--no-save"]


class Fixture(llama_cli.Case):
    def check(self, model, case, ranks, *options):
        folder = fsdp_cli.folder("FSDP_FIXTURES") / "numerics" / model
        inputs = json.loads((folder / "inputs.json").read_text())[case]
        # Shorter documents are padded on the right.
        documents = [[t for t, m in zip(ids, mask) if m] for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"])]
        data = llama_cli.write_documents(self.folder / f"{model}-{case}.h5", documents)
        truth = json.loads((folder / "expected.json").read_text())["cases"][case]["f32"]
        if (folder / "model.safetensors").exists():
            name = f"{model}-{case}-{ranks}-{len(options)}"
            self.tune(name, data, *FROZEN, "--total-batch-size", 2, *options, model=folder, ranks=ranks)
            step = fsdp_cli.steps(self.run_directory(name))[0]
            self.assertEqual(step["tokens"], sum(len(d) - 1 for d in documents))
            loss, norm = step["loss"] / truth["loss"] - 1, step["grad_norm"] / truth["total_grad_norm"] - 1
            fsdp_cli.say(f"{name}: loss within {loss:.2g}, gradient norm within {norm:.2g} (relative)")
            self.assertLess(abs(loss), TOLERANCE)
            self.assertLess(abs(norm), TOLERANCE)

    def test_unpadded(self):
        self.check("llama_nano", "a", 1, "--batch-size", 2)
        self.check("llama_nano", "a", 2, "--batch-size", 1)

    def test_padded(self):
        self.check("llama_nano", "b", 1, "--batch-size", 2)
        self.check("llama_nano", "b", 2, "--batch-size", 1)
        self.check("llama_nano", "b", 1, "--batch-size", 1, "--gradient-accumulation-steps", 2)
        self.check("llama_nano", "b", 2, "--batch-size", 1, "--no_fsdp", "--gradient_checkpointing")


class UnequalLengths(llama_cli.Case):
    """Sequences of 1 to 120 ids: a mean of means would weight short ones too much."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        random = numpy.random.default_rng(3)
        lengths = [120, 2, 60, 1, 3, 90, 7, 0, 33, 2, 110, 5] * 2
        cls.data = llama_cli.write_documents(cls.folder / "unequal.h5", [random.integers(3, 1000, n) for n in lengths])

    def trajectory(self, name, *options, ranks=0):
        self.tune(name, self.data, "--total-batch-size", 12, "--max-steps", 4, "--lr", "1e-2", "--no-save", "--seed", 5, *options, ranks=ranks)
        return self.losses(name), [r["tokens"] for r in fsdp_cli.steps(self.run_directory(name))]

    def test_accumulated_equals_unaccumulated(self):
        whole, tokens = self.trajectory("whole", "--batch-size", 12)
        self.assertGreater(whole[0] - whole[-1], 0.5)
        for name, ranks, batch, *more in [("accumulated", 0, 1), ("three", 0, 4), ("ranks-2", 2, 3), ("ranks-4", 4, 1),
                                          ("sharded", 2, 1, "--reduce-every-micro-batch"), ("grad-shard", 2, 2, "--sharding", "grad-shard"),
                                          ("one-unit", 3, 2, "--no_layer_wrap_policy"), ("recomputed", 2, 2, "--gradient_checkpointing")]:
            losses, same_tokens = self.trajectory(name, "--batch_size_per_device", batch, *more, ranks=ranks)
            self.assertEqual(tokens, same_tokens)
            apart = max(abs(a / b - 1) for a, b in zip(whole, losses))
            fsdp_cli.say(f"{name}: losses of 4 steps within {apart:.2g} (relative) of the unaccumulated ones")
            # Float32 sums in another order; AdamW's first steps divide by the gradients' size, which magnifies rounding.
            self.assertLess(apart, 2e-5)


if __name__ == "__main__":
    fsdp_cli.main()
