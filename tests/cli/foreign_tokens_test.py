"""Token files of other programs, read where they are: one stream of ids as Megatron, llm.c, NumPy and nanoGPT keep it trains and
evaluates alike, and so do documents in columns of Parquet and of Arrow streams; what they do not say is asked for once."""

import json
import struct

import fsdp_cli
import h5py
import numpy

STEPS = ["--max-steps", 3, "--seq-len", fsdp_cli.SEQ_LEN]


def write_llmc(path, ids):
    path.write_bytes(numpy.array([20240520, 1, len(ids)] + [0] * 253, "<i4").tobytes() + ids.astype("<u2").tobytes())


def write_megatron(prefix, documents, dtype="<i4", code=4):
    lengths = [len(ids) for ids in documents]
    width = numpy.dtype(dtype).itemsize
    pointers = numpy.concatenate([[0], numpy.cumsum(lengths)[:-1]]) * width
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1)
    index += numpy.array(lengths, "<i4").tobytes() + pointers.astype("<i8").tobytes() + numpy.arange(len(lengths) + 1, dtype="<i8").tobytes()
    prefix.with_suffix(".idx").write_bytes(index)
    prefix.with_suffix(".bin").write_bytes(numpy.concatenate(documents).astype(dtype).tobytes())


def write_columns(folder, documents, masks, kind):
    """Writes ids and labels as datasets' save_to_disk or to_parquet does, in two parts."""
    import pyarrow
    import pyarrow.parquet
    folder.mkdir()
    half = len(documents) // 2
    names = []
    for number, part in enumerate((slice(0, half), slice(half, None))):
        labels = [numpy.where(mask, ids, -100) for ids, mask in zip(documents[part], masks[part])]
        table = pyarrow.table({"labels": pyarrow.array(labels, pyarrow.list_(pyarrow.int64())),
                               "input_ids": pyarrow.array(documents[part], pyarrow.list_(pyarrow.int32()))})
        names.append(f"data-{number:05}-of-00002.{kind}")
        if kind == "parquet":
            pyarrow.parquet.write_table(table, folder / names[-1], row_group_size=3)
            continue
        with pyarrow.ipc.new_stream(folder / names[-1], table.schema) as stream:
            stream.write_table(table, max_chunksize=3)
    if kind == "arrow":
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
        (folder / "dataset_info.json").write_text("{}")


class ForeignTokens(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        ids = fsdp_cli.random_tokens(rows=40, seed=3).reshape(-1)
        count = (len(ids) - 1) // fsdp_cli.SEQ_LEN
        rows = numpy.stack([ids[i * fsdp_cli.SEQ_LEN:(i + 1) * fsdp_cli.SEQ_LEN + 1] for i in range(count)])
        cls.rows = fsdp_cli.write_tokens(cls.folder / "rows.h5", rows)
        cls.ids = ids
        cls.documents = numpy.split(ids, [5, 90, 91, 400])
        (cls.folder / "short.bin").write_bytes(ids.astype("<u2").tobytes())
        (cls.folder / "long.bin").write_bytes(ids.astype("<u4").tobytes())
        numpy.save(cls.folder / "ids.npy", ids.astype(">i8"))
        write_llmc(cls.folder / "llmc.bin", ids)
        write_megatron(cls.folder / "megatron", cls.documents)
        cls.all = {"short.bin": ["--token-dtype", "uint16"], "long.bin": ["--token-dtype", "uint32"], "ids.npy": [], "llmc.bin": [], "megatron.idx": [],
                   "megatron.bin": []}

    def tune(self, name, data, *more, ranks=0, code=0):
        result = fsdp_cli.run("fsdp-finetune", ["--train-data", self.folder / data, "--out-dir", self.runs, "--run-name", name, *fsdp_cli.COMMON,
                                                *fsdp_cli.TINY_MODEL, *more], ranks)
        self.assertEqual(result.code, code, str(result))
        return result

    def test_every_kind_trains_and_evaluates_alike(self):
        self.tune("rows", "rows.h5", *STEPS, ranks=2)
        checkpoint = self.checkpoints("rows") / "latest"
        loss = self.evaluate(checkpoint, "--data", self.rows, "--seq-len", fsdp_cli.SEQ_LEN)["loss"]
        for data, more in self.all.items():
            with self.subTest(data=data):
                self.tune(data, data, *STEPS, *more, ranks=2)
                self.assertEqual(self.losses(data), self.losses("rows"))
                self.assertEqual(self.evaluate(checkpoint, "--data", self.folder / data, "--seq-len", fsdp_cli.SEQ_LEN, *more)["loss"], loss)

    def test_shards_in_a_folder(self):
        shards = self.folder / "shards"
        shards.mkdir()
        half = len(self.ids) // 2 // fsdp_cli.SEQ_LEN * fsdp_cli.SEQ_LEN
        write_llmc(shards / "part_000001.bin", self.ids[:half + 1])
        write_llmc(shards / "part_000002.bin", self.ids[half:])
        self.tune("rows", "rows.h5", *STEPS)
        self.tune("shards", "shards", *STEPS)
        self.assertEqual(self.losses("shards"), self.losses("rows"))

    def test_documents_of_megatron(self):
        result = self.tune("documents", "megatron.idx", "--max-steps", 2, "--seq-len", fsdp_cli.SEQ_LEN, "--documents")
        self.assertRegex(result.err, rf"(?m)^data      {len(self.documents)} texts of up to {fsdp_cli.SEQ_LEN - 1} tokens")

    def test_columns_of_ids(self):
        """Documents with labels, also packed, give the losses of a token file with a mask."""
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            self.skipTest("pyarrow is not installed")
        choice = numpy.random.default_rng(4)
        lengths = choice.integers(2, fsdp_cli.SEQ_LEN, 40)
        documents = [choice.integers(0, fsdp_cli.VOCAB, n).astype("int32") for n in lengths]
        masks = [choice.random(n) < 0.6 for n in lengths]
        for mask in masks:
            mask[-1] = True
        with h5py.File(self.folder / "masked.h5", "w") as file:
            file["tokens"] = numpy.concatenate(documents).astype("uint16")
            file["offsets"] = numpy.concatenate([[0], numpy.cumsum(lengths)])
            file["loss_mask"] = numpy.concatenate(masks).astype("uint8")
        for kind in ("arrow", "parquet"):
            write_columns(self.folder / kind, documents, masks, kind)
        for name, more in (("plain", []), ("packed", ["--pack"])):
            self.tune(f"{name}-h5", "masked.h5", *STEPS, *more, ranks=2)
            for kind in ("arrow", "parquet"):
                with self.subTest(kind=kind, name=name):
                    self.tune(f"{name}-{kind}", kind, *STEPS, *more, ranks=2)
                    self.assertEqual(self.losses(f"{name}-{kind}"), self.losses(f"{name}-h5"))
        (self.folder / "arrow" / "data-00001-of-00002.arrow").rename(self.folder / "moved")
        self.assert_refused(self.tune("refused", "arrow", *STEPS, code=4), 4, "data-00001-of-00002.arrow: is not there", "state.json lists it")

    def test_ids_beside_texts(self):
        """A data set that was tokenized keeps its texts: its ids are read, and its texts where they are asked for."""
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            self.skipTest("pyarrow is not installed")
        table = pyarrow.table({"text": ["one two three four"] * 8, "input_ids": [[1, 2, 3, 4]] * 8})
        pyarrow.parquet.write_table(table, self.folder / "both.parquet")
        self.assertIn("has ids, which are read, beside the column 'text'", self.tune("ids", "both.parquet", *STEPS).err)
        texts = self.tune("texts", "both.parquet", *STEPS, "--data-field", "text", "--tokenizer", "gpt2", "--vocab-size", 50257)
        self.assertIn("texts", texts.err)
        self.assertIn("texts", self.tune("form", "both.parquet", *STEPS, "--data-form", "text", "--tokenizer", "gpt2", "--vocab-size", 50257).err)
        table = pyarrow.table({"input_ids": [[1, 2, 3, 4]] * 4, "tokens": [[5, 6, 7, 8, 9, 10]] * 4, "Moves": ["e4"] * 4})
        pyarrow.parquet.write_table(table, self.folder / "two.parquet")
        self.assertRegex(self.tune("two", "two.parquet", *STEPS).err, "beside the column 'Moves'[^$]*texts of up to 3 tokens")
        self.assertIn("texts of up to 5 tokens", self.tune("other", "two.parquet", *STEPS, "--data-field", "tokens").err)
        table = pyarrow.table({"text": ["one two three"] * 8, "input_ids": ["no ids"] * 8})
        pyarrow.parquet.write_table(table, self.folder / "words.parquet")
        self.tune("words", "words.parquet", *STEPS, "--tokenizer", "gpt2", "--vocab-size", 50257)
        fixed = pyarrow.array([[1, 2, 3, 4], None, [5, 6, 7, 8]], pyarrow.list_(pyarrow.int32(), 4))
        pyarrow.parquet.write_table(pyarrow.table({"input_ids": fixed, "labels": fixed}), self.folder / "fixed.parquet")
        self.assert_refused(self.tune("fixed", "fixed.parquet", *STEPS, code=4), 4, "fixed.parquet: row 1: is null, expected 4 ids as in each row")
        parts = self.folder / "parts"
        parts.mkdir()
        for number, rows in enumerate(([[1, 2, 3]] * 4, [])):
            table = pyarrow.table({"input_ids": pyarrow.array(rows, pyarrow.list_(pyarrow.int32())), "attention_mask": pyarrow.array(rows, pyarrow.list_(pyarrow.int32())),
                                   "labels": pyarrow.array(rows, pyarrow.list_(pyarrow.int32()))})
            pyarrow.parquet.write_table(table, parts / f"part-{number:05}.parquet")
        self.assertNotIn("not read", self.tune("parts", "parts", *STEPS).err)
        with pyarrow.ipc.new_stream(self.folder / "packed.arrow", table.schema, options=pyarrow.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_table(pyarrow.table({name: [[1, 2, 3] * 500] * 4 for name in table.column_names}, table.schema))
        self.assert_refused(self.tune("packed", "packed.arrow", *STEPS, code=4), 4, "packed.arrow: is a compressed Arrow stream: write it without compression")
        table = pyarrow.table({"input_ids": pyarrow.array([[1, 2, None, 4]] * 3, pyarrow.list_(pyarrow.int32()))})
        pyarrow.parquet.write_table(table, self.folder / "null.parquet")
        self.assert_refused(self.tune("null", "null.parquet", *STEPS, code=4), 4, "null.parquet: row 0: position 2 is null")
        table = pyarrow.table({"input_ids": [[1, 2, 3]], "labels": [[1, 7, 3]]})
        pyarrow.parquet.write_table(table, self.folder / "shifted.parquet")
        self.assert_refused(self.tune("shifted", "shifted.parquet", *STEPS, code=4), 4, "row 0: position 1: the label 7 is neither the id there, 2, nor -100")

    def test_what_they_do_not_say_is_asked_for_and_kept(self):
        self.assert_refused(self.tune("refused", "short.bin", *STEPS, code=4), 4, "short.bin: is neither", "do not say how wide they are (--token-dtype)")
        self.assert_refused(self.tune("refused", "short.bin", *STEPS, "--token-dtype", "int8", code=2), 2, "choose from uint16, uint32")
        self.tune("kept", "short.bin", "--max-steps", 1, "--seq-len", fsdp_cli.SEQ_LEN, "--token-dtype", "uint16")
        self.tune("kept", "short.bin", "--max-steps", 2, "--restart", "latest")
        self.assertEqual(len(self.losses("kept")), 2)
        # Read as uint16, every second id would be 0 and none too large.
        odd = self.folder / "odd.bin"
        odd.write_bytes(b"123")
        self.assert_refused(self.tune("refused", odd, *STEPS, "--token-dtype", "uint16", code=4), 4, "odd.bin: has 3 bytes, which are no whole number of ids")

    def test_an_id_beyond_the_vocabulary(self):
        ids = self.ids.copy()
        ids[7] = fsdp_cli.VOCAB
        write_llmc(self.folder / "beyond.bin", ids)
        result = self.tune("beyond", "beyond.bin", "--max-steps", 40, "--seq-len", fsdp_cli.SEQ_LEN, "--no-shuffle", code=4)
        self.assertIn(f"token id {fsdp_cli.VOCAB} is outside the model's vocabulary of {fsdp_cli.VOCAB}", result.err)


if __name__ == "__main__":
    fsdp_cli.main()
