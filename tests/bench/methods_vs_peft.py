#!/usr/bin/env python3
"""Full fine-tuning, LoRA and QLoRA of a small Llama: fsdp-finetune against transformers with peft and bitsandbytes, on the same machine,
in one run: the same weights, rows, adapters and number of cores.

For each precision and method the contenders take turns, --reps times. Theirs is one process with all cores, fused AdamW and a malloc that
keeps its memory; ours two ranks of half of them each. The ratio is formed turn by turn, so a machine that drifts slows both. Rows are 512
random ids.

Needs transformers, peft and, for QLoRA, bitsandbytes; what is missing is skipped.
"""
import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from machine import print_machine

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WARMUP = 2
MODEL = dict(hidden_size=512, num_hidden_layers=8, intermediate_size=1376, num_attention_heads=8, num_key_value_heads=8, vocab_size=32016)
ROWS, LENGTH, RANK = 4, 512, 16
METHODS = {"full": [], "lora": ["--lora-rank", str(RANK), "--lora-alpha", str(2 * RANK)]}
METHODS["qlora"] = [*METHODS["lora"], "--quantize", "nf4", "--double-quant"]
MALLOC = dict(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_="1099511627776", MALLOC_TOP_PAD_="67108864")


def make_inputs(folder, steps):
    import h5py
    import numpy
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(rms_norm_eps=1e-5, max_position_embeddings=16384, tie_word_embeddings=False, **MODEL)).bfloat16().save_pretrained(folder)
    ids = torch.randint(0, MODEL["vocab_size"], (steps * ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    with h5py.File(os.path.join(folder, "rows.h5"), "w") as f:
        f["tokens"] = ids.flatten().numpy().astype(numpy.uint16)
        f["offsets"] = numpy.arange(0, ids.numel() + 1, LENGTH, dtype=numpy.int64)


def peer(folder, method, precision, steps):
    """Runs one contender on PyTorch's side; prints a line of JSON."""
    import h5py
    import torch
    from transformers import BitsAndBytesConfig, LlamaForCausalLM
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    options = {}
    if method == "qlora":
        options["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype)
    # Full fine-tuning in mixed precision: float32 weights under autocast.
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32 if method == "full" else dtype, **options)
    if method != "full":
        from peft import LoraConfig, get_peft_model
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=targets))
    model.config.use_cache = False
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    with h5py.File(os.path.join(folder, "rows.h5")) as f:
        rows = torch.from_numpy(f["tokens"][:].astype("int64")).view(-1, ROWS, LENGTH)
    losses, seconds = [], []
    for batch in rows[:steps]:
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=method == "full" and precision == "bf16"):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    print("PEER_JSON " + json.dumps(dict(tok=ROWS * LENGTH / statistics.median(seconds[WARMUP:]), loss=losses,
                                         rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)))


def run_peer(folder, method, precision, steps):
    command = [sys.executable, os.path.abspath(__file__), "--peer", folder, method, precision, "--steps", str(steps)]
    env = dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", **MALLOC)
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"the peer failed at {method}, {precision}: {done.stderr[-2000:]}")
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("PEER_JSON"))[10:])


def run_ours(folder, method, precision, work, args):
    ranks = 2
    name = f"{method}-{precision}"
    command = [args.mpiexec, "-n", str(ranks), args.program, "--model", folder, "--train-data", os.path.join(folder, "rows.h5"), "--no-shuffle",
               "--seq-len", str(LENGTH), "--batch-size", str(ROWS // ranks), "--max-steps", str(args.steps), "--lr", "1e-4", "--lr-schedule", "constant",
               "--warmup-steps", "0", "--warmup-ratio", "0", "--weight-decay", "0.01", "--clip-grad-norm", "1.0", "--precision", precision,
               "--out-dir", work, "--run-name", name, "--no-save", "--quiet", "--device", "cpu", *METHODS[method]]
    env = dict(os.environ, OMP_NUM_THREADS=str(max(1, len(os.sched_getaffinity(0)) // ranks)))
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("fsdp-finetune failed: " + done.stderr)
    with open(os.path.join(work, name, "metrics.jsonl")) as f:
        records = [r for r in map(json.loads, f) if "loss" in r]
    return dict(tok=ROWS * LENGTH / statistics.median(r["step_seconds"] for r in records[WARMUP:]), loss=[r["loss"] for r in records],
                rss=ranks * records[-1]["peak_rss_bytes"] / 1048576)


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    ap.add_argument("--precisions", default=os.environ.get("BENCH_PRECISIONS", "float32,bf16"))
    ap.add_argument("--methods", default="full,lora,qlora")
    ap.add_argument("--reps", type=int, default=int(os.environ.get("BENCH_REPS", "3")))
    ap.add_argument("--steps", type=int, default=6)
    ap.add_argument("--program", default=os.environ.get("FSDP_FINETUNE", os.path.join(ROOT, "build/bin/fsdp-finetune")))
    ap.add_argument("--mpiexec", default=os.environ.get("FSDP_MPIEXEC", "mpiexec"))
    args = ap.parse_args()
    if args.peer:
        return peer(*args.peer, args.steps)
    missing = [name for name in ("transformers", "peft") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: {', '.join(missing)} is not installed (scripts/setup --full)")
        sys.exit(77)
    methods = args.methods.split(",")
    if "qlora" in methods and importlib.util.find_spec("bitsandbytes") is None:
        print("bitsandbytes is not installed: QLoRA is measured here alone (.deps/venv/bin/pip install bitsandbytes==0.50.2)")
    print_machine(os.path.join(os.path.dirname(args.program), "fsdp-bf16check"))
    print(f"{'precision method':<16} {'theirs tok/s':>13} {'ours tok/s':>11}   {'ratio':<20} {'RSS MB, theirs':>14} {'ours':>6}   loss of the last step")
    with tempfile.TemporaryDirectory() as work:
        folder = os.path.join(work, "model")
        make_inputs(folder, args.steps)
        for precision in args.precisions.split(","):
            for method in methods:
                has_peer = method != "qlora" or importlib.util.find_spec("bitsandbytes") is not None
                turns = []
                for _ in range(args.reps):
                    theirs = run_peer(folder, method, precision, args.steps) if has_peer else None
                    turns.append((theirs, run_ours(folder, method, precision, work, args)))
                ours = turns[0][1]
                line = f"{precision + ' ' + method:<16} "
                if has_peer:
                    line += (f"{statistics.median(t['tok'] for t, _ in turns):13.0f} {statistics.median(o['tok'] for _, o in turns):11.0f}   "
                             f"{spread([o['tok'] / t['tok'] for t, o in turns]):<20} {max(t['rss'] for t, _ in turns):14.0f} {max(o['rss'] for _, o in turns):6.0f}   "
                             f"theirs {turns[0][0]['loss'][-1]:.4f}, ours {ours['loss'][-1]:.4f}")
                else:
                    line += f"{'-':>13} {statistics.median(o['tok'] for _, o in turns):11.0f}"
                print(line, flush=True)


if __name__ == "__main__":
    main()
