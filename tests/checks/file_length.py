#!/usr/bin/env python3
"""Fails on a source longer than 800 lines or a header longer than 300 whose first lines do not say why ("Long because
..."): such a file has more than one subject; on two files of lib/ and apps/ with one name; on a folder there with more
than 25 sources or 5,000 lines, which has more than one subject, too; and on a line of a page beyond 120 characters, but
for tables, blocks of code and what cannot be broken.

    file_length.py [--root DIR]      the repository by default
"""
import argparse
import pathlib
import re
import sys

LIMITS = {".cpp": 800, ".cu": 800, ".py": 800, ".sh": 800, ".hpp": 300, ".h": 300}
FOLDERS = ("apps", "cmake", "examples", "lib", "scripts", "slurm", "pbs", "tests")


def limit_of(file):
    if file.suffix in LIMITS:
        return LIMITS[file.suffix]
    # Most scripts have no suffix.
    if file.suffix in ("", ".pbs") and file.read_bytes()[:2] == b"#!":
        return 800
    return None


def page_complaints(page, root):
    name = page.relative_to(root)
    in_code = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        is_code = in_code or (line.startswith("    ") and not re.match(r"\s+([-*]|\d+\.) ", line))
        # Code and links cannot be broken.
        pieces = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", lambda m: "x" * len(m[0]), line).split()
        if len(line) > 120 and not is_code and not line.startswith(("|", "<", "!")) and max(map(len, pieces)) < 100:
            yield f"{name}:{number}: {len(line)} characters, the limit is 120"


def same_names(root):
    """Complains about a file name that exists twice: unique names are easier to include and suit the unity build."""
    seen = {}
    for file in sorted(p for folder in ("apps", "lib") for p in (root / folder).rglob("*.[hc]pp")):
        if file.name in seen:
            yield f"{file.relative_to(root)}: {seen[file.name].relative_to(root)} has this name, too"
        seen.setdefault(file.name, file)


def full_folders(root):
    """Complains about a folder in which a name is hard to find."""
    for folder in sorted({file.parent for top in ("apps", "lib") for file in (root / top).rglob("*.[hc]pp")}):
        sources = [file for file in folder.iterdir() if file.suffix in (".cpp", ".hpp", ".cu", ".cuh")]
        lines = sum(len(file.read_bytes().splitlines()) for file in sources)
        if len(sources) > 25 or lines > 5000:
            yield f"{folder.relative_to(root)}: {len(sources)} sources with {lines} lines, the limits are 25 and 5000"


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
            lines = file.read_bytes().splitlines()
            if len(lines) > limit and b"Long because" not in b"\n".join(lines[:12]):
                found.append(f"{file.relative_to(root)}: {len(lines)} lines, the limit is {limit}")
    found += [*same_names(root), *full_folders(root)]
    for page in sorted({*root.glob("*.md"), *root.glob("docs/*.md")}):
        files += 1
        found += page_complaints(page, root)
    print("\n".join(found) if found else f"{files} files are within their limits")
    return 1 if found or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
