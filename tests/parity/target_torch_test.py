"""Writes every fixture checkpoint with lib/checkpoints as .pt, safetensors, DCP and a Hugging Face directory, and opens the
result with PyTorch, safetensors and (if installed) transformers.
Usage: target_torch_test.py PATH/TO/write_target FIXTURES"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile
import warnings

SKIPPED = 77

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors import safe_open
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(SKIPPED)

warnings.filterwarnings("ignore")
WRITE_TARGET, FIXTURES = sys.argv[1], pathlib.Path(sys.argv[2])


def write(target, source, output, *number):
    done = subprocess.run([WRITE_TARGET, target, source, output, *map(str, number)], capture_output=True, text=True)
    assert done.returncode == 0, f"{target} of {source}: {done.stderr}"
    return output


def input_of(fixture):
    for name in ("ckpt", "ckpt.pt"):
        if (fixture / name).exists():
            return fixture / name
    return fixture if list(fixture.glob("model*.safetensors")) else None


def expected_tensors(fixture):
    """Returns tensors by name; complex ones are stored as pairs of real numbers."""
    tensors = {}
    with safe_open(fixture / "expected.safetensors", "pt") as file:
        for key in file.keys():
            tensor = file.get_tensor(key)
            if key.endswith("@view_as_real"):
                key, tensor = key.removesuffix("@view_as_real"), torch.view_as_complex(tensor)
            tensors[key] = tensor
    return tensors


def same_bits(a, b):
    a, b = a.detach().contiguous(), b.detach().contiguous()
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.reshape(-1).view(torch.uint8).equal(b.reshape(-1).view(torch.uint8))


def check_tensors(found, expected, where):
    assert sorted(found) == sorted(expected), f"{where}: {sorted(set(found) ^ set(expected))}"
    for key, tensor in expected.items():
        assert same_bits(found[key], tensor), f"{where}: {key} differs"


def plain(value):
    """Returns a Python value in the form of expected.json."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": str(value)}
    if isinstance(value, complex):
        return {"__complex__": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"__bytes__": bytes(value).hex()}
    if isinstance(value, torch.Size):
        return {"__size__": list(value)}
    if isinstance(value, torch.dtype):
        return {"__dtype__": str(value)}
    if isinstance(value, tuple):
        return {"__tuple__": [plain(item) for item in value]}
    if isinstance(value, (set, frozenset)):
        return {"__set__": sorted(plain(item) for item in value)}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: plain(item) for key, item in value.items()}
        return {"__dict__": [[plain(key), plain(item)] for key, item in value.items()]}
    if isinstance(value, argparse_namespace()):
        return {"__object__": "argparse.Namespace", "state": plain(vars(value))}
    return value


def argparse_namespace():
    import argparse
    return argparse.Namespace


def at(nested, path):
    """Returns the element whose flattened key is `path`; keys themselves may contain dots."""
    if path == "":
        return nested
    items = nested.items() if isinstance(nested, dict) else enumerate(nested) if isinstance(nested, list) else ()
    for key, item in items:
        key = str(key)
        if path == key or path.startswith(key + "."):
            try:
                return at(item, path[len(key) + 1:])
            except KeyError:
                continue
    raise KeyError(path)


def check_nested(nested, tensors, values, where):
    check_tensors({key: at(nested, key) for key in tensors}, tensors, where)
    for key, value in values.items():
        found = plain(at(nested, key))
        if isinstance(value, dict) and "__object__" in value:
            value = value["state"] if "__object__" not in found else value  # weights_only allows no such class
        assert found == value or json.dumps(found) == json.dumps(value), f"{where}: {key} is {found}, not {value}"


def with_zeros(nested):
    if isinstance(nested, dict):
        return {key: with_zeros(item) for key, item in nested.items()}
    if isinstance(nested, list):
        return [with_zeros(item) for item in nested]
    return torch.zeros_like(nested) if isinstance(nested, torch.Tensor) else "not loaded"


def check_torch(source, tensors, values, folder, where):
    path = write("torch", source, folder / "full.pt")
    check_nested(torch.load(path, weights_only=True), tensors, values, where + " to .pt")
    check_nested(torch.load(path, weights_only=True, mmap=True), tensors, values, where + " to .pt, mapped")
    from torch.utils.serialization import config
    config.load.calculate_storage_offsets = True  # assumes torch.save's order and alignment
    try:
        check_nested(torch.load(path, weights_only=True, mmap=True), tensors, values, where + " to .pt, calculated")
    finally:
        config.load.calculate_storage_offsets = False


def check_safetensors(source, tensors, values, folder, where):
    path = write("safetensors", source, folder / "full.safetensors")
    with safe_open(path, "pt") as file:
        assert file.metadata()["format"] == "pt"
        check_tensors({key: file.get_tensor(key) for key in file.keys()}, tensors, where + " to safetensors")
    beside = folder / "full.json"
    assert beside.exists() == bool(values), where
    if values:
        found = json.loads(beside.read_text(encoding="utf-8"))
        assert json.dumps(found, sort_keys=True) == json.dumps(values, sort_keys=True), f"{where}: {found}"


def check_dcp(source, tensors, values, folder, where):
    directory = write("dcp", source, folder / "dcp", 3)
    dcp_to_torch_save(directory, folder / "again.pt")
    again = torch.load(folder / "again.pt", weights_only=False)
    check_nested(again, tensors, values, where + " to DCP")
    state = with_zeros(again)
    dcp.load(state, checkpoint_id=directory, no_dist=True)
    check_nested(state, tensors, values, where + " to DCP, dcp.load")


def check_hf(source, tensors, folder, where):
    directory = write("hf", source, folder / "hf", 4000)
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    found = {}
    for name in sorted(set(index["weight_map"].values())):
        with safe_open(directory / name, "pt") as file:
            keys = list(file.keys())
            assert all(index["weight_map"][key] == name for key in keys)
            size = sum(file.get_tensor(key).nbytes for key in keys)
            assert size <= 4000 or len(keys) == 1, f"{where}: {name} has {size} bytes"
            found.update({key: file.get_tensor(key) for key in keys})
    check_tensors(found, tensors, where + " to hf")
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())


def check_transformers(folder):
    """Tests a tied and an untied model: from_pretrained() must find every tensor and leave none over."""
    try:
        import transformers
    except ImportError:
        print("transformers is not installed: nothing was opened with it")
        return
    small = {"vocab_size": 61, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    configs = (transformers.LlamaConfig(**small, intermediate_size=24, max_position_embeddings=32),
               transformers.GPT2Config(vocab_size=61, n_embd=16, n_head=2, n_layer=2, n_positions=32))
    for number, config in enumerate(configs):
        model = transformers.AutoModelForCausalLM.from_config(config)
        source = folder / f"model{number}"
        source.mkdir()
        torch.save(model.state_dict(), source / "model.pt")
        config.save_pretrained(source)
        directory = write("hf", source / "model.pt", folder / f"hf{number}", 5000)
        opened, report = transformers.AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
        assert not report["missing_keys"] and not report["unexpected_keys"], report
        check_tensors(opened.state_dict(), model.state_dict(), config.model_type)
        names = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
        assert ("lm_head.weight" in names) != config.tie_word_embeddings
        print(f"{config.model_type}: opened by transformers {transformers.__version__}")


def main():
    converted = 0
    for fixture in sorted(FIXTURES.iterdir()):
        source = input_of(fixture) if (fixture / "expected.json").exists() else None
        truth = json.loads((fixture / "expected.json").read_text()) if source else {}
        if source is None or truth.get("kind") in ("refuse", "unsupported") or truth.get("flat_params"):
            continue  # the program's own tests open flat parameters
        tensors, values = expected_tensors(fixture), truth.get("nontensor", {})
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            check_torch(source, tensors, values, folder, fixture.name)
            check_dcp(source, tensors, values, folder, fixture.name)
            if not any(tensor.is_complex() for tensor in tensors.values()):
                check_safetensors(source, tensors, values, folder, fixture.name)
                if not values and sum(tensor.nbytes for tensor in tensors.values()) > 8000:
                    check_hf(source, tensors, folder, fixture.name)
        converted += 1
    with tempfile.TemporaryDirectory() as folder:
        check_transformers(pathlib.Path(folder))
    print(f"{converted} checkpoints converted")
    assert converted > 40


if __name__ == "__main__":
    main()
