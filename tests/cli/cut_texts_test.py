"""A text longer than a sequence is trained on only up to the sequence length: the program says so, and refuses to leave most of
the data out without being asked."""

import h5py
import numpy

import fsdp_cli

MODEL = ["--num-layers", 1, "--num-heads", 1, "--embed-size", 8, "--seq-len", 64, "--max-steps", 1, "--no-save", "--json"]


class CutTexts(fsdp_cli.Case):
    def tune(self, name, data, *more, ranks=0, code=0):
        result = fsdp_cli.run("fsdp-finetune", ["--train-data", data, "--out-dir", self.runs, "--run-name", name, *fsdp_cli.COMMON, *MODEL, *more], ranks)
        self.assertEqual(result.code, code, str(result))
        return result

    def assert_cut(self, result, left_out, ids):
        self.assertEqual(result.json()["ids_not_trained_on"], left_out)
        self.assertIn(f"cut       {left_out:,} of {ids:,} ids", result.err)

    def test_one_long_text(self):
        data = fsdp_cli.folder("FSDP_DATA") / "shakespeare" / "validation.csv"
        refused = self.tune("long", data, ranks=2, code=4)
        encoded, = (self.runs / "token-cache").glob("validation-*.h5")
        with h5py.File(encoded) as file:
            ids = len(file["tokens"])
        self.assertGreater(ids, 10000)
        self.assert_refused(refused, 4, f"--train-data {data}: {ids - 64:,} of {ids:,} ids (99.", "give --stream", "or --documents")
        self.assertNotIn("--seq-len", refused.errors()[0])  # the model has no more positions
        asked = self.tune("long", data, "--documents", ranks=2)
        self.assertIn("data      1 text of up to 63 tokens", asked.err)
        self.assert_cut(asked, ids - 64, ids)
        # The other cure trains on the whole text.
        stream = self.tune("stream", data, "--stream")
        self.assertIn(f"data      {(ids - 1) // 64} rows x 64 tokens", stream.err)
        self.assert_cut(stream, (ids - 1) % 64, ids)

    def test_each_validation_set_counts(self):
        data = fsdp_cli.folder("FSDP_DATA") / "shakespeare" / "validation.csv"
        short = self.folder / "short.jsonl"
        short.write_text('{"text": "to be or not to be"}\n' * 20)
        sets = f"short={short},long={data}"
        self.assert_refused(self.tune("sets", short, "--val-data", sets, code=4), 4, f"--val-data long {data}: ", "are not validated on")
        asked = self.tune("sets", short, "--val-data", sets, "--documents")
        self.assertRegex(asked.err, r"cut       long: [\d,]+ of [\d,]+ ids \(99.. %\) are not validated on: of each text the first 64 count")
        self.assertEqual(asked.json()["ids_not_validated_on"]["short"], 0)
        self.assertGreater(asked.json()["ids_not_validated_on"]["long"], 10000)

    def test_documents_and_rows_of_token_files(self):
        lengths = [10, 100, 64, 65, 1, 0]
        file = self.folder / "documents.h5"
        with h5py.File(file, "w") as h5:
            h5["tokens"] = numpy.arange(sum(lengths), dtype="uint16") % 90
            h5["offsets"] = numpy.concatenate([[0], numpy.cumsum(lengths)])
        self.assert_cut(self.tune("documents", file), 36 + 1, sum(lengths))
        self.assertIn("--stream is passed over", self.tune("stream", file, "--stream").err)
        rows = fsdp_cli.write_tokens(self.folder / "rows.h5", fsdp_cli.random_tokens(rows=10, width=200))
        # --seq-len shortens the rows of a token file; the model's positions alone do not ask for it.
        self.assert_cut(self.tune("rows", rows), 10 * (200 - 65), 2000)
        long = fsdp_cli.write_tokens(self.folder / "long.h5", fsdp_cli.random_tokens(rows=4, width=600))
        arguments = ["--train-data", long, "--out-dir", self.runs, "--run-name", "positions", *fsdp_cli.COMMON, *MODEL[:6], *MODEL[8:]]
        self.assert_refused(fsdp_cli.run("fsdp-finetune", arguments), 4,
                            "long.h5: 1,372 of 2,400 ids (57.2 %) are not trained on: of each row the first 257 count", "give --documents")
        asked = fsdp_cli.run("fsdp-finetune", [*arguments, "--documents"])
        self.assertEqual(asked.code, 0, str(asked))
        self.assert_cut(self.tune("most", rows, "--seq-len", 150), 10 * (200 - 151), 2000)
        whole = self.tune("whole", rows, "--seq-len", 199)
        self.assertEqual(whole.json()["ids_not_trained_on"], 0)
        self.assertNotIn("cut  ", whole.err)


if __name__ == "__main__":
    fsdp_cli.main()
