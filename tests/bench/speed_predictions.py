#!/usr/bin/env python3
"""Predicted tokens/s against measured ones, on CPUs, after calibration by one run.

One run (two ranks, float32, full-shard, no recomputation) calibrates fsdp-memprobe; every other job below is then
predicted before it runs: strategies, recomputation, precision, batch, accumulation, 1 to 4 ranks, threads, another
model.  Prints both figures of each, and whether of any two that differ by more than 10 % the faster one was foreseen.

A shared machine's speed changes from minute to minute, which is no fault of a prediction: before each job the
calibration's runs again, and the job's speed is told in the machine's speed at calibration.  "machine" is what it was
then, in parts of that.  Medians over turns.

    speed_predictions.py [--turns 2] [--steps 6] [--only WORD]
"""
import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile

from machine import print_machine

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(ROOT, "data/shakespeare/train.h5")
S = ["--num-layers", "4", "--num-heads", "4", "--embed-size", "256"]
DEEP = ["--num-layers", "8", "--num-heads", "8", "--embed-size", "384", "--vocab-size", "50257"]
RECOMPUTE = ["--activation-checkpointing", "all"]
CALIBRATION = ("calibration", 2, 1, [*S, "--batch-size", "4"])
# Name, ranks, threads per rank, options.
JOBS = [
    ("1 rank", 1, 1, [*S, "--batch-size", "4"]),
    ("1 rank, 2 threads", 1, 2, [*S, "--batch-size", "4"]),
    ("3 ranks", 3, 1, [*S, "--batch-size", "2"]),
    ("4 ranks", 4, 1, [*S, "--batch-size", "2"]),
    ("batch 1", 2, 1, [*S, "--batch-size", "1"]),
    ("batch 16", 2, 1, [*S, "--batch-size", "16"]),
    ("recomputed", 2, 1, [*S, "--batch-size", "4", *RECOMPUTE]),
    ("grad-shard", 2, 1, [*S, "--batch-size", "4", "--sharding", "grad-shard"]),
    ("no-shard", 2, 1, [*S, "--batch-size", "4", "--sharding", "no-shard"]),
    ("hybrid of 4", 4, 1, [*S, "--batch-size", "1", "--sharding", "hybrid-full-shard", "--shard-group-size", "2"]),
    ("accumulated", 2, 1, [*S, "--batch-size", "2", "--gradient-accumulation-steps", "4"]),
    ("bf16", 2, 1, [*S, "--batch-size", "4", "--precision", "bf16"]),
    ("bf16 recomputed", 2, 1, [*S, "--batch-size", "4", "--precision", "bf16", *RECOMPUTE]),
    ("bf16, 4 ranks", 4, 1, [*S, "--batch-size", "1", "--precision", "bf16"]),
    ("deep", 2, 1, [*DEEP, "--batch-size", "2"]),
    ("deep recomputed", 2, 1, [*DEEP, "--batch-size", "2", *RECOMPUTE]),
    ("deep bf16", 2, 1, [*DEEP, "--batch-size", "2", "--precision", "bf16"]),
]


def program(name):
    return os.path.join(os.path.dirname(os.environ.get("FSDP_FINETUNE", os.path.join(ROOT, "build/bin/fsdp-finetune"))), name)


def call(command, threads):
    done = subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS=str(threads)), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, check=False)
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return done.stdout


def train(work, job, steps):
    name, ranks, threads, options = job
    run = name.replace(" ", "-").replace(",", "")
    # Each run has a folder of its own, so that runs do not find each other's files.
    folder = os.path.join(work, run)
    command = [program("fsdp-finetune"), *options, "--train-data", DATA, "--seq-len", "256", "--no-shuffle", "--max-steps", str(steps),
               "--out-dir", folder, "--run-name", run, "--no-save", "--quiet", "--device", "cpu"]
    if ranks > 1:
        command = [os.environ.get("FSDP_MPIEXEC", "mpiexec"), "-n", str(ranks), *command]
    call(command, threads)
    with open(os.path.join(folder, run, "metrics.jsonl"), encoding="utf-8") as file:
        steps = [record for record in map(json.loads, file) if "loss" in record][1:]
    return steps[0]["tokens"] / statistics.median(step["step_seconds"] for step in steps), os.path.join(folder, run)


def predict(calibration, job):
    _, ranks, threads, options = job
    out = call([program("fsdp-memprobe"), *options, "--seq-len", "256", "--ranks", str(ranks), "--device", "cpu", "--calibration", calibration,
                "--json", "--quiet"], threads)
    return json.loads(out)["speed"]["tokens_per_second"]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--turns", type=int, default=2)
    ap.add_argument("--steps", type=int, default=6)
    ap.add_argument("--only", default="", help="jobs whose name has this word")
    args = ap.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as work:
        at_calibration, calibration = train(work, CALIBRATION, 2 * args.steps)
        with open(os.path.join(calibration, "speed.json"), encoding="utf-8") as file:
            print(f"calibration: that run's own forecast was {100 * json.load(file)['relative_error']:+.1f} % off", flush=True)
        found = []
        print(f"{'job':<20} {'predicted':>10} {'measured':>10} {'off':>8}   machine")
        for job in JOBS:
            if args.only not in job[0]:
                continue
            predicted = predict(calibration, job)
            turns = []
            for turn in range(args.turns):
                machine = train(os.path.join(work, f"reference-{turn}-{job[0]}"), CALIBRATION, args.steps)[0] / at_calibration
                turns.append((train(os.path.join(work, str(turn)), job, args.steps)[0] / machine, machine))
            measured = statistics.median(speed for speed, _ in turns)
            found.append((job[0], predicted, measured))
            print(f"{job[0]:<20} {predicted:>10.0f} {measured:>10.0f} {100 * (predicted / measured - 1):>+7.1f}%   "
                  + ", ".join(f"{machine:.2f}" for _, machine in turns), flush=True)
    off = [abs(predicted / measured - 1) for _, predicted, measured in found]
    print(f"largest error {100 * max(off):.1f} %, median {100 * statistics.median(off):.1f} %")
    wrong = [(a[0], b[0]) for a, b in itertools.combinations(found, 2)
             if max(a[2], b[2]) > 1.1 * min(a[2], b[2]) and (a[1] > b[1]) != (a[2] > b[2])]
    print(f"pairs in the wrong order, of those that differ by more than 10 %: {wrong or 'none'}")


if __name__ == "__main__":
    main()
