"""Token files whose ids lie outside of the file: every program refuses them and never reads zeros. (All kinds of such files:
tests/unit/formats/hdf5_storage_test.cpp.)"""

import h5py

import fsdp_cli


class Storage(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ids = fsdp_cli.random_tokens()
        cls.parts = cls.folder / "parts"
        cls.parts.mkdir()
        for i, rows in enumerate((cls.ids[:30], cls.ids[30:])):
            fsdp_cli.write_tokens(cls.parts / f"{i}.h5", rows)

    def hdf5(self, name, fill, **how):
        """Makes a file whose contents `fill` writes."""
        with h5py.File(self.folder / name, "w", **how) as file:
            fill(file)
        return self.folder / name

    def virtual(self, name, parts):
        layout = h5py.VirtualLayout(self.ids.shape, "uint16")
        for part, rows in zip(parts, (slice(0, 30), slice(30, 64))):
            layout[rows] = h5py.VirtualSource(part, "input_ids", (rows.stop - rows.start, self.ids.shape[1]))
        return self.hdf5(name, lambda file: file.create_virtual_dataset("input_ids", layout))

    def test_ids_that_are_not_in_the_file(self):
        self.train("good", "--max-steps", 1)

        def some_chunks(file):
            file.create_dataset("input_ids", self.ids.shape, "uint16", chunks=(8, 16), compression="gzip")[:40] = self.ids[:40]

        path = self.hdf5("some.h5", some_chunks)
        words = (path.name, "input_ids", "24 chunks", "15")
        self.assert_refused(self.train("bad", "--max-steps", 1, "--train-data", path, ranks=2, code=4), 4, *words)
        self.assert_refused(self.train("bad", "--max-steps", 1, "--val-data", path, code=4), 4, *words)
        self.assert_refused(self.evaluate(self.checkpoints("good") / "latest", "--data", path, code=4), 4, *words)

    def test_a_virtual_file_trains_like_a_plain_one(self):
        virtual = self.virtual("virtual.h5", ["parts/0.h5", str(self.parts / "1.h5")])
        for name, path in (("plain", self.train_data), ("virtual", virtual)):
            self.train(name, "--max-steps", 3, "--no-save", "--train-data", path, ranks=2)
        self.assertEqual(self.losses("virtual"), self.losses("plain"))


if __name__ == "__main__":
    fsdp_cli.main()
