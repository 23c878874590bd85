"""fsdp-finetune --dry-run plans a model that does not fit here, from its config.json alone."""

import os
import resource
import subprocess

import fsdp_cli
import memprobe_cli

GIB = 2**30


def little_memory():
    """Limits address space: enough for the program and its libraries on each rank, not for 27 GB of master weights."""
    resource.setrlimit(resource.RLIMIT_AS, (8 * GIB, 8 * GIB))


class DryRun(fsdp_cli.Case):
    def dry_run(self, *more, ranks, **how):
        return fsdp_cli.run("fsdp-finetune", ["--train-data", self.tokens, "--out-dir", self.runs, "--device", "cpu", "--dry-run", "--precision", "bf16", *more], ranks,
                            before=little_memory, **how)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = cls.folder / "CodeLlama-7b-hf"
        cls.model.mkdir()
        memprobe_cli.write_config(cls.model, memprobe_cli.CODELLAMA)
        cls.tokens = fsdp_cli.write_tokens(cls.folder / "long.h5", fsdp_cli.random_tokens(width=129, vocab=32016))

    def test_a_7b_model_without_its_weights_on_a_small_node(self):
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                result = self.dry_run("--model", self.model, ranks=ranks)
                # It may be a large node.
                self.assertEqual(result.code, 3 if "the job does not fit" in result.err else 0, str(result))
                for words in ("6738.5 M parameters", "64 rows x 128 tokens", "predicted peak", "the weights are not there yet", str(self.model)):
                    self.assertIn(words, result.err)
                self.assertEqual(result.err.count("the weights are not there"), 1, str(result))
                self.assertFalse(self.runs.exists())

    def test_a_job_that_fits_has_its_length(self):
        sizes = ["--model", "mingpt", "--num-layers", 1, "--num-heads", 1, "--embed-size", 16, "--batch-size", 4]
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                result = self.dry_run(*sizes, "--max-epochs", 2, "--json", ranks=ranks)
                self.assertEqual(result.code, 0, str(result))
                report = result.json()
                steps = 2 * 64 // (4 * max(1, ranks))
                self.assertTrue(report["fits"])
                self.assertGreater(report["predicted_peak_bytes"], 0)
                if "predicted" not in report:  # a processor too busy to be measured
                    self.assertIn("speed     not predicted: " + report["not_predicted"], result.err)
                    continue
                self.assertNotIn("not_predicted", report)
                predicted = report["predicted"]
                self.assertEqual(predicted["steps"], steps)
                self.assertAlmostEqual(predicted["seconds"], steps * predicted["seconds_per_step"])
                self.assertAlmostEqual(predicted["node_hours"], predicted["seconds"] / 3600)
                self.assertIn(f"length    {steps} steps to go: about ", result.err)

    def test_a_job_that_does_not_fit_is_answered_no_with_what_would_help(self):
        sizes = ["--model", "mingpt", "--num-layers", 200, "--num-heads", 64, "--embed-size", 16384, "--batch-size", 4]
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                result = self.dry_run(*sizes, "--json", ranks=ranks)
                self.assertEqual(result.code, 3, str(result))
                self.assertFalse(result.json()["fits"])
                self.assertIn("the job does not fit: it does not even fit with a smaller --batch-size", result.err)
                self.assertIn("--activation-checkpointing", result.err)

    def test_a_run_that_cannot_fit_does_not_start(self):
        """It ends before the model takes memory, with what --dry-run says; a step of it would be killed by the kernel."""
        small = ["--model", "mingpt", "--num-layers", 1, "--num-heads", 1, "--embed-size", 64]
        text = self.folder / "much.txt"
        text.write_text("some words of it\n" * 100000)
        huge = ["--model", "mingpt", "--num-layers", 60, "--num-heads", 64, "--embed-size", 32768, "--batch-size", 4]
        for ranks, sizes, data in ((0, huge, self.tokens), (2, huge, self.tokens), (0, [*small, "--batch-size", 1_000_000], text)):
            with self.subTest(ranks=ranks, data=data):
                result = fsdp_cli.run("fsdp-finetune", ["--train-data", data, "--out-dir", self.folder / "none", "--run-name", "none", "--device", "cpu", "--max-steps", 1, *sizes], ranks,
                                      before=little_memory)
                self.assert_refused(result, 3, "the job does not fit into this node's memory: ", "a smaller --batch-size")
                self.assertNotIn("step  ", result.err)
                self.assertEqual(list(self.folder.glob("none/none/*")), [])

    def test_what_cannot_be_measured_is_said(self):
        result = self.dry_run("--model", "mingpt", "--num-layers", 1, "--num-heads", 1, "--embed-size", 16, "--json", "--precision", "fp16", ranks=0, env={"FSDP_CPU_FLOPS": ""})
        report = result.json()
        if "predicted" in report:
            self.skipTest("this processor multiplies fp16 fast")
        self.assertIn("too slow here to be measured", report["not_predicted"])
        self.assertIn("speed     not predicted: " + report["not_predicted"], result.err)

    def test_strategies_are_planned_as_they_will_be(self):
        result = self.dry_run("--model", self.model, "--sharding", "hybrid-full-shard", "--shard-group-size", 2, "--batch-size", 1, "--total-batch-size", 8, ranks=4)
        self.assertEqual(result.code, 3 if "the job does not fit" in result.err else 0, str(result))
        for words in ("(2 shards x 2 replicas)", "4 ranks on 1 node", "shared-memory collectives", "8 rows per step (4 ranks x 1 x 2 micro-batches)"):
            self.assertIn(words, result.err)
        self.assert_refused(self.dry_run("--model", self.model, "--betas", 2, 3, ranks=2), 2, "--betas")

    def test_the_program_takes_no_memory_for_the_model(self):
        command = fsdp_cli.command("fsdp-finetune", ["--train-data", self.tokens, "--out-dir", self.runs, "--device", "cpu", "--dry-run", "--model", self.model], 0)
        with open(os.devnull, "wb") as nothing, subprocess.Popen(command, stdout=nothing, stderr=nothing, env=fsdp_cli.environment()) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        self.assertIn(process.returncode, (0, 3))
        self.assertLess(usage.ru_maxrss * 1024, GIB)


if __name__ == "__main__":
    fsdp_cli.main()
