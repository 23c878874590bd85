#!/usr/bin/env python3
"""fsdp-finetune against PyTorch FSDP on the same machine, in one run: same model, weights, rows, threads.

For each size and precision the contenders take turns, --reps times:
  stock   FSDP2 as it comes
  tuned   FSDP1 with fused AdamW and a malloc that keeps its memory
  ours    full-shard
and the ratios ours/stock and ours/tuned are formed turn by turn, so a machine that drifts slows all of them.
Percent of GEMM peak = 6 x parameters (without position embeddings) x tokens/s over a 2048-cubed product measured on all
ranks at once in the same turn: the faster of PyTorch's (torch.mm) and oneDNN's, with which fsdp multiplies float32 on
processors that MKL gives AVX2 only. A percentage of torch.mm's alone would pass 100 there.

PyTorch's side is pytorch_training.py.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from machine import print_machine

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SIZES = {
    "S": dict(layers=4, embed=256, heads=4, batch=4, steps=8),
    "M": dict(layers=12, embed=768, heads=12, batch=4, steps=5),
}
WARMUP = 2
DATA = os.path.join(ROOT, "data/shakespeare/train.h5")
TUNED_MALLOC = dict(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_="1099511627776", MALLOC_TOP_PAD_="67108864")
GEMM = """
import sys, time, torch
torch.set_num_threads(1)
d = getattr(torch, sys.argv[1]); n = 2048
a = torch.randn(n, n).to(d); b = torch.randn(n, n).to(d); c = torch.empty(n, n, dtype=d)
def peak(product):
    product(); best = 1e9; end = time.time() + 2
    while time.time() < end:
        t = time.perf_counter(); product(); best = min(best, time.perf_counter() - t)
    return 2 * n**3 / best / 1e9
mm = peak(lambda: torch.mm(a, b, out=c))
dnn = peak(lambda: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")) if d == torch.float32 else mm
print(mm, max(mm, dnn))
"""


def run_pytorch(arguments, tuned, ranks=2):
    """Runs pytorch_training.py. tuned: fused AdamW and a malloc that keeps its memory; ranks 0: one process alone"""
    env = dict(os.environ, HF_HUB_OFFLINE="1", **(TUNED_MALLOC if tuned else {}))
    launcher = [os.path.join(os.path.dirname(sys.executable), "torchrun"), "--nproc-per-node", str(ranks), "--master-port", "29517"]
    command = [*(launcher if ranks else [sys.executable]), os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytorch_training.py"),
               *arguments, *(["--fused"] if tuned else [])]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    d = json.loads(done.stdout.splitlines()[-1])
    steps = d["step_seconds"][WARMUP:]
    tokens = d["tokens_per_step"]
    return dict(tok=tokens / statistics.median(steps), best=tokens / min(steps), loss=d["loss"], rss=d["peak_rss_mb"], n=d["parameters"])


def mingpt_arguments(size, precision, impl):
    s = SIZES[size]
    return ["--model", "mingpt", "--rows", DATA, "--impl", impl, "--precision", precision, "--layers", str(s["layers"]),
            "--embed", str(s["embed"]), "--heads", str(s["heads"]), "--batch-size", str(s["batch"]), "--steps", str(s["steps"])]


def run_ours(size, precision, model_dir, work, program, mpiexec, data):
    s = SIZES[size]
    env = dict(os.environ, OMP_NUM_THREADS="1")
    name = f"{size}-{precision}"
    command = [mpiexec, "-n", "2", program, "--model", model_dir, "--train-data", data, "--no-shuffle", "--seq-len", "256",
               "--batch-size", str(s["batch"]), "--max-steps", str(s["steps"]), "--lr", "1e-3", "--lr-schedule", "constant", "--betas", "0.9", "0.999",
               "--weight-decay", "0.01", "--decay-all", "--clip-grad-norm", "1.0", "--precision", precision,
               "--out-dir", work, "--run-name", name, "--no-save", "--quiet", "--device", "cpu",
               "--trace", os.path.join(work, "trace.json")]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("fsdp-finetune failed: " + done.stderr)
    with open(os.path.join(work, name, "metrics.jsonl")) as f:
        records = [json.loads(line) for line in f]
    records = [r for r in records if "loss" in r]
    steps = [r["step_seconds"] for r in records[WARMUP:]]
    tokens = records[0]["tokens"]
    return dict(tok=tokens / statistics.median(steps), best=tokens / min(steps), loss=[r["loss"] for r in records], rss=records[-1]["peak_rss_bytes"] / 1048576)


def where_time_goes(work):
    """Returns the shares of rank 0's time after the warm-up by activity of the engine."""
    with open(os.path.join(work, "trace.json")) as f:
        events = [e for e in json.load(f) if e.get("ph") == "X" and e["pid"] == 0]
    reads = sorted(e["ts"] for e in events if e["cat"] == "input")
    begin = reads[WARMUP]
    events = [e for e in events if e["ts"] >= begin]
    total = max(e["ts"] + e["dur"] for e in events) - begin
    kinds = {"forward of the blocks": 0.0, "backward of the blocks": 0.0, "head and loss": 0.0, "waiting for parameters": 0.0,
             "gradient sums and waiting for them": 0.0, "norm": 0.0, "AdamW and publishing": 0.0, "input": 0.0}
    for e in events:
        name = e["name"]
        if name.startswith("forward"):
            kind = "forward of the blocks"
        elif name.startswith("backward"):
            kind = "backward of the blocks"
        elif name == "head and loss":
            kind = name
        elif name.startswith("gather"):
            kind = "waiting for parameters"
        elif name.startswith("reduce"):
            kind = "gradient sums and waiting for them"
        elif name == "gradient norm":
            kind = "norm"
        elif name == "AdamW":
            kind = "AdamW and publishing"
        elif e["cat"] == "input":
            kind = "input"
        else:
            continue  # inside AdamW
        kinds[kind] += e["dur"]
    kinds["other"] = total - sum(kinds.values())
    return ", ".join(f"{name} {100 * value / total:.1f} %" for name, value in kinds.items())


def gemm_peak(precision):
    """Returns GFLOP/s of torch.mm and of the fastest product, summed over ranks that run at once."""
    dtype = "float32" if precision == "float32" else "bfloat16"
    env = dict(os.environ, OMP_NUM_THREADS="1")
    both = [subprocess.Popen([sys.executable, "-c", GEMM, dtype], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    figures = [[float(x) for x in p.communicate()[0].split()] for p in both]
    return [sum(column) for column in zip(*figures)]


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def parse_arguments(description):
    """Parses the arguments of a minGPT benchmark, and prints the machine."""
    ap = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--sizes", default=os.environ.get("BENCH_SIZES", "S,M"))
    ap.add_argument("--precisions", default=os.environ.get("BENCH_PRECISIONS", "float32,bf16"))
    ap.add_argument("--reps", type=int, default=int(os.environ.get("BENCH_REPS", "3")))
    ap.add_argument("--program", default=os.environ.get("FSDP_FINETUNE", os.path.join(ROOT, "build/bin/fsdp-finetune")))
    ap.add_argument("--mpiexec", default=os.environ.get("FSDP_MPIEXEC", "mpiexec"))
    args = ap.parse_args()
    print_machine(os.path.join(os.path.dirname(args.program), "fsdp-bf16check"))
    return args


def main():
    args = parse_arguments(__doc__)
    print(f"{'run':<12} {'tok/s':>22} {'% of GEMM peak':>14} {'RSS MB':>8}   ratio of ours: median (min..max)")
    with tempfile.TemporaryDirectory() as work:
        for size in args.sizes.split(","):
            model_dir = os.path.join(work, "model-" + size)
            os.makedirs(model_dir)
            s = SIZES[size]
            with open(os.path.join(model_dir, "config.json"), "w") as f:
                json.dump(dict(n_layer=s["layers"], n_head=s["heads"], n_embd=s["embed"], n_hidden=4 * s["embed"],
                               vocab_size=50257, block_size=256), f)
            weights = ["--save-init", os.path.join(model_dir, "model.safetensors")]
            exact = {}  # losses in float32 of ours and of FSDP2
            for precision in args.precisions.split(","):
                turns = []
                for _ in range(args.reps):
                    peak = gemm_peak(precision)
                    stock = run_pytorch(mingpt_arguments(size, precision, "fsdp2") + weights, tuned=False)
                    ours = run_ours(size, precision, model_dir, work, args.program, args.mpiexec, DATA)
                    tuned = run_pytorch(mingpt_arguments(size, precision, "fsdp1"), tuned=True)
                    turns.append(dict(stock=stock, ours=ours, tuned=tuned, peak=peak))
                flops = 6.0 * turns[0]["stock"]["n"] / 1e9
                for name in ("stock", "tuned", "ours"):
                    rates = [t[name]["tok"] for t in turns]
                    share = statistics.median(100 * flops * t[name]["tok"] / t["peak"][1] for t in turns)
                    rss = max(t[name]["rss"] for t in turns)
                    text = ""
                    if name != "ours":
                        text = (f"tok/s x {spread([t['ours']['tok'] / t[name]['tok'] for t in turns])}, memory x "
                                f"{spread([t['ours']['rss'] / t[name]['rss'] for t in turns])}")
                    label = f"{size} {precision} {name}"
                    print(f"{label:<18} {statistics.median(rates):8.0f} ({min(rates):.0f}..{max(rates):.0f}) {share:12.1f} % {rss:8.0f}   {text}", flush=True)
                losses = {name: turns[0][name]["loss"] for name in ("ours", "stock")}
                apart = max(abs(a - b) for t in turns for a, b in zip(t["ours"]["loss"], t["stock"]["loss"]))
                print(f"{size} {precision}: GEMM peak {statistics.median(t['peak'][1] for t in turns):.0f} GFLOP/s on 2 threads, torch.mm "
                      f"{statistics.median(t['peak'][0] for t in turns):.0f}; "
                      f"losses of ours and FSDP2 differ by at most {apart:.1e} over {s['steps']} steps", flush=True)
                if exact:  # bf16 rounds both differently: neither is the other's truth
                    rounded = {name: max(abs(a - b) for a, b in zip(losses[name], exact[name])) for name in losses}
                    print(f"{size} {precision}: losses differ from those in float32 by at most {rounded['ours']:.1e} (ours) and "
                          f"{rounded['stock']:.1e} (FSDP2)", flush=True)
                if precision == "float32":
                    exact = losses
                print(f"{size} {precision}: a step of ours is {where_time_goes(work)}", flush=True)


if __name__ == "__main__":
    main()
