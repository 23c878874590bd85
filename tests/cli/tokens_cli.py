"""Shared by the tests of `fsdp-download tokens`."""

import json

import h5py
import numpy

import fsdp_cli

PROGRAM = "fsdp-download"
DATA = fsdp_cli.folder("FSDP_DATA")


def read(path):
    """Returns all datasets of an HDF5 file."""
    with h5py.File(path) as file:
        return {name: file[name][()] for name in file}


def documents(path):
    """Returns the ids of every document."""
    content = read(path)
    offsets = content["offsets"]
    return [content["tokens"][a:b].tolist() for a, b in zip(offsets, offsets[1:])]


def write_jsonl(path, texts):
    with open(path, "w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
    return path


class TokensCase(fsdp_cli.Case):
    def tokens(self, inputs, output, *more, code=0, **how):
        inputs = inputs if isinstance(inputs, list) else [inputs]
        result = fsdp_cli.run(PROGRAM, ["tokens", "--input", *inputs, "--tokenizer", "gpt2", "--output", output, *more], **how)
        self.assertEqual(result.code, code, str(result))
        return result

    def refused(self, inputs, code, *words, options=("--documents",)):
        """Expects one message that names `words`, and no output."""
        output = self.folder / "refused.h5"
        result = self.tokens(inputs, output, *options, code=code)
        self.assert_refused(result, code, *words)
        self.assertFalse(output.exists())
        self.assertEqual(self.temporary_files(), [])
        return result

    def temporary_files(self, folder=None):
        return [path.name for path in (folder or self.folder).iterdir() if path.name.endswith(".tmp")]

    def assert_same(self, a, b):
        a, b = read(a), read(b)
        self.assertEqual(sorted(a), sorted(b))
        for name, values in a.items():
            self.assertEqual(values.dtype, b[name].dtype)
            numpy.testing.assert_array_equal(values, b[name])
