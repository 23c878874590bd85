"""Layers of the models in models.py."""

import torch
import torch.nn.functional as F
from torch import nn

ROPE_THETA = 1000000


def rotated(x, cosine, sine):
    low, high = x.float().chunk(2, -1)
    return (x.float() * cosine + torch.cat((-high, low), -1) * sine).to(x.dtype)


def attend(q, k, v):
    """Maps q, k and v of [rows, length, heads, head width] to [rows, length, width]. A key head may serve several query heads."""
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=q.shape[2] != k.shape[2])
    return out.transpose(1, 2).flatten(2)


def named_linears(names, rows, columns):
    return nn.ModuleDict({name: nn.Linear(columns, rows, bias=False) for name in names})


def turns(ids, head_width):
    """Returns cosines and sines of rotary positions, to multiply [rows, length, heads, head_width]."""
    there = ids.device
    frequencies = 1.0 / ROPE_THETA ** (torch.arange(0, head_width, 2, device=there).float() / head_width)
    angles = torch.outer(torch.arange(ids.shape[1], device=there).float(), frequencies).repeat(1, 2)[:, None]
    return angles.cos(), angles.sin()


class OffsetNorm(nn.Module):
    """RMSNorm times 1 + weight, in float32."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * (1 + self.weight.float())).to(x.dtype)


def attend_within(q, k, v, window, cap):
    """Computes attention by its formula, with scores in float32: a query sees `window` keys including its own (0: all
    keys before it), and scores are capped (0: not capped). Each key head serves several query heads (GQA)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q.float() @ k.float().transpose(2, 3) * q.shape[-1] ** -0.5
    if cap:
        scores = cap * torch.tanh(scores / cap)
    behind = torch.arange(q.shape[2], device=q.device)
    behind = behind[:, None] - behind
    unseen = (behind < 0) | (behind >= window) if window else behind < 0
    out = scores.masked_fill(unseen, -torch.inf).softmax(-1).to(v.dtype) @ v
    return out.transpose(1, 2).flatten(2)
