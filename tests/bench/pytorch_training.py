#!/usr/bin/env python3
"""PyTorch's side of the training benchmarks: the same model, weights and rows as fsdp-finetune, trained by PyTorch alone.

    torchrun --nproc-per-node 2 pytorch_training.py --model mingpt --rows train.h5 --impl fsdp2

Rank r of W takes rows (step * W + r) * B ... + B - 1 of the token file. The last line of rank 0 is JSON: tokens_per_step,
step_seconds, loss (mean over ranks), peak_rss_mb (highest rank), parameters (without position embeddings).
"""

import argparse
import json
import os
import pathlib
import resource
import time
from functools import partial

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", required=True, help="mingpt, or a directory that transformers opens")
parser.add_argument("--rows", required=True, help="HDF5: input_ids [rows, ids], or tokens and offsets of equal rows")
parser.add_argument("--impl", choices=["single", "fsdp1", "fsdp2"], required=True)
parser.add_argument("--precision", choices=["float32", "bf16"], default="float32")
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--heads", type=int, default=12)
parser.add_argument("--embed", type=int, default=768)
parser.add_argument("--batch-size", type=int, default=4, help="rows per rank")
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--fused", action="store_true", help="fused AdamW")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--threads", type=int, default=1, help="per rank")
parser.add_argument("--save-init", help="safetensors file for the weights at the start")
options = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)  # read when torch is imported

import h5py  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

VOCABULARY, POSITIONS = 50257, 256
torch.set_num_threads(options.threads)


class Block(nn.Module):
    """A block of GPT-2, with the names of its weights."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x):
        rows, length, width = x.shape
        split = self.attn["c_attn"](self.ln_1(x)).view(rows, length, 3, self.heads, width // self.heads)
        heads = F.scaled_dot_product_attention(*split.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.attn["c_proj"](heads.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class MinGPT(nn.Module):
    def __init__(self, layers, heads, width):
        super().__init__()
        blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(VOCABULARY, width), "wpe": nn.Embedding(POSITIONS, width),
                                          "h": blocks, "ln_f": nn.LayerNorm(width)})
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, 0.0, 0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, ids):
        """Returns the mean loss of predicting ids[:, 1:]. ids: [rows, ids per row]"""
        given, wanted = ids[:, :-1], ids[:, 1:]
        x = self.transformer["wte"](given) + self.transformer["wpe"](torch.arange(given.shape[1]))
        for block in self.transformer["h"]:
            x = block(x)
        logits = self.lm_head(self.transformer["ln_f"](x))
        return F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())


class Causal(nn.Module):
    """A model of transformers that returns its loss."""

    def __init__(self, folder):
        super().__init__()
        from transformers import AutoModelForCausalLM  # noqa: PLC0415

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model.config.use_cache = False

    def forward(self, ids):
        return self.model(input_ids=ids, labels=ids).loss


def read_rows(path):
    with h5py.File(path, "r") as file:
        if "input_ids" in file:
            return torch.from_numpy(file["input_ids"][:].astype("int64"))
        length = int(file["offsets"][1])
        return torch.from_numpy(file["tokens"][:].astype("int64")).view(-1, length)


def shard(model, blocks):
    """Returns the model under FSDP1 or FSDP2, a unit for each block and one for the rest."""
    low = torch.bfloat16 if options.precision == "bf16" else None
    if options.impl == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision  # noqa: PLC0415
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy  # noqa: PLC0415

        policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={type(blocks[0])})
        mixed = MixedPrecision(param_dtype=low, reduce_dtype=low, buffer_dtype=low) if low else None
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, mixed_precision=mixed, use_orig_params=True,
                                        device_id=torch.device("cpu"), forward_prefetch=True, limit_all_gathers=False)
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: PLC0415

    mixed = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low)
    for block in blocks:
        fully_shard(block, mp_policy=mixed)
    return fully_shard(model, mp_policy=mixed)


def main():
    if options.impl != "single":
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(0)
    is_mingpt = options.model == "mingpt"
    model = MinGPT(options.layers, options.heads, options.embed) if is_mingpt else Causal(options.model)
    if options.save_init and rank == 0:
        from safetensors.torch import save_file  # noqa: PLC0415

        state = {name: value.detach().contiguous() for name, value in model.state_dict().items() if name != "lm_head.weight"}
        pathlib.Path(options.save_init).parent.mkdir(parents=True, exist_ok=True)
        save_file(state, options.save_init)
    parameters = sum(p.numel() for p in model.parameters()) - (model.transformer["wpe"].weight.numel() if is_mingpt else 0)

    copies = []  # pairs of a float32 master weight and the bf16 weight that computes, of one process
    if options.impl == "single":
        trained = list(model.parameters())
        if options.precision == "bf16":
            masters = [nn.Parameter(p.detach().clone()) for p in trained]
            model.to(torch.bfloat16)
            copies = list(zip(masters, model.parameters()))
            trained = masters
    else:
        model = shard(model, list(model.transformer["h"] if is_mingpt else model.model.model.layers))
        trained = list(model.parameters())
    compute = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(trained, lr=options.lr, **({"fused": True} if options.fused else {}))

    rows = read_rows(options.rows)
    seconds, losses = [], []
    for step in range(options.steps):
        first = (step * world + rank) * options.batch_size
        ids = rows[[(first + i) % len(rows) for i in range(options.batch_size)]]
        if dist.is_initialized():
            dist.barrier()
        start = time.perf_counter()
        loss = compute(ids)
        loss.backward()
        for master, weight in copies:
            master.grad, weight.grad = weight.grad.float(), None
        if options.impl == "fsdp1":
            model.clip_grad_norm_(1.0)
        else:
            nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for master, weight in copies:
                weight.copy_(master)
        mine = loss.detach().float()
        float(mine)
        seconds.append(time.perf_counter() - start)
        if dist.is_initialized():
            dist.all_reduce(mine)
        losses.append(float(mine) / world)
    peak = torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    if dist.is_initialized():
        dist.all_reduce(peak, dist.ReduceOp.MAX)
    if rank == 0:
        targets = rows.shape[1] - (1 if is_mingpt else 0)
        print(json.dumps({"tokens_per_step": world * options.batch_size * targets, "step_seconds": seconds, "loss": losses,
                          "peak_rss_mb": float(peak), "parameters": parameters}), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
