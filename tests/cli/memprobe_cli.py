"""Shared by the tests of fsdp-memprobe: model configurations and the program's JSON."""

import json

import fsdp_cli

# Meta's CodeLlama-7b, by its config.json.
CODELLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "max_position_embeddings": 16384, "rms_norm_eps": 1e-05, "rope_theta": 1000000, "rope_scaling": None,
    "tie_word_embeddings": False, "vocab_size": 32016, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
# A small model of the same kind, with fewer key heads.
TINY_LLAMA = dict(CODELLAMA, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
                  num_key_value_heads=4, max_position_embeddings=2048, vocab_size=4096)

# Small enough for processors without fp16 arithmetic, on which a product takes a hundred times as long.
TINIEST_LLAMA = dict(TINY_LLAMA, hidden_size=64, intermediate_size=172, num_hidden_layers=2, vocab_size=512)

MINGPT_XS = ["--num-layers", 2, "--num-heads", 4, "--embed-size", 128, "--vocab-size", 997, "--seq-len", 128]
MINGPT_S = ["--num-layers", 4, "--num-heads", 4, "--embed-size", 256]
# Like S with a small vocabulary: the head of S takes three quarters of its time and is tested by mingpt_s.
MINGPT_S_SHORT = [*MINGPT_S, "--vocab-size", 4099]
MINGPT_M = ["--num-layers", 12, "--num-heads", 12, "--embed-size", 768]


def write_config(directory, config, name="config.json"):
    file = directory / name
    file.write_text(json.dumps(config))
    return file


def report(arguments, ranks=0, limit_seconds=120, codes=(0,), env=None):
    result = fsdp_cli.run("fsdp-memprobe", [*arguments, "--json", "--quiet"], ranks=ranks, limit_seconds=limit_seconds, env=env)
    assert result.code in codes, result
    return result.json()
