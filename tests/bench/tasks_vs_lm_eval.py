#!/usr/bin/env python3
"""Benchmarks (fsdp-eval --tasks) and lm-eval with its hf model: seconds for the same tasks on the same model, in turns, and peak memory.

The model is a random Llama (--hidden, --layers: 44 million parameters) in float32. "choices" are --questions of HellaSwag's form (a context of 30 to 70 words,
four endings of 5 to 20), "letters" of MMLU's (five examples, the same for all questions, four answers of one token), "answers" --prompts of GSM8K's (two examples, up to 64 tokens). Loading is
not measured: lm-eval's evaluate(), and of fsdp-eval what it reports, which has the making of prompts in both. lm_eval 0.4.13 must be importable:
pip install --no-deps --target DIR lm_eval==0.4.13 and what it imports, then FSDP_LM_EVAL=DIR. Log-likelihoods of both are compared.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

from generation_vs_transformers import TOKENIZER
from machine import print_machine

TASKS = ("choices", "letters", "answers")


def make_model(folder, options):
    import torch
    import transformers
    torch.manual_seed(1)
    config = transformers.LlamaConfig(vocab_size=8192, hidden_size=options.hidden, intermediate_size=options.hidden * 11 // 4, num_hidden_layers=options.layers,
                                      num_attention_heads=options.hidden // 64, num_key_value_heads=options.hidden // 64, max_position_embeddings=2048,
                                      tie_word_embeddings=False)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(TOKENIZER)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters()), tokenizer


def make_tasks(folder, tokenizer, options):
    source = random.Random(3)
    words = [token.strip() for token in (tokenizer.decode([i]) for i in range(300, 900)) if token.startswith(" ") and token.strip().isalpha()]

    def text(least, most):
        return " ".join(source.choices(words, k=source.randint(least, most)))

    rows = {"choices": [{"q": text(30, 70), "c": [text(5, 20) for _ in range(4)], "a": source.randrange(4)} for _ in range(options.questions)],
            "letters": [{"q": text(10, 40), "c": [text(2, 6) for _ in range(4)], "a": source.randrange(4)} for _ in range(options.questions)],
            "shots": [{"q": text(10, 40), "c": [text(2, 6) for _ in range(4)], "a": source.randrange(4)} for _ in range(5)],
            "answers": [{"q": text(10, 30), "a": text(1, 3)} for _ in range(options.prompts)]}
    multiple = {"output_type": "multiple_choice", "doc_to_target": "a", "metric_list": [{"metric": "acc"}]}
    more = {"choices": {**multiple, "doc_to_text": "{{q}}", "doc_to_choice": "c"},
            "letters": {**multiple, "doc_to_text": "{{q}}\nA. {{c[0]}}\nB. {{c[1]}}\nC. {{c[2]}}\nD. {{c[3]}}\nAnswer:", "doc_to_choice": ["A", "B", "C", "D"], "num_fewshot": 5,
                        "fewshot_split": "dev", "fewshot_config": {"sampler": "first_n"}},
            "answers": {"output_type": "generate_until", "doc_to_text": "Question: {{q}}\nAnswer:", "doc_to_target": "a", "num_fewshot": 2,
                        "generation_kwargs": {"until": ["Question:"], "do_sample": False, "max_gen_toks": 64}, "metric_list": [{"metric": "exact_match"}]}}
    for name, of_task in rows.items():
        with open(f"{folder}/{name}.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in of_task)
    for name in TASKS:
        files = {"test": f"{folder}/{name}.jsonl"} | ({"dev": f"{folder}/shots.jsonl"} if name == "letters" else {})
        with open(f"{folder}/{name}.yaml", "w", encoding="utf-8") as file:
            json.dump({"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": files}, "test_split": "test", **more[name]}, file)


def measured(command, env):
    """Runs a child; returns its JSON and its peak memory in MiB."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as process:
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return json.loads(out), usage.ru_maxrss / 1024


def fsdp(folder, task, options, env):
    log = f"{folder}/{task}.samples"
    report, memory = measured([os.path.join(os.path.dirname(os.environ["FSDP_FINETUNE"]), "fsdp-eval"), f"{folder}/model", "--tasks", f"{folder}/{task}.yaml", "--json", "--quiet",
                               "--device", "cpu", "--batch-size", str(options.batch_size), "--log-samples", log], env)
    with open(log, encoding="utf-8") as file:
        answers = [json.loads(line)["resps"] for line in file]
    return report["tasks_seconds"], memory, answers


def lm_eval(folder, task, options, env):
    report, memory = measured([sys.executable, os.path.abspath(__file__), "--lm-eval", folder, task, "--batch-size", str(options.batch_size)], env)
    return report["seconds"], memory, report["answers"]


def lm_eval_alone(folder, task, batch_size):
    import contextlib
    import lm_eval as package
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    with contextlib.redirect_stdout(sys.stderr):
        model = HFLM(pretrained=f"{folder}/model", device="cpu", dtype="float32", batch_size=batch_size)
        manager = TaskManager(include_path=folder, include_defaults=False)
        start = time.perf_counter()
        results = package.simple_evaluate(model=model, tasks=[task], task_manager=manager, bootstrap_iters=0, log_samples=True)
        seconds = time.perf_counter() - start
    answers = [sample["resps"] for sample in results["samples"][task]]
    print(json.dumps({"seconds": seconds, "answers": answers}))


def farthest(ours, theirs):
    """The largest distance of two log-likelihoods; of texts the share that is equal."""
    if isinstance(ours[0][0][0], str):
        return f"{sum(one == other for one, other in zip(ours, theirs)) / len(ours):.0%} of texts equal"
    return f"log-likelihoods at most {max(abs(float(a[0][0]) - b[0][0]) for one, other in zip(ours, theirs) for a, b in zip(one, other)):.1e} apart"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--lm-eval", nargs=2, metavar=("FOLDER", "TASK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.lm_eval:
        return lm_eval_alone(*options.lm_eval, options.batch_size)
    if "FSDP_LM_EVAL" not in os.environ:
        sys.exit("set FSDP_LM_EVAL to the folder with lm_eval 0.4.13 (see --help)")
    env = dict(os.environ, OMP_NUM_THREADS=str(options.threads), PYTHONPATH=os.environ["FSDP_LM_EVAL"], HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        count, tokenizer = make_model(f"{folder}/model", options)
        make_tasks(folder, tokenizer, options)
        print(f"Llama {options.layers} x {options.hidden}, {count / 1e6:.0f} million parameters, float32, batch size {options.batch_size}, {options.threads} threads")
        for task in TASKS:
            ratios, memory, ours, theirs, seconds = [], [], None, None, []
            for turn in range(options.rounds):
                order = (fsdp, lm_eval) if turn % 2 == 0 else (lm_eval, fsdp)
                result = {run.__name__: run(folder, task, options, env) for run in order}
                ours, theirs = result["fsdp"][2], result["lm_eval"][2]
                ratios.append(result["lm_eval"][0] / result["fsdp"][0])
                seconds.append((result["fsdp"][0], result["lm_eval"][0]))
                memory.append((result["fsdp"][1], result["lm_eval"][1]))
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            print(f"{task:8}  {statistics.median(s[0] for s in seconds):6.2f} s   lm-eval {statistics.median(s[1] for s in seconds):6.2f} s   {statistics.median(ratios):.2f} times as fast "
                  f"({spread})   memory {max(m[0] for m in memory):.0f} MiB, lm-eval {max(m[1] for m in memory):.0f} MiB   {farthest(ours, theirs)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
