"""Validation on several sets and text samples, as other programs and jobs elsewhere see them; the rest is in
tests/unit/apps/validation_test.cpp."""

import json

import fsdp_cli
import llama_cli

try:
    from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
except ImportError:
    event_accumulator = None

STEPS = ["--max-steps", 6, "--eval-every", 2]


class Sets(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hard = fsdp_cli.write_tokens(cls.folder / "hard.h5", fsdp_cli.random_tokens(rows=7, seed=5, width=20))
        cls("losses").train("both", *STEPS, "--val-data", f"easy={cls.val_data},hard-1={cls.hard}", "--keep-best", "hard-1", ranks=2)

    def validation(self, name, key=None):
        return [(r["step"], r["val_loss"], r["val_tokens"]) for r in fsdp_cli.records(self.run_directory(name)) if "val_loss" in r and r.get("val_set") == key]

    def test_every_view_tells_them_apart(self):
        last = {name: self.validation("both", name)[-1][1] for name in ("easy", "hard-1")}
        run, = fsdp_cli.run("fsdp-eval", ["--runs", self.run_directory("both"), "--json"]).json()["runs"]
        self.assertEqual({name: v["last"] for name, v in run["validation"].items()}, last)
        self.assertEqual((run["val_loss"], run["best_val_loss"]), (last["hard-1"], run["validation"]["hard-1"]["best"]), "the one that decides")
        table = fsdp_cli.run("fsdp-eval", ["--runs", self.run_directory("both")]).out
        self.assertRegex(table.splitlines()[0], r"validation easy +validation hard-1 ")
        view = fsdp_cli.run("fsdp-finetune", ["--watch", self.run_directory("both")]).out
        for name, loss in last.items():
            self.assertRegex(view, rf"(?m)^eval {name} +{loss:.4f}")
            self.assertIn(f"{name} {loss:.3f}, best", (self.run_directory("both") / "loss.svg").read_text())

    def test_tensorboard_has_a_curve_for_each(self):
        if event_accumulator is None:
            self.skipTest("tensorboard is not installed (scripts/setup --full)")
        accumulator = event_accumulator.EventAccumulator(str(self.run_directory("both")))
        accumulator.Reload()
        for name in ("easy", "hard-1"):
            points = [(e.step, e.value) for e in accumulator.Scalars(f"validation/{name}/loss")]
            for (step, value), (wanted, loss, _) in zip(points, self.validation("both", name), strict=True):
                self.assertEqual(step, wanted)
                self.assertAlmostEqual(value, loss, delta=1e-6)

    def test_a_restart_elsewhere_has_them_all_and_evaluation_alone_too(self):
        self.train("here", "--max-steps", 2, "--val-data", "easy=val.h5,hard=hard.h5", cwd=self.folder)
        self.train("here", "--max-steps", 3, "--restart", "latest", cwd="/")
        self.assertEqual([step for step, _, _ in self.validation("here", "hard")], [2, 3])
        # A folder whose name looks like a list of sets.
        folder = self.folder / "lr=1,hard=2"
        folder.mkdir()
        for data in (self.val_data, self.hard):
            (folder / data.name).symlink_to(data)
        self.train("there", "--max-steps", 1, "--val-data", "easy=val.h5,hard=hard.h5", cwd=folder)
        self.train("there", "--max-steps", 2, "--restart", "latest", cwd="/")
        self.assertEqual([step for step, _, _ in self.validation("there", "hard")], [1, 2])


class Samples(llama_cli.Case):
    PROMPTS = ["e2e4 e7e5", "d2d4\nñ"]

    def options(self, *more):
        return ["--batch-size", 2, "--max-seq-length", 64, "--documents", "--lr", "1e-2", *more]

    def samples(self, name):
        with open(self.run_directory(name) / "samples.jsonl", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def prompts(self):
        return [word for prompt in self.PROMPTS for word in ("--sample-prompt", prompt)]

    def test_training_is_the_same_and_the_texts_are_those_of_each_checkpoint(self):
        steps = ["--max-steps", 4, "--save-every", 2, "--eval-every", 2]
        for sharding in ("full-shard", "grad-shard"):
            self.tune(f"plain-{sharding}", self.games, *self.options(*steps, "--sharding", sharding), ranks=2)
            name = f"samples-{sharding}"
            self.tune(name, self.games, *self.options(*steps, "--sharding", sharding, *self.prompts(), "--sample-tokens", 7), ranks=2)
            self.assertEqual(self.losses(name), self.losses(f"plain-{sharding}"))
            equal = fsdp_cli.run("fsdp-ckpt-convert", ["--verify", self.checkpoints(name) / "latest", self.checkpoints(f"plain-{sharding}") / "latest",
                                                       "--exclude", "run*"])
            self.assertEqual(equal.code, 0, str(equal))
        found = self.samples("samples-full-shard")
        self.assertEqual([(s["step"], s["prompt"]) for s in found], [(step, prompt) for step in (2, 4) for prompt in self.PROMPTS])
        self.assertEqual(found, self.samples("samples-grad-shard"))
        for sample in found:
            report = self.evaluate(self.checkpoints("samples-full-shard") / f"step-{sample['step']:08}", "--prompt", sample["prompt"], "--num-tokens", 7,
                                   "--temperature", 0)
            for key in ("prompt", "text", "tokens_generated", "ended"):
                self.assertEqual(sample[key], report[key])
        early, late = ([s["tokens_generated"] for s in found if s["step"] == step] for step in (2, 4))
        self.assertNotEqual(early, late, "the model has learned in between")

    def test_a_resumed_run_has_each_step_once(self):
        steps = ["--save-every", 2, "--eval-every", 2, *self.prompts(), "--sample-tokens", 3]
        self.tune("resumed", self.games, *self.options("--max-steps", 6, *steps))
        whole = self.samples("resumed")
        self.tune("resumed", self.games, *self.options("--max-steps", 6, *steps, "--restart", self.checkpoints("resumed") / "step-00000002"))
        self.assertEqual(self.samples("resumed"), whole)
        self.tune("resumed", self.games, *self.options("--max-steps", 6, *steps, "--restart", "latest"))  # is done
        self.assertEqual(self.samples("resumed"), whole)
        if event_accumulator is not None:
            accumulator = plugin_event_accumulator.EventAccumulator(str(self.run_directory("resumed")), tensor_size_guidance={"text": 0})
            accumulator.Reload()
            texts = accumulator.Tensors("samples/2/text_summary")
            self.assertEqual([t.step for t in texts], [2, 4, 6])
            self.assertIn("d2d4\n    ñ", texts[0].tensor_proto.string_val[0].decode())


if __name__ == "__main__":
    fsdp_cli.main()
