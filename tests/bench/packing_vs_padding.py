#!/usr/bin/env python3
"""--pack against padding: tokens that train (padding is none) per second, on the shipped chess games, in one run, in turns.

Both read the same games, each the same number of times: whole epochs. Padded, --rows games of a micro-batch are as wide as their longest; packed, a
micro-batch is one row of --seq-len tokens. One figure a turn: the tokens of all steps but the first, which fills caches, over their seconds.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from machine import print_machine

MODELS = {"small": ["--num-layers", "4", "--num-heads", "4", "--embed-size", "256"],
          "medium": ["--num-layers", "12", "--num-heads", "12", "--embed-size", "768"]}


def lengths_of(path):
    import h5py
    with h5py.File(path) as file:
        offsets = file["offsets"][:]
    return offsets[1:] - offsets[:-1]


def train(folder, name, options, more):
    command = [os.environ["FSDP_MPIEXEC"], "-n", str(options.ranks), os.environ["FSDP_FINETUNE"], "--train-data", f"{folder}/games.h5", "--out-dir", folder,
               "--run-name", name, "--no-save", "--device", "cpu", "--quiet", "--seq-len", str(options.seq_len), "--max-epochs", str(options.epochs),
               "--precision", options.precision, *MODELS[options.model], *more]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1"))
    with open(f"{folder}/{name}/metrics.jsonl", encoding="utf-8") as file:
        steps = [json.loads(line) for line in file]
    steps = [s for s in steps if "loss" in s]
    return sum(s["tokens"] for s in steps[1:]) / sum(s["step_seconds"] for s in steps[1:]), sum(s["tokens"] for s in steps), steps[-1]["peak_memory_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=8, help="games of a padded micro-batch")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--games", type=int, default=400)
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--precision", default="float32")
    options = parser.parse_args()
    programs = os.path.dirname(os.environ["FSDP_FINETUNE"])
    games = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "data", "chess", "train.jsonl")
    print_machine()
    ratios, rates = [], {"padded": [], "packed": []}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([f"{programs}/fsdp-download", "tokens", "--documents", "--input", games, "--tokenizer", "gpt2", "--max-rows", str(options.games),
                        "--output", f"{folder}/games.h5"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        lengths = lengths_of(f"{folder}/games.h5")
        print(f"{len(lengths)} games of {lengths.min()} to {lengths.max()} tokens, {lengths.mean():.0f} on average; {options.model} minGPT, "
              f"{options.precision}, {options.ranks} ranks; {options.rows} padded games or a row of {options.seq_len} packed tokens in a micro-batch")
        for turn in range(options.reps):
            line = []
            for name, more in (("padded", ["--batch-size", str(options.rows)]), ("packed", ["--pack", "--batch-size", "1"])):
                rate, tokens, peak = train(folder, f"{name}-{turn}", options, more)
                rates[name].append(rate)
                line.append(f"{name} {rate:,.0f} tokens/s, {tokens:,} tokens, {peak / 1e6:.0f} MB")
            ratios.append(rates["packed"][-1] / rates["padded"][-1])
            print(f"turn {turn + 1}: {'; '.join(line)}; {ratios[-1]:.2f} x", flush=True)
    spread = ", ".join(f"{name} {statistics.median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f})" for name, found in rates.items())
    print(f"tokens/s: {spread}; packed over padded {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
