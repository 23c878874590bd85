"""Validation on several sets, each with its own curve, and text samples: figures, files, and no effect on training."""

import json
import os
import signal

import fsdp_cli
import llama_cli
import numpy

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

    def test_each_has_the_losses_that_it_has_alone(self):
        for name, data in (("easy", self.val_data), ("hard-1", self.hard)):
            self.train(name, *STEPS, "--val-data", data, ranks=2)
            alone = self.validation(name)
            self.assertEqual([step for step, _, _ in alone], [2, 4, 6])
            self.assertEqual(self.validation("both", name), alone)
        self.assertEqual(self.losses("both"), self.losses("easy"))

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

    def test_the_named_one_decides(self):
        state = json.loads((self.checkpoints("both") / "latest" / "run.json").read_text())["state"]["validation"]
        losses = {step: loss for step, loss, _ in self.validation("both", "hard-1")}
        self.assertEqual((state["set"], state["best_value"]), ("hard-1", min(losses.values())))

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
        result = self.train("only", "--max-epochs", -1, "--val-data", f"b={self.hard},a={self.val_data}", "--restart", self.checkpoints("here") / "latest", "--json",
                            ranks=2)
        report = result.json()
        self.assertEqual(report["val_loss"], report["val_losses"]["b"])
        self.assertAlmostEqual(report["val_losses"]["a"], self.validation("here", "easy")[-1][1], delta=1e-6)

    def test_what_cannot_be_is_told_before_training(self):
        for text, code, word in ((f"a={self.val_data},a={self.hard}", 2, "the name a is there twice"), (f"a={self.val_data},b=", 2, "b= names no path"),
                                 (f"a={self.val_data},b=gone.h5", 4, "--val-data b: gone.h5"), (f"a/b={self.val_data}", 4, "names of letters"),
                                 (f"none={self.val_data}", 2, "none is no name of a set"),
                                 (f"a={self.val_data},b={self.folder}/nothing.jsonl", 4, "nothing.jsonl")):
            self.assert_refused(self.train("refused", "--max-steps", 1, "--val-data", text, code=code), code, word)
        self.assertFalse(self.run_directory("refused").exists())


class CutShort(fsdp_cli.Case):
    """Validations that take a minute, and jobs that end during them."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.long = fsdp_cli.write_tokens(cls.folder / "long.h5", numpy.resize(fsdp_cli.random_tokens(seed=3), (200000, fsdp_cli.SEQ_LEN + 1)))

    def begin(self, name, *options, ranks=2):
        log = self.folder / f"{name}.log"
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments(name, *options), ranks, log)
        self.addCleanup(fsdp_cli.end_group, process)
        return process, log

    def validated(self, name):
        return [(r["step"], r["val_loss"]) for r in fsdp_cli.records(self.run_directory(name)) if "val_loss" in r]

    def state(self, name):
        return json.loads((self.checkpoints(name) / "latest" / "run.json").read_text())["state"]

    def has_steps(self, name, steps):
        return (self.run_directory(name) / "metrics.jsonl").exists() and len(fsdp_cli.steps(self.run_directory(name))) == steps

    def test_the_step_is_saved_before_and_the_next_start_validates(self):
        options = ["--max-steps", 4, "--eval-every", 2, "--save-every", 2, "--keep-best", "--patience", 3, "--lr", "1e-2"]
        process, log = self.begin("cut", *options, "--val-data", f"short={self.val_data},long={self.long}")
        fsdp_cli.wait_for(process, log, (self.checkpoints("cut") / "latest").exists)
        fsdp_cli.end_group(process)
        process.wait()
        self.assertEqual((self.validated("cut"), self.state("cut")["validation_due"]), ([], True))
        stopped = self.train("cut", "--restart", "latest", "--time-limit", "0:08", ranks=2, code=fsdp_cli.STOPPED_EARLY)
        self.assertIn("eval        2   the job is to end: left to the next start", stopped.err)
        self.assertIn("stopped   out of time   step 2 of 4", stopped.err)
        self.assertEqual((self.validated("cut"), self.state("cut").get("validation")), ([], None))
        self.train("cut", "--restart", "latest", "--val-data", f"short={self.val_data}", ranks=2)
        self.train("whole", *options, "--val-data", f"short={self.val_data}", ranks=2)
        self.assertEqual([step for step, _ in self.validated("whole")], [2, 4])
        self.assertEqual(self.validated("cut"), self.validated("whole"))
        self.assertEqual(self.losses("cut"), self.losses("whole"))
        self.assertEqual(self.state("cut"), self.state("whole"))
        self.assertEqual([os.readlink(self.checkpoints(name) / "best") for name in ("cut", "whole")], ["step-00000004"] * 2)

    def test_one_that_is_found_made_after_all_is_there_once(self):
        """The job is killed between writing the validation's lines and its checkpoint."""
        options = ["--max-steps", 4, "--eval-every", 2, "--save-every", 2, "--val-data", self.val_data]
        process, log = self.begin("twice", *options[:-1], self.long)
        fsdp_cli.wait_for(process, log, (self.checkpoints("twice") / "latest").exists)
        fsdp_cli.end_group(process)
        process.wait()
        with open(self.run_directory("twice") / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": 2, "val_loss": 4.5, "val_tokens": 1, "eval_seconds": 1.0}) + "\n")
        self.train("twice", "--restart", "latest", "--val-data", self.val_data, ranks=2)
        self.assertEqual([step for step, _ in self.validated("twice")], [2, 4])
        self.assertNotEqual(self.validated("twice")[0][1], 4.5)
        # If the restart has no validations, the run continues without the missing one.
        self.train("twice", "--restart", self.checkpoints("twice") / "step-00000002", "--eval-every", 0, "--val-data", self.val_data)
        self.assertNotIn("validation_due", self.state("twice"))

    def test_the_one_at_the_end_is_left_to_the_next_start_too(self):
        """This also holds if the next start makes the run longer."""
        for name, more, later, validated in (("end", [], [], [3]), ("longer", ["--eval-every", 3], ["--max-steps", 4], [3, 4])):
            process, log = self.begin(name, "--max-steps", 3, "--no-save", "--val-data", self.long, *more)
            fsdp_cli.wait_for(process, log, lambda: self.has_steps(name, 3))
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(20), fsdp_cli.STOPPED_EARLY, log.read_text())
            self.assertEqual((self.validated(name), self.state(name)["step"]), ([], 3))
            self.train(name, "--restart", "latest", "--val-data", self.val_data, *later)
            self.assertEqual([step for step, _ in self.validated(name)], validated)


class Samples(llama_cli.Case):
    PROMPTS = ["e2e4 e7e5", "d2d4\nñ"]

    def options(self, *more):
        return ["--batch-size", 2, "--max-seq-length", 64, "--lr", "1e-2", *more]

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
        self.assertNotEqual(found[0]["tokens_generated"], found[2]["tokens_generated"], "the model has learned in between")

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

    def test_a_prompt_in_brackets_is_one_text(self):
        prompt = "[INST] Hi, there [/INST]"
        given = self.options("--max-steps", 1, "--sample-prompt", prompt, "--sample-tokens", 1)
        self.tune("brackets", self.games, *given)
        self.assertEqual([s["prompt"] for s in self.samples("brackets")], [prompt])
        plan = self.folder / "plan.ini"
        plan.write_text(f"sample-prompt = '{prompt}'\n")
        self.tune("brackets-file", self.games, *self.options("--max-steps", 1, "--config", plan, "--sample-tokens", 1))
        self.assertEqual([s["prompt"] for s in self.samples("brackets-file")], [prompt])

    def test_a_file_of_that_name_by_others_stays(self):
        sample = ["--sample-prompt", "e2e4", "--sample-tokens", 1]
        mine = self.run_directory("theirs") / "samples.jsonl"
        mine.parent.mkdir(parents=True)
        mine.write_text("my notes\n")
        self.tune("theirs", self.games, *self.options("--max-steps", 1))
        self.assertEqual(mine.read_text(), "my notes\n")
        self.tune("theirs", self.games, *self.options("--max-steps", 2, "--restart", "latest"))
        self.assertEqual(mine.read_text(), "my notes\n")
        refused = self.tune("theirs", self.games, *self.options("--max-steps", 3, "--restart", "latest", *sample), code=4)
        self.assert_refused(refused, 4, "samples.jsonl, line 1: is no sample of --sample-prompt")
        self.assertEqual(mine.read_text(), "my notes\n")
        self.assertEqual(len(self.losses("theirs")), 2)
        mine.write_text('{"step": "a"}\n')
        self.tune("theirs", self.games, *self.options("--max-steps", 3, "--restart", "latest"))
        self.assertEqual(mine.read_text(), '{"step": "a"}\n')
        # A new run moves files of an earlier run of the same name.
        other = self.run_directory("alone") / "samples.jsonl"
        other.parent.mkdir(parents=True)
        other.write_text("my notes\n")
        self.tune("alone", self.games, *self.options("--max-steps", 1, *sample))
        self.assertEqual((other.parent / "previous-1" / "samples.jsonl").read_text(), "my notes\n")
        self.assertEqual(len(self.samples("alone")), 1)

    def test_what_cannot_be_is_told_before_training(self):
        for more, word in ((["--sample-prompt", "a", "--sample-tokens", 0], "--sample-tokens is 0"),
                           (["--sample-prompt", "a", "--val-data", self.validation, "--max-steps", 0, "--max-epochs", -1], "give --prompt")):
            self.assert_refused(self.tune("refused", self.games, *self.options("--max-steps", 1, *more), code=2), 2, word)
        # The tokenizer of the weights has more ids than the tiny minGPT.
        self.assert_refused(self.train("small", "--max-steps", 1, "--sample-prompt", "a", code=4), 4, "do not belong together")


if __name__ == "__main__":
    fsdp_cli.main()
