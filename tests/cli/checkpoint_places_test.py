"""Checkpoints in difficult places: something else lies there, links cannot be made, names are not UTF-8, or the folder disappears."""

import os
import shutil
import time

import fsdp_cli


class Places(fsdp_cli.Case):
    def names(self, run):
        return sorted(p.name for p in self.checkpoints(run).iterdir())

    def test_keep_last_removes_nothing_else(self):
        """Removes only what this program saved; after a run went back, only its own steps count."""
        self.train("others", "--max-steps", 8, "--save-every", 1, "--keep-last", 8)
        folder = self.checkpoints("others")
        (folder / "step-00000001" / "notes.txt").write_text("mine")
        (folder / "step-00000099").mkdir()
        (folder / "step-00000003" / "run.json").unlink()
        self.train("others", "--max-steps", 6, "--save-every", 1, "--keep-last", 2, "--restart-checkpoint-file", folder / "step-00000004")
        self.assertEqual([name[-2:] for name in self.names("others")], ["st", "01", "03", "05", "06", "07", "08", "99"])
        self.assertEqual((folder / "step-00000001" / "notes.txt").read_text(), "mine")

    def test_a_place_without_links(self):
        """A checkpoint is complete even if `latest` cannot be made."""
        self.train("linkless", "--max-steps", 1)
        latest = self.checkpoints("linkless") / "latest"
        latest.unlink()
        latest.mkdir()
        (latest / "in-the-way").touch()
        result = self.train("linkless", "--max-steps", 4, "--save-every", 1, "--keep-last", 2, "--restart-checkpoint-file", "latest")
        self.assertEqual(result.err.count("cannot link"), 1, str(result))
        self.assertEqual(self.names("linkless"), ["latest", "step-00000003", "step-00000004"])
        result = self.train("linkless", "--max-steps", 5, "--restart-checkpoint-file", "latest")
        self.assertIn("step-00000004", result.err)

    def test_names_that_are_no_utf8(self):
        """A folder with a Latin-1 name must not cost the training; a name that no checkpoint can hold is refused at the start."""
        latin = os.fsencode(self.folder) + b"/caf\xe9"
        os.mkdir(latin)
        shutil.copy(self.train_data, latin + b"/train.h5")
        arguments = ["--train-data", "train.h5", "--run-name", "inside", *fsdp_cli.COMMON, *fsdp_cli.TINY_MODEL]
        for more in (["--max-steps", 2], ["--max-steps", 4, "--restart-checkpoint-file", "latest", "--json"]):
            result = fsdp_cli.run("fsdp-finetune", [*arguments, *more], cwd=latin)
            self.assertEqual(result.code, 0, str(result))
        self.assertEqual(result.json()["steps"], 4)
        result = fsdp_cli.run("fsdp-finetune", self.train_arguments("outside", "--train-data", os.fsdecode(latin + b"/train.h5")))
        self.assert_refused(result, 2, "--train-data", "UTF-8")
        result = fsdp_cli.run("fsdp-finetune", self.train_arguments(os.fsdecode(b"na\xefve"), "--max-steps", 1, "--json"))
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("na\ufffdve", result.json()["checkpoint"])
        self.assert_refused(fsdp_cli.run("fsdp-finetune", self.train_arguments("two\nlines")), 2, "--run-name")

    def test_a_run_folder_that_is_renamed(self):
        log = self.folder / "renamed.log"
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments("renamed", "--max-steps", 1000000, "--log-every", 1000000), 1, log)
        self.addCleanup(fsdp_cli.end_group, process)
        metrics = self.run_directory("renamed") / "metrics.jsonl"
        end = time.monotonic() + 60
        while not metrics.exists():
            self.assertLess(time.monotonic(), end, log.read_text())
            time.sleep(0.05)
        self.run_directory("renamed").rename(self.runs / "elsewhere")
        self.assertEqual(process.wait(60), 1, log.read_text())
        self.assertIn("the run's folder is gone", log.read_text())
        self.assertNotIn("taken over", log.read_text())


if __name__ == "__main__":
    fsdp_cli.main()
