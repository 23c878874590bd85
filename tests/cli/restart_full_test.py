"""One file for a whole run: --save-final-full writes it, and a restart from it equals one from the original checkpoint."""

import pathlib
import signal
import time

import fsdp_cli

with fsdp_cli.needed():
    import torch
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

BATCH = ["--total-batch-size", 12, "--lr", "3e-3", "--lr-schedule", "cosine", "--warmup-steps", 3, "--schedule-steps", 12]
RESTART = "--restart-checkpoint-file"


def flat(value, prefix=""):
    """Returns the leaves of nested dicts by joined path; a list is a leaf."""
    if isinstance(value, dict) and value:
        return {k: v for key, part in value.items() for k, v in flat(part, f"{prefix}{key}.").items()}
    return {prefix[:-1]: value}


class Full(fsdp_cli.Case):
    def assert_same_state(self, a, b):
        a, b = flat(a), flat(b)
        self.assertEqual(sorted(a), sorted(b))
        for name, value in a.items():
            if isinstance(value, torch.Tensor):
                self.assertEqual((value.dtype, value.shape), (b[name].dtype, b[name].shape), name)
                self.assertTrue(torch.equal(value, b[name]), name)
            else:
                self.assertEqual(value, b[name], name)

    def by_torch(self, checkpoint):
        file = self.folder / "by-torch.pt"
        dcp_to_torch_save(str(checkpoint), str(file))
        return torch.load(file, weights_only=True)

    def losses(self, name):
        return [r["loss"] for r in fsdp_cli.steps(self.run_directory(name))]

    def test_it_goes_on_like_the_checkpoint_it_came_from(self):
        for options in fsdp_cli.share(([], ["--dropout", 0.1], ["--precision", "bf16", "--sharding", "grad-shard"], ["--precision", "fp16"]), 3):
            tag = options[-1] if options else "plain"
            file = self.folder / f"{tag}.pt"
            self.train(f"{tag}-begun", "--max-steps", 3, "--batch-size", 6, *BATCH, *options, "--save-final-full", file, ranks=2)
            for ranks in (2, 3) if tag in ("plain", "0.1") else (2,):
                with self.subTest(options=options, ranks=ranks):
                    more = ["--max-steps", 7, "--batch-size", 12 // ranks, *[o for o in options if ranks == 2]]
                    names = [f"{tag}-{kind}-{ranks}" for kind in ("directory", "file")]
                    self.train(names[0], RESTART, self.checkpoints(f"{tag}-begun") / "latest", *more, ranks=ranks)
                    result = self.train(names[1], RESTART, file, *more, ranks=ranks)
                    self.assertIn(f"restart   {file}", result.err)
                    self.assertIn("step 3, 36 samples seen, saved by 2 ranks", result.err)
                    self.assertEqual(len(self.losses(names[1])), 4)
                    self.assertEqual(self.losses(names[1]), self.losses(names[0]))
                    a, b = (self.checkpoints(name) / "step-00000007" for name in names)
                    for part in sorted(p.name for p in a.glob("*.distcp")):
                        self.assertEqual((a / part).read_bytes(), (b / part).read_bytes(), part)

    def test_options_come_from_the_file(self):
        file = self.folder / "options.pt"
        self.train("options", "--max-steps", 2, "--batch-size", 6, *BATCH, "--weight-decay", 0.3, "--seed", 5, "--save-final-full", file)
        bare = ["--out-dir", self.runs, "--device", "cpu", "--max-steps", 5]
        for name, checkpoint in (("bare-file", file), ("bare-directory", self.checkpoints("options") / "latest")):
            result = fsdp_cli.run("fsdp-finetune", [*bare, "--run-name", name, RESTART, checkpoint])
            self.assertEqual(result.code, 0, str(result))
        self.assertEqual(self.losses("bare-file"), self.losses("bare-directory"))
        result = self.train("options", RESTART, file, "--max-steps", 4, "--embed-size", 64, ranks=2, code=2)
        self.assert_refused(result, 2, "--embed-size 64", 32, file)

    def test_torch_opens_it(self):
        for ranks, *options in ((1,), (3,), (4, "--sharding", "hybrid-full-shard", "--shard-group-size", "2")):
            file = self.folder / f"torch-{ranks}.pt"
            self.train(f"torch-{ranks}", "--max-steps", 3, "--batch-size", 12 // ranks, *BATCH, *options, "--save-final-full", file, ranks=ranks)
            state = torch.load(file, weights_only=True)
            self.assert_same_state(state, self.by_torch(self.checkpoints(f"torch-{ranks}") / "latest"))
            self.assertEqual(state["run"]["state"], {"step": 3, "samples": 36, "optimizer_steps": 3, "loss_scale": 1.0, "good_steps": 0})
            self.assertEqual(state["run"]["model"]["n_head"], 2)
            self.assertEqual(state["optim"]["state"]["transformer.wpe.weight"]["step"].item(), 3)

    def test_without_a_checkpoint_beside_it(self):
        kept, alone = self.folder / "kept.pt", self.folder / "alone.pt"
        self.train("kept", "--max-steps", 3, *BATCH, "--save-final-full", kept, "--batch-size", 6, ranks=2)
        self.train("alone", "--max-steps", 3, *BATCH, "--save-final-full", alone, "--batch-size", 6, "--no-save", "--save-every", 2, ranks=2)
        states = [torch.load(file, weights_only=True) for file in (alone, kept)]
        self.assertEqual(int(states[0]["run"]["options"].pop("save-every")), 2)
        for state in states:  # the options of each job differ
            del state["run"]["data"]["options_of_job"]
        self.assert_same_state(*states)
        self.assertEqual(sorted(p.name for p in self.checkpoints("alone").iterdir()), ["latest", "step-00000002"])
        left = [*self.run_directory("alone").glob(".[!o]*"), *self.checkpoints("alone").glob(".*"), *self.folder.glob(".*")]
        self.assertEqual(left, [], "nothing temporary is left")

    def test_a_finished_run_writes_it_when_asked_again(self):
        self.train("again", "--max-steps", 3, *BATCH, "--batch-size", 12)
        file = self.folder / "below" / "again.pt"
        result = self.train("again", RESTART, "latest", "--max-steps", 3, "--save-final-full", file, "--json", ranks=2)
        self.assertEqual(result.json()["full_checkpoint"], str(file))
        before = torch.load(file, weights_only=True)
        self.assert_same_state(before, self.by_torch(self.checkpoints("again") / "latest"))
        file.write_bytes(b"an old file")
        self.train("again", RESTART, "latest", "--max-steps", 3, "--save-final-full", file)
        self.assert_same_state(torch.load(file, weights_only=True), before)

    def test_safetensors(self):
        file = self.folder / "final.safetensors"
        self.train("st", "--max-steps", 3, *BATCH, "--batch-size", 6, "--save-final-full", file, ranks=2)
        tensors = load_file(file)
        truth = {k: v for k, v in flat(self.by_torch(self.checkpoints("st") / "latest")).items() if isinstance(v, torch.Tensor)}
        self.assert_same_state(tensors, truth)
        checkpoint = self.evaluate(self.checkpoints("st") / "latest", "--data", self.val_data)
        config = self.folder / "config.json"
        config.write_text(fsdp_cli.json.dumps(checkpoint["model"]))
        self.assertEqual(self.evaluate(file, "--model-config", config, "--data", self.val_data)["loss"], checkpoint["loss"])
        # With tensors alone the step comes from the optimizer's state and the options from the command line.
        self.train("st-directory", RESTART, self.checkpoints("st") / "latest", "--max-steps", 6, "--batch-size", 6, ranks=2)
        result = self.train("st-file", RESTART, file, "--max-steps", 6, "--batch-size", 6, *BATCH, ranks=2)
        self.assertIn("step 3 (its optimizer's)", result.err)
        self.assertIn("AdamW state of 3 steps", result.err)
        self.assertEqual(self.losses("st-file"), self.losses("st-directory"))

    def test_evaluation(self):
        file = self.folder / "evaluated.pt"
        self.train("evaluated", "--max-steps", 3, *BATCH, "--batch-size", 6, "--save-final-full", file)
        truth = self.evaluate(self.checkpoints("evaluated") / "latest", "--data", self.val_data)
        for ranks in (0, 2, 3):
            report = self.evaluate(file, "--data", self.val_data, ranks=ranks)
            self.assertAlmostEqual(report["loss"], truth["loss"], delta=1e-6)
            self.assertEqual(report["model"], truth["model"])

    def test_where_it_cannot_be_written(self):
        for file, code, word in ((self.folder / "final.zip", 2, ".safetensors"), (self.train_data / "final.pt", 1, "train.h5"),
                                 (self.folder, 2, ".safetensors")):
            result = self.train("nowhere", "--max-steps", 1, "--save-final-full", file, ranks=2, code=code)
            self.assert_refused(result, code, "--save-final-full", word)
        result = self.train("nowhere", "--max-epochs", "-1", "--val-data", self.val_data, "--save-final-full", self.folder / "a.pt", code=2)
        self.assert_refused(result, 2, "--save-final-full")
        self.assertFalse(self.run_directory("nowhere").exists(), "told before anything was done")

    def test_a_stopped_run_writes_none(self):
        file, log = self.folder / "stopped.pt", self.folder / "log"
        arguments = self.train_arguments("stopped", "--max-steps", 100000, "--save-final-full", file, "--log-every", 1)
        process = fsdp_cli.start("fsdp-finetune", arguments, 2, log)
        try:
            while "   loss " not in log.read_text() and process.poll() is None:
                time.sleep(0.05)
            for pid in fsdp_cli.rank_processes(process.pid, "fsdp-finetune")[:1]:
                fsdp_cli.os.kill(pid, signal.SIGTERM)
            self.assertEqual(process.wait(60), fsdp_cli.STOPPED_EARLY, log.read_text())
        finally:
            fsdp_cli.end_group(process)
        self.assertFalse(file.exists())
        self.assertTrue((self.checkpoints("stopped") / "latest").exists())


class Damaged(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.good = cls.folder / "good.pt"
        result = fsdp_cli.run("fsdp-finetune", ["--train-data", cls.train_data, "--out-dir", cls.runs, "--run-name", "good", "--max-steps", 2,
                                                "--save-final-full", cls.good, *fsdp_cli.COMMON, *fsdp_cli.TINY_MODEL], ranks=2)
        assert result.code == 0, str(result)

    def refused(self, data, *words, ranks=2):
        bad = self.folder / "bad.pt"
        bad.write_bytes(data)
        result = self.train("bad", RESTART, bad, "--max-steps", 4, ranks=ranks, code=4)
        self.assert_refused(result, 4, bad, *words)
        self.assert_refused(self.evaluate(bad, "--data", self.val_data, code=4), 4, bad, *words)
        self.assertFalse((self.run_directory("bad") / "checkpoints").exists(), "a refused restart changes nothing")

    def test_cut(self):
        data = self.good.read_bytes()
        for length in (0, 1, 100, len(data) // 2, len(data) - 1):
            with self.subTest(length=length):
                self.refused(data[:length])

    def test_a_flipped_bit_in_the_weights(self):
        data = bytearray(self.good.read_bytes())
        weights = torch.load(self.good, weights_only=True)["model"]["transformer.h.1.mlp.c_fc.weight"]
        place = data.find(weights.numpy().tobytes())
        self.assertGreater(place, 0)
        data[place + weights.nbytes // 2] ^= 16
        self.refused(bytes(data), ranks=3)

    def test_no_checkpoint_at_all(self):
        self.refused(b"to be or not to be, that is the question " * 20)
        self.refused(pathlib.Path(self.train_data).read_bytes())

    def test_no_file(self):
        for path in (self.folder / "missing.pt", self.folder / "missing" / "model.safetensors"):
            self.assert_refused(self.train("bad", RESTART, path, ranks=2, code=4), 4, path)
            self.assertEqual(self.evaluate(path, "--data", self.val_data, code=4).code, 4)


if __name__ == "__main__":
    fsdp_cli.main()
