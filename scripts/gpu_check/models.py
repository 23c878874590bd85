"""The Llama and the minGPT of fsdp-finetune in plain PyTorch, under the names that their weights have in a model
directory. Nothing here is shared with the C++ side: two ways to the same numbers."""

import torch
import torch.nn.functional as F
from torch import nn

# What fsdp-finetune reads as config.json; `length` of a shape is that of a row, without the last target.
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
         "rope_theta": 1000000, "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
         "max_position_embeddings": 16384, "bos_token_id": 1, "eos_token_id": 2}


def config_of(shape):
    """The config.json of a shape: kind, layers, width, heads, ffn, vocab, length."""
    if shape["kind"] == "llama":
        return {**LLAMA, "hidden_size": shape["width"], "intermediate_size": shape["ffn"], "vocab_size": shape["vocab"],
                "num_hidden_layers": shape["layers"], "num_attention_heads": shape["heads"], "num_key_value_heads": shape["heads"]}
    return {"n_layer": shape["layers"], "n_head": shape["heads"], "n_embd": shape["width"], "n_hidden": shape["ffn"],
            "vocab_size": shape["vocab"], "block_size": shape["length"]}


def rotated(x, cosine, sine):
    low, high = x.float().chunk(2, -1)
    return (x.float() * cosine + torch.cat((-high, low), -1) * sine).to(x.dtype)


def attend(q, k, v):
    """[rows, length, heads, width of a head] of each, to [rows, length, width]."""
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
    return out.transpose(1, 2).flatten(2)


def named_linears(names, rows, columns):
    return nn.ModuleDict({name: nn.Linear(columns, rows, bias=False) for name in names})


class LlamaBlock(nn.Module):
    def __init__(self, width, ffn, heads):
        super().__init__()
        self.heads = heads
        self.self_attn = named_linears(("q_proj", "k_proj", "v_proj", "o_proj"), width, width)
        self.mlp = named_linears(("gate_proj", "up_proj"), ffn, width)
        self.mlp["down_proj"] = nn.Linear(ffn, width, bias=False)
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)

    def forward(self, x, cosine, sine):
        h = self.input_layernorm(x)
        q, k, v = (self.self_attn[name](h).unflatten(-1, (self.heads, -1)) for name in ("q_proj", "k_proj", "v_proj"))
        x = x + self.self_attn["o_proj"](attend(rotated(q, cosine, sine), rotated(k, cosine, sine), v))
        h = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](h)) * self.mlp["up_proj"](h))


class Llama(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width = shape["width"]
        self.head_width = width // shape["heads"]
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(shape["vocab"], width),
            "layers": nn.ModuleList(LlamaBlock(width, shape["ffn"], shape["heads"]) for _ in range(shape["layers"])),
            "norm": nn.RMSNorm(width, eps=1e-5)})
        self.lm_head = nn.Linear(width, shape["vocab"], bias=False)

    def blocks(self):
        return self.model["layers"]

    def forward(self, ids):
        there, dim = ids.device, self.head_width
        frequencies = 1.0 / LLAMA["rope_theta"] ** (torch.arange(0, dim, 2, device=there).float() / dim)
        angles = torch.outer(torch.arange(ids.shape[1], device=there).float(), frequencies).repeat(1, 2)[:, None]
        x, cosine, sine = self.model["embed_tokens"](ids), angles.cos(), angles.sin()
        for block in self.blocks():
            x = block(x, cosine, sine)
        return self.lm_head(self.model["norm"](x))


class MinGptBlock(nn.Module):
    def __init__(self, width, ffn, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, ffn), "c_proj": nn.Linear(ffn, width)})

    def forward(self, x):
        q, k, v = self.attn["c_attn"](self.ln_1(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        x = x + self.attn["c_proj"](attend(q, k, v))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class MinGpt(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width = shape["width"]
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(shape["vocab"], width), "wpe": nn.Embedding(shape["length"], width),
            "h": nn.ModuleList(MinGptBlock(width, shape["ffn"], shape["heads"]) for _ in range(shape["layers"])),
            "ln_f": nn.LayerNorm(width)})

    def blocks(self):
        return self.transformer["h"]

    def forward(self, ids):
        parts = self.transformer
        x = parts["wte"](ids) + parts["wpe"](torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks():
            x = block(x)
        return F.linear(parts["ln_f"](x), parts["wte"].weight)  # the head is tied to the embedding


def build(shape):
    """The model on the meta device: names and shapes, no memory."""
    with torch.device("meta"):
        return (Llama if shape["kind"] == "llama" else MinGpt)(shape)
