"""Random config.json of each family with random weights: the loss equals that of transformers, or the model is refused by
the name of a key."""
import collections
import json
import os
import re
import shutil

import torch
from safetensors.torch import save_file

import programs

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="critical", TOKENIZERS_PARALLELISM="false")
import transformers

BATCH = 4
torch.set_num_threads(1)
FOLDER = programs.temporary_folder()
counts = collections.Counter()
# Sums of float32 in another order, and functions of other libraries; measured: below 1e-6 of the loss on most cases.
TOLERANCE = 2e-5
FAMILIES = ["llama", "mistral", "ministral", "qwen2", "qwen3", "phi3", "olmo2", "gemma", "gemma2", "gemma3_text", "falcon", "gpt2"]
ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "ministral": "MinistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "phi3": "Phi3ForCausalLM", "olmo2": "Olmo2ForCausalLM", "gemma": "GemmaForCausalLM",
                 "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM", "falcon": "FalconForCausalLM", "gpt2": "GPT2LMHeadModel"}


def rope_scaling(r, head):
    kind = r.choice(["linear", "dynamic", "llama3", "yarn", "default", "longrope", "ntk", None])
    if kind is None:
        return None
    scaling = {r.choice(["rope_type", "rope_type", "type"]): kind}
    if kind not in ("default",) or r.random() < 0.3:
        scaling["factor"] = r.choice([1.0, 2.0, 4.0, 8.0, 2])
    if kind in ("llama3", "yarn", "longrope") or r.random() < 0.1:
        scaling["original_max_position_embeddings"] = r.choice([8, 16, 32])
    if kind == "llama3":
        scaling.update(low_freq_factor=r.choice([1.0, 1, 0.5]), high_freq_factor=r.choice([4.0, 4, 2.0]))
    if kind == "yarn":
        for key, values in (("beta_fast", [32, 16.0]), ("beta_slow", [1, 2.0]), ("attention_factor", [1.0, 0.5, None]), ("mscale", [1.0, 0.7]), ("mscale_all_dim", [0.5, 1.0]), ("truncate", [True, False])):
            if r.random() < 0.3:
                scaling[key] = r.choice(values)
    if kind == "longrope":
        scaling.update(short_factor=[1.0 + 0.1 * i for i in range(head // 2)], long_factor=[2.0 + 0.1 * i for i in range(head // 2)])
        if r.random() < 0.3:
            scaling["attention_factor"] = 1.2
    if r.random() < 0.1:
        scaling["rope_theta"] = 500.0
    return scaling


def changes_of(r, family, config):
    """Returns random values of one key, by its name; functions, as most need random numbers."""
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    return {
        "hidden_act": lambda: r.choice(["silu", "gelu_pytorch_tanh"] * 5 + ["gelu", "gelu_new", "relu", "swish", "mish"]),
        "hidden_activation": lambda: r.choice(["gelu", "gelu_pytorch_tanh", "silu", None]),
        "rms_norm_eps": lambda: r.choice([1e-5, 1e-6, 1e-2, 0.5]), "rope_theta": lambda: r.choice([100.0, 500.0, 10000, 1e6]),
        "rope_scaling": lambda: rope_scaling(r, head), "rope_parameters": lambda: {"rope_theta": r.choice([500.0, 1e4]), **(rope_scaling(r, head) or {"rope_type": "default"})},
        "attention_bias": lambda: r.random() < 0.7, "mlp_bias": lambda: r.random() < 0.7, "tie_word_embeddings": lambda: r.random() < 0.5,
        "sliding_window": lambda: r.choice([1, 2, 4, 7, 32, 4096, None]), "use_sliding_window": lambda: r.random() < 0.7, "max_window_layers": lambda: r.randint(0, layers + 1),
        "layer_types": lambda: [r.choice(["full_attention", "sliding_attention"]) for _ in range(layers)],
        "sliding_window_pattern": lambda: r.choice([1, 2, 3, 6]), "attn_logit_softcapping": lambda: r.choice([1.0, 5.0, 50.0, None]), "final_logit_softcapping": lambda: r.choice([1.0, 5.0, 30.0, None]),
        "query_pre_attn_scalar": lambda: r.choice([4, 8, 16, 256, 7.5]), "rope_local_base_freq": lambda: r.choice([100.0, 10000.0]), "use_bidirectional_attention": lambda: r.random() < 0.5,
        "head_dim": lambda: r.choice([4, 8, 10, 16, None]), "num_key_value_heads": lambda: r.choice([1, 2, heads, None]), "max_position_embeddings": lambda: r.choice([16, 24, 64, 4096]),
        "original_max_position_embeddings": lambda: r.choice([8, 16, 4096]), "partial_rotary_factor": lambda: r.choice([0.5, 0.75, 1.0, 0.25]), "initializer_range": lambda: 0.1, "use_cache": lambda: False, "pretraining_tp": lambda: r.choice([1, 2]),
        "attention_dropout": lambda: 0.1, "resid_pdrop": lambda: 0.1, "pad_token_id": lambda: r.choice([None, 0, 3]), "clip_qkv": lambda: r.choice([None, 1.0]), "logit_scale": lambda: r.choice([1.0, 0.5]), "scale_attn_weights": lambda: r.random() < 0.5,
        "activation_function": lambda: r.choice(["gelu_new", "gelu", "relu", "silu", "gelu_pytorch_tanh"]), "scale_attn_by_inverse_layer_idx": lambda: r.random() < 0.6, "reorder_and_upcast_attn": lambda: r.random() < 0.5, "layer_norm_epsilon": lambda: r.choice([1e-5, 1e-2]), "n_inner": lambda: r.choice([None, 24]),
        "add_cross_attention": lambda: r.random() < 0.5, "multi_query": lambda: r.random() < 0.5, "parallel_attn": lambda: r.random() < 0.5, "new_decoder_architecture": lambda: r.random() < 0.5, "bias": lambda: r.random() < 0.5, "alibi": lambda: r.random() < 0.5, "num_ln_in_parallel_attn": lambda: r.choice([None, 1, 2]),
        "num_kv_heads": lambda: r.choice([1, 2, heads]), "activation": lambda: r.choice(["gelu", "relu", "silu", "gelu_new"]), "ffn_hidden_size": lambda: r.choice([24, 40]), "torch_dtype": lambda: "float32", "chunk_size_feed_forward": lambda: r.choice([0, 4]), "is_decoder": lambda: r.random() < 0.5}


KEYS = {
    "gpt2": ["activation_function", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "layer_norm_epsilon", "n_inner", "add_cross_attention", "tie_word_embeddings", "resid_pdrop", "is_decoder"],
    "falcon": ["multi_query", "parallel_attn", "new_decoder_architecture", "bias", "alibi", "num_ln_in_parallel_attn", "num_kv_heads", "activation", "ffn_hidden_size", "layer_norm_epsilon", "rope_theta", "rope_scaling", "tie_word_embeddings", "max_position_embeddings"],
}
COMMON = ["hidden_act", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_scaling", "rope_parameters", "attention_bias", "tie_word_embeddings", "head_dim", "num_key_value_heads", "max_position_embeddings", "partial_rotary_factor", "attention_dropout", "pad_token_id", "use_cache", "layer_types", "sliding_window"]
MORE = {"llama": ["mlp_bias"], "mistral": ["sliding_window", "layer_types"], "ministral": ["sliding_window", "layer_types"], "qwen2": ["use_sliding_window", "max_window_layers", "sliding_window"], "qwen3": ["use_sliding_window", "max_window_layers", "sliding_window"], "phi3": ["original_max_position_embeddings", "partial_rotary_factor", "sliding_window", "resid_pdrop"],
        "olmo2": ["clip_qkv"], "gemma": ["hidden_activation", "use_bidirectional_attention"], "gemma2": ["attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "hidden_activation", "use_bidirectional_attention"],
        "gemma3_text": ["attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "rope_local_base_freq", "sliding_window_pattern", "hidden_activation", "use_bidirectional_attention"]}
ONLY_WITH = {"use_sliding_window": {"sliding_window": 4}, "max_window_layers": {"use_sliding_window": True, "sliding_window": 4}, "layer_types": {"sliding_window": 4}}


def base_config(r, family):
    heads = r.choice([2, 4])
    width = heads * r.choice([4, 8])
    config = {"architectures": [ARCHITECTURES[family]], "model_type": family, "vocab_size": r.choice([61, 96])}
    layers = r.choice([1, 2, 3])
    if family == "gpt2":
        return {**config, "n_embd": width, "n_head": heads, "n_layer": layers, "n_positions": 64, "n_ctx": 64}
    if family == "falcon":
        return {**config, "hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": layers, "alibi": False, "bias": False, "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False}
    config.update(hidden_size=width, intermediate_size=r.choice([24, 40]), num_attention_heads=heads, num_hidden_layers=layers, max_position_embeddings=64)
    if family not in ("llama", "phi3", "olmo2") or r.random() < 0.5:
        config["num_key_value_heads"] = r.choice([1, 2, heads])
    if family in ("gemma", "gemma2", "gemma3_text", "qwen3") or r.random() < 0.2:
        config["head_dim"] = r.choice([4, 8, 12])
    if family == "phi3":
        config["pad_token_id"] = None
    if family in ("gemma2", "gemma3_text"):
        config["sliding_window"] = r.choice([4, 6])
    return config


def generate(r):
    family = r.choice(FAMILIES)
    config = base_config(r, family)
    named = {"num_hidden_layers": config.get("n_layer", 1), "num_attention_heads": config.get("n_head", 1), "hidden_size": config.get("n_embd", 1), **config}
    values, keys = changes_of(r, family, named), KEYS.get(family) or COMMON + 3 * MORE[family]
    changes = {}
    for key in r.sample(keys, r.choice([0, 1, 1, 2, 2, 3])):
        if r.random() < 0.7:
            changes.update(ONLY_WITH.get(key, {}))
        changes[key] = values[key]()
    return {"config": config, "changes": changes, "without": [r.choice(sorted(config))] if r.random() < 0.03 else [], "tokens": [r.randrange(config["vocab_size"]) for _ in range(r.choice([12, 20, 40]))]}


def attention_of(config):
    """Returns an implementation of transformers that computes what the model's papers say: eager adds ALiBi twice
    (docs/models.md), and sdpa leaves out the caps of scores."""
    return "sdpa" if config.get("alibi") else "eager"


def make(case, folder):
    """Writes config.json and random weights; returns transformers' loss."""
    config = {key: value for key, value in {**case["config"], **case["changes"]}.items() if key not in case["without"]}
    tokens = case["tokens"][:config.get("max_position_embeddings", 40)]  # longer rows are cut
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder), attn_implementation=attention_of(config), dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(1)
    for name, value in model.named_parameters():
        value.data = torch.randn(value.shape, generator=generator) * (0.3 if value.dim() < 2 else 1.5 * value.shape[-1] ** -0.5) + (1.0 if "norm" in name and "weight" in name and not config["model_type"].startswith("gemma") else 0.0)
    model.tie_weights()
    stored = {name: value.contiguous().clone() for name, value in model.state_dict().items() if not (name == "lm_head.weight" and model.config.tie_word_embeddings)}
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    ids = torch.tensor([tokens])
    with torch.no_grad():
        return model(ids, labels=ids).loss.item()


def difference(case, number):
    folder = FOLDER / str(number)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        real = make(case, folder)
    except KeyError:
        return None  # smaller than a case can be
    except Exception as error:  # nothing to compare with
        counts[f"refused by transformers ({type(error).__name__})"] += 1
        return None
    data = programs.write_documents(FOLDER / f"{number}.h5", [case["tokens"]])
    result = programs.run("fsdp-eval", [folder, "--json", "--device", "cpu", "--precision", "float32", "--data", data])
    if result.code == 0:
        counts["compared"] += 1
        loss = result.json()["loss"]
        if not abs(loss - real) < TOLERANCE * max(1, abs(real)):
            return f"losses of {case['config'].get('model_type')} differ\nchanges {case['changes']}\nours {loss!r}\nreal {real!r}"
        return None
    errors = result.errors()
    if result.code != 4 or len(errors) != 1 or not re.search(r"config\.json|safetensors", errors[0]):
        return f"a refusal that names no file\nexit code {result.code}\n{result.err}"
    counts["refused by ours"] += 1
    return None


def differences(cases):
    return [difference(case, number) for number, case in enumerate(cases)]


def summary():
    return ", ".join(f"{count} {what}" for what, count in counts.items())


KNOWN = []
