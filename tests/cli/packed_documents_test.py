"""Documents that share rows in the token file, and evaluation of packed documents: losses and counts as for separate documents."""

import json
import shutil

import fsdp_cli
import llama_cli
import numpy
import tokens_cli

# Sums of the same float32 losses in another order: up to 1e-7 was seen.
RELATIVE = 1e-6
SEQ_LEN = 48


class PackedDocuments(llama_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        games = [json.loads(line)["text"] for line in cls.validation.read_text().splitlines()]
        cls.texts = cls.folder / "texts.jsonl"
        lines = [game[:5 + 7 * i % 61] for i, game in enumerate(games[:70])] + [""]
        cls.texts.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
        cls.apart = cls.encode("apart.h5", cls.texts, "--max-length", SEQ_LEN)
        cls.rows = cls.encode("rows.h5", cls.texts, "--pack", "--seq-len", SEQ_LEN, "--seed", 7)

    @classmethod
    def encode(cls, name, data, *more, code=0, tokenizer=None):
        output = cls.folder / name
        result = fsdp_cli.run("fsdp-download", ["tokens", "--input", data, "--tokenizer", tokenizer or cls.model, "--documents", "--output", output, "--json", *more])
        assert result.code == code, str(result)
        cls.result = result
        return output

    def in_rows(self, path, name="tokens"):
        """Returns the documents of each row."""
        content = tokens_cli.read(path)
        offsets, rows = content["offsets"], content["row_offsets"]
        return [[tuple(content[name][offsets[i]:offsets[i + 1]]) for i in range(a, b)] for a, b in zip(rows, rows[1:])]

    def test_rows_hold_every_document_once_and_whole(self):
        rows = self.in_rows(self.rows)
        expected = [tuple(ids) for ids in tokens_cli.documents(self.apart) if len(ids) > 1]
        self.assertEqual(sorted(ids for row in rows for ids in row), sorted(expected))
        used = [sum(len(ids) - 1 for ids in row) for row in rows]
        self.assertLessEqual(max(used), SEQ_LEN)
        self.assertLessEqual(len(rows), 1.1 * sum(used) / SEQ_LEN + 1)  # as full as documents of these lengths allow
        again = self.encode("again.h5", self.texts, "--pack", "--seq-len", SEQ_LEN, "--seed", 7, "--threads", 3)
        self.assertEqual(again.read_bytes(), self.rows.read_bytes())
        report = self.result.json()
        self.assertEqual((report["layout"], report["rows"], report["seed"], report["documents"], report["too_short"]), ("packed documents", len(rows), 7, 71, 1))
        other = self.encode("other.h5", self.texts, "--pack", "--seq-len", SEQ_LEN, "--seed", 8)
        self.assertNotEqual(self.in_rows(other), rows)
        self.assertEqual([sum(len(ids) - 1 for ids in row) for row in self.in_rows(other)].count(SEQ_LEN), used.count(SEQ_LEN))

    def test_training_is_that_of_pack(self):
        def losses(name, data, *more):
            self.tune(name, data, "--seed", 7, "--lr", "1e-3", "--batch-size", 2, *more)
            return [(step["loss"], step["grad_norm"], step["tokens"]) for step in fsdp_cli.steps(self.run_directory(name))]

        packed = losses("packed", self.apart, "--pack", "--seq-len", SEQ_LEN, "--max-epochs", 1)
        written = losses("written", self.rows, "--max-epochs", 1)
        self.assertEqual(written, packed)
        # Later epochs keep the rows and read every document once. --pack does not change this.
        two = losses("two", self.rows, "--pack", "--max-epochs", 2)
        self.assertEqual(sum(step[2] for step in two), 2 * sum(step[2] for step in packed))

    def test_evaluation_counts_the_same(self):
        """Compares separate documents, documents packed by --pack, and packed token files; also with a mask."""
        generator = numpy.random.default_rng(3)
        masked = self.folder / "masked.h5"
        shutil.copyfile(self.apart, masked)
        with llama_cli.h5py.File(masked, "r+") as file:
            file["loss_mask"] = generator.integers(0, 2, len(file["tokens"])).astype(numpy.uint8)
        for data, others in ((self.apart, [(["--pack"], self.apart, 1), (["--pack", "--batch-size", 2], self.apart, 2), ([], self.rows, 3)]),
                             (masked, [(["--pack"], masked, 2)]), (self.texts, [(["--pack"], self.texts, 1)])):
            expected = self.evaluate(self.model, "--data", data, "--seq-len", SEQ_LEN)
            for more, other, ranks in others:
                found = self.evaluate(self.model, "--data", other, "--seq-len", SEQ_LEN, *more, ranks=ranks)
                with self.subTest(data=other.name, more=more):
                    self.assertEqual(found["tokens"], expected["tokens"])
                    self.assertEqual(found.get("bytes"), expected.get("bytes"))
                    self.assertLess(found["packed_rows"], expected["rows"] / 1.3)
                    for figure in ("loss", "loss_standard_error"):
                        if other != self.rows or figure == "loss":  # the packed file leaves out documents without tokens
                            self.assertLess(abs(found[figure] / expected[figure] - 1), RELATIVE, figure)
        some = [self.evaluate(self.model, "--data", self.apart, "--seq-len", SEQ_LEN, "--max-rows", 9, *more) for more in ([], ["--pack"])]
        self.assertEqual(some[0]["tokens"], some[1]["tokens"])
        self.assertLess(abs(some[0]["loss"] / some[1]["loss"] - 1), RELATIVE)

    def test_max_rows_reads_no_more_rows_than_hold_these_documents(self):
        """Ids outside of the vocabulary in the last row would cause an error."""
        ends = tokens_cli.read(self.rows)["row_offsets"][1:]
        torn = self.folder / "torn.h5"
        shutil.copyfile(self.rows, torn)
        with llama_cli.h5py.File(torn, "r+") as file:
            file["tokens"][-3:] = 60000
        for count, ranks in ((int(ends[1]), 0), (int(ends[1]) - 1, 2)):
            report = self.evaluate(self.model, "--data", torn, "--seq-len", SEQ_LEN, "--max-rows", count, ranks=ranks)
            documents = [ids for row in self.in_rows(self.rows) for ids in row][:count]
            self.assertEqual((report["packed_rows"], report["tokens"]), (2, sum(len(ids) - 1 for ids in documents)))
        self.assert_refused(self.evaluate(self.model, "--data", torn, "--seq-len", SEQ_LEN, code=4), 4, "torn.h5", "60000")

    def test_conversations_keep_their_masks(self):
        chat = fsdp_cli.folder("FSDP_FIXTURES") / "chat"
        arguments = ["--chat-template", "chatml", "--seq-len", 96]
        apart = tokens_cli.read(self.encode("chats-apart.h5", chat / "messages.jsonl", *arguments[:2], "--max-length", 96, tokenizer=chat / "tokenizers" / "chatml"))
        rows = self.encode("chats.h5", chat / "messages.jsonl", "--pack", *arguments, tokenizer=chat / "tokenizers" / "chatml")
        offsets = apart["offsets"]
        expected = sorted((tuple(apart["tokens"][a:b]), tuple(apart["loss_mask"][a:b])) for a, b in zip(offsets, offsets[1:]))
        found = [pair for ids, masks in zip(self.in_rows(rows), self.in_rows(rows, "loss_mask")) for pair in zip(ids, masks)]
        self.assertEqual(sorted(found), expected)

    def test_what_cannot_be(self):
        self.assert_refused(self.evaluate(self.model, "--data", self.rows, "--seq-len", 32, code=2), 2, "rows.h5", "32", "--documents --pack")
        self.assert_refused(self.evaluate(self.model, "--data", self.train_data, "--pack", code=2), 2, "--pack", self.train_data.name)
        self.assert_refused(self.evaluate(self.model, "--prompt", "a", "--pack", code=2), 2, "--pack", "--data")
        for number, values in (("a", [0, 3]), ("b", [0, 5, 4]), ("c", [1])):
            damaged = self.folder / f"damaged-{number}.h5"
            shutil.copyfile(self.apart, damaged)
            with llama_cli.h5py.File(damaged, "r+") as file:
                file["row_offsets"] = numpy.array(values, dtype=numpy.int64)
            self.assert_refused(self.evaluate(self.model, "--data", damaged, code=4), 4, damaged.name, "row_offsets[")
        for more, words in ((["--seq-len", 9], ["--seq-len", "--pack"]), (["--seed", 1], ["--seed", "--pack"])):
            self.encode("none.h5", self.texts, *more, code=2)
            self.assert_refused(self.result, 2, *words)
            self.assertFalse((self.folder / "none.h5").exists())
        empty = self.folder / "empty.jsonl"
        empty.write_text('{"text": ""}\n')
        self.encode("none.h5", empty, "--pack", "--seq-len", 9, code=4, tokenizer="gpt2")
        self.assert_refused(self.result, 4, "none.h5", "no document has 2 ids")
        self.assertEqual([path.name for path in self.folder.iterdir() if path.name.endswith(".tmp")], [])


if __name__ == "__main__":
    fsdp_cli.main()
