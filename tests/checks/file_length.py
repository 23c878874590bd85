#!/usr/bin/env python3
"""Fails on a source longer than 400 lines, a header or a page longer than 200: such a file has more than one subject; and
on a line of a page beyond 120 characters, but for tables, blocks of code and what cannot be broken.

    file_length.py [--root DIR]      the repository by default
"""
import argparse
import pathlib
import re
import sys

LIMITS = {".cpp": 400, ".cu": 400, ".py": 400, ".sh": 400, ".hpp": 200, ".h": 200}
FOLDERS = ("apps", "cmake", "examples", "lib", "scripts", "slurm", "pbs", "tests")


def limit_of(file):
    if file.suffix in LIMITS:
        return LIMITS[file.suffix]
    # Most scripts carry no suffix.
    if file.suffix in ("", ".pbs") and file.read_bytes()[:2] == b"#!":
        return 400
    return None


def page_complaints(page, root):
    """CHANGELOG.md may be long: it only grows."""
    name = page.relative_to(root)
    lines = page.read_text(encoding="utf-8").splitlines()
    if len(lines) > 200 and page.name != "CHANGELOG.md":
        yield f"{name}: {len(lines)} lines, the limit is 200"
    in_code = False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        is_code = in_code or (line.startswith("    ") and not re.match(r"\s+([-*]|\d+\.) ", line))
        # Code and links stay in one piece.
        pieces = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", lambda m: "x" * len(m[0]), line).split()
        if len(line) > 120 and not is_code and not line.startswith(("|", "<", "!")) and max(map(len, pieces)) < 100:
            yield f"{name}:{number}: {len(line)} characters, the limit is 120"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root
    found, files = [], 0
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if not file.is_file() or "fixtures" in file.relative_to(root).parts:
                continue
            limit = limit_of(file)
            if limit is None:
                continue
            files += 1
            lines = len(file.read_bytes().splitlines())
            if lines > limit:
                found.append(f"{file.relative_to(root)}: {lines} lines, the limit is {limit}")
    for page in sorted({*root.glob("*.md"), *root.glob("docs/*.md")}):
        files += 1
        found += page_complaints(page, root)
    print("\n".join(found) if found else f"{files} files are within their limits")
    return 1 if found or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
