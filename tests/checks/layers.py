#!/usr/bin/env python3
"""Fails on an include that goes up or sideways between the rooms of lib/, or up between the folders of a room, on LibTorch
where it must not be, on CLI11 outside apps/, on words of devices above lib/compute, on autograd, and on headers that only
one architecture has where others would read them. This is the one list of the layers: docs/design.md shows it, and is
checked to show nothing else.

    layers.py [--root DIR]      the repository by default
    layers.py --print           the list as it stands in docs/design.md
"""
import argparse
import pathlib
import re
import sys

# Lowest first: rooms of one floor do not include each other. A room's folders are ordered as well: each may include the
# folders before it. The text beside a room states its purpose.
FLOORS = [
    [("base", "errors, files, text, log, signals, number types", ["types", "text", "messages", "process", "files"])],
    [("formats", "files as bytes: zip, pickle, safetensors, HDF5", []),
     ("flight", "what ranks do, for others to read; why a job is stuck", [])],
    [("ranks", "groups of ranks: MPI, threads, made up ones", []),
     ("hub", "downloads", []),
     ("reports", "curves; what runs left", ["plots", "runs"]),
     ("tokenizers", "texts to token ids", []),
     ("token_files", "rows of token ids", []),
     ("compute", "operations on tensors: the seam to devices", ["kernels", "tensor", "device", "ops", "meta", "cuda"])],
    [("templates", "prompts: Jinja and conversations", ["jinja", "chat"]),
     ("models", "what config.json says; layers", ["config", "layers"]),
     ("corpus", "lengths and copies of documents", [])],
    [("documents", "texts in files", []),
     ("checkpoints", "checkpoints of any program, and what changes on the way",
      ["source", "target", "transform", "programs", "model", "conversion"])],
    [("benchmarks", "questions of benchmarks, and what answers are worth", ["tasks", "results"]),
     ("encoding", "texts to token files, by many processes", [])],
    [("engine", "sharded steps", ["collectives", "offload", "sharding", "fsdp", "optim", "runtime"])],
    [("training", "data, steps, records, the saved state of a run", ["record", "data", "objectives", "step", "state", "evaluate", "requests", "run", "watch"])],
    [("chess", "a metric: games", ["rules", "evaluation"]),
     ("planning", "how long a job will take, and how much memory", ["speed", "memory"]),
     ("bf16", "what the check of a cluster measures", [])],
]
FLOOR = {room: number for number, floor in enumerate(FLOORS) for room, _, _ in floor}
FOLDERS = {room: folders for floor in FLOORS for room, _, folders in floor}
TORCH_FREE = {"base", "benchmarks", "formats", "flight", "ranks", "hub", "reports", "tokenizers", "token_files", "corpus", "templates", "documents", "encoding", "compute/kernels", "models/config",
              "checkpoints", "chess/rules", "training/record"}
# Rooms that must not name devices or matrix products: they call Ops of lib/compute instead.
DEVICE_FREE = {"models", "engine", "training", "chess"}
DEVICE_WORD = re.compile(r"\b(kMeta|is_meta|gemm(?!a)\w*|host_product|\w*mm_out|addmm_?|kernels::)")
DEVICE_ALLOWED = {("lib/training/step/throughput.cpp", "host_product")}  # measures products themselves
AUTOGRAD = re.compile(r"\bautograd\b")
# In a file that is compiled without OpenMP, at::parallel_for runs on one thread.
PARALLEL = re.compile(r"\bat::parallel_(for|reduce)\b|#\s*pragma omp parallel")
PARALLEL_FILE = "lib/compute/tensor/parallel.cpp"
# Nothing here compiles for AArch64 on every change.
ARCHITECTURE_HEADER = re.compile(r"(cpuid|\w*intrin|arm_\w+)\.h$")
TORCH_HEADER = re.compile(r"^(torch|ATen|c10|caffe2)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
SOURCES = {".cpp", ".hpp", ".h", ".cu", ".cuh", ".inc"}


def place_of(name):
    """Returns room and folder of a path below lib/: ("files", "read"); the folder is "" if a room has none."""
    parts = name.split("/")
    room = parts[1]
    folder = parts[2] if FOLDERS.get(room) and len(parts) > 3 else ""
    return room, folder


def is_one_of(name, places):
    room, folder = place_of(name)
    return room in places or f"{room}/{folder}" in places


def unknown(name):
    """Returns a complaint about a file of lib/ outside the known rooms and folders; None if there is none."""
    room, folder = place_of(name)
    if room not in FLOOR:
        return f"lib/{room} has no place in tests/checks/layers.py: add it to FLOORS"
    if FOLDERS[room] and folder not in FOLDERS[room]:
        return f"{name.rsplit('/', 1)[0]} has no place in tests/checks/layers.py: add it to FLOORS"
    return None


def complaint(name, header):
    """Returns a complaint about the include of `header` in the file `name` of lib/; None if there is none."""
    if header.startswith("CLI/"):
        return "only apps/ may include CLI11"
    if header.startswith("apps/"):
        return "lib/ must not include apps/"
    room, folder = place_of(name)
    if is_one_of(name, TORCH_FREE) and TORCH_HEADER.match(header):
        return f"lib/{room}{'/' * bool(folder)}{folder} must stay free of LibTorch"
    if not header.startswith("lib/"):
        return None
    other, other_folder = place_of(header)
    if unknown(header):
        return unknown(header)
    if other != room:
        if FLOOR[other] > FLOOR[room]:
            return f"lib/{room} is below lib/{other}"
        if FLOOR[other] == FLOOR[room]:
            return f"lib/{room} and lib/{other} are on one floor"
        return None
    order = FOLDERS[room]
    if folder != other_folder and order.index(other_folder) > order.index(folder):
        return f"lib/{room}/{folder} is below lib/{room}/{other_folder}"
    return None


def drawing():
    """Returns the floors as indented text; a star marks rooms that are free of LibTorch."""
    lines = []
    for number, floor in enumerate(FLOORS, 1):
        for room, what, folders in floor:
            inside = "  ".join(f + "*" * (f"{room}/{f}" in TORCH_FREE) for f in folders)
            name = room + "*" * (room in TORCH_FREE)
            lines.append(f"    {number}  {name:<13} {what}" + (f": {inside}" if inside else ""))
            number = " "
    return "\n".join(lines)


def check_pages(root):
    """Complains if docs/design.md shows another drawing or a page names a path below lib/ or apps/ that does not exist."""
    for page in [*(root / "docs").glob("*.md"), root / "CONTRIBUTING.md"]:
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        if page.name == "design.md" and drawing() not in text:
            yield f"docs/design.md: its list of layers is not this one (layers.py --print):\n{drawing()}"
        for number, line in enumerate(text.splitlines(), 1):
            for path in re.findall(r"`((?:lib|apps)/[\w/.*]+)`", line):
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
        name = file.relative_to(root).as_posix()
        if unknown(name):
            found.append(f"{name}: {unknown(name)}")
            continue
        asks = is_one_of(name, DEVICE_FREE)
        before = ""
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            code = line.split("//")[0]
            include = INCLUDE.match(line)
            if include and ARCHITECTURE_HEADER.match(include.group(1)) and not before.startswith(("#if", "#elif")):
                found.append(f"{name}:{number}: {include.group(1)}: only one architecture has it: put it behind #if")
            before = line
            word = DEVICE_WORD.search(code) if asks and not include else None
            if word and (name, word.group(1)) not in DEVICE_ALLOWED:
                found.append(f"{name}:{number}: {word.group(1)}: lib/{place_of(name)[0]} knows no devices; ask its Ops (lib/compute/ops)")
            if AUTOGRAD.search(code):
                found.append(f"{name}:{number}: every backward is written out: no autograd")
            if PARALLEL.search(code) and name != PARALLEL_FILE:
                found.append(f"{name}:{number}: would run on one thread: parallel_for() of lib/compute/tensor/parallel.hpp")
            wrong = complaint(name, include.group(1)) if include else None
            if wrong:
                found.append(f"{name}:{number}: {include.group(1)}: {wrong}")
    print("\n".join(found) if found else f"{files} files keep to their layers")
    return 1 if found or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
