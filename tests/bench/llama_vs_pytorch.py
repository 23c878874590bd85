#!/usr/bin/env python3
"""fsdp-finetune on a Llama against Hugging Face's Llama under PyTorch FSDP2, on the same machine, in one run: the same
weights, rows and number of threads.

For each precision the contenders take turns, --reps times:
  stock   FSDP2 as it comes
  tuned   FSDP2 with fused AdamW and a malloc that keeps its memory
  ours    full-shard
and the ratios ours/stock and ours/tuned are formed turn by turn, so a machine that drifts slows all of them. Rows are
512 random ids; a row counts as 512 tokens for all.

PyTorch's side is pytorch_training.py, which needs transformers.
"""
import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile

from machine import print_machine
from mingpt_vs_pytorch import WARMUP, run_pytorch, spread

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WORLD = 2
MODEL = dict(hidden_size=512, num_hidden_layers=8, intermediate_size=1376, num_attention_heads=8, num_key_value_heads=8, vocab_size=32016)
ROWS, LENGTH = 2, 512
MAKE_INPUTS = """
import sys, json, torch, h5py, numpy as np
from transformers import LlamaConfig, LlamaForCausalLM
folder, steps, world, rows, length, model = sys.argv[1], *map(int, sys.argv[2:6]), json.loads(sys.argv[6])
torch.manual_seed(0)
LlamaForCausalLM(LlamaConfig(rms_norm_eps=1e-5, max_position_embeddings=16384, tie_word_embeddings=False, **model)).save_pretrained(folder)
ids = torch.randint(0, model["vocab_size"], (steps * world * rows, length))
with h5py.File(folder + "/rows.h5", "w") as f:
    f["tokens"] = ids.flatten().numpy().astype(np.uint16)
    f["offsets"] = np.arange(0, ids.numel() + 1, length, dtype=np.int64)
"""


def pytorch_arguments(model_dir, precision, steps):
    return ["--model", model_dir, "--rows", os.path.join(model_dir, "rows.h5"), "--impl", "fsdp2", "--precision", precision,
            "--batch-size", str(ROWS), "--steps", str(steps), "--lr", "1e-5"]


def run_ours(model_dir, precision, work, program, mpiexec, steps):
    env = dict(os.environ, OMP_NUM_THREADS="1")
    command = [mpiexec, "-n", str(WORLD), program, "--model", model_dir, "--train-data", os.path.join(model_dir, "rows.h5"), "--no-shuffle",
               "--seq-len", str(LENGTH), "--batch-size", str(ROWS), "--max-steps", str(steps), "--lr", "1e-5", "--lr-schedule", "constant",
               "--warmup-steps", "0", "--warmup-ratio", "0", "--weight-decay", "0.01", "--clip-grad-norm", "1.0", "--precision", precision,
               "--out-dir", work, "--run-name", precision, "--no-save", "--quiet", "--device", "cpu"]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("fsdp-finetune failed: " + done.stderr)
    with open(os.path.join(work, precision, "metrics.jsonl")) as f:
        records = [r for r in map(json.loads, f) if "loss" in r]
    seconds = [r["step_seconds"] for r in records[WARMUP:]]
    return dict(tok=WORLD * ROWS * LENGTH / statistics.median(seconds), loss=[r["loss"] for r in records],
                rss=records[-1]["peak_rss_bytes"] / 1048576)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--precisions", default=os.environ.get("BENCH_PRECISIONS", "float32,bf16"))
    ap.add_argument("--reps", type=int, default=int(os.environ.get("BENCH_REPS", "3")))
    ap.add_argument("--steps", type=int, default=7)
    ap.add_argument("--program", default=os.environ.get("FSDP_FINETUNE", os.path.join(ROOT, "build/bin/fsdp-finetune")))
    ap.add_argument("--mpiexec", default=os.environ.get("FSDP_MPIEXEC", "mpiexec"))
    args = ap.parse_args()
    if importlib.util.find_spec("transformers") is None:
        print("skipped: transformers is not installed (scripts/setup --full)")
        sys.exit(77)
    print_machine(os.path.join(os.path.dirname(args.program), "fsdp-bf16check"))
    print(f"{'run':<15} {'tok/s':>22} {'RSS MB':>8}   ratio of ours: median (min..max)")
    with tempfile.TemporaryDirectory() as work:
        model_dir = os.path.join(work, "model")
        subprocess.run([sys.executable, "-c", MAKE_INPUTS, model_dir, str(args.steps), str(WORLD), str(ROWS), str(LENGTH), json.dumps(MODEL)],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for precision in args.precisions.split(","):
            turns = []
            for _ in range(args.reps):
                turns.append(dict(stock=run_pytorch(pytorch_arguments(model_dir, precision, args.steps), tuned=False),
                                  ours=run_ours(model_dir, precision, work, args.program, args.mpiexec, args.steps),
                                  tuned=run_pytorch(pytorch_arguments(model_dir, precision, args.steps), tuned=True)))
            for name in ("stock", "tuned", "ours"):
                rates = [t[name]["tok"] for t in turns]
                text = ""
                if name != "ours":
                    text = (f"tok/s x {spread([t['ours']['tok'] / t[name]['tok'] for t in turns])}, memory x "
                            f"{spread([t['ours']['rss'] / t[name]['rss'] for t in turns])}")
                print(f"{precision + ' ' + name:<15} {statistics.median(rates):8.0f} ({min(rates):.0f}..{max(rates):.0f}) "
                      f"{max(t[name]['rss'] for t in turns):8.0f}   {text}", flush=True)
            apart = max(abs(a - b) for turn in turns for a, b in zip(turn["ours"]["loss"], turn["stock"]["loss"]))
            print(f"{precision}: losses of ours and FSDP2 differ by at most {apart:.1e} over {args.steps} steps", flush=True)


if __name__ == "__main__":
    main()
