#!/usr/bin/env python3
"""Fails on a source longer than 400 lines or a header longer than 200: such a file has more than one subject.

    file_length.py [--root DIR]      the repository by default
"""
import argparse
import pathlib
import sys

LIMITS = {".cpp": 400, ".cu": 400, ".py": 400, ".sh": 400, ".hpp": 200, ".h": 200}
FOLDERS = ("apps", "lib", "scripts", "slurm", "pbs", "tests")


def limit_of(file):
    if file.suffix in LIMITS:
        return LIMITS[file.suffix]
    # Most scripts carry no suffix.
    if file.suffix in ("", ".pbs") and file.read_bytes()[:2] == b"#!":
        return 400
    return None


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
    print("\n".join(found) if found else f"{files} files are within their limits")
    return 1 if found or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
