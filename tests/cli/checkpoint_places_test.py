"""Checkpoints under names that are not UTF-8, and data under other names. Other difficult places are in tests/unit/apps/checkpoint_places_test.cpp."""

import os
import shutil

import fsdp_cli


class Places(fsdp_cli.Case):
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

    def test_data_of_another_name_with_as_many_rows_are_told(self):
        """The place in the data is a number: rows of another file are other texts. A copy in another folder is what job scripts stage."""
        self.train("data", "--max-steps", 2)
        (self.folder / "staged").mkdir()
        staged, other = (shutil.copy(self.train_data, self.folder / name) for name in (f"staged/{self.train_data.name}", "other.h5"))
        for steps, data, words in ((3, staged, []), (4, other, [f"--train-data is {other} here, and the run of the checkpoint read {staged}: it goes on at sample 12"])):
            result = self.train("data", "--max-steps", steps, "--restart-checkpoint-file", "latest", "--train-data", data)
            self.assertEqual([line.partition("warning: ")[2] for line in result.err.splitlines() if "--train-data is" in line], words, result.err)

    def test_another_order_of_the_data_is_told(self):
        """The place in the data counts rows of one order: in another one, rows come twice in the epoch and others never."""
        self.train("order", "--max-steps", 2, "--seed", 11)
        for steps, more, told in ((3, [], None), (4, ["--seed", 11], None), (5, ["--seed", 12], "--seed 12 gives another order of the data than --seed 11 of the checkpoint's run, which has read 16 of 64 "),
                                  (6, [], None), (7, ["--no-shuffle"], "--no-shuffle gives another order of the data than --seed 12 "), (8, ["--no-shuffle", "--seed", 13], None)):
            result = self.train("order", "--max-steps", steps, "--restart-checkpoint-file", "latest", *more)
            lines = [line.partition("warning: ")[2] for line in result.err.splitlines() if "another order of the data" in line]
            self.assertEqual(len(lines), told is not None, result.err)
            for line in lines:
                self.assertTrue(line.startswith(told), line)


if __name__ == "__main__":
    fsdp_cli.main()
