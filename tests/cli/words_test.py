"""Messages about mistyped names, runs with nothing to do, and the places where a restart searches."""

import json
import os
import re
import shutil

import fsdp_cli

TOKENS = ["tokens", "--input", "a", "--tokenizer", "gpt2", "--output", "b"]


class Options(fsdp_cli.Case):
    def test_an_unknown_option_is_answered_with_the_nearest(self):
        for program, words, nearest in (
                ("fsdp-finetune", ["--lerning-rate", 1], "--learning-rate"), ("fsdp-finetune", ["--batch_sizes=3"], "--batch-size"),
                ("fsdp-finetune", ["--field", "x"], "--data-field"), ("fsdp-finetune", ["--epochs", 3], "--max-epochs"),
                ("fsdp-finetune", ["--restart-checkpoint", "x"], "--restart-checkpoint-file"), ("fsdp-memprobe", ["--serch"], "--search"),
                ("fsdp-memprobe", ["--gradient-checkpoint"], "--gradient-checkpointing"), ("fsdp-eval", ["x", "--chess-position", 3], "--chess-positions"),
                ("fsdp-ckpt-convert", ["a", "b", "--overwite"], "--overwrite"), ("fsdp-download", ["a/b", "--revison", "x"], "--revision"),
                ("fsdp-download", [*TOKENS, "--document"], "--documents"), ("fsdp-bf16check", ["--quik"], "--quick")):
            result = fsdp_cli.run(program, words)
            self.assert_refused(result, 2, next(str(w).split("=")[0] for w in words[::-1] if str(w).startswith("--")), f"did you mean {nearest}?")

    def test_names_that_are_like_none_and_those_in_config_files(self):
        for program, words in (("fsdp-finetune", ["--zzzzzz"]), ("fsdp-eval", ["x", "--zzzzzz"]), ("fsdp-finetune", ["a-word"])):
            result = fsdp_cli.run(program, words)
            self.assert_refused(result, 2)
            self.assertNotIn("did you mean", result.err)
        file = self.folder / "config.ini"
        file.write_text("lerning_rate = 1\n")
        for program in ("fsdp-finetune", "fsdp-memprobe", "fsdp-eval"):
            file.write_text("# a comment\n\nlearning-rat = 1\n" if program != "fsdp-eval" else "seq-len = 3\n\nbatch-siz = 1\n")
            words = ["x"] if program == "fsdp-eval" else []
            result = fsdp_cli.run(program, [*words, "--config", file])
            self.assert_refused(result, 2, file, "line 3", "did you mean batch-size?" if words else "did you mean learning-rate?")
        for text, line, words in (("seed = 1\nlr = abc\n", 2, ["--lr", "abc"]), ("\nprecision = fp9\n", 2, ["--precision", "fp9"]),
                                  ("lr = 1\n[model]\n", 2, ["sections"]), ("out-dir = 'x\n", 1, ["closing"])):
            file.write_text(text)
            self.assert_refused(fsdp_cli.run("fsdp-finetune", ["--config", file]), 2, file, f"line {line}: ", *words)
        # An error in a command-line option is not attributed to the file.
        file.write_text("lr = 1\n")
        self.assertNotIn("line", fsdp_cli.run("fsdp-finetune", ["--config", file, "--lr", "abc"]).err)

    def test_a_column_is_named_by_an_option_that_there_is(self):
        file = self.folder / "texts.csv"
        file.write_text("title,body\na,some words to learn\n")
        self.assert_refused(self.train("column", "--train-data", file, "--tokenizer", "gpt2", "--vocab-size", 50257, code=4), 4, "--data-field")
        self.train("column", "--train-data", file, "--tokenizer", "gpt2", "--vocab-size", 50257, "--data-field", "body", "--max-steps", 1)


class Restart(fsdp_cli.Case):
    def test_nothing_to_do(self):
        self.train("done", "--max-steps", 2)
        result = self.train("done", "--restart", "latest", "--json", ranks=2)
        self.assertIn("done      nothing to do; step 2 of 2; --max-steps N goes on", result.err)
        self.assertNotIn("nan", result.err + result.out)
        self.assertIsNone(json.loads(result.out)["loss"])
        self.assertIn("saved by 1 rank\n", result.err)
        full = self.folder / "full.pt"
        made = self.train("done", "--restart", "latest", "--val-data", self.val_data, "--save-final-full", full)
        self.assertIn("done      no step was left; made: the validation, the exports; step 2 of 2; --max-steps N goes on", made.err)
        self.assertIn(f"full      {full}", made.err)
        self.train("epochs", "--max-epochs", 1, "--batch-size", 32)
        self.assertIn("step 2 of 2; --max-epochs N goes on", self.train("epochs", "--restart", "latest").err)

    def test_the_folder_of_a_run(self):
        self.train("run", "--max-steps", 2, "--save-every", 1)
        for path in (self.run_directory("run"), self.checkpoints("run")):
            result = self.train("other", "--restart", path, "--max-steps", 3)
            self.assertIn("run/checkpoints/step-00000002   step 2", result.err)
        # If the newest checkpoint cannot be used, an older one is taken, as with latest.
        shutil.rmtree(self.checkpoints("run") / "step-00000002")
        self.assertIn("step-00000001   step 1", self.train("other", "--restart", self.run_directory("run"), "--max-steps", 3).err)
        self.train("bare", "--max-steps", 1, "--no-save")
        for ranks in (0, 2):
            self.assert_refused(self.train("other", "--restart", self.run_directory("bare"), code=4, ranks=ranks), 4, self.run_directory("bare"),
                                "run without checkpoints")

    def test_data_is_found_from_any_folder(self):
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        relative = ["--train-data", "train.h5", "--val-data", "./val.h5", "--out-dir", "runs", "--run-name", "moved", *fsdp_cli.COMMON,
                    *fsdp_cli.TINY_MODEL, "--max-steps", 2]
        result = fsdp_cli.run("fsdp-finetune", relative, cwd=self.folder)
        self.assertEqual(result.code, 0, str(result))
        restart = ["--restart", self.checkpoints("moved") / "latest", "--out-dir", self.runs, "--run-name", "moved", *fsdp_cli.COMMON]
        result = fsdp_cli.run("fsdp-finetune", [*restart, "--max-steps", 3], cwd=elsewhere)
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("validation 21 rows", result.err)
        saved = json.loads((self.checkpoints("moved") / "latest" / "run.json").read_text())["options"]
        self.assertEqual(saved["train-data"], str(self.folder / "train.h5"))
        # Missing data is named as the run's, together with the option that replaces it.
        gone = self.folder / "gone.h5"
        os.rename(self.folder / "train.h5", gone)
        self.addCleanup(os.rename, gone, self.folder / "train.h5")
        result = fsdp_cli.run("fsdp-finetune", [*restart, "--max-steps", 4], ranks=2)
        self.assert_refused(result, 4, "moved", "--train-data", self.folder / "train.h5", "is not here", "give --train-data anew")
        result = fsdp_cli.run("fsdp-finetune", [*restart, "--max-steps", 4, "--train-data", gone])
        self.assertEqual(result.code, 0, str(result))

    def test_one_is_singular(self):
        one = fsdp_cli.write_tokens(self.folder / "one.h5", fsdp_cli.random_tokens(rows=1))
        result = self.train("one", "--train-data", one, "--max-steps", 1, "--batch-size", 1)
        self.assertIn("data      1 row x 32 tokens   1 row per step (1 rank x 1)   1 step\n", result.err)
        self.assertIn("done      1 step in", result.err)
        self.assertIsNone(re.search(r"\b1 (rows|texts|steps|ranks|units|nodes|threads|samples)\b", result.err), result.err)
        inspected = fsdp_cli.run("fsdp-eval", [self.checkpoints("one") / "latest", "--data", one, *fsdp_cli.COMMON])
        self.assertIn("32 tokens in 1 row ", inspected.out)


if __name__ == "__main__":
    fsdp_cli.main()
