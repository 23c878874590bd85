#!/usr/bin/env python3
"""Fails on an include that goes up or sideways between the folders of lib/, on LibTorch where it must not be, and on CLI11
outside apps/.

    layers.py [--root DIR]      the repository by default
"""
import argparse
import pathlib
import re
import sys

# Lowest first; folders of one level do not include each other, except as named in BESIDE.
LEVELS = [
    {"base"},
    {"formats", "tokenizer", "dataset", "config", "plot", "kernels", "mpi", "hub", "tensor", "chess"},
    {"source", "corpus"},
    {"target"},
    {"convert"},
    {"comm", "model", "optim"},
    {"fsdp", "cuda"},
    {"probe"},
    {"run"},
]
# tensor is the adapter from byte records and kernels to LibTorch tensors.
BESIDE = {("tensor", "formats"), ("tensor", "kernels")}
TORCH_FREE = {"base", "hub", "formats", "tokenizer", "dataset", "config", "plot", "kernels", "mpi", "source", "target", "convert", "corpus", "chess"}
TORCH_HEADER = re.compile(r"^(torch|ATen|c10|caffe2)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
SOURCES = {".cpp", ".hpp", ".h", ".cu", ".cuh", ".inc"}


def level_of(folder):
    for level, folders in enumerate(LEVELS):
        if folder in folders:
            return level
    return None


def complaint(folder, header):
    """What is wrong when a file of lib/<folder> includes header; None if nothing is."""
    if header.startswith("CLI/"):
        return "only apps/ may include CLI11"
    if header.startswith("apps/"):
        return "lib/ must not include apps/"
    if folder in TORCH_FREE and TORCH_HEADER.match(header):
        return f"lib/{folder} must stay free of LibTorch"
    if not header.startswith("lib/"):
        return None
    other = header.split("/")[1]
    if other == folder:
        return None
    if level_of(other) is None:
        return f"lib/{other} has no place in tests/checks/layers.py: add it to LEVELS"
    if level_of(other) > level_of(folder):
        return f"lib/{folder} is below lib/{other}"
    if level_of(other) == level_of(folder) and (folder, other) not in BESIDE:
        return f"lib/{folder} and lib/{other} are on one level"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root
    found, files = [], 0
    for file in sorted((root / "lib").rglob("*")):
        if file.suffix not in SOURCES:
            continue
        files += 1
        name = file.relative_to(root)
        folder = name.parts[1]
        if level_of(folder) is None:
            found.append(f"{name}: lib/{folder} has no place in tests/checks/layers.py: add it to LEVELS")
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            include = INCLUDE.match(line)
            wrong = complaint(folder, include.group(1)) if include else None
            if wrong:
                found.append(f"{name}:{number}: {include.group(1)}: {wrong}")
    print("\n".join(found) if found else f"{files} files keep to their layers")
    return 1 if found or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
