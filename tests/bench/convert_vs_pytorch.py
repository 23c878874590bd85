#!/usr/bin/env python3
"""fsdp-ckpt-convert against PyTorch's own converter and against cp, in one run on one checkpoint.

The checkpoint is written by PyTorch: 392 M float32 parameters (1.57 GB) from 4 ranks. In turns, --reps times, with the page cache
warm and everything of the last command written back and removed:
  cp        cp of the same bytes
  ours      fsdp-ckpt-convert
  pytorch   python -m torch.distributed.checkpoint.format_utils
in both directions: dcp_to_torch and torch_to_dcp. Ratios are formed turn by turn, so a machine that drifts slows all of them.
Also: 8 GiB under a limit of 1 GiB of memory, and the time to start, 20 times.

Skips without torch, and each part whose disk space is not there.
"""
import argparse
import json
import os
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from machine import print_machine

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SKIPPED = 77
MIB, GIB = 1 << 20, 1 << 30
FORMAT_UTILS = [sys.executable, "-m", "torch.distributed.checkpoint.format_utils"]


class Run:
    """Runs a command to its end: wall and processor seconds, peak resident bytes."""

    def __init__(self, command, before=None):
        begin = time.perf_counter()
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=before)
            _, status, usage = os.wait4(process.pid, 0)
            self.wall = time.perf_counter() - begin
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != 0:
                log.seek(0)
                sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{log.read().decode(errors='replace')}")
        self.user, self.system = usage.ru_utime, usage.ru_stime
        self.cpu, self.rss = self.user + self.system, usage.ru_maxrss * 1024


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)


def turn(command, output):
    """Measures one command on a quiet disk."""
    remove(output)
    os.sync()
    return Run(command)


def size_of(path):
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(path, name)) for name in os.listdir(path))


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"


def compare(title, contenders, reps):
    """contenders: {name: (command, output)}; prints the figures of each and the ratios of ours to the others."""
    turns = [{name: turn(*what) for name, what in contenders.items()} for _ in range(reps)]
    print(f"{title}, {reps} turns: median (min..max)")
    print(f"  {'':<8} {'wall s':>22} {'user+sys s':>22} {'peak MiB':>20}   ours/this: wall, CPU, memory")
    for name in contenders:
        of = [t[name] for t in turns]
        ratios = ""
        if name != "ours":
            ratios = ", ".join(spread([getattr(t["ours"], what) / getattr(t[name], what) for t in turns], 3) for what in ("wall", "cpu", "rss"))
        print(f"  {name:<8} {spread([r.wall for r in of]):>22} {spread([r.cpu for r in of]):>22} {spread([r.rss / MIB for r in of], 0):>20}   {ratios}",
              flush=True)
    ours = [t["ours"] for t in turns]
    print(f"  ours: user {spread([r.user for r in ours])}, system {spread([r.system for r in ours])}")


def has_room(folder, needed, what):
    free = shutil.disk_usage(folder).free
    if free < needed:
        print(f"skipped: {what} needs {needed / GIB:.0f} GiB in {folder}, {free / GIB:.1f} are free")
    return free >= needed


def against_pytorch(program, work, layers, reps):
    checkpoint = os.path.join(work, "dcp")
    writer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "write_dcp.py")
    subprocess.run([sys.executable, writer, checkpoint, "--layers", str(layers)], check=True, stderr=subprocess.DEVNULL)
    # Cost of starting the interpreter and loading its libraries, which PyTorch's figures include.
    for what in ("import torch", "import torch, torch.distributed.checkpoint"):
        base = Run([sys.executable, "-c", what])
        print(f"python -c '{what}': {base.wall:.2f} s, {base.cpu:.2f} s of CPU, {base.rss / MIB:.0f} MiB")
    print(f"checkpoint: {size_of(checkpoint):,} bytes in {len(os.listdir(checkpoint))} files", flush=True)
    out = {name: os.path.join(work, name) for name in ("cp", "ours", "pytorch")}
    whole = {name: path + ".pt" for name, path in out.items()}
    Run(["cp", "-r", checkpoint, out["cp"]])  # warms the page cache
    compare("dcp_to_torch", {"cp": (["cp", "-r", checkpoint, out["cp"]], out["cp"]),
                             "ours": ([program, checkpoint, whole["ours"], "--quiet"], whole["ours"]),
                             "pytorch": ([*FORMAT_UTILS, "dcp_to_torch", checkpoint, whole["pytorch"]], whole["pytorch"])}, reps)
    source = whole["pytorch"]
    for path in (checkpoint, out["cp"], whole["ours"]):
        remove(path)
    compare("torch_to_dcp", {"cp": (["cp", source, whole["cp"]], whole["cp"]),
                             "ours": ([program, source, out["ours"], "--to", "dcp", "--quiet"], out["ours"]),
                             "pytorch": ([*FORMAT_UTILS, "torch_to_dcp", source, out["pytorch"]], out["pytorch"])}, reps)
    for path in (*out.values(), *whole.values()):
        remove(path)


def write_sparse(path, total):
    """Writes a sparse safetensors file of about `total` bytes in tensors of 256 MiB."""
    size = 256 * MIB
    header = {f"layers.{i:03}.weight": {"dtype": "F32", "shape": [size // 4 // 4096, 4096], "data_offsets": [i * size, (i + 1) * size]}
              for i in range(total // size)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + len(header) * size)
    return size


def large(program, work):
    """Converts 8 GiB with at most 1 GiB of private memory."""
    source, output = os.path.join(work, "large.safetensors"), os.path.join(work, "large.pt")
    largest = write_sparse(source, 8 * GIB)
    run = Run([program, source, output, "--quiet"], before=lambda: resource.setrlimit(resource.RLIMIT_DATA, (GIB, GIB)))
    print(f"8 GiB under 1 GiB: {run.wall:.1f} s, {run.cpu:.1f} s of CPU, peak {run.rss / MIB:.0f} MiB resident; largest tensor {largest // MIB} MiB, "
          f"output {size_of(output):,} bytes", flush=True)
    remove(source)
    remove(output)


def start(program):
    small = os.path.join(ROOT, "tests", "fixtures", "checkpoints", "fsdp2_t211_ws4_zeroshard", "ckpt")
    for title, command in (("--help", [program, "--help"]), ("--inspect of a small checkpoint", [program, small, "--inspect"]),
                           ("--version, which loads MPI", [program, "--version"])):
        times = [1000 * Run(command).wall for _ in range(20)]
        print(f"start, {title}: {spread(times, 1)} ms over {len(times)} runs", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=int(os.environ.get("BENCH_REPS", "3")))
    parser.add_argument("--layers", type=int, default=29, help="of the model in the checkpoint; 29 are 1.57 GB")
    parser.add_argument("--parts", default="start,pytorch,large")
    parser.add_argument("--folder", default=os.environ.get("BENCH_FOLDER"), help="where the files go; default: the system's temporary folder")
    parser.add_argument("--program", default=os.environ.get("FSDP_CKPT_CONVERT", os.path.join(ROOT, "build/bin/fsdp-ckpt-convert")))
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    done = 0
    print_machine(os.path.join(os.path.dirname(arguments.program), "fsdp-bf16check"))
    # Between fork and exec a process has this script's resident pages, which no measured peak can be below.
    print(f"smallest memory that can be measured here: {Run(['true']).rss / MIB:.0f} MiB")
    with tempfile.TemporaryDirectory(prefix="fsdp-bench.", dir=arguments.folder) as work:
        if "start" in parts:
            start(arguments.program)
            done += 1
        if "pytorch" in parts and has_room(work, 5 * 4 * (20_000_000 + 12_850_000 * arguments.layers) + GIB, "the comparison with PyTorch"):
            if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode != 0:
                print("skipped: the comparison with PyTorch needs torch in this Python")
            else:
                against_pytorch(arguments.program, work, arguments.layers, arguments.reps)
                done += 1
        if "large" in parts and has_room(work, 9 * GIB, "8 GiB under 1 GiB"):
            large(arguments.program, work)
            done += 1
    sys.exit(0 if done else SKIPPED)


if __name__ == "__main__":
    main()
