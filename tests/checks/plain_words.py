#!/usr/bin/env python3
"""Fails on comments that begin as riddles do: with a preposition or a pronoun whose noun stands elsewhere, or nowhere.

    plain_words.py [--root DIR]      the repository by default
"""
import argparse
import pathlib
import re
import sys

RIDDLE = re.compile(r"//[/!]?<? *(Of|Likewise|What|Those|Whoever|Whatever|Who)\b(?!.*\?)")
FOLDERS = ("apps", "examples", "lib")
SOURCES = {".cpp", ".hpp", ".cu", ".cuh"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root
    found, files = [], 0
    for file in sorted(p for folder in FOLDERS for p in (root / folder).rglob("*") if p.suffix in SOURCES):
        files += 1
        lines = file.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            riddle = RIDDLE.search(line)
            goes_on = number > 1 and lines[number - 2].lstrip().startswith("//") and not re.search(r"[.:;] *$", lines[number - 2])
            if riddle and not goes_on:
                found.append(f"{file.relative_to(root)}:{number}: a comment that begins with '{riddle.group(1)}': say who does what")
    print("\n".join(found) if found else f"{files} files have plain comments")
    return 1 if found or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
