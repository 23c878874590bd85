#!/usr/bin/env python3
"""Fails on names of the programs' options in string literals of lib/, on UsageError in lib/checkpoints and lib/formats, and on
remedies that nobody names: the library says what is wrong and names a remedy, and the programs have the words (apps/common/remedies.cpp).

    option_words.py [--root DIR]      the repository by default
    option_words.py --print           the literals of the files that may have them
"""
import argparse
import pathlib
import re
import sys

# Files and folders that may name options, each with its reason.
ALLOWED = {
    "lib/base/process/scheduler.cpp": "options of srun and mpiexec",
    "lib/base/process/variables.cpp": "tables of docs: what a variable stands for",
    "lib/reports/runs": "pages of runs print whole commands",
    "lib/training/run/restart_command.cpp": "prints a whole command",
    "lib/hub/snapshot_store.cpp": "prints the whole command that fetches a repository",
    "lib/planning/speed/speed_outcome.cpp": "an option of srun",
    "lib/engine/runtime/model_runtime.cpp": "an option of srun",
    "lib/engine/collectives/nccl/nccl_advice.hpp": "options of containers",
    "lib/documents/unpacked_file.cpp": "options of zstd",
    "lib/engine/optim/optimizers.cpp": "the help of an optimizer's own options",
    "lib/ranks": "messages of ranks that end without their program; an option of docker",
    "lib/engine/collectives/nccl/nccl_collectives.cpp": "messages of ranks that end without their program",
    "lib/formats/arrow/plugin": "the plugin's C interface carries text alone",
    "lib/models/config/adapter_config.cpp": "remarks on an input are kept as text",
}
LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')
OPTION = re.compile(r"(?<![\w-])--[a-z]")
NO_USAGE_ERROR = ("lib/checkpoints/", "lib/formats/")
REMEDIES = "lib/base/types/remedy.hpp"


def place_of(name):
    return next((place for place in ALLOWED if name == place or name.startswith(place + "/")), None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--print", action="store_true")
    arguments = parser.parse_args()
    complaints, used, named = [], set(), set()
    for path in sorted((arguments.root / "lib").rglob("*")):
        if path.suffix not in (".cpp", ".hpp", ".inc"):
            continue
        name = path.relative_to(arguments.root).as_posix()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.lstrip().startswith("//"):
                continue
            named.update(re.findall(r"\bRemedy::(\w+)", line))
            if "UsageError" in line and name.startswith(NO_USAGE_ERROR):
                complaints.append(f"{name}:{number}: UsageError is about options: throw RequestError or FormatError")
            for literal in LITERAL.findall(line):
                if not OPTION.search(literal):
                    continue
                place = place_of(name)
                if place is None:
                    complaints.append(f"{name}:{number}: {literal} names an option: give the error a Remedy ({REMEDIES})")
                else:
                    used.add(place)
                    if arguments.print:
                        print(f"{name}:{number}: {literal}")
    remedies = arguments.root / REMEDIES
    if remedies.exists():
        text = re.sub(r"//.*", "", remedies.read_text(encoding="utf-8"))
        for remedy in re.findall(r"^\s*(\w+),", text[text.index("enum class"):], re.M):
            if remedy not in named and remedy != "none":
                complaints.append(f"{REMEDIES}: nothing in lib names the remedy {remedy}")
        complaints += [f"{place}: names no option any more: take it out of the list" for place in ALLOWED if place not in used]
    print("\n".join(complaints), end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
