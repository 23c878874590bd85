"""A text longer than a sequence is trained on only up to the sequence length: the program says so and names a remedy that works."""

import re
import shlex

import h5py
import numpy

import fsdp_cli

MODEL = ["--num-layers", 1, "--num-heads", 1, "--embed-size", 8, "--seq-len", 64, "--max-steps", 1, "--no-save", "--json"]


class CutTexts(fsdp_cli.Case):
    def tune(self, name, data, *more, ranks=0):
        result = fsdp_cli.run("fsdp-finetune", ["--train-data", data, "--out-dir", self.runs, "--run-name", name, *fsdp_cli.COMMON, *MODEL, *more], ranks)
        self.assertEqual(result.code, 0, str(result))
        return result

    def assert_cut(self, result, left_out, ids, warned):
        self.assertEqual(result.json()["ids_not_trained_on"], left_out)
        self.assertIn(f"cut       {left_out:,} of {ids:,} ids", result.err)
        self.assertEqual("warning: --train-data" in result.err, warned, result.err)

    def test_one_long_text(self):
        data = fsdp_cli.folder("FSDP_DATA") / "shakespeare" / "validation.csv"
        result = self.tune("long", data, ranks=2)
        self.assertIn("data      1 text of up to 63 tokens", result.err)
        encoded, = (self.run_directory("long").parent / "token-cache").glob("*.h5")
        with h5py.File(encoded) as file:
            ids = len(file["tokens"])
        self.assertGreater(ids, 10000)
        self.assert_cut(result, ids - 64, ids, warned=True)
        # The command in the warning, unchanged, makes a token file that is trained on as a whole.
        command = re.search(r"(fsdp-download tokens .* --output \S+),", result.err)[1]
        program, *words = shlex.split(command)
        made = fsdp_cli.run(program, words, cwd=self.folder)
        self.assertEqual(made.code, 0, str(made))
        packed = self.tune("packed", self.folder / "packed.h5")
        self.assertEqual(packed.json()["ids_not_trained_on"], 0)
        self.assertNotIn("cut  ", packed.err)
        self.assertNotIn("warning: --train-data", packed.err)

    def test_documents_and_rows_of_token_files(self):
        lengths = [10, 100, 64, 65, 1, 0]
        file = self.folder / "documents.h5"
        with h5py.File(file, "w") as h5:
            h5["tokens"] = numpy.arange(sum(lengths), dtype="uint16") % 90
            h5["offsets"] = numpy.concatenate([[0], numpy.cumsum(lengths)])
        self.assert_cut(self.tune("documents", file), 36 + 1, sum(lengths), warned=False)
        rows = fsdp_cli.write_tokens(self.folder / "rows.h5", fsdp_cli.random_tokens(rows=10, width=200))
        self.assert_cut(self.tune("rows", rows), 10 * (200 - 65), 2000, warned=True)
        self.assert_cut(self.tune("most", rows, "--seq-len", 150), 10 * (200 - 151), 2000, warned=False)
        whole = self.tune("whole", rows, "--seq-len", 199)
        self.assertEqual(whole.json()["ids_not_trained_on"], 0)
        self.assertNotIn("cut  ", whole.err)


if __name__ == "__main__":
    fsdp_cli.main()
