"""Makes the bash completion from the programs' option descriptions."""

import shlex

# Kinds of positional arguments.
POSITIONALS = {"fsdp-eval": "file", "fsdp-ckpt-convert": "file"}


def spellings(option):
    """Returns the spellings with dashes; the completion script derives those with underscores."""
    return [name for name in option["names"] if name.startswith("--") and "_" not in name]


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
            words = option["choices"] + option["suggestions"]
            words = [word[: word.index(":") + 1] if ":" in word else word for word in words]
            if words:
                lines.append(f"_fsdp_words[{key}]={shlex.quote(' '.join(words))}")
            if option["path"]:
                lines.append(f"_fsdp_paths[{key}]={option['path']}")
    if name in POSITIONALS:
        lines.append(f"_fsdp_paths[{shlex.quote(name + ' ')}]={POSITIONALS[name]}")
    return lines


def make(programs, template):
    data = "\n".join(line for program in programs for line in entries(program))
    names = " ".join(dict.fromkeys(program["name"].split()[0] for program in programs))
    return template.replace("@DATA@", data).replace("@PROGRAMS@", names)
