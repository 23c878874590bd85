"""Counts the launches of PyTorch's FSDP2 for one CodeLlama-7b layer, as gpu_launches counts ours.

    LD_PRELOAD=build/tests/libstub_cuda.so python3 tests/gpu/launches_of_pytorch.py [--json]

The benchmark launches_vs_pytorch runs both.

The model is transformers' LlamaForCausalLM written with torch.nn (its RMSNorm, rotary positions, SDPA attention and
SwiGLU line by line), two layers, bf16 by FSDP2's mixed precision, eager, one rank. Nothing is computed: kernels of the
stub driver do nothing.
"""

import ctypes
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

WIDTH, HEADS, FEED_FORWARD, VOCABULARY, LAYERS, ROWS, LENGTH = 4096, 32, 11008, 32016, 2, 4, 512
KINDS = ["kernels", "products", "attention", "copies", "waits"]


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


def turned(x, cosine, sine):
    low, high = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-high, low), dim=-1) * sine


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_norm, self.post_norm = RMSNorm(), RMSNorm()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, FEED_FORWARD, bias=False) for _ in range(2))
        self.down = nn.Linear(FEED_FORWARD, WIDTH, bias=False)

    def forward(self, x, cosine, sine):
        normed = self.input_norm(x)
        heads = [m(normed).view(ROWS, LENGTH, HEADS, -1).transpose(1, 2) for m in (self.q, self.k, self.v)]
        mixed = F.scaled_dot_product_attention(turned(heads[0], cosine, sine), turned(heads[1], cosine, sine), heads[2], is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(ROWS, LENGTH, WIDTH))
        normed = self.post_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = RMSNorm(), nn.Linear(WIDTH, VOCABULARY, bias=False)


class Counter:
    def __init__(self):
        self.take_events = ctypes.CDLL(None).fsdp_stub_take_events
        self.callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int64)

    def take(self):
        counts = dict.fromkeys(KINDS, 0)

        def add(_, kind, name, __):
            attends = b"flash_" in name or b"fmha_" in name
            counts["attention" if attends else KINDS[kind]] += 1

        self.take_events(self.callback(add), None)
        return counts


def main():
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0))
    with torch.device("cuda"):
        model = Model()
        ids = torch.zeros(ROWS, LENGTH, dtype=torch.long)
        cosine = torch.zeros(LENGTH, WIDTH // HEADS, dtype=torch.bfloat16)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for module in (*model.blocks, model):
        fully_shard(module, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    counter = Counter()
    for _ in range(2):
        found = {}
        last = model.blocks[-1]
        # FSDP2's own hooks gather and release parameters around these calls; the root's are gathered by hand.
        model.unshard()
        x = model.embedding(ids).to(torch.bfloat16)
        for block in model.blocks:
            counter.take()
            x = block(x, cosine, cosine)
            found["block forward"] = counter.take()
        counter.take()
        logits = model.head(model.norm(x)).float()
        loss = F.cross_entropy(logits.view(-1, VOCABULARY), ids.view(-1))
        head = [*model.norm.parameters(), *model.head.parameters()]
        torch.autograd.grad(loss, [x, *head], retain_graph=True)
        found["head"] = counter.take()
        inputs = x.detach().requires_grad_()
        out = last(inputs, cosine, cosine)
        counter.take()
        out.backward(torch.empty_like(out))
        found["block backward"] = counter.take()
        for module in (*model.blocks, model):
            module.reshard()
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        counter.take()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found["optimizer"] = counter.take()
    if "--json" in sys.argv:
        print(json.dumps({name.replace(" ", "_"): counts for name, counts in found.items()}))
    for name in () if "--json" in sys.argv else found:
        print(f"{name:<15}", " ".join(f"{found[name][kind]:>3} {kind}" for kind in KINDS))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
