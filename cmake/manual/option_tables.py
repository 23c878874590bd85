#!/usr/bin/env python3
"""Writes the tables of options and of variables in docs/ from the programs' --describe-options. A page marks them so:

    <!-- options: fsdp-finetune / Data and steps -->
    <!-- end of options -->
    <!-- variables: programs -->
    <!-- end of variables -->

option_tables.py --bin FOLDER --source FOLDER [--write]     reports stale tables (1) without --write
"""

import argparse
import pathlib
import re
import sys

import completion
import make

TABLE = re.compile(r"(<!-- options: ([\w -]+) / ([^\n]+) -->\n).*?(<!-- end of options -->)", re.S)
VARIABLES = re.compile(r"(<!-- variables: (\w+) -->\n).*?(<!-- end of variables -->)", re.S)
BOUND = 1e6  # a range beyond it only guards against overflow


def values(option):
    """Returns " N" for what follows the name of an option, "" for a flag."""
    if option["flag"]:
        return ""
    kinds = {"INT": "N", "UINT": "N", "FLOAT": "X", "TEXT": "WORD" if option["choices"] else "TEXT"}
    if option["path"]:
        kinds["TEXT"] = "DIR" if option["path"] == "folder" else "PATH"
    return " " + kinds.get(option["type"], option["type"] or "PATH") + "..." * option["several"]


def pattern_of(option):
    """Returns a regular expression for the words that the option takes, the longest first."""
    words = sorted(option["choices"] + option["suggestions"], key=len, reverse=True)
    return "|".join(map(re.escape, words))


def code(text, option, program):
    """Marks names of options with their words, the option's own words, files and identifiers as code."""
    words = pattern_of(option)
    taken = {name: pattern_of(o) for o in program["options"] for name in o["names"] if name.startswith("--")}
    known = "|".join(
        f"{name}(?: (?:{taken[name]})(?![\\w-]))?" if taken[name] else name
        for name in sorted(taken, key=len, reverse=True)
    )
    marked = [
        rf"(?<![\w-])(?:fsdp-[\w-]+ )?(?:{known}|--[a-z][\w-]*)(?![\w-])(?: (?:{known})(?![\w-]))*",
        r"[\w.]*\w_\w[\w.]*(?:,'[^']*')?|'[^' ]*[*=][^' ]*'",
        r"(?<!\w)[\w*-]*\.(?:json|jsonl|pt|pth|bin|safetensors|svg|png|model)\b",
        r"\b[A-Z]+[/=][A-Z]+(?:[,/][\w=]+)?(?:\[@REVISION\])?|\[H:\]M:S",
        *([rf"(?<![\w-])(?:{words})(?=[,:;)]| \(| or |$)"] if words else []),
    ]
    return re.sub("|".join(marked), lambda m: f"`{m[0]}`", text).replace("|", "\\|").replace("<", "&lt;")


def defaults(option):
    """Returns the description without the defaults that it names, the default, and the default of fine-tuning."""
    text, value = option["description"], option["default"].strip("[]").replace(",", " ")
    tuned = re.search(r" \(fine-tuning: ([^)]*)\)", text)
    text, _, said = text.replace(tuned[0] if tuned else "", "").partition("; default: ")
    value = "on" if value == "true" else value
    return text, (value if re.fullmatch(r"[-\d. e]+|on|", value) else f"`{value}`") or said, tuned[1] if tuned else ""


def row(option, program):
    text, default, tuned = defaults(option)
    bounds = [abs(number) for number in option["bounds"].values()]
    if bounds and max(bounds) < BOUND:
        text += f" ({option['range']})"
    spelled = option["names"][:1] if option["names"][0] == "-h" else []
    spelled += sorted(completion.spellings(option), key=lambda name: name.startswith("--no-"))
    names = ", ".join(f"`{name}{values(option)}`" for name in spelled)
    default = "; ".join(([default] if default else []) + ([f"fine-tuning: {tuned}"] if tuned else []))
    cells = [names, default if "`" in default else code(default, option, program), code(text, option, program)]
    return "| " + " | ".join(cells).replace("|  |", "| |") + " |\n"


def table(program, group):
    rows = [row(o, program) for o in program["options"] if o["group"] == group and not o["positional"]]
    if not rows:
        sys.exit(f"{program['name']} has no options '{group}'")
    return "| option | default | |\n|---|---|---|\n" + "".join(rows)


def variable_row(variable):
    words = variable["choices"]
    marked = [r"\b(?:FSDP|ONEDNN)_\w+(?:=[\w.]+)?", r"~/[\w./]+", r"--[a-z][\w-]*(?:=[\w.]+| nvme:DIR)?"]
    marked += [rf"\b(?:{'|'.join(words)})(?=:| is | computes | needs )"] if words else []
    text = re.sub("|".join(marked), lambda m: f"`{m[0]}`", variable["meaning"])
    more = f" ([more]({variable['page']}))" if variable["page"] else ""
    cells = [f"`{variable['name']}`", ", ".join(f"`{word}`" for word in words), text + more]
    return "| " + " | ".join(cells).replace("|  |", "| |") + " |\n"


def table_of_variables(program, reader):
    rows = [variable_row(v) for v in program["variables"] if v["reader"] == reader]
    if not rows:
        sys.exit(f"{program['name']} has no variables of {reader}")
    return "| variable | values | |\n|---|---|---|\n" + "".join(rows)


def renewed(text, programs):
    """Returns the page's text with the tables as the programs have them now."""
    program = programs["fsdp-finetune"]  # all list the same variables
    text = VARIABLES.sub(lambda m: m[1] + table_of_variables(program, m[2]) + m[3], text)
    return TABLE.sub(lambda m: m[1] + table(programs[m[2]], m[3]) + m[4], text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bin", "source"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--write", action="store_true")
    o = parser.parse_args()
    programs = {words: make.describe(o.bin, words) for words in make.PROGRAMS}
    stale = []
    for page in sorted((o.source / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = renewed(text, programs)
        if new == text:
            continue
        stale.append(page.name)
        if o.write:
            page.write_text(new, encoding="utf-8")
    if stale:
        print(("written: " if o.write else "stale tables (--write renews them): ") + ", ".join(stale))
    return 1 if stale and not o.write else 0


if __name__ == "__main__":
    sys.exit(main())
