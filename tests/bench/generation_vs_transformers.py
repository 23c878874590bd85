#!/usr/bin/env python3
"""Generated tokens per second of fsdp-eval --prompts and of transformers' generate(), in batches and one prompt at a time, in one run, in turns.

The model is a random Llama whose weights dominate (--hidden, --layers: 150 million parameters), in float32, decoding is greedy. The prompts have 4 to 40
tokens; transformers pads them on the left. One at a time (--batch-size 1, whose products have 16 rows as those of any small batch) only the first --alone
prompts are measured. "batch" is one batch whose texts have all --tokens. "answers" are --answers prompts whose texts end as answers do, at lengths of their
own: one token in --ends of the vocabulary ends a text, as generation_config.json and eos_token_id say, and --longest tokens do. Loading is not measured.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from machine import print_machine

TOKENIZER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "chat", "tokenizers", "chatml")
VARIANTS = ("fsdp alone", "transformers alone", "fsdp batch", "transformers batch", "fsdp answers", "transformers answers")


def ends_of(options):
    return list(range(options.ends // 2, 8192, options.ends))


def make_model(folder, options):
    import torch
    import transformers
    torch.manual_seed(1)
    config = transformers.LlamaConfig(vocab_size=8192, hidden_size=options.hidden, intermediate_size=options.hidden * 11 // 4, num_hidden_layers=options.layers,
                                      num_attention_heads=options.hidden // 64, num_key_value_heads=options.hidden // 64, max_position_embeddings=1024,
                                      bos_token_id=None, eos_token_id=None, tie_word_embeddings=False)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    os.mkdir(f"{folder}-that-ends")
    for name in os.listdir(folder):
        os.link(f"{folder}/{name}", f"{folder}-that-ends/{name}") if name != "generation_config.json" else None
    for name, values in ((folder, {}), (f"{folder}-that-ends", {"eos_token_id": ends_of(options)})):
        with open(f"{name}/generation_config.json", "w", encoding="utf-8") as file:
            json.dump(values, file)
    return sum(parameter.numel() for parameter in model.parameters())


def write_prompts(path, tokenizer, count):
    import random
    source = random.Random(3)
    words = [token for token in (tokenizer.decode([i]) for i in range(300, 900)) if token.startswith(" ") and token.strip().isalpha()]
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(count):
            file.write(json.dumps({"prompt": "".join(source.choices(words, k=source.randint(4, 40)))}) + "\n")


def fsdp(folder, options, prompts, batch, ends):
    command = [os.path.join(os.path.dirname(os.environ["FSDP_FINETUNE"]), "fsdp-eval"), f"{folder}/model{'-that-ends' if ends else ''}", "--tokenizer", TOKENIZER, "--prompts", prompts,
               "--output", f"{folder}/results", "--overwrite", "--batch-size", str(batch), "--num-tokens", str(options.longest if ends else options.tokens), "--temperature", "0", "--json",
               "--quiet", "--device", "cpu"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=dict(os.environ, OMP_NUM_THREADS=str(options.threads)))
    report = json.loads(done.stdout)["prompts"]
    return report["tokens"] / report["seconds"]


def length_of(ids, ends):
    """Returns how many ids a text has, its end included: what follows is padding."""
    return next((i + 1 for i, one in enumerate(ids) if one in ends), len(ids))


def of_transformers(model, tokenizer, options, prompts, batch, ends):
    import torch
    with open(prompts, encoding="utf-8") as file:
        texts = [json.loads(line)["prompt"] for line in file]
    start, count = time.perf_counter(), 0
    with torch.inference_mode():
        for first in range(0, len(texts), batch):
            inputs = tokenizer(texts[first:first + batch], return_tensors="pt", padding=True)
            out = model.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], do_sample=False, pad_token_id=0,
                                 **({"max_new_tokens": options.longest, "eos_token_id": sorted(ends)} if ends else {"max_new_tokens": options.tokens}))
            count += sum(length_of(ids, ends) for ids in out[:, inputs["input_ids"].shape[1]:].tolist())
    if ends:
        print(f"{len(texts)} texts of {count / len(texts):.0f} tokens on average, the longest {options.longest}")
    return count / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--alone", type=int, default=4, help="prompts that are measured one at a time")
    parser.add_argument("--tokens", type=int, default=48, help="of each text")
    parser.add_argument("--answers", type=int, default=64)
    parser.add_argument("--ends", type=int, default=48)
    parser.add_argument("--longest", type=int, default=160)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=11)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
    import torch
    import transformers
    torch.set_num_threads(options.threads)
    print_machine()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}; {options.threads} threads; load average {os.getloadavg()[0]:.1f}")
    rates = {variant: [] for variant in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        count = make_model(f"{folder}/model", options)
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{TOKENIZER}/tokenizer.json", padding_side="left", pad_token="<|endoftext|>")
        model = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/model").eval()
        prompts = {"alone": f"{folder}/alone.jsonl", "batch": f"{folder}/batch.jsonl", "answers": f"{folder}/answers.jsonl"}
        for kind, number in (("alone", options.alone), ("batch", options.batch), ("answers", options.answers)):
            write_prompts(prompts[kind], tokenizer, number)
        print(f"Llama of {count / 1e6:.0f} million parameters, float32; {options.tokens} tokens after each prompt; batches of {options.batch}", flush=True)
        for turn in range(options.reps):
            for variant in VARIANTS:
                program, kind = variant.split()
                batch = options.batch if kind != "alone" else 1
                ends = set(ends_of(options)) if kind == "answers" else set()
                rates[variant].append(fsdp(folder, options, prompts[kind], batch, ends) if program == "fsdp" else
                                      of_transformers(model, tokenizer, options, prompts[kind], batch, ends))
            print(f"turn {turn + 1}: " + "; ".join(f"{variant} {rates[variant][-1]:.1f}" for variant in VARIANTS) + " tokens/s", flush=True)
    for variant, found in rates.items():
        print(f"{variant}: {statistics.median(found):.1f} tokens/s ({min(found):.1f} to {max(found):.1f})")
    for above, below in (("fsdp batch", "fsdp alone"), ("transformers batch", "transformers alone"), ("fsdp batch", "transformers batch"),
                         ("fsdp alone", "transformers alone"), ("fsdp answers", "transformers answers")):
        ratios = [a / b for a, b in zip(rates[above], rates[below])]
        print(f"{above} over {below}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"load average at the end: {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
