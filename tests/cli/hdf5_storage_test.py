"""Token files whose ids lie outside of the file: every program refuses them and never reads zeros."""

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

    def refuse(self, path, *words):
        words = (path.name, "input_ids", *words)
        self.assert_refused(self.train("bad", "--max-steps", 1, "--train-data", path, ranks=2, code=4), 4, *words)
        self.assert_refused(self.train("bad", "--max-steps", 1, "--val-data", path, code=4), 4, *words)
        self.assert_refused(self.evaluate(self.checkpoints("good") / "latest", "--data", path, code=4), 4, *words)

    def test_ids_that_are_not_in_the_file(self):
        self.train("good", "--max-steps", 1)
        shape = self.ids.shape

        def some_chunks(file):
            file.create_dataset("input_ids", shape, "uint16", chunks=(8, 16), compression="gzip")[:40] = self.ids[:40]

        def outside(file):
            secret = self.folder / "secret"
            secret.write_bytes(b"a password" * 5)
            file.create_dataset("input_ids", shape, "uint16", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])

        def link(file):
            file["input_ids"] = h5py.ExternalLink("parts/0.h5", "/input_ids")

        self.refuse(self.hdf5("empty.h5", lambda file: file.create_dataset("input_ids", shape, "uint16")), "never written")
        for version in ("earliest", ("v110", "v110")):
            self.refuse(self.hdf5("some.h5", some_chunks, libver=version), "of 24 chunks only 15 are stored")
        self.refuse(self.hdf5("outside.h5", outside), "keeps its values outside", "secret")
        self.refuse(self.hdf5("link.h5", link), "is a link into another file, 'parts/0.h5'")
        self.refuse(self.virtual("missing.h5", ["parts/0.h5", "parts/2.h5"]), "'parts/2.h5' is not there")
        self.refuse(self.virtual("half.h5", ["parts/0.h5"]), "none of its sources")
        self.refuse(self.virtual("short.h5", ["parts/0.h5", "parts/0.h5"]), "parts/0.h5: dataset 'input_ids' has 990 elements")

    def test_all_layouts_train_alike(self):
        def filtered(file):
            file.create_dataset("input_ids", data=self.ids.astype("uint16"), chunks=(10, 33), compression="gzip", shuffle=True)

        def growing(file):
            file.create_dataset("input_ids", data=self.ids.astype("uint16"), maxshape=(None, None), chunks=(100, 40))

        self.train("plain", "--max-steps", 3, "--no-save")
        expected = fsdp_cli.losses(self.run_directory("plain"))
        for name, path in (("virtual", self.virtual("virtual.h5", ["parts/0.h5", str(self.parts / "1.h5")])),
                           ("filtered", self.hdf5("filtered.h5", filtered)), ("growing", self.hdf5("growing.h5", growing)),
                           ("latest", self.hdf5("latest.h5", growing, libver=("v110", "v110")))):
            self.train(name, "--max-steps", 3, "--no-save", "--train-data", path, ranks=2 if name == "virtual" else 0)
            found = fsdp_cli.losses(self.run_directory(name))
            if name == "virtual":  # two ranks take other samples per step
                self.assertEqual(len(found), 3)
            else:
                self.assertEqual(found, expected)


if __name__ == "__main__":
    fsdp_cli.main()
