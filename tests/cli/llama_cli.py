"""A small Llama in Hugging Face's layout, made without transformers and PyTorch, whose import takes a second of each test,
and token files of documents."""

import json
import math
import shutil

import fsdp_cli
import numpy

h5py = fsdp_cli.h5py

# Like CodeLlama's config.json, but small; the fixtures' tokenizer has 1,000 pieces.
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
    "hidden_size": 48, "num_hidden_layers": 3, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 1016, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 1000000, "rope_scaling": None, "tie_word_embeddings": False}


def shapes(config):
    width, hidden = config["hidden_size"], config["intermediate_size"]
    head = width // config["num_attention_heads"]
    keys = head * config["num_key_value_heads"]
    found = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    for i in range(config["num_hidden_layers"]):
        block = {"self_attn.q_proj": (width, width), "self_attn.k_proj": (keys, width), "self_attn.v_proj": (keys, width),
                 "self_attn.o_proj": (width, width), "mlp.gate_proj": (hidden, width), "mlp.up_proj": (hidden, width),
                 "mlp.down_proj": (width, hidden), "input_layernorm": (width,), "post_attention_layernorm": (width,)}
        found |= {f"model.layers.{i}.{name}.weight": shape for name, shape in block.items()}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (config["vocab_size"], width)
    return found


def stored(values, dtype):
    """Returns the bytes of float32 numbers as F32 or, rounded to nearest even, as BF16."""
    if dtype == "F32":
        return values.tobytes()
    bits = values.view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16).tobytes()


def save_file(tensors, path, dtype):
    """Writes arrays of float32 as a safetensors file."""
    header, begin = {"__metadata__": {"format": "pt"}}, 0
    parts = {name: stored(values, dtype) for name, values in tensors.items()}
    for name, part in parts.items():
        header[name] = {"dtype": dtype, "shape": tensors[name].shape, "data_offsets": [begin, begin + len(part)]}
        begin += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *parts.values()]))


def make_snapshot(directory, tokenizer=True, dtype="BF16", files=2, seed=0, **changes):
    """Makes a snapshot with `files` safetensors files and an index, or one model.safetensors. dtype: BF16 or F32."""
    config = {**CONFIG, **changes}
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    generator = numpy.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes(config).items():
        noise = generator.standard_normal(shape, numpy.float32)
        tensors[name] = 1 + numpy.float32(0.1) * noise if "norm" in name else noise / numpy.float32(shape[-1] ** 0.5)
    names = sorted(tensors)
    parts = [names[i::files] for i in range(files)]
    weight_map = {}
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05d}-of-{files:05d}.safetensors" if files > 1 else "model.safetensors"
        save_file({name: tensors[name] for name in part}, directory / file, dtype)
        weight_map |= {name: file for name in part}
    if files > 1:
        size = sum(math.prod(shape) for shape in shapes(config).values()) * (4 if dtype == "F32" else 2)
        (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map}))
    if tokenizer:
        shutil.copyfile(fsdp_cli.folder("FSDP_FIXTURES") / "tokenizers" / "tokenizer.model", directory / "tokenizer.model")
    return directory


def write_documents(path, documents):
    """Writes a token file of documents of any lengths."""
    offsets = numpy.concatenate([[0], numpy.cumsum([len(d) for d in documents])]).astype(numpy.int64)
    with h5py.File(path, "w") as file:
        file["tokens"] = numpy.concatenate([numpy.asarray(d, dtype=numpy.uint16) for d in documents])
        file["offsets"] = offsets
    return path


class WeightsCase(fsdp_cli.Case):
    """A test with the weights of a Llama in `self.model`; runs must name the model themselves."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = make_snapshot(cls.folder / "model", tokenizer=False)

    def train_arguments(self, name, *more):
        return ["--train-data", self.train_data, "--out-dir", self.runs, "--run-name", name, *fsdp_cli.COMMON, *more]


class Case(fsdp_cli.Case):
    """A test whose runs use the Llama in `self.model`."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = make_snapshot(cls.folder / "llama")
        cls.games = fsdp_cli.folder("FSDP_DATA") / "chess" / "train.jsonl"
        cls.validation = fsdp_cli.folder("FSDP_DATA") / "chess" / "validation.jsonl"

    def tune(self, name, data, *more, model=None, ranks=0, code=0, **how):
        result = fsdp_cli.run("fsdp-finetune", ["--model", model or self.model, "--train-data", data, "--out-dir", self.runs, "--run-name", name,
                                                *fsdp_cli.COMMON, *more], ranks, **how)
        self.assertEqual(result.code, code, str(result))
        return result
