"""The checkpoints of tests/fixtures for the tests of fsdp-ckpt-convert: input, options, expected contents.

Reads safetensors files with the standard library only, so that float8 and bfloat16 compare as the bytes they are.
"""

import json
import struct

import fsdp_cli

PROGRAM = "fsdp-ckpt-convert"
ROOT = fsdp_cli.folder("FSDP_FIXTURES") / "checkpoints"


class Fixture:
    """One folder of tests/fixtures/checkpoints."""

    def __init__(self, folder):
        self.folder, self.name = folder, folder.name
        self.truth = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
        # A safetensors fixture is its whole folder, except expected.safetensors.
        self.input = next((folder / name for name in ("ckpt", "ckpt.pt") if (folder / name).exists()), folder)
        self.refused = self.truth["kind"] in ("refuse", "unsupported")
        self.is_local = bool(self.truth.get("flat_params"))
        # {flattened key: JSON}, in the form that the program writes as well.
        self.values = dict(self.truth["nontensor"])
        self.has_raw_optimizer = (folder / "optim-rank0.pt").exists()

    def options(self):
        """Returns the options that a user must give beside IN and OUT."""
        options = []
        if self.is_local:
            shapes = self.folder / "param_shapes.json"
            options += ["--param-shapes", shapes]
            listed = json.loads(shapes.read_text())["all_names_including_tied"]
            ties = [tie for flat in self.truth["flat_params"] for tie in flat["shared"] if tie["fqn"] not in listed]
            options += [word for tie in ties for word in ("--tie", f"{tie['fqn']}={tie['same_as']}")]
        if self.has_raw_optimizer:
            options += ["--optim-files", self.folder / "optim-rank*.pt"]
        return options

    def tensors(self):
        """Returns {name: (dtype, shape, bytes)}, including the optimizer's if its raw files lie beside the checkpoint."""
        tensors = read_safetensors(self.folder / "expected.safetensors")
        if not self.has_raw_optimizer:
            return tensors
        return {**tensors, **read_safetensors(self.folder / "expected_optim.safetensors")}

def decoded(value):
    """Returns a value of expected.json as the Python value it stands for."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "__object__" in value:
        return {key: decoded(item) for key, item in value["state"].items()}
    if len(value) != 1 or not next(iter(value)).startswith("__"):
        return {key: decoded(item) for key, item in value.items()}
    kind, content = next(iter(value.items()))
    if kind == "__dict__":
        return {decoded(key): decoded(item) for key, item in content}
    makers = {"__tuple__": lambda c: tuple(decoded(i) for i in c), "__size__": lambda c: tuple(c), "__set__": set, "__bytes__": bytes.fromhex,
              "__float__": float, "__complex__": lambda c: complex(*c), "__dtype__": lambda c: ("dtype", c)}
    return makers[kind](content)


def opened(values):
    """Returns the values with dicts and nested lists flattened, as a .pt is read: DCP holds some of them as one value."""
    found = {}
    for key, value in values.items():
        inner = dict(value["__dict__"]) if isinstance(value, dict) and "__dict__" in value else value
        if isinstance(inner, list) and any(map(is_container, inner)):
            inner = dict(enumerate(inner))
        found.update(opened({f"{key}.{name}": item for name, item in inner.items()}) if is_container(inner) and isinstance(inner, dict) else {key: value})
    return found


def is_container(value):
    """Returns True for a list, or a dict that stands for a dict (rather than for {"__tuple__": ...})."""
    return isinstance(value, list) or isinstance(value, dict) and not any(str(name).startswith("__") for name in value)


def all_fixtures():
    return [Fixture(folder) for folder in sorted(ROOT.iterdir()) if (folder / "expected.json").exists()]


def read_safetensors(path):
    """Returns {name: (dtype, shape, bytes)}."""
    data = path.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    begin = 8 + size
    return {name: (e["dtype"], e["shape"], data[begin + e["data_offsets"][0]:begin + e["data_offsets"][1]]) for name, e in header.items()}


def read_directory(directory):
    """Returns all tensors of a directory of safetensors files, and the index's map of names if there is one."""
    tensors = {}
    for path in sorted(directory.glob("model*.safetensors")):
        for name, tensor in read_safetensors(path).items():
            assert name not in tensors, f"{name} is in two files of {directory}"
            tensors[name] = tensor
    return tensors


class ConvertCase(fsdp_cli.Case):
    """Converts into the test's own folder."""

    def convert(self, source, output, *options, code=0, ranks=0):
        (self.folder / output).parent.mkdir(parents=True, exist_ok=True)
        result = fsdp_cli.run(PROGRAM, [source, self.folder / output, *options], ranks)
        self.assertEqual(result.code, code, str(result))
        return self.folder / output if code == 0 else result

    def assert_same_tensors(self, found, expected, what):
        """Compares names, dtypes, shapes and bytes."""
        self.assertEqual(sorted(found), sorted(expected), what)
        for name, (dtype, shape, data) in expected.items():
            self.assertEqual(found[name][:2], (dtype, shape), f"{what}: {name}")
            # assertEqual would print all bytes.
            self.assertTrue(found[name][2] == data, f"{what}: {name} has other bytes")

    def temporary_files(self):
        """Returns the temporary files that a conversion has left."""
        return [path.name for path in self.folder.rglob("*") if path.name.startswith(".") and "tmp" in path.name]
