#!/usr/bin/env python3
"""Fails on an include that goes up or sideways between the folders of lib/, on LibTorch where it must not be, on CLI11
outside apps/, on words of devices above lib/ops, and on autograd. This is the one list of the layers: docs/design.md shows it, and is checked to show nothing else.

    layers.py [--root DIR]      the repository by default
    layers.py --print           the list as it stands in docs/design.md
"""
import argparse
import pathlib
import re
import sys

# Lowest first: what a layer is for, and its folders. Folders of one layer do not include each other, except as in BESIDE.
LAYERS = [
    ("errors, files, log, signals", ["base"]),
    ("each for itself; tensor: LibTorch's allocator and types",
     ["formats", "tokenizer", "dataset", "config", "plot", "speed", "kernels", "mpi", "hub", "chess", "tensor"]),
    ("conversations as texts", ["chat"]),
    ("a checkpoint of any format; texts to token files; what runs left", ["source", "corpus", "runs"]),
    ("writers and the copier", ["target"]),
    ("what changes on the way: fsdp-ckpt-convert", ["convert"]),
    ("operations on tensors: the seam to devices", ["ops"]),
    ("collectives on tensors; models; tensors on a disk", ["comm", "model", "offload"]),
    ("the engine; the CUDA back end", ["fsdp", "cuda"]),
    ("optimizers", ["optim"]),
    ("a model on its mesh; the bf16 check", ["runtime", "bf16"]),
    ("data, steps and their records; checkpoints of a run", ["train", "checkpoint"]),
    ("what a model is worth; what a job will take", ["eval", "memory"]),
    ("fine-tuning, evaluation, memory probe: names meet here", ["jobs"]),
]
LEVELS = [set(folders) for _, folders in LAYERS]
# tensor is the adapter from byte records and kernels to LibTorch tensors.
BESIDE = {("tensor", "formats"), ("tensor", "kernels")}
TORCH_FREE = {"base", "hub", "formats", "tokenizer", "dataset", "config", "plot", "speed", "kernels", "mpi", "source", "target", "convert", "corpus", "chess", "chat", "runs"}
# What a device is, and how it multiplies, is lib/ops' to know: all others ask an Ops.
DEVICE_FREE = {"model", "optim", "comm", "fsdp", "runtime", "train", "checkpoint", "eval", "jobs"}
DEVICE_WORD = re.compile(r"\b(simulating|use_kernels|kMeta|is_meta|gemm\w*|host_product|\w*mm_out|addmm_?|kernels::)")
DEVICE_ALLOWED = {("lib/train/throughput.cpp", "host_product")}  # measures products themselves
AUTOGRAD = re.compile(r"\bautograd\b")
# In a file that is compiled without OpenMP it runs on one thread.
PARALLEL = re.compile(r"\bat::parallel_(for|reduce)\b|#\s*pragma omp parallel")
PARALLEL_FILE = "lib/tensor/parallel.cpp"
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


def drawing():
    """The list as indented text; a star marks what is free of LibTorch."""
    lines = []
    for what, folders in LAYERS:
        names = "  ".join(folder + "*" * (folder in TORCH_FREE) for folder in folders)
        lines += [f"    {names:<24}  {what}"] if len(names) <= 24 else [f"    {names}", f"    {'':<24}  {what}"]
    return "\n".join(lines)


def check_pages(root):
    """docs/design.md holds the drawing, and every path below lib/ that a page names is there."""
    for page in [*(root / "docs").glob("*.md"), root / "CONTRIBUTING.md"]:
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        if page.name == "design.md" and drawing() not in text:
            yield f"docs/design.md: its list of layers is not this one (layers.py --print):\n{drawing()}"
        for number, line in enumerate(text.splitlines(), 1):
            for path in re.findall(r"`(lib/[\w/.*]+)`", line):
                if not any(root.glob(path.rstrip("/"))):
                    yield f"{page.relative_to(root)}:{number}: {path}: there is no such path"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    if options.print:
        print(drawing())
        return 0
    root = options.root
    found, files = list(check_pages(root)), 0
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
            code = line.split("//")[0]
            include = INCLUDE.match(line)
            word = DEVICE_WORD.search(code) if folder in DEVICE_FREE and not include else None
            if word and (name.as_posix(), word.group(1)) not in DEVICE_ALLOWED:
                found.append(f"{name}:{number}: {word.group(1)}: lib/{folder} knows no devices; ask its Ops (lib/ops)")
            if AUTOGRAD.search(code):
                found.append(f"{name}:{number}: every backward is written out: no autograd")
            if PARALLEL.search(code) and name.as_posix() != PARALLEL_FILE:
                found.append(f"{name}:{number}: would run on one thread: parallel_for() of lib/tensor/parallel.hpp")
            wrong = complaint(folder, include.group(1)) if include else None
            if wrong:
                found.append(f"{name}:{number}: {include.group(1)}: {wrong}")
    print("\n".join(found) if found else f"{files} files keep to their layers")
    return 1 if found or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
