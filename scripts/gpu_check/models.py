"""The Llama, Qwen2, minGPT, Mistral and Gemma 2 of fsdp-finetune in plain PyTorch, with parameter names as in a model
directory. They share no code with the C++ side: the two implementations are independent."""

import torch
import torch.nn.functional as F
from torch import nn

from layers import ROPE_THETA, OffsetNorm, attend, attend_within, named_linears, rotated, turns

# Contents of config.json for fsdp-finetune; `length` of a shape is the row's length without the last target.
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
         "rope_theta": ROPE_THETA, "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
         "max_position_embeddings": 16384, "bos_token_id": 1, "eos_token_id": 2}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": True, "use_sliding_window": False}
GEMMA2 = {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-5,
          "rope_theta": ROPE_THETA, "torch_dtype": "bfloat16", "max_position_embeddings": 16384, "bos_token_id": 2, "eos_token_id": 1,
          "pad_token_id": None, "attn_logit_softcapping": 0.2, "final_logit_softcapping": 2.0}


def config_of(shape):
    """The config.json of a shape: kind, layers, width, heads, ffn, vocab, length."""
    if shape["kind"] in ("llama", "qwen2"):
        return {**(LLAMA if shape["kind"] == "llama" else QWEN2), "hidden_size": shape["width"], "intermediate_size": shape["ffn"],
                "vocab_size": shape["vocab"], "num_hidden_layers": shape["layers"], "num_attention_heads": shape["heads"],
                "num_key_value_heads": shape.get("kv_heads", shape["heads"])}
    if shape["kind"] in ("mistral", "gemma2"):
        sizes = {"hidden_size": shape["width"], "intermediate_size": shape["ffn"], "vocab_size": shape["vocab"], "num_hidden_layers": shape["layers"],
                 "num_attention_heads": shape["heads"], "num_key_value_heads": shape["kv_heads"], "head_dim": shape["head_width"],
                 "sliding_window": shape["window"]}
        if shape["kind"] == "gemma2":
            return {**GEMMA2, **sizes, "query_pre_attn_scalar": shape["head_width"]}
        return {**LLAMA, **sizes, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    return {"n_layer": shape["layers"], "n_head": shape["heads"], "n_embd": shape["width"], "n_hidden": shape["ffn"],
            "vocab_size": shape["vocab"], "block_size": shape["length"]}


class LlamaBlock(nn.Module):
    """Decoder layer of Llama, or of Qwen2, whose q, k and v have biases."""

    def __init__(self, shape):
        super().__init__()
        width, ffn, heads = shape["width"], shape["ffn"], shape["heads"]
        self.head_width, keys = width // heads, shape.get("kv_heads", heads)
        self.self_attn = nn.ModuleDict({name: nn.Linear(width, each * self.head_width, bias=shape["kind"] == "qwen2")
                                        for name, each in (("q_proj", heads), ("k_proj", keys), ("v_proj", keys))})
        self.self_attn["o_proj"] = nn.Linear(width, width, bias=False)
        self.mlp = named_linears(("gate_proj", "up_proj"), ffn, width)
        self.mlp["down_proj"] = nn.Linear(ffn, width, bias=False)
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)

    def forward(self, x, cosine, sine):
        h = self.input_layernorm(x)
        q, k, v = (self.self_attn[name](h).unflatten(-1, (-1, self.head_width)) for name in ("q_proj", "k_proj", "v_proj"))
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
            "layers": nn.ModuleList(LlamaBlock(shape) for _ in range(shape["layers"])),
            "norm": nn.RMSNorm(width, eps=1e-5)})
        if shape["kind"] == "llama":
            self.lm_head = nn.Linear(width, shape["vocab"], bias=False)

    def blocks(self):
        return self.model["layers"]

    def forward(self, ids):
        x, (cosine, sine) = self.model["embed_tokens"](ids), turns(ids, self.head_width)
        for block in self.blocks():
            x = block(x, cosine, sine)
        x = self.model["norm"](x)
        return self.lm_head(x) if hasattr(self, "lm_head") else F.linear(x, self.model["embed_tokens"].weight)


class SlidingBlock(nn.Module):
    """Decoder layer of Mistral, or of Gemma 2, in which every other layer has a sliding window."""

    def __init__(self, shape, index):
        super().__init__()
        self.gemma, self.widths = shape["kind"] == "gemma2", (shape["heads"], shape["kv_heads"], shape["kv_heads"])
        self.window = 0 if self.gemma and index % 2 else shape["window"]
        width, head = shape["width"], shape["head_width"]
        self.self_attn = nn.ModuleDict({name: nn.Linear(width, heads * head, bias=False) for name, heads in zip(("q_proj", "k_proj", "v_proj"), self.widths)})
        self.self_attn["o_proj"] = nn.Linear(self.widths[0] * head, width, bias=False)
        self.mlp = named_linears(("gate_proj", "up_proj"), shape["ffn"], width)
        self.mlp["down_proj"] = nn.Linear(shape["ffn"], width, bias=False)
        names = ("input_layernorm", "post_attention_layernorm", *(("pre_feedforward_layernorm", "post_feedforward_layernorm") if self.gemma else ()))
        for name in names:
            setattr(self, name, OffsetNorm(width) if self.gemma else nn.RMSNorm(width, eps=1e-5))

    def forward(self, x, cosine, sine):
        h = self.input_layernorm(x)
        q, k, v = (self.self_attn[name](h).unflatten(-1, (heads, -1)) for name, heads in zip(("q_proj", "k_proj", "v_proj"), self.widths))
        cap = GEMMA2["attn_logit_softcapping"] if self.gemma else 0
        out = self.self_attn["o_proj"](attend_within(rotated(q, cosine, sine), rotated(k, cosine, sine), v, self.window, cap))
        x = x + (self.post_attention_layernorm(out) if self.gemma else out)
        h = (self.pre_feedforward_layernorm if self.gemma else self.post_attention_layernorm)(x)
        gate = self.mlp["gate_proj"](h)
        out = self.mlp["down_proj"]((F.gelu(gate, approximate="tanh") if self.gemma else F.silu(gate)) * self.mlp["up_proj"](h))
        return x + (self.post_feedforward_layernorm(out) if self.gemma else out)


class Sliding(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width, self.gemma, self.head_width = shape["width"], shape["kind"] == "gemma2", shape["head_width"]
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(shape["vocab"], width),
            "layers": nn.ModuleList(SlidingBlock(shape, index) for index in range(shape["layers"])),
            "norm": OffsetNorm(width) if self.gemma else nn.RMSNorm(width, eps=1e-5)})
        if not self.gemma:
            self.lm_head = nn.Linear(width, shape["vocab"], bias=False)

    def blocks(self):
        return self.model["layers"]

    def forward(self, ids):
        x, (cosine, sine) = self.model["embed_tokens"](ids), turns(ids, self.head_width)
        if self.gemma:
            x = x * torch.tensor(x.shape[-1] ** 0.5, dtype=x.dtype, device=x.device)
        for block in self.blocks():
            x = block(x, cosine, sine)
        x = self.model["norm"](x)
        if not self.gemma:
            return self.lm_head(x)
        cap = GEMMA2["final_logit_softcapping"]
        return cap * torch.tanh(F.linear(x, self.model["embed_tokens"].weight) / cap)


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
    """Returns the model on the meta device: names and shapes, no memory."""
    with torch.device("meta"):
        return {"llama": Llama, "qwen2": Llama, "mingpt": MinGpt, "mistral": Sliding, "gemma2": Sliding}[shape["kind"]](shape)
