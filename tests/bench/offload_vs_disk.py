#!/usr/bin/env python3
"""--offload-optimizer nvme:DIR against the disk itself: how long the optimizer pass takes, and how long plain reads and writes of as many
bytes take on the same disk, in one run, in turns.

Plain is what a benchmark of disks does: a file that is there already, O_DIRECT, one MiB at a time, --depth at once, once through from the
beginning, first written, then read. A pass moves its bytes both ways at a time and computes between. Each step's pass is one figure; a
turn is their median, without the first, which reads nothing. A third run is told to keep everything in memory, for the price of a step.
"""
import argparse
import concurrent.futures
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time

from machine import print_machine

PIECE = 1 << 20
MODEL = ["--num-layers", "48", "--num-heads", "8", "--embed-size", "512", "--vocab-size", "512", "--seq-len", "32", "--activation-checkpointing", "all"]
STEPS = 6


def plain(path, size, write, depth):
    """Returns seconds."""
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    pieces = iter(range(0, size - size % PIECE, PIECE))
    take = pieces.__next__  # threads share it: the interpreter's lock hands out each piece once

    def work(_):
        with mmap.mmap(-1, PIECE) as room:
            room.write(b"\x5a" * PIECE)
            while True:
                try:
                    offset = take()
                except StopIteration:
                    return
                (os.pwritev if write else os.preadv)(fd, [room], offset)

    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(depth) as pool:
        list(pool.map(work, range(depth)))
    os.close(fd)
    return time.monotonic() - start


def train(folder, disk, name, ranks, options):
    command = [os.environ["FSDP_MPIEXEC"], "-n", str(ranks), os.environ["FSDP_FINETUNE"], "--train-data", f"{folder}/rows.h5", "--out-dir", folder, "--run-name", name,
               "--no-save", "--device", "cpu", "--quiet", "--batch-size", "1", "--max-steps", str(STEPS), "--precision", "float32", *MODEL, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    with open(f"{folder}/{name}/metrics.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file][1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disk", help="a directory on it", default=tempfile.gettempdir())
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--depth", type=int, default=16)
    options = parser.parse_args()
    try:
        import h5py
        import numpy
    except ImportError as missing:
        print(f"SKIPPED: {missing}")
        return 77
    print_machine()
    ratios, steps, losses = [], [], []
    with tempfile.TemporaryDirectory(dir=options.disk) as folder:
        with h5py.File(f"{folder}/rows.h5", "w") as file:
            file["input_ids"] = numpy.random.default_rng(0).integers(0, 512, (64, 33)).astype(numpy.uint16)
        for turn in range(options.reps):
            ours = train(folder, options.disk, f"disk-{turn}", options.ranks, ["--offload-optimizer", f"nvme:{folder}/scratch"])
            memory = train(folder, options.disk, f"memory-{turn}", options.ranks, [])
            losses.append([r["loss"] for r in ours] == [r["loss"] for r in memory])
            # The optimizer pass also reads the gradients, which the backward pass wrote.
            read = options.ranks * ours[-1]["offload"]["bytes_read"]
            written = options.ranks * ours[-1]["offload"]["bytes_written"] * 12 // 16
            if turn == 0:
                with open(f"{folder}/plain", "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, max(read, written))
                plain(f"{folder}/plain", max(read, written), True, options.depth)
            write_seconds = plain(f"{folder}/plain", written, True, options.depth)
            read_seconds = plain(f"{folder}/plain", read, False, options.depth)
            passes = [r["update_seconds"] for r in ours]
            seconds = statistics.median(passes)
            ratios.append((write_seconds + read_seconds) / seconds)
            steps.append(statistics.median(r["step_seconds"] for r in ours) / statistics.median(r["step_seconds"] for r in memory))
            print(f"turn {turn + 1}: {read / 1e9:.2f} GB read and {written / 1e9:.2f} GB written in {seconds:.2f} s ({min(passes):.2f} to {max(passes):.2f}): "
                  f"{(read + written) / seconds / 1e9:.2f} GB/s; plain {read / read_seconds / 1e9:.2f} GB/s read, {written / write_seconds / 1e9:.2f} GB/s written, "
                  f"{write_seconds + read_seconds:.2f} s; {ratios[-1]:.2f} of it; a step {steps[-1]:.2f} x that in memory", flush=True)
    print(f"throughput of the pass over plain reads and writes: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); "
          f"a step takes {statistics.median(steps):.2f} ({min(steps):.2f} to {max(steps):.2f}) x as long as in memory; the same losses: {all(losses)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
