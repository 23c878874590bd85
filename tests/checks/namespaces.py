#!/usr/bin/env python3
"""Fails on a source file of lib/ or apps/ that opens `namespace fsdp` (or one within it) more than once, or has more than one
anonymous namespace: a file that needs a second one has a second subject, or functions that stand far from their helpers.

    namespaces.py [--root DIR]      the repository by default
"""
import argparse
import pathlib
import re
import sys

OURS = re.compile(r"^namespace fsdp(::\w+)*\s*\{")
ANONYMOUS = re.compile(r"^\s*namespace\s*\{")
SOURCES = {".cpp", ".hpp", ".h", ".cu", ".cuh", ".inc"}


def complaints(name, lines):
    for pattern, what, advice in [(OURS, "opens `namespace fsdp`", "nest `namespace detail` within it, or split the file"),
                                  (ANONYMOUS, "opens an anonymous namespace", "move what is here into the first one, or split the file")]:
        numbers = [number for number, line in enumerate(lines, 1) if pattern.match(line)]
        for number in numbers[1:]:
            yield f"{name}:{number}: {what} again, which line {numbers[0]} does already: {advice}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root
    found, files = [], 0
    for folder in ("lib", "apps"):
        for file in sorted(p for p in (root / folder).rglob("*") if p.suffix in SOURCES):
            files += 1
            found += complaints(file.relative_to(root).as_posix(), file.read_text(encoding="utf-8").splitlines())
    print("\n".join(found) if found else f"{files} files open their namespaces once")
    return 1 if found or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
