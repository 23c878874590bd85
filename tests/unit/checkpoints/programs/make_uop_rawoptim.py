#!/usr/bin/env python3
"""Writes uop_rawoptim/: an FSDP1 local state with use_orig_params=True, 3 ranks on the CPU, and every rank's optimizer state.

    make_uop_rawoptim.py DIR      with PyTorch 2.11
"""
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

RANKS = 3


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width + 2)
        self.proj = nn.Linear(width + 2, width)

    def forward(self, x):
        return x + self.proj(torch.relu(self.fc(x)))


class Net(nn.Module):
    def __init__(self, width=5):
        super().__init__()
        self.emb = nn.Embedding(7, width)
        self.h = nn.ModuleList([Block(width) for _ in range(2)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, 7)

    def forward(self, x):
        x = self.emb(x)
        for block in self.h:
            x = block(x)
        return self.head(self.ln(x))


def run(rank, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    net = Net()
    shapes = [{"fqn": name, "shape": list(parameter.shape)} for name, parameter in net.named_parameters()]
    model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        model(torch.randint(0, 7, (4, 3), generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.save(optimizer.state_dict(), f"{out}/optim-rank{rank}.pt")
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        dcp.save(model.state_dict(), checkpoint_id=f"{out}/ckpt")
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False)):
        truth = {name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}
    # On the CPU, FSDP.optim_state_dict of PyTorch 2.11 returns exp_avg_sq for exp_avg, so the slices are combined here.
    states = [None] * RANKS
    dist.all_gather_object(states, optimizer.state_dict()["state"])
    for number, shape in enumerate(shapes):
        slices = [state[number] for state in states if number in state]
        prefix = f"optim.state.{shape['fqn']}."
        truth[prefix + "step"] = slices[0]["step"]
        for leaf in ("exp_avg", "exp_avg_sq"):
            truth[prefix + leaf] = torch.cat([part[leaf] for part in slices]).reshape(shape["shape"])
    if rank == 0:
        save_file(truth, f"{out}/expected.safetensors")
        with open(f"{out}/param_shapes.json", "w", encoding="utf-8") as file:
            json.dump({"parameters": shapes}, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    torch.multiprocessing.spawn(run, args=(sys.argv[1],), nprocs=RANKS)
