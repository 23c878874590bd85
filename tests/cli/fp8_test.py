"""--compute-dtype fp8 on CPUs, which emulate fp8 products: resumed on other numbers of ranks, recorded, predicted, refused."""

import json

import fsdp_cli

JOB = ["--precision", "bf16", "--compute-dtype", "fp8"]


class Fp8(fsdp_cli.Case):
    def test_what_a_run_says_and_records(self):
        result = self.train("said", *JOB, "--max-steps", 3)
        self.assertIn("bf16, blocks multiply in fp8, emulated", result.err)
        memory = json.loads((self.run_directory("said") / "memory.json").read_text())
        self.assertLess(abs(memory["relative_error"]), 0.005, memory)
        manifest = json.loads((self.checkpoints("said") / "latest/run.json").read_text())
        self.assertIn("blocks' float8 emulated in float32", manifest["products"])
        plain = self.train("plain", "--precision", "bf16", "--max-steps", 3)
        self.assertNotIn("fp8", plain.err)
        apart = fsdp_cli.difference(self.losses("said"), self.losses("plain"))
        self.assertGreater(apart, 1e-5)  # it has an effect,
        self.assertLess(apart, 2e-2)  # and a small one

    def test_the_same_bits_alone_and_resumed(self):
        whole = self.train("whole", *JOB, "--max-steps", 6, ranks=2)
        self.assertEqual(whole.code, 0)
        self.train("parts", *JOB, "--max-steps", 3, ranks=2)
        # The checkpoint records that products were in fp8.
        went_on = self.train("parts", "--max-steps", 6, "--precision", "bf16", "--restart-checkpoint-file", self.checkpoints("parts") / "latest", ranks=2)
        self.assertIn("blocks multiply in fp8", went_on.err)
        self.assertEqual(self.losses("parts"), self.losses("whole"))
        without = self.train("parts", "--max-steps", 8, "--precision", "bf16", "--compute-dtype", "auto", "--restart", "latest", ranks=2)
        self.assertNotIn("fp8", without.err)
        for name, options in (("sent", ["--collectives", "host-staged"]), ("recomputed", ["--activation-checkpointing", "all"]),
                              ("grad-shard", ["--sharding", "grad-shard"]), ("cpu", ["--collectives", "host-staged", "--cpu-offload"]),
                              ("disk", ["--collectives", "host-staged", "--offload-optimizer", f"nvme:{self.folder / 'disk'}"])):
            with self.subTest(name):
                self.train(name, *JOB, *options, "--max-steps", 6, ranks=2)
                self.assertEqual(self.losses(name), self.losses("whole"))

    def test_samples_and_validations_of_gathered_codes(self):
        samples = []
        for collectives in ("auto", "host-staged"):
            self.train(collectives, *JOB, "--max-steps", 4, "--eval-every", 2, "--val-data", self.val_data, "--sample-prompt", "To be", "--tokenizer", "gpt2",
                       "--vocab-size", 50257, "--collectives", collectives, ranks=2)
            lines = (self.run_directory(collectives) / "samples.jsonl").read_text().splitlines()
            samples.append([(line["step"], line["text"]) for line in map(json.loads, lines)])
        self.assertEqual(samples[0], samples[1])
        self.assertEqual(len(samples[0]), 2)

    def test_usage(self):
        self.assert_refused(self.train("a", "--compute-dtype", "bf16", code=2), 2, "--quantize nf4", "fp8")
        self.assert_refused(self.train("b", "--compute-dtype", "fp9", code=2), 2, "fp9", "fp8")
        refused = self.train("c", *JOB, "--quantize", "nf4", "--lora-rank", 2, code=2)
        self.assert_refused(refused, 2, "fp8", "leave --quantize out")

    def test_a_gpu_without_them_is_named_before_the_job_is_queued(self):
        job = ["--num-layers", 2, "--num-heads", 4, "--embed-size", 128, "--vocab-size", 997, "--seq-len", 128, "--batch-size", 1, *JOB]
        refused = fsdp_cli.run("fsdp-memprobe", [*job, "--gpu", "a100-80g"])
        self.assert_refused(refused, 2, "fp8", "compute capability 8.0")
        fits = fsdp_cli.run("fsdp-memprobe", [*job, "--gpu", "h100"])
        self.assertEqual(fits.code, 0, str(fits))
        self.assertIn("bf16 with products in fp8", fits.out)
        for more, words in ((["--quantize", "nf4", "--lora-rank", 2], "leave --quantize out"), (["--quantize", "nf4", "--compute-dtype", "auto"], "--lora-rank"),
                            (["--embed-size", 132], "would change nothing")):
            self.assert_refused(fsdp_cli.run("fsdp-memprobe", [*job, "--gpu", "h100", *more]), 2, words)

    def test_wide_weights_keep_no_copies_that_nothing_reads(self):
        job = ["--num-layers", 2, "--num-heads", 4, "--embed-size", 256, "--vocab-size", 997, "--seq-len", 128, "--batch-size", 1, "--precision", "bf16",
               "--device", "cpu", "--json"]

        def peak(*more):
            answer = fsdp_cli.run("fsdp-memprobe", [*job, *more], env={"FSDP_BF16_GEMM": "widened"})
            self.assertEqual(answer.code, 0, str(answer))
            return json.loads(answer.out)["peak_bytes"]

        kept = peak("--wide-weights") - peak()
        self.assertLess(peak("--wide-weights", "--compute-dtype", "fp8") - peak("--compute-dtype", "fp8"), kept / 2)


if __name__ == "__main__":
    fsdp_cli.main()
