#!/usr/bin/env python3
"""Shows that a change of structure changes no result: runs two builds' programs alike and compares what they made.

    same_results.py BEFORE AFTER [--only TEXT]      folders of programs (build/bin); ends with 1 where something differs

Losses and gradient norms of fixed seeds to the last digit (minGPT and Llama, float32, bf16 and fp16, 1 to 4 ranks, every
strategy, accumulation, recomputation, dropout, restart), checkpoints and converted files byte for byte, fsdp-eval's
reports, fsdp-memprobe's predictions to the byte, --help and --print-config. Each case runs on both one after the other.
"""
import argparse
import atexit
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

import h5py
import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = {
    "mingpt": ["--num-layers", 3, "--num-heads", 2, "--embed-size", 40, "--vocab-size", 131, "--seq-len", 33, "--dropout", 0.1],
    "llama": ["--model", ROOT / "tests/fixtures/numerics/llama_nano", "--seq-len", 33, "--lr", "1e-3"],
}
LAYOUTS = [(1, "full-shard", 0), (2, "full-shard", 0), (3, "full-shard", 0), (2, "grad-shard", 0), (3, "grad-shard", 0), (3, "no-shard", 0),
           (4, "hybrid-full-shard", 2), (4, "hybrid-grad-shard", 2)]
# Keys that depend on time and host and therefore differ between two runs of one program.
VOLATILE = {"seconds", "step_seconds", "tokens_per_second", "data_wait_seconds", "peak_rss_bytes", "mfu", "saved_at", "resident_bytes",
            "save_seconds", "blocked_seconds", "validation_seconds", "host", "sequences_per_second", "eval_seconds"}


class Failed(Exception):
    pass


class Refused(str):
    """The message of a program that took nothing."""


def stable(value):
    if isinstance(value, dict):
        return {k: stable(v) for k, v in value.items() if k not in VOLATILE and not k.endswith(("_seconds", "_per_second"))}
    return [stable(v) for v in value] if isinstance(value, list) else value


def run(place, bins, program, arguments, ranks=0, codes=(0,)):
    """Returns the program's standard output."""
    launcher = [bins / "mpiexec" if (bins / "mpiexec").exists() else ROOT / ".deps/venv/bin/mpiexec", "-n", ranks] if ranks > 1 else []
    line = [str(x) for x in [*launcher, bins / program, *arguments]]
    process = subprocess.run(line, cwd=place, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    if process.returncode not in codes:
        raise Failed(f"{' '.join(line)}: {process.returncode}\n{process.stderr}")
    return process.stdout


def digests(folder):
    """Returns name and digest of each file; run.json without its time and place."""
    found = {}
    for file in sorted(p for p in pathlib.Path(folder).rglob("*") if p.is_file()):
        data = file.read_bytes()
        if file.name == "run.json":
            data = json.dumps(stable(json.loads(data)), sort_keys=True).encode()
        found[str(file.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return found


def trained(place, bins, name, options, ranks):
    run(place, bins, "fsdp-finetune", ["--device", "cpu", "--train-data", place.parent / "train.h5", "--val-data", place.parent / "val.h5",
                                       "--batch-size", 2, "--run-name", name, "--seed", 11, *options], ranks)
    lines = (place / "runs" / name / "metrics.jsonl").read_text().splitlines()
    return {"metrics": [stable(json.loads(line)) for line in lines], "files": digests(place / "runs" / name / "checkpoints")}


def training_cases():
    for model, options in MODELS.items():
        for precision in ("float32", "bf16"):
            for ranks, sharding, group in LAYOUTS:
                more = ["--precision", precision, "--sharding", sharding, "--shard-group-size", group, "--max-steps", 4]
                yield (f"train/{model}/{precision}/{ranks}x{sharding}",
                       lambda place, bins, o=[*options, *more], n=ranks: trained(place, bins, "run", o, n))
        special = {"accumulated": ["--gradient-accumulation-steps", 3, "--max-steps", 3], "recomputed": ["--gradient-checkpointing", "--max-steps", 3],
                   "one-unit": ["--wrap", "none", "--max-steps", 3], "fp16": ["--precision", "fp16", "--max-steps", 3],
                   "offload": ["--cpu-offload", "--max-steps", 3]}
        for name, more in special.items():
            yield f"train/{model}/{name}", lambda place, bins, o=[*options, *more]: trained(place, bins, "run", o, 2)

        def restarted(place, bins, options=options):
            trained(place, bins, "run", [*options, "--max-steps", 2], 2)
            return trained(place, bins, "run", [*options, "--max-steps", 5, "--restart-checkpoint-file", "latest"], 3)
        yield f"train/{model}/restarted", restarted

        def exported(place, bins, options=options):
            trained(place, bins, "run", [*options, "--max-steps", 2, "--save-final-hf", "hf", "--save-final-full", "full.pt"], 2)
            text = run(place, bins, "fsdp-eval", ["runs/run/checkpoints/latest", "--data", place.parent / "val.h5", "--device", "cpu", "--json"])
            hf = {k: v for k, v in digests(place / "hf").items() if k != ".fsdp-export.json"}
            return {"hf": hf, "full": hashlib.sha256((place / "full.pt").read_bytes()).hexdigest(), "eval": stable(json.loads(text))}
        yield f"export/{model}", exported


def checkpoint_of(fixture):
    """The checkpoint in a fixture as a user names it, and the options that it needs."""
    shapes = fixture / "param_shapes.json"
    path = next((fixture / name for name in ("ckpt", "ckpt.pt", "ckpt.ckpt") if (fixture / name).exists()), fixture)
    return path, ["--param-shapes", shapes] if shapes.exists() else []


@functools.cache
def unpacked_doors():
    """Checkpoints of DeepSpeed, Megatron-core, llama.cpp and others, which the repository keeps packed."""
    folder = tempfile.TemporaryDirectory(prefix="fsdp-same.")
    atexit.register(folder.cleanup)
    doors = pathlib.Path(folder.name) / "doors"
    for archive in (ROOT / "tests/fixtures/doors").glob("*.tar.xz"):
        with tarfile.open(archive) as packed:
            packed.extractall(doors, filter="data")
    return doors


def converting_cases():
    """Every fixture in every format; a fixture that no format takes is refused in equal words, and counts apart."""
    folders = [*(ROOT / "tests/fixtures" / name for name in ("checkpoints", "trainers", "families")), *unpacked_doors().glob("*")]
    fixtures = sorted(fixture for folder in folders for fixture in folder.glob("*") if fixture.is_dir())
    for fixture in fixtures:
        source, options = checkpoint_of(fixture)
        for kind in ("torch", "safetensors", "dcp", "hf", "megatron", "gguf"):
            def converted(place, bins, source=source, kind=kind, options=options):
                out = place / {"torch": "out.pt", "safetensors": "out.safetensors", "gguf": "out.gguf"}.get(kind, "out")
                try:
                    run(place, bins, "fsdp-ckpt-convert", [source, out, "--to", kind, *options])
                except Failed as refusal:
                    return Refused(str(refusal).partition("\n")[2].replace(str(place), ""))
                return digests(place)
            yield f"convert/{fixture.parent.name}/{fixture.name}/{kind}", converted
        for mode in ("--inspect", "--check"):
            yield f"{mode[2:]}/{fixture.parent.name}/{fixture.name}", lambda place, bins, source=source, mode=mode: run(
                place, bins, "fsdp-ckpt-convert", [mode, source, "--json"], codes=(0, 3, 4))


def prediction_cases():
    llama = ["--model", ROOT / "data/models/codellama-7b"]
    asked = {"minGPT-cpu": ["--ranks", 4], "minGPT-gpu": ["--ranks", 8, "--gpu", "a100-40g", "--precision", "bf16"],
             "minGPT-offload": ["--ranks", 2, "--gpu", "v100-16g", "--precision", "fp16", "--cpu-offload"],
             "minGPT-search": ["--ranks", 4, "--gpu", "a100-40g", "--search", "--sharding", "full-shard,grad-shard", "--precision", "bf16", "--max-batch", 64],
             "nano-cpu": ["--model", ROOT / "tests/fixtures/numerics/llama_nano", "--ranks", 3, "--seq-len", 64],
             "nano-gpu": ["--model", ROOT / "tests/fixtures/numerics/llama_nano", "--ranks", 4, "--gpu", "h100", "--seq-len", 512, "--sharding", "hybrid-full-shard",
                          "--ranks-per-node", 2, "--gradient-checkpointing"]}
    if llama[1].exists():
        asked["7b-gpu"] = [*llama, "--ranks", 4, "--gpu", "h200", "--seq-len", 1024, "--precision", "bf16"]
    for name, options in asked.items():
        yield f"predict/{name}", lambda place, bins, o=options: stable(json.loads(
            run(place, bins, "fsdp-memprobe", ["--memory", "20GiB", *o, "--json"] if "--gpu" not in o else [*o, "--json"], codes=(0, 3))))


def word_cases():
    for program in ("fsdp-download", "fsdp-finetune", "fsdp-eval", "fsdp-ckpt-convert", "fsdp-memprobe", "fsdp-bf16check"):
        yield f"help/{program}", lambda place, bins, p=program: run(place, bins, p, ["--help"])
    for program in ("fsdp-finetune", "fsdp-memprobe"):
        yield f"config/{program}", lambda place, bins, p=program: run(place, bins, p, ["--print-config"])


def write_data(folder):
    random = numpy.random.default_rng(5)
    for name, rows in (("train", 80), ("val", 9)):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["input_ids"] = random.integers(0, 131, (rows, 34)).astype("uint16")


def first_difference(before, after, where=""):
    if type(before) is not type(after):
        return f"{where}: {before!r} and {after!r}"
    if isinstance(before, dict):
        for key in {**before, **after}:
            if key not in before or key not in after:
                return f"{where}/{key}: only {'after' if key not in before else 'before'}"
        pairs = [(k, before[k], after[k]) for k in before]
    elif isinstance(before, list) and len(before) == len(after):
        pairs = list(zip(range(len(before)), before, after))
    else:
        return None if before == after else f"{where}: {before!r} and {after!r}"
    return next((d for key, a, b in pairs if (d := first_difference(a, b, f"{where}/{key}"))), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    options = parser.parse_args()
    cases = [c for cases in (training_cases, converting_cases, prediction_cases, word_cases) for c in cases() if options.only in c[0]]
    different = refused = 0
    for name, case in cases:
        with tempfile.TemporaryDirectory(prefix="fsdp-same.") as folder:
            folder = pathlib.Path(folder)
            write_data(folder)
            found = []
            for bins in (options.before, options.after):
                place = folder / "run"  # the same path for both builds, because files contain it
                place.mkdir()
                try:
                    found.append(case(place, bins.resolve()))
                except Failed as failure:
                    found.append(f"failed: {failure}".replace(str(bins.resolve()), ""))
                subprocess.run(["rm", "-rf", place], check=True)
        refused += isinstance(found[0], Refused)
        failed = isinstance(found[0], str) and found[0].startswith("failed")
        difference = first_difference(*found)
        if failed or difference:
            different += 1
            print(f"{name}: {found[0] if failed else difference}", flush=True)
    print(f"{len(cases) - different} of {len(cases)} cases are the same, {refused} of them refusals")
    return 1 if different or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
