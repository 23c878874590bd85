#!/usr/bin/env python3
"""One process on all cores, on the same machine, in one run: what threads cost us, and PyTorch without any FSDP.

For each size and precision the contenders take turns, --reps times, on the same rows, weights' shapes and cores:
  threads   fsdp-finetune, one rank that has all cores
  ranks     fsdp-finetune, a rank for each core, full-shard
  tuned     PyTorch in one process: fused AdamW and a malloc that keeps its memory
  compiled  the same through torch.compile
and the ratios threads/other are formed turn by turn. A number below 1 at `ranks` is what is lost by threads.

PyTorch's side is pytorch_training.py.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

from mingpt_vs_pytorch import DATA, SIZES, WARMUP, mingpt_arguments, parse_arguments, run_pytorch, spread

CORES = len(os.sched_getaffinity(0))


def pytorch_rate(size, precision, compiled):
    s = SIZES[size]
    arguments = mingpt_arguments(size, precision, "single") + ["--threads", str(CORES)] + (["--compile"] if compiled else [])
    arguments[arguments.index("--batch-size") + 1] = str(s["batch"] * CORES)
    return run_pytorch(arguments, tuned=True, ranks=0)["tok"]


def our_rate(program, mpiexec, size, precision, ranks, work, data):
    s = SIZES[size]
    env = dict(os.environ, OMP_NUM_THREADS=str(CORES // ranks))
    name = f"{size}-{precision}-{ranks}"
    command = [mpiexec, "-n", str(ranks), program, "--model", "mingpt", "--num-layers", str(s["layers"]), "--num-heads", str(s["heads"]),
               "--embed-size", str(s["embed"]), "--train-data", data, "--no-shuffle", "--seq-len", "256",
               "--batch-size", str(s["batch"] * CORES // ranks), "--max-steps", str(s["steps"]), "--lr", "1e-3", "--lr-schedule", "constant",
               "--clip-grad-norm", "1.0", "--precision", precision, "--out-dir", work, "--run-name", name, "--no-save", "--quiet",
               "--device", "cpu"]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit("fsdp-finetune failed: " + done.stderr)
    with open(os.path.join(work, name, "metrics.jsonl"), encoding="utf-8") as f:
        records = [r for r in map(json.loads, f) if "loss" in r]
    return records[0]["tokens"] / statistics.median(r["step_seconds"] for r in records[WARMUP:])


def main():
    args = parse_arguments(__doc__)
    with tempfile.TemporaryDirectory() as work:
        for size in args.sizes.split(","):
            for precision in args.precisions.split(","):
                turns = []
                for _ in range(args.reps):
                    turns.append({"threads": our_rate(args.program, args.mpiexec, size, precision, 1, work, DATA),
                                  "ranks": our_rate(args.program, args.mpiexec, size, precision, CORES, work, DATA),
                                  "tuned": pytorch_rate(size, precision, False),
                                  "compiled": pytorch_rate(size, precision, True)})
                for name in turns[0]:
                    ratio = "" if name == "threads" else f"   threads / {name} {spread([t['threads'] / t[name] for t in turns])}"
                    rates = [t[name] for t in turns]
                    print(f"{size} {precision} {name:<9} {statistics.median(rates):7.0f} ({min(rates):.0f}..{max(rates):.0f}) tok/s{ratio}", flush=True)


if __name__ == "__main__":
    main()
