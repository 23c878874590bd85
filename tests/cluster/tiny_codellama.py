#!/usr/bin/env python3
"""A model shaped like CodeLlama-7b, but tiny, for the chess scripts.

    tiny_codellama.py cache FOLDER   into a Hugging Face cache, as tiny/CodeLlama; prints the snapshot's folder
    tiny_codellama.py hub FILE       serves it as codellama/CodeLlama-7b-hf, and chess games as laion/strategic_game_chess,
                                     on a hub on this machine until it is ended; its URL goes into FILE

FSDP_SOURCE is the project's folder. As the real one: rope_theta 1000000, untied head, bf16, two files with an index.
"""
import json
import os
import pathlib
import random
import signal
import struct
import sys

SOURCE = pathlib.Path(os.environ["FSDP_SOURCE"])
HIDDEN, LAYERS, FEED_FORWARD, HEADS, VOCAB = 64, 2, 172, 4, 1016
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "bos_token_id": 1,
          "eos_token_id": 2, "hidden_act": "silu", "hidden_size": HIDDEN, "initializer_range": 0.02,
          "intermediate_size": FEED_FORWARD, "max_position_embeddings": 16384, "num_attention_heads": HEADS,
          "num_hidden_layers": LAYERS, "num_key_value_heads": HEADS, "pretraining_tp": 1, "rms_norm_eps": 1e-5,
          "rope_scaling": None, "rope_theta": 1000000, "tie_word_embeddings": False, "use_cache": True,
          "vocab_size": VOCAB}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def shapes():
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in "qkvo":
            yield f"{at}self_attn.{name}_proj.weight", (HIDDEN, HIDDEN)
        yield f"{at}mlp.gate_proj.weight", (FEED_FORWARD, HIDDEN)
        yield f"{at}mlp.up_proj.weight", (FEED_FORWARD, HIDDEN)
        yield f"{at}mlp.down_proj.weight", (HIDDEN, FEED_FORWARD)
        yield f"{at}input_layernorm.weight", (HIDDEN,)
        yield f"{at}post_attention_layernorm.weight", (HIDDEN,)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def bf16(numbers):
    """Returns the upper halves of float32 numbers."""
    packed = struct.pack(f"<{len(numbers)}f", *numbers)
    return b"".join(packed[i + 2:i + 4] for i in range(0, len(packed), 4))


def safetensors(tensors, numbers):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, shape in tensors:
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        content = bf16([1.0] * count if len(shape) == 1 else [numbers.gauss(0, 0.02) for _ in range(count)])
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def files():
    tensors, numbers = list(shapes()), random.Random(1)
    halves = [tensors[:len(tensors) // 2], tensors[len(tensors) // 2:]]
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    result = {name: safetensors(half, numbers) for name, half in zip(names, halves)}
    where = {tensor: name for name, half in zip(names, halves) for tensor, _ in half}
    total = sum(len(content) for content in result.values())
    result["model.safetensors.index.json"] = json.dumps({"metadata": {"total_size": total}, "weight_map": where}).encode()
    result["config.json"] = json.dumps(CONFIG, indent=1).encode()
    result["tokenizer.model"] = (SOURCE / "tests/fixtures/tokenizers/tokenizer.model").read_bytes()
    return result


def write_cache(folder):
    storage = pathlib.Path(folder) / "models--tiny--CodeLlama"
    snapshot = storage / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name, content in files().items():
        (snapshot / name).write_bytes(content)
    (storage / "refs").mkdir()
    (storage / "refs/main").write_text(COMMIT)
    print(snapshot)


def serve(file):
    sys.path.insert(0, str(SOURCE / "tests/cli"))
    from hub_server import HubServer, Repo
    model = files() | {"README.md": b"# tiny\n", "pytorch_model-00001-of-00001.bin": b"not to be fetched" * 1000}
    games = {f"chess_game_000{n}.parquet": (SOURCE / f"data/chess/{part}.parquet").read_bytes()
             for n, part in ((1, "train"), (2, "validation"))}
    repositories = {("model", "codellama/CodeLlama-7b-hf"): Repo(model, COMMIT),
                    ("dataset", "laion/strategic_game_chess"): Repo(games, COMMIT[::-1])}
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with HubServer(repositories) as hub:
        pathlib.Path(file + ".part").write_text(hub.url())
        os.replace(file + ".part", file)
        signal.sigwait([signal.SIGTERM])


if __name__ == "__main__":
    {"cache": write_cache, "hub": serve}[sys.argv[1]](sys.argv[2])
