"""Makes the bash completion from the programs' option descriptions."""

import shlex

# Kinds of text values: a file or folder, a folder, or free words without completion. tests/install/manual_test.py fails
# when a text option is in none of these sets and has no choices.
FILES = {
    "--model",
    "--tokenizer",
    "--train-data",
    "--val-data",
    "--val-chess",
    "--data",
    "--chess",
    "--config",
    "--adapter",
    "--restart",
    "--save-final-full",
    "--trace",
    "--exclude-file",
    "--calibration",
    "--plan",
    "--plot",
    "--input",
    "--output",
    "--compare",
    "--model-config",
    "--reference",
    "--param-shapes",
    "--optim-files",
}
FOLDERS = {
    "--out-dir",
    "--save-final-adapter",
    "--save-final-hf",
    "--cache-dir",
    "--local-dir",
    "--merge-adapter",
    "--runs",
    "--watch",
    "--config-from",
}
FREE = {
    "--data-field",
    "--field",
    "--run-name",
    "--time-limit",
    "--prompt",
    "--system",
    "--sample-prompt",
    "--keep-best",
    "--freeze",
    "--train-only",
    "--gate",
    "--revision",
    "--include",
    "--exclude",
    "--rename",
    "--tie",
    "--max-shard-size",
    "--memory",
    "--cuda-context",
    "--nccl-buffers",
    "--margin",
    "--lora-targets",
}
# Words that the program checks only when a job starts.
WORDS = {
    "--sort": ["last-loss", "validation", "tokens/s", "s/step", "memory", "lr", "steps"],
    "--form": ["auto", "text", "prompt-completion", "messages"],
    "--data-form": ["auto", "text", "prompt-completion", "messages"],
    "--chat-template": ["chatml", "qwen2", "qwen2.5", "llama3", "llama2", "mistral", "gemma", "gemma3"],
    "--train-on": ["answers", "all"],
    "--pairs": ["joint", "separate"],
    "--marks": ["tokens", "plain"],
    "--final": ["last", "best"],
    "--to": ["torch", "safetensors", "hf", "dcp"],
    "--map": ["mingpt-to-gpt2", "gpt2-to-mingpt", "llama-to-hf", "hf-to-llama", "hf-to-meta", "none"],
    "--dtype": ["float32", "bf16", "fp16"],
    "--gpu": [
        "a100-40g",
        "a100-80g",
        "h100",
        "h200",
        "b200",
        "gh200-96g",
        "v100-16g",
        "v100-32g",
        "l40s",
        "l4",
        "a40",
        "a10",
        "a30",
        "t4",
        "rtx-3090",
        "rtx-4090",
    ],
}
# Words that one program accepts in addition to the option's usual words.
MORE = {
    "fsdp-memprobe --sharding": ["all"],
    "fsdp-memprobe --precision": ["all"],
    "fsdp-memprobe --activation-checkpointing": ["both"],
}
# Kinds of positional arguments.
POSITIONALS = {"fsdp-eval": "file", "fsdp-ckpt-convert": "file"}


def spellings(option):
    """Returns the spellings with dashes; the completion script derives those with underscores."""
    return [name for name in option["names"] if name.startswith("--") and "_" not in name]


def words_of(option):
    return option["choices"] or next((WORDS[name] for name in spellings(option) if name in WORDS), [])


def kind_of(option):
    for kind, known in (("file", FILES), ("folder", FOLDERS), ("free", FREE)):
        if known & set(option["names"]):
            return kind
    return None


def entries(program):
    """Returns the lines that fill the tables of the template for one program."""
    name, named = program["name"], [option for option in program["options"] if not option["positional"]]
    flat = lambda options: " ".join(name for option in options for name in spellings(option))
    lines = [
        f"_fsdp_options[{shlex.quote(name)}]={shlex.quote(flat(named))}",
        f"_fsdp_flags[{shlex.quote(name)}]={shlex.quote(flat(option for option in named if option['flag']))}",
    ]
    for option in named:
        for spelling in spellings(option):
            key = shlex.quote(f"{name} {spelling}")
            # Complete only "size:" of "size:N".
            words = [word[: word.index(":") + 1] if ":" in word else word for word in words_of(option)]
            words += MORE.get(f"{name} {spelling}", [])
            if words:
                lines.append(f"_fsdp_words[{key}]={shlex.quote(' '.join(words))}")
            if kind_of(option) in ("file", "folder"):
                lines.append(f"_fsdp_paths[{key}]={kind_of(option)}")
    if name in POSITIONALS:
        lines.append(f"_fsdp_paths[{shlex.quote(name + ' ')}]={POSITIONALS[name]}")
    return lines


def make(programs, template):
    data = "\n".join(line for program in programs for line in entries(program))
    names = " ".join(dict.fromkeys(program["name"].split()[0] for program in programs))
    return template.replace("@DATA@", data).replace("@PROGRAMS@", names)
