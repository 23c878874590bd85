"""Data as people have it: a file of text is trained on as a whole, JSON lists are read as they are, a share is held out."""

import csv
import gzip
import json
import zlib

import fsdp_cli
from tokens_cli import DATA, documents, read

MODEL = ["--num-layers", 1, "--num-heads", 1, "--embed-size", 8, "--seq-len", 64, "--batch-size", 2, "--no-save", "--json"]


def shakespeare(split):
    csv.field_size_limit(10**9)
    with open(DATA / "shakespeare" / f"{split}.csv", newline="", encoding="utf-8") as file:
        return next(csv.DictReader(file))["text"]


def checksum(manifest):
    return zlib.crc32(json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())


class OwnData(fsdp_cli.Case):
    def tune(self, name, data, *more, code=0, ranks=0):
        result = fsdp_cli.run("fsdp-finetune", ["--train-data", data, "--out-dir", self.runs, "--run-name", name, *fsdp_cli.COMMON, *MODEL, *more], ranks)
        self.assertEqual(result.code, code, str(result))
        return result

    def ids(self, data, *more):
        """Returns the ids of each text of `data`."""
        made = fsdp_cli.run("fsdp-download", ["tokens", "--input", data, "--tokenizer", "gpt2", "--documents", "--output", self.folder / "ids.h5", *more])
        self.assertEqual(made.code, 0, str(made))
        return documents(self.folder / "ids.h5")

    def cached(self, name):
        file, = (self.runs / "token-cache").glob(f"{name}-*.h5")
        return read(file)

    def speeches(self, name="speeches.jsonl", count=400):
        texts = shakespeare("test").split("\n\n")[:count]
        file = self.folder / name
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return file, texts


class Streams(OwnData):
    def test_a_text_file_is_trained_and_validated_on_as_a_whole(self):
        train, val = self.folder / "book.txt", self.folder / "val.txt.gz"
        train.write_text(shakespeare("test"))
        val.write_bytes(gzip.compress(shakespeare("validation").encode()[:20000]))
        result = self.tune("book", train, "--val-data", val, "--max-epochs", 0.02, ranks=2)
        for name, data in (("book", train), ("val.txt", val)):
            ids, = self.ids(data)
            rows = (len(ids) - 1) // 64
            expected = [ids[64 * r:64 * r + 65] for r in range(rows)]
            self.assertEqual(self.cached(name)["input_ids"].tolist(), expected)
            left_out = len(ids) - 1 - 64 * rows
            self.assertGreater(left_out, 0)
            kind = "trained" if name == "book" else "validated"
            self.assertEqual(result.json()[f"ids_not_{kind}_on"], left_out)
            self.assertIn(f"cut       {left_out:,} of {len(ids):,} ids (0.", result.err)
            self.assertIn(f"are not {kind} on: the last ones, which fill no row", result.err)
            if name == "book":
                self.assertIn(f"data      {rows:,} rows x 64 tokens", result.err)
            else:
                self.assertEqual(fsdp_cli.records(self.run_directory("book"))[-1]["val_tokens"], 64 * rows)

    def test_files_of_a_folder_follow_each_other_with_an_end_mark(self):
        folder = self.folder / "texts"
        (folder / "b").mkdir(parents=True)
        texts = {"a.txt": "To be, or not to be", "b/c.txt": "that is the question " * 40}
        for name, text in texts.items():
            (folder / name).write_text(text)
        self.tune("folder", folder, "--max-steps", 1)
        one, two = (self.ids(folder / name)[0] for name in texts)
        ids = [*one, 50256, *two]
        self.assertEqual(self.cached("texts")["input_ids"].tolist(), [ids[64 * r:64 * r + 65] for r in range((len(ids) - 1) // 64)])
        # Each file as a document by itself, as it is asked for.
        self.assertIn("data      2 texts of up to 63 tokens", self.tune("documents", folder, "--documents", "--max-steps", 1).err)

    def test_few_ids_are_one_short_row(self):
        file = self.folder / "short.txt"
        file.write_text("that is the question")
        self.assertIn("data      1 row x 3 tokens", self.tune("short", file, "--max-steps", 1).err)
        file.write_text("a")
        self.assert_refused(self.tune("none", file, "--max-steps", 1, code=4), 4, "2 are needed to predict one")

    def test_packing_leaves_a_stream_as_it_is(self):
        file = self.folder / "packed.txt"
        file.write_text("that is the question " * 100)
        err = self.tune("packed", file, "--pack", "--max-steps", 1).err
        self.assertIn("data      6 rows x 64 tokens", err)
        self.assertIn("--pack changes nothing", err)
        self.assert_refused(self.tune("both", file, "--pack", "--stream", code=2), 2, "--stream", "--pack")
        self.assert_refused(self.tune("both", file, "--documents", "--stream", code=2), 2, "--stream", "--documents")

    def test_evaluation_scores_the_rows_of_the_validation(self):
        val = self.folder / "eval.txt"
        val.write_text(shakespeare("validation")[:9000])
        speeches, _ = self.speeches("for-eval.jsonl", 50)
        arguments = ["--train-data", speeches, "--val-data", val, "--out-dir", self.runs, "--run-name", "evaluated", *fsdp_cli.COMMON,
                     *MODEL[:8], "--max-steps", 1, "--json"]
        trained = fsdp_cli.run("fsdp-finetune", arguments)
        self.assertEqual(trained.code, 0, str(trained))
        latest = self.checkpoints("evaluated") / "latest"
        report = self.evaluate(latest, "--data", val)
        ids, = self.ids(val)
        self.assertEqual(report["tokens"], 64 * ((len(ids) - 1) // 64))
        self.assertAlmostEqual(report["loss"], trained.json()["val_loss"], 5)
        as_document = self.evaluate(latest, "--data", val, "--documents")
        self.assertEqual((as_document["tokens"], as_document["ids_not_scored"]), (63, len(ids) - 64))
        # Texts of other files are joined on request.
        joined = self.evaluate(latest, "--data", speeches, "--stream")
        total = sum(map(len, self.ids(speeches))) + 49
        self.assertEqual(joined["tokens"], (total - 1) // 64 * 64)

    def test_a_run_goes_on_with_what_it_began(self):
        book = self.folder / "again.txt"
        book.write_text(shakespeare("validation")[:9000])
        arguments = ["--train-data", book, "--out-dir", self.runs, *fsdp_cli.COMMON, *MODEL[:10], "--max-steps"]
        whole = fsdp_cli.run("fsdp-finetune", [*arguments, 4, "--run-name", "whole"])
        self.assertEqual(whole.code, 0, str(whole))
        self.assertEqual(fsdp_cli.run("fsdp-finetune", [*arguments, 2, "--run-name", "parts"]).code, 0)
        again = [*arguments, 4, "--run-name", "parts", "--restart", "latest"]
        self.assert_refused(fsdp_cli.run("fsdp-finetune", [*again, "--documents"]), 2, "--documents contradicts", "as a stream")
        result = fsdp_cli.run("fsdp-finetune", again)
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual(self.losses("parts"), self.losses("whole"))

        # A run of an earlier version, which noted no layout, read the file as one document.
        old = fsdp_cli.run("fsdp-finetune", [*arguments, 2, "--run-name", "old", "--documents"])
        self.assertEqual(old.code, 0, str(old))
        file = (self.checkpoints("old") / "latest").resolve() / "run.json"
        manifest = json.loads(file.read_text())
        self.assertEqual(manifest.pop("checksum"), checksum(manifest))
        self.assertEqual((manifest["data"].pop("layout"), manifest["options"].pop("documents")), ("documents", "true"))
        file.write_text(json.dumps({**manifest, "checksum": checksum(manifest)}))
        result = fsdp_cli.run("fsdp-finetune", [*arguments, 3, "--run-name", "old", "--restart", "latest"])
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("data      1 text of up to 63 tokens", result.err)
        saved = json.loads((self.checkpoints("old") / "latest" / "run.json").read_text())
        self.assertEqual((saved["data"]["layout"], saved["options"]["documents"]), ("documents", "true"))
        self.assert_refused(fsdp_cli.run("fsdp-finetune", [*arguments, 4, "--run-name", "old", "--restart", "latest", "--stream"]), 2,
                            "--stream contradicts", "as documents")


class JsonLists(OwnData):
    def test_a_list_is_read_like_lines_through_every_door(self):
        lines, texts = self.speeches("lines.jsonl", 60)
        expected = self.ids(lines)
        for name, indent in (("one-line.json", None), ("pretty.json", 2), ("pretty.jsonl", 1), ("packed.json.gz", 2)):
            with self.subTest(name):
                content = json.dumps([{"text": text} for text in texts], indent=indent).encode()
                file = self.folder / name
                file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
                self.assertEqual(self.ids(file), expected)
        of_lines = self.tune("lines", lines, "--val-data", lines, "--max-steps", 2).json()
        of_list = self.tune("list", self.folder / "pretty.json", "--val-data", self.folder / "one-line.json", "--max-steps", 2).json()
        for key in ("loss", "val_loss"):
            self.assertEqual(of_list[key], of_lines[key])

    def test_a_wrapped_list_is_refused_with_the_command_that_takes_it_out(self):
        file = self.folder / "wrapped.json"
        file.write_text(json.dumps({"version": 1, "data": [{"text": "a"}, {"text": "b"}]}, indent=2))
        self.assert_refused(self.tune("wrapped", file, code=4), 4, "wrapped.json: is one object that holds a list of objects at 'data'", "jq '.[\"data\"]'")


class HeldOut(OwnData):
    def split(self, name, data, *more, **how):
        result = self.tune(name, data, "--val-split", "0.2", "--max-steps", 1, *more, **how)
        return result, result.json().get("val_split")

    def parts(self, name):
        """Returns the sets of documents of both parts, the smaller one first."""
        parts = [sorted(documents(file)) for file in (self.runs / "token-cache").glob(f"{name}-*.h5")]
        self.assertEqual(len(parts), 2)
        return sorted(parts, key=len)

    def test_documents_are_held_out_by_their_content(self):
        file, texts = self.speeches("split.jsonl")
        result, split = self.split("split", file)
        held_out, trained = self.parts("split")
        self.assertEqual(sorted(held_out + trained), sorted(self.ids(file)))
        self.assertEqual(split, {"share": 0.2, "train": {"texts": len(trained), "ids": sum(map(len, trained))},
                                 "validation": {"texts": len(held_out), "ids": sum(map(len, held_out))}})
        self.assertTrue(40 < len(held_out) < 130, len(held_out))
        self.assertFalse({tuple(ids) for ids in held_out} & {tuple(ids) for ids in trained})
        self.assertIn(f"split     to train on: {len(trained)} texts, {sum(map(len, trained)):,} ids   to validate on: {len(held_out)} texts", result.err)
        self.assertEqual(result.json()["val_loss"], fsdp_cli.records(self.run_directory("split"))[-1]["val_loss"])
        # The same ones in another order, in another format, from a list, and on two ranks.
        other = self.folder / "other.csv"
        with open(other, "w", newline="") as table:
            csv.writer(table).writerows([["text"], *([text] for text in reversed(texts))])
        self.assertEqual(self.split("other", other, ranks=2)[1], split)
        self.assertEqual(self.parts("other"), [held_out, trained])
        # A dry run tells the same.
        self.assertEqual(self.split("dry", file, "--dry-run")[1], split)

    def test_keys_that_nothing_reads_do_not_matter(self):
        for name, number in (("plain.jsonl", False), ("numbered.jsonl", True)):
            with open(self.folder / name, "w") as file:
                for i in range(200):
                    pair = {"prompt": f"{i} + 1 =", "completion": f" {i + 1}"}
                    file.write(json.dumps({"id": i * 7, **pair} if number else pair) + "\n")
        splits = [self.split(name, self.folder / f"{name}.jsonl")[1] for name in ("plain", "numbered")]
        self.assertEqual(splits[0], splits[1])
        self.assertEqual(self.parts("plain"), self.parts("numbered"))

    def test_of_a_stream_the_end_is_held_out(self):
        book = self.folder / "end.txt"
        book.write_text(shakespeare("test"))
        rows = (len(self.ids(book)[0]) - 1) // 64
        result, split = self.split("end", book)
        self.assertRegex(result.err, r"split .* to validate on: .*, the end of the text: ")
        self.assertEqual((split["train"]["rows"] + split["validation"]["rows"], split["validation"]["rows"]), (rows, round(0.2 * rows)))
        self.assertEqual(fsdp_cli.records(self.run_directory("end"))[-1]["val_tokens"], 64 * round(0.2 * rows))

    def test_a_restart_keeps_the_share(self):
        file, _ = self.speeches("kept.jsonl", 100)
        arguments = ["--train-data", file, "--out-dir", self.runs, *fsdp_cli.COMMON, *MODEL[:10], "--json", "--keep-best"]
        for name, steps in (("straight", 4), ("stopped", 2)):
            result = fsdp_cli.run("fsdp-finetune", [*arguments, "--val-split", 0.2, "--max-steps", steps, "--run-name", name])
            self.assertEqual(result.code, 0, str(result))
        again = [*arguments, "--run-name", "stopped", "--restart", "latest", "--max-steps", 4]
        self.assert_refused(fsdp_cli.run("fsdp-finetune", [*again, "--val-split", 0.3]), 2, "--val-split contradicts", "held out 0.2")
        result = fsdp_cli.run("fsdp-finetune", again)
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual(self.losses("stopped"), self.losses("straight"))
        self.assertIn("validate on", result.err)

    def test_what_does_not_go_together(self):
        file, _ = self.speeches("refused.jsonl", 30)
        for data, more, code, words in ((file, ["--val-data", file], 2, ("--val-split", "--val-data", "give one of them")),
                                        (self.train_data, [], 2, ("--val-split", "train.h5 is a token file")),
                                        (file, ["--val-split", "1"], 2, ("--val-split",))):
            with self.subTest(words):
                result = self.tune("refused", data, *([] if "--val-split" in more else ["--val-split", 0.2]), *more, code=code)
                self.assert_refused(result, code, *words)


if __name__ == "__main__":
    fsdp_cli.main()
