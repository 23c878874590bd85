"""--val-tasks: the figures of fsdp-eval --tasks at validations, in every view of a run, and --keep-best and --patience by them."""

import json
import os
import pathlib
import signal
import time

import fsdp_cli

try:
    from tensorboard.backend.event_processing import event_accumulator
except ImportError:
    event_accumulator = None

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "tests/fixtures/benchmarks"
TASKS = FIXTURES / "tasks"


def asked(*names):
    return [word for name in names for word in ("--val-tasks", TASKS / f"{name}.yaml")]


class ValidationTasks(fsdp_cli.Case):
    """Trains a tiny model that knows the tasks on texts of other things, so that it forgets them."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.texts = cls.folder / "texts.jsonl"
        rows = (json.loads(line) for line in (TASKS / "data/sums_train.jsonl").read_text().splitlines())
        cls.texts.write_text("".join(json.dumps({"text": row["question"][::-1] + row["answer"][::-1]}) + "\n" for row in rows))

    def arguments(self, name, *more):
        return ["--model", FIXTURES / "models/llama", "--train-data", self.texts, "--documents", "--out-dir", self.runs, "--run-name", name,
                "--batch-size", 2, "--lr", "3e-3", "--lr-schedule", "constant", "--max-epochs", 9, *fsdp_cli.COMMON, *more]

    def tune(self, name, *more, ranks=0, code=0, **how):
        result = fsdp_cli.run("fsdp-finetune", self.arguments(name, *more), ranks, **how)
        self.assertEqual(result.code, code, str(result))
        return result

    def figures(self, name):
        """By step: {"TASK.METRIC": {"value", "stderr", "higher_is_better"}}."""
        return {r["step"]: {**r["tasks"], **r.get("subtasks", {})} for r in fsdp_cli.records(self.run_directory(name)) if "tasks" in r}

    def values(self, name, metric):
        return {step: figures[metric]["value"] for step, figures in self.figures(name).items()}

    def validated(self, name):
        return [r["step"] for r in fsdp_cli.records(self.run_directory(name)) if "val_loss" in r]

    def test_the_figures_are_those_of_each_checkpoint(self):
        names = ("endings", "pages", "sums", "letters")
        steps = ["--max-steps", 4, "--save-every", 2]
        result = self.tune("figures", *steps, "--eval-every", 2, *asked(*names), "--val-limit", 9, "--json", ranks=2)
        self.tune("plain", *steps, ranks=2)
        self.assertEqual(self.losses("figures"), self.losses("plain"), "tasks take no part in training")
        found = self.figures("figures")
        self.assertEqual(list(found), [2, 4])
        for step, figures in found.items():
            report = self.evaluate(self.checkpoints("figures") / f"step-{step:08}", "--tasks", *(TASKS / f"{name}.yaml" for name in names), "--limit", 9)
            theirs = {}
            for task, of_task in report["results"].items():
                for key, value in of_task.items():
                    metric, _, kind = key.partition(",")
                    if kind and not metric.endswith("_stderr"):
                        theirs[f"{task}.{metric}" + ("" if kind == "none" else f",{kind}")] = (value, of_task[f"{metric}_stderr,{kind}"])
            self.assertEqual(set(figures), set(theirs))
            for name, (value, error) in theirs.items():
                # Passes of training have another number of rows, so that float32 rounds otherwise.
                self.assertAlmostEqual(figures[name]["value"], value, delta=1e-4 * max(1, abs(value)), msg=name)
                if error != "N/A" and not name.startswith("pages."):  # errors of pages are drawn, with fewer samples in a run
                    self.assertAlmostEqual(figures[name]["stderr"], error, delta=1e-4, msg=name)
        self.assertNotEqual(found[2], found[4])
        self.assertEqual(result.json()["tasks"], {name: figure for name, figure in found[4].items() if not name.startswith("letters_")})
        self.assertIn("letters_rivers.acc", result.json()["subtasks"])
        self.assertRegex(result.err, r"(?m)^tasks     \d+ requests of 6 tasks")
        self.assertRegex(result.err, r"(?m)^task        2   endings   acc 0\.\d{4} ± 0\.\d{4}   acc_norm ")
        self.assertRegex(result.err, r"(?m)^task        2   letters   acc 0\.\d{4} ± 0\.\d{4}   \d+\.\d s$")
        self.assertNotRegex(result.err, r"(?m)^task .* rivers")
        self.in_every_view(found)

    def in_every_view(self, found):
        run = self.run_directory("figures")
        told, = fsdp_cli.run("fsdp-eval", ["--runs", run, "--json"]).json()["runs"]
        perplexity = [figures["pages.word_perplexity"]["value"] for figures in found.values()]
        self.assertEqual(told["validation"]["pages.word_perplexity"]["best"], min(perplexity), "lower is better")
        accuracy = [figures["endings.acc_norm"]["value"] for figures in found.values()]
        self.assertEqual(told["validation"]["endings.acc_norm"]["best"], max(accuracy))
        self.assertNotIn("letters_rivers.acc", told["validation"], "groups stand for their tasks")
        self.assertIn(f"eval endings.acc_norm {accuracy[-1]:.4f}", fsdp_cli.run("fsdp-finetune", ["--watch", run]).out)
        page = self.folder / "page.html"
        self.assertEqual(fsdp_cli.run("fsdp-eval", ["--runs", run, "--html", page]).code, 0)
        self.assertIn('"metric/endings.acc_norm"', page.read_text())
        if event_accumulator is None:
            return
        accumulator = event_accumulator.EventAccumulator(str(run))
        accumulator.Reload()
        points = [(event.step, event.value) for event in accumulator.Scalars("tasks/letters_rivers/acc")]
        for (step, value), (wanted, figures) in zip(points, found.items(), strict=True):
            self.assertEqual(step, wanted)
            self.assertAlmostEqual(value, figures["letters_rivers.acc"]["value"], delta=1e-6)

    def test_the_best_is_kept_and_patience_ends_the_run(self):
        result = self.tune("best", "--max-steps", 40, "--eval-every", 2, "--save-every", 2, *asked("pages"), "--keep-best", "pages.word_perplexity",
                           "--patience", 2, "--json", ranks=2)
        values = self.values("best", "pages.word_perplexity")
        best = min(values, key=values.get)
        self.assertEqual(list(values)[-1], best + 4, f"the texts are meant to be forgotten: {values}")
        self.assertLess(best + 4, 40)
        self.assertEqual(os.readlink(self.checkpoints("best") / "best"), f"step-{best:08}")
        report = result.json()
        self.assertEqual((report["best_metric"], report["best_step"], report["best_value"]), ("pages.word_perplexity", best, values[best]))
        self.assertIn("2 validations in a row had no pages.word_perplexity below", report["ended_early"])

    def test_an_interval_of_their_own(self):
        self.tune("own", "--max-steps", 7, "--eval-every", 2, "--val-data", self.texts, *asked("endings"), "--val-tasks-every", 3)
        self.assertEqual((self.validated("own"), list(self.figures("own"))), ([2, 4, 6, 7], [3, 6, 7]))
        self.tune("alone", "--max-steps", 4, *asked("endings"), "--val-tasks-every", 2)
        self.assertEqual((self.validated("alone"), list(self.figures("alone"))), ([], [2, 4]))
        # Without training, on the weights as they are.
        report = self.tune("none", "--max-epochs", -1, *asked("endings"), "--val-limit", 5, "--json").json()
        alone = self.evaluate(FIXTURES / "models/llama", "--tasks", TASKS / "endings.yaml", "--limit", 5)
        self.assertEqual(report["tasks"]["endings.acc"]["value"], alone["results"]["endings"]["acc,none"])

    def test_a_group_without_figures_stands_for_nothing(self):
        group = {"group": "both", "task": ["endings", "pairs"]}
        folder = self.folder / "group"
        folder.mkdir()
        (folder / "both.json").write_text(json.dumps(group))
        for name in ("endings", "pairs"):
            (folder / f"{name}.yaml").write_text((TASKS / f"{name}.yaml").read_text())
        (folder / "data").symlink_to(TASKS / "data")
        result = self.tune("both", "--max-steps", 2, "--val-tasks", folder / "both.json", "--val-limit", 5, "--keep-best", "endings.acc")
        self.assertRegex(result.err, r"(?m)^task        2   endings   acc .*   best$")
        self.assertRegex(result.err, r"(?m)^task        2   pairs   acc .* s$")
        record, = (r for r in fsdp_cli.records(self.run_directory("both")) if "tasks" in r)
        self.assertIn("endings.acc", record["tasks"])
        self.assertNotIn("subtasks", record)

    def test_a_restart_elsewhere_asks_them_too(self):
        self.tune("here", "--max-steps", 2, "--val-tasks", "endings.yaml", "--val-limit", 5, "--val-num-fewshot", 0, cwd=TASKS)
        self.tune("here", "--max-steps", 3, "--restart", "latest", cwd="/")
        self.assertEqual(list(self.figures("here")), [2, 3])
        self.assertEqual(self.figures("here")[3]["endings.acc"]["value"] * 5 % 1, 0)

    def test_a_signal_leaves_them_to_the_next_start(self):
        rows = (TASKS / "data/sums_test.jsonl").read_text()
        (self.folder / "many.jsonl").write_text(rows * (4000 // len(rows.splitlines())))
        task = {"task": "many", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "many.jsonl"}}, "test_split": "test",
                "output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "answer", "num_fewshot": 0,
                "generation_kwargs": {"until": ["@@"], "max_gen_toks": 60}, "metric_list": [{"metric": "exact_match"}]}
        (self.folder / "many.json").write_text(json.dumps(task))
        arguments = self.arguments("cut", "--max-steps", 4, "--eval-every", 2, "--val-tasks", self.folder / "many.json")
        log = self.folder / "cut.log"
        process = fsdp_cli.start("fsdp-finetune", arguments, 2, log)
        metrics = self.run_directory("cut") / "metrics.jsonl"
        fsdp_cli.wait_for(process, log, lambda: metrics.exists() and '"step":2' in metrics.read_text())
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), fsdp_cli.STOPPED_EARLY, log.read_text())
        self.assertRegex(log.read_text(), r"eval        2   the job is to end: left to the next start")
        self.assertEqual(self.figures("cut"), {})
        self.tune("cut", "--max-steps", 4, "--restart", "latest", "--val-limit", 3, ranks=2)
        self.assertEqual(list(self.figures("cut")), [2, 4])

    def test_in_the_chat_template(self):
        result = self.tune("chat", "--max-epochs", -1, *asked("endings"), "--val-limit", 5, "--val-apply-chat-template", "--chat-template", "chatml", "--json")
        alone = self.evaluate(FIXTURES / "models/llama", "--tasks", TASKS / "endings.yaml", "--limit", 5, "--apply-chat-template", "--chat-template", "chatml")
        for metric in ("acc", "brier_score"):
            self.assertAlmostEqual(result.json()["tasks"][f"endings.{metric}"]["value"], alone["results"]["endings"][f"{metric},none"], delta=1e-4)

    def test_what_cannot_be_asked_is_told_before_the_first_step(self):
        for more, code, words in (
                (["--val-tasks", "helaswag"], 2, "there is no task, group or task file 'helaswag'; did you mean 'hellaswag'?"),
                (["--val-tasks", "nosuch.yaml"], 4, "nosuch.yaml: No such file or directory"),
                (["--val-tasks", "hellaswag"], 4, "fsdp-download --tasks fetches what tasks need"),
                ([*asked("endings"), "--keep-best", "endings.nosuch"], 2, "--keep-best endings.nosuch: the tasks of --val-tasks have no such metric, but endings.acc"),
                (["--keep-best", "endings.acc"], 2, "--keep-best endings.acc needs --val-tasks"),
                (["--val-limit", 3], 2, "go with --val-tasks"),
                ([*asked("endings"), "--val-limit", 0], 2, "--val-limit is a number of rows, or a share below 1"),
                ([*asked("endings"), "--patience", 2, "--eval-every", 2], 2, "--patience needs --val-data to go by, or --keep-best TASK.METRIC")):
            with self.subTest(more=more):
                result = self.tune("refused", "--max-steps", 2, *more, code=code, ranks=2, env={"HF_HUB_CACHE": str(self.folder / "hub")})
                self.assertIn(words, result.err)
                self.assertFalse((self.run_directory("refused") / "checkpoints").exists())


if __name__ == "__main__":
    fsdp_cli.main()
