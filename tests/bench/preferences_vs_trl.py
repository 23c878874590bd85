#!/usr/bin/env python3
"""DPO of a small Llama, full and with adapters: fsdp-finetune against TRL's DPOTrainer on the same machine, in one run: the same weights,
preferences, order and number of cores, in float32.

The contenders take turns, --reps times. Theirs is one process with all cores, with the log-probabilities of the reference computed before
the first step (precompute_ref_log_probs; otherwise each step has a second forward), and a malloc that keeps its memory; ours two ranks of half
of the cores each. The ratio is formed turn by turn, so a machine that drifts slows both. A step is --pairs preferences; of packed rows here it
is one row on each rank, and the time of an epoch, the second, is divided by its preferences. There are two kinds of data: questions, whose prompts
have 48 to 96 words and answers 16 to 96; and dialogues, whose prompts hold the turns before the answer: 96 to 176 words and 16 to 64.
Printed are the mean losses of the first epoch, whose steps are the same ones where rows are not packed.

Needs trl 1.16.0 (pip install --target DIR --no-deps trl==1.16.0 and what it imports, then FSDP_TRL=DIR); skipped without.
"""
import argparse
import importlib.util
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from generation_vs_transformers import TOKENIZER
from machine import print_machine
from methods_vs_peft import MALLOC, spread

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if os.environ.get("FSDP_TRL"):
    sys.path.insert(0, os.environ["FSDP_TRL"])
MODEL = dict(hidden_size=512, num_hidden_layers=8, intermediate_size=1376, num_attention_heads=8, num_key_value_heads=8,
             vocab_size=32016)  # CodeLlama's; the texts have the first ids of them
WARMUP, RANK, LENGTH = 2, 16, 256
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTER = ["--lora-rank", str(RANK), "--lora-alpha", str(2 * RANK)]
DATA = {"questions": ((48, 96), (16, 96)), "dialogues": ((96, 176), (16, 64))}  # words of prompts and of answers
METHODS = {"full": [], "full-packed": ["--pack"], "lora": ADAPTER, "lora-packed": ["--pack", *ADAPTER]}


def make_inputs(folder, kind, steps, pairs):
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(rms_norm_eps=1e-5, max_position_embeddings=2048, tie_word_embeddings=False, bos_token_id=None,
                                 eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, **MODEL)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    source = random.Random(1)
    words = [token.strip() for token in (tokenizer.decode([i]) for i in range(300, 900)) if token.startswith(" ") and token.strip().isalpha()]

    def text(lengths):
        return " ".join(source.choices(words, k=source.randint(*lengths)))
    prompts, answers = DATA[kind]

    with open(os.path.join(folder, "pairs.jsonl"), "w", encoding="utf-8") as file:
        for _ in range(steps * pairs):
            file.write(json.dumps({"prompt": text(prompts), "chosen": " " + text(answers), "rejected": " " + text(answers)}) + "\n")


def peer(folder, method, steps, pairs):
    """Runs TRL; prints a line of JSON."""
    import datasets
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM, TrainerCallback
    from trl import DPOConfig, DPOTrainer
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    seconds = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            seconds.append(-time.perf_counter())

        def on_step_end(self, *_, **__):
            seconds[-1] += time.perf_counter()

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    options = {}
    if method.startswith("lora"):
        from peft import LoraConfig
        options["peft_config"] = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=TARGETS, task_type="CAUSAL_LM")
    config = DPOConfig(output_dir=os.path.join(folder, "trl"), per_device_train_batch_size=pairs, gradient_accumulation_steps=1, max_steps=steps, learning_rate=1e-4,
                       lr_scheduler_type="constant", max_grad_norm=1.0, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, bf16=False, fp16=False,
                       gradient_checkpointing=False, max_length=LENGTH, precompute_ref_log_probs=True, disable_tqdm=True, optim="adamw_torch_fused",
                       train_sampling_strategy="sequential", dataloader_num_workers=0)
    data = datasets.Dataset.from_list([json.loads(line) for line in open(os.path.join(folder, "pairs.jsonl"), encoding="utf-8")])
    trainer = DPOTrainer(model=model, args=config, train_dataset=data, processing_class=AutoTokenizer.from_pretrained(folder), callbacks=[Clock()], **options)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print("PEER_JSON " + json.dumps(dict(seconds=statistics.median(seconds[WARMUP:]) / pairs, loss=statistics.mean(losses), rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)))


def run_peer(folder, method, args):
    command = [sys.executable, os.path.abspath(__file__), "--peer", folder, method, "--steps", str(args.steps), "--pairs", str(args.pairs)]
    env = dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HOME=os.path.join(folder, "hf"), **MALLOC)
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"TRL failed at {method}: {done.stderr[-2000:]}")
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("PEER_JSON"))[10:])


def run_ours(folder, method, work, args):
    ranks, packs = 2, "--pack" in METHODS[method]
    command = [args.mpiexec, "-n", str(ranks), args.program, "--model", folder, "--train-data", os.path.join(folder, "pairs.jsonl"), "--objective", "dpo", "--no-shuffle",
               "--seq-len", str(LENGTH), "--batch-size", str(1 if packs else args.pairs // ranks), "--max-epochs", str(2 if packs else 1), "--lr", "1e-4", "--lr-schedule", "constant",
               "--warmup-steps", "0", "--warmup-ratio", "0", "--weight-decay", "0", "--clip-grad-norm", "1.0", "--out-dir", work, "--run-name", method, "--no-save",
               "--quiet", "--device", "cpu", *METHODS[method]]
    env = dict(os.environ, OMP_NUM_THREADS=str(max(1, len(os.sched_getaffinity(0)) // ranks)))
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit("fsdp-finetune failed: " + done.stderr)
    with open(os.path.join(work, method, "metrics.jsonl"), encoding="utf-8") as file:
        records = [r for r in map(json.loads, file) if "grad_norm" in r]
    first = records[:len(records) // 2] if packs else records
    seconds = [r["step_seconds"] for r in records]
    per_pair = sum(seconds[len(first):]) / (args.steps * args.pairs) if packs else statistics.median(seconds[WARMUP:]) / args.pairs
    return dict(seconds=per_pair, loss=statistics.mean(r["loss"] for r in first), rss=ranks * records[-1]["peak_rss_bytes"] / 1048576)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--peer", nargs=2, help=argparse.SUPPRESS)
    ap.add_argument("--methods", default=",".join(METHODS))
    ap.add_argument("--data", default=",".join(DATA))
    ap.add_argument("--reps", type=int, default=int(os.environ.get("BENCH_REPS", "3")))
    ap.add_argument("--steps", type=int, default=8)
    ap.add_argument("--pairs", type=int, default=4)
    ap.add_argument("--program", default=os.environ.get("FSDP_FINETUNE", os.path.join(ROOT, "build/bin/fsdp-finetune")))
    ap.add_argument("--mpiexec", default=os.environ.get("FSDP_MPIEXEC", "mpiexec"))
    args = ap.parse_args()
    if args.peer:
        return peer(*args.peer, args.steps, args.pairs)
    missing = [name for name in ("transformers", "peft", "trl") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: {', '.join(missing)} is not installed (see the head of this file)")
        sys.exit(77)
    print_machine(os.path.join(os.path.dirname(args.program), "fsdp-bf16check"))
    print(f"{'method':<12} {'theirs s/pair':>13} {'ours s/pair':>11}   {'times as fast':<20} {'RSS MB, theirs':>14} {'ours':>6}   mean loss")
    for kind in args.data.split(","):
        print(kind)
        with tempfile.TemporaryDirectory() as work:
            folder = os.path.join(work, "model")
            make_inputs(folder, kind, args.steps, args.pairs)
            for method in args.methods.split(","):
                turns = [(run_peer(folder, method, args), run_ours(folder, method, work, args)) for _ in range(args.reps)]
                print(f"{method:<12} {statistics.median(t['seconds'] for t, _ in turns):13.2f} {statistics.median(o['seconds'] for _, o in turns):11.2f}   "
                      f"{spread([t['seconds'] / o['seconds'] for t, o in turns]):<20} {max(t['rss'] for t, _ in turns):14.0f} {max(o['rss'] for _, o in turns):6.0f}   "
                      f"theirs {turns[0][0]['loss']:.4f}, ours {turns[0][1]['loss']:.4f}", flush=True)
    return None


if __name__ == "__main__":
    main()
