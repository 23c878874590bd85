"""Messages of runs with nothing to do, and the places where a restart searches."""

import json
import os
import re
import shutil

import fsdp_cli


class Restart(fsdp_cli.Case):
    def assert_said(self, result, *facts):
        """Expects one line about the end of the run, which names the facts."""
        (line,) = [line for line in result.err.splitlines() if line.startswith("done ")]
        for fact in facts:
            self.assertIn(fact, line)

    def test_nothing_to_do(self):
        self.train("done", "--max-steps", 2)
        result = self.train("done", "--restart", "latest", "--json", ranks=2)
        self.assert_said(result, "nothing to do", "step 2 of 2", "--max-steps")
        self.assertNotIn("nan", result.err + result.out)
        self.assertIsNone(json.loads(result.out)["loss"])
        self.assertIn("saved by 1 rank\n", result.err)
        full = self.folder / "full.pt"
        made = self.train("done", "--restart", "latest", "--val-data", self.val_data, "--save-final-full", full)
        self.assert_said(made, "the validation, the exports", "step 2 of 2", "--max-steps")
        self.assertIn(f"full      {full}", made.err)
        self.train("epochs", "--max-epochs", 1, "--batch-size", 32)
        self.assert_said(self.train("epochs", "--restart", "latest"), "step 2 of 2", "--max-epochs")

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
        for words in ("1 row x 32 tokens", "1 row per step (1 rank x 1)", " 1 step\n", " 1 step in"):
            self.assertIn(words, result.err)
        self.assertIsNone(re.search(r"\b1 (rows|texts|steps|ranks|units|nodes|threads|samples)\b", result.err), result.err)
        inspected = fsdp_cli.run("fsdp-eval", [self.checkpoints("one") / "latest", "--data", one, *fsdp_cli.COMMON])
        self.assertIn("32 tokens in 1 row ", inspected.out)


if __name__ == "__main__":
    fsdp_cli.main()
