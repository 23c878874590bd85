"""Training logs how right its prediction was; fsdp-memprobe learns from such logs."""

import json
import re

import fsdp_cli
import memprobe_cli

A100 = 81050 * 2**20


class Calibration(fsdp_cli.Case):
    def finetune(self, name, *arguments, ranks=2):
        result = fsdp_cli.run("fsdp-finetune", [*memprobe_cli.MINGPT_S, "--train-data", fsdp_cli.folder("FSDP_DATA") / "shakespeare/validation.h5",
                                                "--out-dir", self.runs, "--run-name", name, *arguments, *fsdp_cli.COMMON],
                              ranks=ranks, limit_seconds=200)
        self.assertEqual(result.code, 0, str(result))
        return result

    def test_a_run_says_how_right_its_prediction_was(self):
        for name, arguments, ranks in (("plain", [], 2), ("recomputed", ["--precision", "bf16", "--activation-checkpointing", "all"], 2),
                                       ("accumulated", ["--gradient-accumulation-steps", 4, "--sharding", "grad-shard"], 0)):
            with self.subTest(name):
                result = self.finetune(name, "--batch-size", 2, "--max-steps", 3, "--json", *arguments, ranks=ranks)
                outcome = json.loads((self.run_directory(name) / "memory.json").read_text())
                self.assertEqual(result.json()["memory"], outcome)
                self.assertEqual((outcome["device"], outcome["card_bytes"]), ("cpu", 0))
                self.assertAlmostEqual(outcome["predicted_bytes"] / outcome["measured_bytes"] - 1, outcome["relative_error"], 9)
                # As fsdp-memprobe's own measurements: what processors' kernels pack is not known to the byte.
                self.assertLess(abs(outcome["relative_error"]), 0.01, outcome)
                self.assertRegex(result.err, r"predicted peak [0-9.]+ .iB of [0-9.]+ .iB on the node")
                self.assertRegex(result.err, r"memory +peak .* prediction [+-][0-9.]+ %")
                # The job's own line and the tool are one prediction.
                job = [*memprobe_cli.MINGPT_S, "--seq-len", 256, "--batch-size", 2, *arguments, "--ranks", max(1, ranks)]
                found = memprobe_cli.report(job)
                self.assertLess(abs(found["peak_bytes"] / outcome["predicted_bytes"] - 1), 0.01)

    def test_copies_for_checkpoints_are_no_part_of_a_step(self):
        self.finetune("saved", "--batch-size", 1, "--max-steps", 6, "--save-every", 3)
        outcome = json.loads((self.run_directory("saved") / "memory.json").read_text())
        self.assertLess(abs(outcome["relative_error"]), 0.01, outcome)
        # One step before the first copy is not enough to know a step's peak.
        self.finetune("early", "--batch-size", 1, "--max-steps", 2, "--save-every", 1)
        self.assertFalse((self.run_directory("early") / "memory.json").exists())

    def outcome(self, name, **changes):
        values = {"device": "NVIDIA A100-SXM4-80GB", "card_bytes": A100, "nodes": 1, "communicators": 1, "predicted_bytes": 10**9,
                  "measured_bytes": 10**9, "overhead_bytes": 800 * 2**20, "alloc_retries": 0}
        file = self.folder / "earlier" / name / "memory.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**values, **changes}))
        return file

    def test_earlier_runs_set_margin_and_overheads(self):
        job = [*memprobe_cli.MINGPT_M, "--ranks", 4, "--gpu", "a100-80g", "--precision", "bf16", "--search"]
        self.outcome("a")
        self.outcome("b", measured_bytes=1_020_000_000, overhead_bytes=2 * 2**30)
        found = memprobe_cli.report([*job, "--calibration", self.folder / "earlier"])
        self.assertEqual(found["breakdown"]["cuda_context"] + found["breakdown"]["nccl"], 2 * 2**30)
        self.assertAlmostEqual(found["margin_bytes"] / found["budget_bytes"], 0.02, 6)
        self.assertEqual(found["calibration"]["runs"], 2)
        self.assertLess(found["largest_batch_per_device"], memprobe_cli.report([*job, "--margin", "0%"])["largest_batch_per_device"])
        # Runs on two nodes know nothing of NCCL inside one; what is given wins.
        self.outcome("b", nodes=2, overhead_bytes=2 * 2**30)
        found = memprobe_cli.report([*job, "--calibration", self.folder / "earlier", "--nccl-buffers", "300MiB"])
        self.assertEqual(found["breakdown"]["nccl"], 300 * 2**20)
        self.assertEqual(found["margin_bytes"], 0)
        text = fsdp_cli.run("fsdp-memprobe", [*job, "--calibration", self.folder / "earlier"]).out
        self.assertTrue(re.search(r"earlier +2 runs: predictions were \+0\.00 to \+0\.00 % off +800 MiB outside", text), text)

    def test_texts_are_judged_by_the_longest_that_there_was(self):
        data = self.folder / "texts.jsonl"
        # Of 16 texts one is long; it is not among the first 8.
        data.write_text("".join(json.dumps({"text": "to be or not to be " * (40 if i == 12 else 4)}) + "\n" for i in range(16)))
        job = ["--train-data", data, "--out-dir", self.runs, "--seq-len", 256, "--batch-size", 2, "--no-shuffle", *memprobe_cli.MINGPT_S, *fsdp_cli.COMMON]
        for name, steps, longest in (("short", 3, range(10, 60)), ("long", 8, range(150, 256))):
            result = fsdp_cli.run("fsdp-finetune", [*job, "--run-name", name, "--max-steps", steps], ranks=0, limit_seconds=200)
            self.assertEqual(result.code, 0, str(result))
            outcome = json.loads((self.run_directory(name) / "memory.json").read_text())
            self.assertIn(outcome["longest_sequence"], longest)
            self.assertLess(abs(outcome["relative_error"]), 0.01, outcome)

    def test_a_directory_without_runs_changes_nothing(self):
        (self.folder / "none").mkdir()
        job = [*memprobe_cli.MINGPT_M, "--ranks", 4, "--gpu", "a100-80g", "--search"]
        result = fsdp_cli.run("fsdp-memprobe", [*job, "--json", "--calibration", self.folder / "none"])
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("no run has left a memory.json", result.err)
        usual = memprobe_cli.report(job)
        for key in ("margin_bytes", "breakdown", "largest_batch_per_device"):
            self.assertEqual(result.json()[key], usual[key])

    def test_a_full_disk_does_not_cost_the_training(self):
        # What cannot be replaced stands for a quota that is used up.
        (self.run_directory("blocked") / "memory.json").mkdir(parents=True)
        result = self.finetune("blocked", "--batch-size", 1, "--max-steps", 3)
        self.assertIn("memory.json", result.err)
        self.assertRegex(result.err, "done +3 steps")

    def test_refusals(self):
        job = [*memprobe_cli.MINGPT_S, "--ranks", 1, "--gpu", "t4", "--calibration"]
        broken = self.outcome("broken", predicted_bytes=-1)
        for path, words in ((broken, ["memory.json", "predicted_bytes"]), (self.folder / "nowhere", ["nowhere"])):
            self.assert_refused(fsdp_cli.run("fsdp-memprobe", [*job, path]), 4, *words)
        self.assert_refused(fsdp_cli.run("fsdp-memprobe", [*job[:-1], "--margin", "120%"]), 2, "--margin")


if __name__ == "__main__":
    fsdp_cli.main()
