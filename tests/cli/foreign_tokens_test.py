"""Token files of other programs, read where they are: one stream of ids as Megatron, llm.c, NumPy and nanoGPT keep it trains and
evaluates alike; what they do not say is asked for once."""

import struct

import fsdp_cli
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
