#!/usr/bin/env python3
"""Writes manual pages and bash completion from the programs' option descriptions (--describe-options) and from docs/.

make.py --bin FOLDER --source FOLDER --out FOLDER
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

import completion
import man_page

PROGRAMS = (
    "fsdp-download",
    "fsdp-download tokens",
    "fsdp-finetune",
    "fsdp-eval",
    "fsdp-ckpt-convert",
    "fsdp-bf16check",
    "fsdp-memprobe",
)


def describe(folder, words):
    program, *rest = words.split()
    run = subprocess.run([folder / program, *rest, "--describe-options"], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(
            f"{words} --describe-options ended with {run.returncode}: {run.stderr}"
            "-D FSDP_MANUAL=OFF builds without manual pages where the programs cannot run"
        )
    return {**json.loads(run.stdout), "name": words}


def release_date(changelog):
    """Returns the date of the newest release, so that a page does not depend on the day of the build."""
    return re.search(r"^## \[\d[^\]]*\] - (\d{4}-\d\d-\d\d)", changelog, re.M)[1]


def main():
    parser = argparse.ArgumentParser()
    for name in ("bin", "source", "out"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    o = parser.parse_args()
    programs = [describe(o.bin, words) for words in PROGRAMS]
    docs = {page.stem: page.read_text(encoding="utf-8") for page in (o.source / "docs").glob("*.md")}
    date = release_date((o.source / "CHANGELOG.md").read_text(encoding="utf-8"))
    (o.out / "man").mkdir(parents=True, exist_ok=True)
    (o.out / "completion").mkdir(parents=True, exist_ok=True)
    for program in programs:
        name = program["name"].replace(" ", "-")
        page = man_page.make(program, docs[name], docs["exit-codes"], date, PROGRAMS)
        (o.out / "man" / f"{name}.1").write_text(page, encoding="utf-8")
    template = (pathlib.Path(__file__).parent / "completion.bash.in").read_text(encoding="utf-8")
    (o.out / "completion" / "fsdp").write_text(completion.make(programs, template), encoding="utf-8")


if __name__ == "__main__":
    main()
