"""Random adapters made by peft on random small models: fsdp-eval, the first step of fsdp-finetune, and transformers with the
model that fsdp-ckpt-convert merges have peft's loss, or all three refuse the adapter by name."""
import collections
import json
import re
import shutil
import os
import warnings

os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
import configs_cases
import peft
import programs
import torch
import transformers

transformers.utils.logging.disable_progress_bar()

warnings.simplefilter("ignore")
BATCH = 2
FOLDER = configs_cases.FOLDER / "peft"
counts = collections.Counter()
# Sums of float32 in another order; a merge rounds to float32.
TOLERANCE = 5e-5
MODULES = {"gpt2": ["c_attn", "attn.c_proj", "mlp.c_fc", "c_proj", "mlp.c_proj", "wte", "wpe", "lm_head"], "falcon": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h", "word_embeddings", "lm_head"],
           "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj", "embed_tokens", "lm_head"]}
LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "self_attn.q_proj", "mlp.up_proj", "layers.0.self_attn.v_proj", "model.layers.0.mlp.down_proj", "embed_tokens", "lm_head"]
NORMS = {"gpt2": ["ln_f", "ln_1"], "falcon": ["ln_f", "input_layernorm"]}
SAVED = {"gpt2": ["wte", "lm_head", "wpe", "c_fc", "score"], "falcon": ["word_embeddings", "lm_head", "dense", "score"], "": ["score", "lm_head", "embed_tokens", "norm", "input_layernorm", "q_proj", "o_proj"]}


def pattern_key(r, name):
    return r.choice([name, name, name.split(".")[-1], rf".*{name}", rf"^model\.layers\.0\..*{name}", rf"layers.0.*{name}"])


def generate(r):
    family = r.choice(configs_cases.FAMILIES)
    config = configs_cases.base_config(r, family)
    config["tie_word_embeddings"] = r.random() < 0.4  # for all families
    if family == "gpt2":
        config["tie_word_embeddings"] = True
    names = MODULES.get(family, LLAMA)
    targets = r.sample(names, r.choice([1, 1, 2, 3, 4]))
    if r.random() < 0.8:  # embeddings and heads have rules of their own
        targets = [name for name in targets if name not in ("embed_tokens", "lm_head", "wte", "wpe", "word_embeddings")] or [names[0]]
    # The type of lora_alpha is int in peft; other programs write fractions.
    options = {"r": r.choice([1, 2, 3, 4]), "lora_alpha": r.choice([1, 2, 8, 16]), "target_modules": targets}
    flag = lambda p: r.random() < p
    if flag(0.15):
        options["target_modules"] = r.choice(["all-linear", ".*(q_proj|v_proj|c_attn|dense|qkv_proj)", r".*\.(0|2)\..*(proj|fc|attn)", ".*proj$"])
    if flag(0.15):
        options["exclude_modules"] = r.choice([[names[0]], [names[1]], ".*layers.0.*", r".*\.1\..*", ["lm_head"]])
    if flag(0.25):
        options["rank_pattern"] = {pattern_key(r, r.choice(names[:4])): r.choice([1, 2, 5]) for _ in range(r.choice([1, 2]))}
    if flag(0.25):
        options["alpha_pattern"] = {pattern_key(r, r.choice(names[:4])): r.choice([1, 3, 32]) for _ in range(r.choice([1, 2]))}
    if flag(0.25):
        options["use_rslora"] = True
    if flag(0.25):
        options["use_dora"] = True
    if flag(0.25):
        saved = SAVED.get(family, SAVED[""])
        options["modules_to_save"] = r.sample(saved + NORMS.get(family, []), r.choice([1, 1, 2]))
    if flag(0.15):
        options["bias"] = r.choice(["all", "lora_only"])
    if flag(0.15):
        options["layers_to_transform"] = r.choice([0, [0], [1], [0, 1]])
        if flag(0.5):
            options["layers_pattern"] = r.choice(["layers", "h", ["layers"], "blocks"])
    if flag(0.1):
        options["lora_bias"] = True
    if flag(0.1):
        options["init_lora_weights"] = r.choice(["gaussian", "orthogonal", False, "olora", "pissa"])
    if flag(0.1):
        options["trainable_token_indices"] = r.choice([[1, 5], {"embed_tokens": [2, 3]}, {"lm_head": [4]}])
    if flag(0.08):
        options["ensure_weight_tying"] = True
    if flag(0.03):
        options["fan_in_fan_out"] = True
    return {"config": config, "options": options, "tokens": [r.randrange(config["vocab_size"]) for _ in range(20)]}


def loss_of(model, ids):
    with torch.no_grad():
        return model(input_ids=ids, labels=ids).loss.item()


def make(case, folder):
    """Writes a model and an adapter; returns peft's loss."""
    configs_cases.make({"config": case["config"], "changes": {}, "without": [], "tokens": case["tokens"]}, folder / "model")
    options = {**case["options"], **({"fan_in_fan_out": True} if case["config"]["model_type"] == "gpt2" else {})}
    model = peft.get_peft_model(open_model(folder / "model"), peft.LoraConfig(task_type="CAUSAL_LM", **options))
    generator = torch.Generator().manual_seed(2)
    for name, value in model.named_parameters():
        if value.requires_grad and "magnitude" not in name:
            value.data += 0.3 * torch.randn(value.shape, generator=generator) * (value.shape[-1] ** -0.5 if value.dim() > 1 else 1)
        elif value.requires_grad:
            value.data *= 1 + 0.2 * torch.rand(value.shape, generator=generator)
    model.save_pretrained(folder / "adapter")
    opened = peft.PeftModel.from_pretrained(open_model(folder / "model"), folder / "adapter").eval()
    return loss_of(opened, torch.tensor([case["tokens"]]))


def open_model(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def ours(case, folder):
    """Returns the loss, or the refusal, of each way to use the adapter."""
    data = programs.write_documents(folder / "data.h5", [case["tokens"]])
    found = {}
    common = ["--device", "cpu"]
    model, adapter = folder / "model", folder / "adapter"
    result = programs.run("fsdp-eval", [model, "--adapter", adapter, "--json", "--precision", "float32", "--data", data, *common])
    found["evaluation"] = result.json()["loss"] if result.code == 0 else result
    dropout = ["--dropout", 0] if case["config"]["model_type"] == "gpt2" else []
    result = programs.run("fsdp-finetune", ["--model", model, "--adapter", adapter, "--train-data", data, "--out-dir", folder / "runs", "--run-name", "run", "--max-steps", 1, "--batch-size", 1, "--lr", 0, "--weight-decay", 0,
                                            "--no-save", "--no-shuffle", "--precision", "fp32", *dropout, *common])
    metrics = folder / "runs" / "run" / "metrics.jsonl"
    found["training"] = next(json.loads(line)["loss"] for line in metrics.read_text().splitlines() if "loss" in json.loads(line)) if result.code == 0 else result
    result = programs.run("fsdp-ckpt-convert", [model, folder / "merged", "--merge-adapter", adapter, "--to", "hf", "--quiet"])
    found["merge"] = loss_of(open_model(folder / "merged"), torch.tensor([case["tokens"]])) if result.code == 0 else result
    return found


def difference(case, number):
    folder = FOLDER / str(number)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        real = make(case, folder)
    except KeyError:
        return None
    except Exception as error:
        counts[f"refused by peft ({type(error).__name__})"] += 1
        return None
    found = ours(case, folder)
    refused = {name: result for name, result in found.items() if not isinstance(result, float)}
    shown = "\n".join(f"{name}: {result if isinstance(result, float) else result.err.strip()}" for name, result in found.items())
    shown = f"\nfamily {case['config'].get('model_type')}, {case['options']}\npeft {real}\n{shown}"
    for name, result in refused.items():
        if result.code != 4 or len(result.errors()) != 1 or "adapter" not in result.err:
            return f"a refusal by {name} that does not name the adapter, exit code {result.code}{shown}"
    wrong = [name for name, result in found.items() if name not in refused and not abs(result - real) < TOLERANCE * max(1, abs(real))]
    counts["compared" if not refused else "refused by ours"] += 1
    if "merge" in refused and re.search("parts the head of a GPT-2|no bias in the base that it could be added to", refused["merge"].err):
        refused.pop("merge")
        counts["refused by a merge that has no place for it (docs/adapters.md)"] += 1
        found.pop("merge")
    if refused.keys() == {"evaluation", "training"} and all("which only a merge takes" in result.err for result in refused.values()):
        counts["DoRA of a head, which only a merge takes (docs/adapters.md)"] += 1
        refused = {}
    if wrong:
        return f"losses differ: {' '.join(wrong)}{shown}"
    if refused and len(refused) < len(found):
        return f"refused only by {' '.join(refused)}{shown}"
    return None


def differences(cases):
    return [difference(case, number) for number, case in enumerate(cases)]


def summary():
    return ", ".join(f"{count} {what}" for what, count in counts.items())


KNOWN = []
