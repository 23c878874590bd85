"""Random checkpoints, written by PyTorch, through chains of formats and back: every tensor is bit for bit what it was, or a
conversion is refused by the name of a file or a tensor, without an output."""
import collections
import pathlib
import random
import re
import shutil
import warnings

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

import programs

warnings.simplefilter("ignore")
BATCH = 4
FOLDER = programs.temporary_folder()
counts, refusals = collections.Counter(), collections.Counter()
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64,
    torch.complex64, torch.complex128, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)}
COMMON = ["float32", "float16", "bfloat16", "float32", "int64", "float64"]
FORMATS = ["torch", "safetensors", "dcp", "hf"]
SUFFIX = {"torch": ".pt", "safetensors": ".safetensors", "dcp": "", "hf": ""}
STEMS = ["weight", "bias", "model.layers.0.w", "a", "b.c", "x_1", "transformer.h.10.attn", "norm", "running_mean", "num_batches_tracked", "module.a", "state", "0", "model.a"]
ODD_NAMES = ["é", "日本", "a b", "a/b", "..", "a\"b", "a'b", "x" * 300, "A", "a.", ".a", "%s", "a\\b", "tab\tx", "line\nx", "__metadata__", "model", "optimizer", "optim.a", "step", "lm_head.weight", "state.a.exp_avg"]
SIZES = [0, 1, 2, 3, 5, 7, 16, 33]


def generate(r):
    first, chain = r.choice(FORMATS), [{"to": r.choice(FORMATS), "shards": r.choice([1, 2, 3, 5]), "size": r.choice(["16KB", "5GB"])} for _ in range(r.choice([1, 2, 2, 3]))]
    # A directory of transformers holds a model alone: containers around the model and what is no model are left out.
    is_model = "hf" in [first, *(step["to"] for step in chain)]
    tensors = {}
    for _ in range(r.choice([1, 2, 3, 5, 9])):
        name = r.choice(ODD_NAMES) if r.random() < 0.1 else r.choice(STEMS) + r.choice(["", "", ".weight", f".{r.randint(0, 11)}"])
        if is_model:
            name = r.choice(["model.layers.0.mlp.", "model.layers.11.", "transformer.h.0.", "", "lm_"]) + r.choice(["weight", "bias", "a_proj.weight", "norm.weight", "é", "x y"])
        shape = [r.choice(SIZES[1:] if r.random() < 0.95 else SIZES) for _ in range(r.choice([0, 1, 1, 2, 2, 2, 3, 4]))]
        tensors[name] = {"dtype": r.choice(COMMON) if r.random() < 0.7 else r.choice(list(DTYPES)), "shape": shape, "seed": r.randrange(1000)}
        if r.random() < 0.1:
            tensors[name]["view"] = r.choice(["transposed", "strided"])
    case = {"tensors": tensors, "first": first, "chain": chain}
    if len(tensors) > 1 and r.random() < 0.1:
        case["tied"] = r.sample(list(tensors), 2)
    if first == "torch" and not is_model:
        case["wrapped"] = r.choice(["", "", "", "model", "state_dict", "old zip"])
    return case


def made_tensor(spec):
    """Returns a tensor of random bits, so that NaN and infinities of all kinds are among its elements."""
    dtype, shape = DTYPES[spec["dtype"]], spec["shape"]
    count = 1
    for size in shape:
        count *= size
    data = random.Random(spec["seed"]).randbytes(count * dtype.itemsize)
    if dtype == torch.bool:
        data = bytes(byte & 1 for byte in data)
    tensor = torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    if spec.get("view") == "transposed" and len(shape) > 1:
        return tensor.transpose(0, 1)
    if spec.get("view") == "strided" and shape and shape[0] > 1:
        return tensor[::2]
    return tensor


def write(case, tensors, path):
    if case["first"] == "torch":
        value = {case["wrapped"]: tensors} if case.get("wrapped") in ("model", "state_dict") else tensors
        torch.save(value, path, _use_new_zipfile_serialization=case.get("wrapped") != "old zip")
    elif case["first"] == "dcp":
        dcp.save(tensors, checkpoint_id=path, no_dist=True)
    else:
        if case["first"] == "hf":
            path.mkdir()
            (path / "config.json").write_text("{}")
        save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, path / "model.safetensors" if case["first"] == "hf" else path)


def flat(value, prefix=""):
    """Returns the tensors of nested dictionaries by their joined names."""
    if isinstance(value, dict):
        return {key: tensor for name, part in value.items() for key, tensor in flat(part, f"{prefix}{name}.").items()}
    return {prefix[:-1]: value} if isinstance(value, torch.Tensor) else {}


def read(form, path):
    if form == "torch":
        return complex_again(flat(torch.load(path, weights_only=True)))
    if form == "safetensors":
        return complex_again(load_file(path))
    return complex_again({name: tensor for file in sorted(path.glob("*.safetensors")) for name, tensor in load_file(file).items()})


def complex_again(tensors):
    """Undoes what the converter does with complex tensors in safetensors files (docs/fsdp-ckpt-convert.md)."""
    end = "@view_as_real"
    return {name.removesuffix(end): torch.view_as_complex(tensor) if name.endswith(end) else tensor for name, tensor in tensors.items()}


def bits(tensor):
    flat = tensor.contiguous().flatten()
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)  # one element counts as contiguous whatever its stride


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and (a.numel() == 0 or torch.equal(bits(a), bits(b)))


def difference(case, number):
    folder = FOLDER / str(number)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        tensors = {name: made_tensor(spec) for name, spec in case["tensors"].items()}
        if case.get("tied"):
            tensors[case["tied"][0]] = tensors[case["tied"][1]]
        path, form = folder / f"first{SUFFIX[case['first']]}", case["first"]
        write(case, tensors, path)
        if case.get("wrapped") in ("model", "state_dict"):
            tensors = {f"{case['wrapped']}.{name}": tensor for name, tensor in tensors.items()}
    except Exception as error:
        counts[f"refused by PyTorch ({type(error).__name__})"] += 1
        return None
    steps = [*case["chain"], {"to": "safetensors" if case["first"] == "dcp" else case["first"]}]
    shown = f"\nthrough {' -> '.join([form, *(step.get('to', '?') for step in steps)])}"
    for i, step in enumerate(steps):
        out = folder / f"{i}{SUFFIX[step['to']]}"
        more = ["--shards", step.get("shards", 1)] if step["to"] == "dcp" else ["--max-shard-size", step.get("size", "5GB")] if step["to"] == "hf" else []
        result = programs.run("fsdp-ckpt-convert", [path, out, "--to", step["to"], *more, "--quiet"])
        if result.code != 0:
            counts["refused by ours"] += 1
            named = len(result.errors()) == 1 and (str(folder) in result.err or any(name in result.err for name in case["tensors"]))
            if result.code not in (2, 4) or not named or out.exists():
                return f"a refusal that is not one: exit code {result.code}{', and an output' if out.exists() else ''}{shown}\n{result.err}"
            words = programs.without_names(result.errors()[0].replace(str(folder), ""), case["tensors"])
            refusals[re.sub(r"[0-9]+|\S*/\S*", "N", words)[:100]] += 1
            return None
        path, form = out, step["to"]
    counts["compared"] += 1
    found = read(form, path)
    if sorted(found) != sorted(tensors):
        return f"names differ{shown}\nours {sorted(found)}\nreal {sorted(tensors)}"
    wrong = [name for name in tensors if not same(tensors[name], found[name])]
    if wrong:
        return f"tensors differ{shown}\n" + "\n".join(f"{name!a}: {found[name].dtype} {list(found[name].shape)} of {tensors[name].dtype} {list(tensors[name].shape)}" for name in wrong)
    return None


def differences(cases):
    return [difference(case, number) for number, case in enumerate(cases)]


def summary():
    return ", ".join(f"{count} {what}" for what, count in counts.items()) + "".join(f"\n    {count} {words}" for words, count in refusals.most_common(20))


KNOWN = []
