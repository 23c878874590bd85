"""Loads a checkpoint written by write_dcp_sample with real PyTorch: dcp.load, dcp_to_torch_save, torch.load of the
single items, zipfile's CRC check, and safetensors. Usage: dcp_torch_test.py PATH/TO/write_dcp_sample"""

import io
import pathlib
import pickle
import subprocess
import sys
import tempfile
import zipfile

SKIPPED = 77

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(SKIPPED)

DTYPES = ("float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool uint16 uint32 uint64 "
          "float8_e4m3fn float8_e5m2 complex64 complex128").split()


def expected_tensor(name, shape, seed):
    """Returns the expected tensor: element i is (7 * i + seed) mod 31, see write_dcp_sample.cpp."""
    count = 1
    for size in shape:
        count *= size
    values = torch.tensor([(7 * i + seed) % 31 for i in range(count)], dtype=torch.int64)
    dtype = getattr(torch, name)
    if name.startswith("float8"):
        values = values % 8
    if name == "bool":
        values = values % 2
    if dtype.is_complex:
        part = torch.float32 if dtype == torch.complex64 else torch.float64
        return torch.complex(values.to(part), -values.to(part)).reshape(shape)
    return values.to(dtype).reshape(shape)


def expected_tensors():
    shapes = {
        "scalar": ("float32", (), 3), "step": ("int64", (), 20), "one_row": ("bfloat16", (1, 7), 4),
        "empty": ("float32", (0, 5), 5), "flat": ("int64", (9,), 6), "columns": ("float32", (4, 6), 7),
        "four_dims": ("bfloat16", (3, 2, 1, 5), 8), "large": ("float32", (1000, 333), 9),
    }
    return {
        "dtypes": {name: expected_tensor(name, (5, 3), seed) for seed, name in enumerate(DTYPES)},
        "shapes": {key: expected_tensor(*spec) for key, spec in shapes.items()},
    }


EXPECTED_VALUES = {
    "run": {"step": 20, "note": "gr\u00fc\u00dfe", "big": 2**63},
    "optimizer": {"groups": [{"lr": 3e-4, "betas": [0.9, 0.95]}, {"lr": -70000}]},
    "state": {"none": None, "yes": True, "list": [1, 300, -1, 5000000000]},
}


def check_equal(found, expected, where):
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor), f"{where}: {type(found)}"
        assert found.dtype == expected.dtype and found.shape == expected.shape, f"{where}: {found.dtype} {found.shape}"
        same = found.contiguous().view(-1).view(torch.uint8).equal(expected.contiguous().view(-1).view(torch.uint8))
        assert same, f"{where}: values differ"
    elif isinstance(expected, dict):
        assert sorted(found) == sorted(expected), f"{where}: keys {sorted(found)}"
        for key in expected:
            check_equal(found[key], expected[key], f"{where}.{key}")
    else:
        assert type(found) is type(expected) and found == expected, f"{where}: {found!r}, expected {expected!r}"


def check_dcp_load(directory):
    tensors = expected_tensors()
    state = {group: {key: torch.zeros_like(value) for key, value in named.items()} for group, named in tensors.items()}
    dcp.load(state, checkpoint_id=directory, no_dist=True)
    check_equal(state, tensors, "dcp.load")


def check_dcp_to_torch_save(directory, out):
    dcp_to_torch_save(directory, out)
    check_equal(torch.load(out, weights_only=True), {**expected_tensors(), **EXPECTED_VALUES}, "dcp_to_torch_save")


def check_items(directory):
    """Checks that torch.load and zipfile (which checks the CRC-32) accept every item as a file of its own."""
    metadata = pickle.loads((directory / ".metadata").read_bytes())
    assert len(metadata.storage_data) > 30
    for index, place in metadata.storage_data.items():
        data = (directory / place.relative_path).read_bytes()[place.offset:place.offset + place.length]
        assert zipfile.ZipFile(io.BytesIO(data)).testzip() is None, index
        loaded = torch.load(io.BytesIO(data), weights_only=True)
        assert index.offset is None or isinstance(loaded, torch.Tensor), index


def check_safetensors(path):
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        print(f"safetensors not checked: {error}")
        return
    expected = {f"{group}.{key}": value for group, named in expected_tensors().items() for key, value in named.items()}
    check_equal(load_file(path), {k: v for k, v in expected.items() if not v.dtype.is_complex}, "safetensors")


def main():
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.argv[1], scratch], check=True)
        directory = pathlib.Path(scratch) / "dcp"
        check_items(directory)
        check_dcp_load(directory)
        check_dcp_to_torch_save(directory, pathlib.Path(scratch) / "out.pt")
        check_safetensors(pathlib.Path(scratch) / "model.safetensors")
    print("PyTorch reads back what was written")


if __name__ == "__main__":
    main()
