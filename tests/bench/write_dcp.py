"""Writes a DCP checkpoint as PyTorch's FSDP2 does: DTensors in Shard(0), one process per rank.

    write_dcp.py DIRECTORY [--ranks 4] [--layers 29]

A Llama-shaped model in float32, random numbers: 12.85 M parameters a layer, 19.9 M outside the layers; 29 layers are 392 M. Run by convert_vs_pytorch.py.
"""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


def shapes(layers, width=1024, hidden=2816, vocab=9728):
    """Returns name and shape of every tensor."""
    yield "model.embed_tokens.weight", (vocab, width)
    for i in range(layers):
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield f"model.layers.{i}.self_attn.{part}.weight", (width, width)
        for part in ("gate_proj", "up_proj"):
            yield f"model.layers.{i}.mlp.{part}.weight", (hidden, width)
        yield f"model.layers.{i}.mlp.down_proj.weight", (width, hidden)
        yield f"model.layers.{i}.input_layernorm.weight", (width,)
        yield f"model.layers.{i}.post_attention_layernorm.weight", (width,)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (vocab, width)


def write(rank, ranks, directory, layers, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(rank)
    state = {}
    for name, shape in shapes(layers):
        rows = -(-shape[0] // ranks)
        local = max(0, min(rows, shape[0] - rank * rows))
        data = torch.randn(local, *shape[1:])
        state[name] = DTensor.from_local(data, mesh, [Shard(0)], run_check=False, shape=torch.Size(shape),
                                         stride=torch.empty(shape, device="meta").stride())
    dcp.save({"model": state}, checkpoint_id=directory)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=29)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(write, (arguments.ranks, arguments.directory, arguments.layers, os.path.join(folder, "store")),
                 nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
