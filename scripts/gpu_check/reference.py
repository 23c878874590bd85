"""PyTorch's side of scripts/gpu-check; a program of its own, so that neither side can spoil the other's memory or time.

    reference.py make DIR SHAPE                       a model directory and rows (inputs.py); SHAPE is JSON
    reference.py train DIR [SHAPE] --precision P... --to DIR
                                                      trains, writes TO/P.jsonl: a line per step, and one of totals;
                                                      first makes DIR if SHAPE is given and DIR does not exist
    reference.py gradients DIR --checkpoint OURS [OTHER] --precision P --to DIR
                                                      the gradients of a first step by parameter: how far those of the
                                                      checkpoint OURS are from float32, and how far those of P, or of
                                                      the checkpoint OTHER; writes TO/gradients.json

Training is FSDP2 (fully_shard over one rank): float32 masters, gathered weights and gradients in the precision, fused
AdamW, gradients clipped to 1. With --compile every block and the loss are compiled, as torchtitan does it. With --whole the
model is compiled as a whole and not sharded: float32 weights, autocast to the precision. The precision float32-in-two is
float32 in two micro-batches: the same sums in another order.
"""

import argparse
import contextlib
import json
import os
import pathlib
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import inputs
import models

TYPES = {"float32": torch.float32, "float32-in-two": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FP16_SCALE = 2.0**16


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def load(folder, device, options, precision):
    """Returns the sharded model and its loss function."""
    shape = json.loads((folder / inputs.SHAPE).read_text(encoding="utf-8"))
    model = models.build(shape).to_empty(device=device)
    weights = inputs.read_safetensors(folder / "model.safetensors")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    loss = cross_entropy
    if options.whole:
        model.compile()
        return model, torch.compile(loss)
    if options.compile:
        loss = torch.compile(loss)
        for block in model.blocks():
            block.compile(fullgraph=True)
    kind = TYPES[precision]
    policy = MixedPrecisionPolicy() if kind == torch.float32 else MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=kind)
    mesh = init_device_mesh(device.type, (1,))
    for block in model.blocks():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model, loss


class Clock:
    """Measures times between steps without making the steps wait for the device."""

    def __init__(self, device):
        self.device, self.marks = device, []

    def mark(self):
        if self.device.type == "cuda":
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def seconds(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            return [a.elapsed_time(b) / 1e3 for a, b in zip(self.marks, self.marks[1:])]
        return [b - a for a, b in zip(self.marks, self.marks[1:])]


def backward(model, loss_of, batch, precision, autocast=contextlib.nullcontext()):
    """Computes clipped gradients; returns loss and norm."""
    scale, parts = FP16_SCALE if precision == "fp16" else 1.0, 2 if precision == "float32-in-two" else 1
    losses = []
    for part in batch.chunk(parts):
        with autocast:
            loss = loss_of(model(part[:, :-1]), part[:, 1:])
        (loss * (scale / parts) if scale != parts else loss).backward()
        losses.append(loss.detach())
    if scale != 1.0:
        for parameter in model.parameters():
            parameter.grad.div_(scale)
    return sum(losses) / parts, torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def train(options, device, precision):
    model, loss_of = load(options.folder, device, options, precision)
    adam = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    rows = torch.load(options.folder / inputs.ROWS).to(device)
    autocast = torch.autocast(device.type, TYPES[precision]) if options.whole else contextlib.nullcontext()
    clock, losses, norms = Clock(device), [], []
    clock.mark()
    for step in range(options.steps):
        batch = rows[[(step * options.batch + i) % len(rows) for i in range(options.batch)]]
        loss, norm = backward(model, loss_of, batch, precision, autocast)
        losses.append(loss)
        norms.append(norm)
        adam.step()
        adam.zero_grad(set_to_none=True)
        clock.mark()
    peak = torch.cuda.max_memory_reserved() if device.type == "cuda" else None
    lines = [{"loss": loss.item(), "grad_norm": (norm if options.whole else norm.full_tensor()).item(), "step_seconds": seconds}
             for loss, norm, seconds in zip(losses, norms, clock.seconds())]
    lines.append({"tokens": options.batch * (rows.shape[1] - 1), "reserved_memory_bytes": peak})
    (options.to / f"{precision}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def first_gradients(options, device, precision):
    """Returns PyTorch's clipped gradients of the first step, {name: float32 tensor}."""
    model, loss_of = load(options.folder, device, options, precision)
    rows = torch.load(options.folder / inputs.ROWS).to(device)
    backward(model, loss_of, rows[:options.batch], precision)
    return {name: parameter.grad.full_tensor().float() for name, parameter in model.named_parameters()}


def saved_gradients(checkpoint, likes):
    """Returns the clipped gradients of a run that ended after one step: AdamW's first moment is a tenth of them."""
    import torch.distributed.checkpoint as dcp  # takes a while, and the other uses need none of it
    state = {f"optim.state.{name}.exp_avg": torch.empty(like.shape) for name, like in likes.items()}
    dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    return {name: 10 * state[f"optim.state.{name}.exp_avg"].to(like.device) for name, like in likes.items()}


def gradients(options, device):
    truth = first_gradients(options, device, "float32")
    ours = saved_gradients(options.checkpoint[0], truth)
    other = saved_gradients(options.checkpoint[1], truth) if options.checkpoint[1:] else first_gradients(options, device, options.precision[0])

    def apart(found, name):
        return ((found[name] - truth[name]).norm() / truth[name].norm()).item()
    found = {name: [apart(ours, name), apart(other, name)] for name in truth}
    (options.to / "gradients.json").write_text(json.dumps(found), encoding="utf-8")


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "train", "gradients"))
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("shape", type=json.loads, nargs="?")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--precision", nargs="+", choices=TYPES, default=["bf16"])
    parser.add_argument("--to", type=pathlib.Path)
    parser.add_argument("--checkpoint", nargs="+", type=pathlib.Path)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--whole", action="store_true")
    return parser.parse_args()


def main():
    options = parsed()
    device = torch.device(options.device)
    if options.shape and not options.folder.exists():
        inputs.make(options.folder, options.shape, device)
    if options.what == "make":
        return
    options.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as meeting:  # rendezvous by file, because another job may have the port
        dist.init_process_group("nccl" if options.device == "cuda" else "gloo", rank=0, world_size=1,
                                init_method=f"file://{meeting}/ranks")
        if options.what == "gradients":
            gradients(options, device)
        else:
            for precision in options.precision:
                train(options, device, precision)
        dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # one rank needs no network
    main()
