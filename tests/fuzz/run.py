#!/usr/bin/env python3
"""Builds the fuzz targets with clang and lets one, or all, run for a bounded time.

    run.py TARGET... [--seconds N] [--runs N] [--jobs N] [--fast]      `all` for every target
    run.py TARGET --replay PROGRAM       without a fuzzer: first inputs and changes of them, unless FUZZ_SECONDS is set

--seconds (default: FUZZ_SECONDS, or 5) is per target, --runs stops at that many executions. --fast leaves the sanitizers
out for more executions: a crash, a hang, an index outside its container and an exception that no
reader may throw are still found. New inputs that reach new code stay in BUILD/corpus/TARGET for the next run, with
sanitizers or without. Exit code 1 with the input, in hexadecimal, and the stack when a parser crashed, hung, or asked for more memory
than its input can justify; 77 when there is no clang with libFuzzer and the sanitizers.
"""
import argparse
import fcntl
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import seeds

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
PROBE = 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n'
# A parser may hold its input a few times and small tables, but no memory in proportion to a size that the input claims.
# A decoder of zstd asks for up to 128 MiB at once, and of these the system gives what it fills (unpacked_file.cpp).
LIMITS = ["-rss_limit_mb=2048", "-timeout=10"]
MOST_AT_ONCE_MB = {"csv": 160, "json_lines": 160}
MAX_LENGTH = {"pickle": 16384, "zip": 16384, "torch_blob": 16384, "torch_file": 65536, "safetensors": 32768, "gguf": 4096,
              "dcp": 32768, "deepspeed": 8192, "per_rank": 16384, "trainer": 32768, "megatron": 32768, "hf_index": 16384, "config_json": 16384, "run_json": 16384,
              "tokenizer_json": 32768, "tokenizer_model": 32768, "jinja": 8192, "json_lines": 16384, "csv": 16384, "hub_files": 16384, "hub_answers": 16384,
              "yaml": 8192}


def find_clang():
    """Returns a clang++ that links libFuzzer and both sanitizers, or None."""
    names = [os.environ.get("FUZZ_CXX"), "clang++"] + [f"clang++-{version}" for version in range(21, 12, -1)]
    for name in filter(None, names):
        path = shutil.which(name)
        if path is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = [path, "-std=c++20", "-fsanitize=fuzzer,address,undefined", "-x", "c++", "-", "-o", f"{folder}/probe"]
            if subprocess.run(command, input=PROBE, text=True, capture_output=True).returncode == 0:
                return path
    return None


def build(folder, clang, targets, options):
    """Configures and builds the targets; may be called by several processes at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        configure = ["cmake", "-S", HERE / "targets", "-B", folder, *generator, f"-DCMAKE_CXX_COMPILER={clang}", *options]
        steps = [["cmake", "--build", folder, "--target", *[f"{target}_fuzz" for target in targets], "--parallel"]]
        if not (folder / "CMakeCache.txt").exists():
            steps.insert(0, configure)
        for step in steps:
            done = subprocess.run([str(word) for word in step], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{' '.join(map(str, step))} failed:\n{done.stdout}{done.stderr}")


def corpus_of(folder, target):
    """Returns folders of inputs: those that earlier runs found, and newly written seeds."""
    found, first = folder / "corpus" / target, folder / "seeds" / target
    found.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(first, ignore_errors=True)
    if seeds.write(target, first) == 0:
        sys.exit(f"no seeds for {target}")
    return [str(found), str(first)]


def show(inputs):
    for path in inputs:
        data = path.read_bytes()
        print(f"input {path} ({len(data)} bytes):\n{data.hex()}")


def fuzz(folder, programs, target, limits, jobs):
    """Runs one target of the folder `programs`; returns True if it found nothing."""
    artifacts = folder / "artifacts" / target
    shutil.rmtree(artifacts, ignore_errors=True)
    artifacts.mkdir(parents=True)
    command = [str(programs / "bin" / f"{target}_fuzz"), *corpus_of(folder, target), *limits, *LIMITS, f"-malloc_limit_mb={MOST_AT_ONCE_MB.get(target, 64)}",
               f"-max_len={MAX_LENGTH[target]}", f"-dict={HERE / 'words.dict'}", f"-artifact_prefix={artifacts}/",
               "-print_final_stats=1", "-verbosity=1", "-reload=0"]
    if jobs > 1:
        command += [f"-fork={jobs}"]
    environment = dict(os.environ, ASAN_OPTIONS="allocator_may_return_null=0:detect_leaks=1")
    start = time.monotonic()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    (artifacts / "log").write_text(done.stdout, encoding="utf-8")
    executions = re.search(r"number_of_executed_units:\s*(\d+)", done.stdout)
    reached = re.findall(r"cov: (\d+)", done.stdout)
    print(f"{target}: {executions.group(1) if executions else '?'} executions in {time.monotonic() - start:.0f} s, {reached[-1] if reached else '?'} edges reached",
          flush=True)
    inputs = sorted(path for path in artifacts.iterdir() if path.name != "log")
    if done.returncode == 0 and not inputs:
        return True
    print("\n".join(line for line in done.stdout.splitlines() if not re.match(r"#\d+\s", line))[-12000:])
    show(inputs)
    return False


def replay(folder, target, program):
    """Runs a target's replay program (replay_main.cpp) on its seeds; returns True if it found nothing."""
    first = folder / "seeds" / target
    shutil.rmtree(first, ignore_errors=True)
    if seeds.write(target, first) == 0:
        sys.exit(f"no seeds for {target}")
    return subprocess.run([program, first]).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", choices=[*MAX_LENGTH, "all"], metavar="TARGET", help=", ".join(MAX_LENGTH))
    parser.add_argument("--seconds", type=int, default=int(os.environ.get("FUZZ_SECONDS", "5")))
    parser.add_argument("--runs", type=int, default=-1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--build-folder", type=pathlib.Path, default=HERE.parents[1] / "build" / "fuzz")
    parser.add_argument("--replay", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.replay and "FUZZ_SECONDS" not in os.environ:
        sys.exit(0 if replay(arguments.build_folder, arguments.targets[0], arguments.replay) else 1)
    clang = find_clang()
    if clang is None:
        print("skipped: no clang++ with libFuzzer here (Debian packages clang and libclang-rt-dev; FUZZ_CXX names another)")
        sys.exit(SKIPPED)
    targets = list(MAX_LENGTH) if "all" in arguments.targets else arguments.targets
    programs = arguments.build_folder / "fast" if arguments.fast else arguments.build_folder
    build(programs, clang, targets, ["-DFUZZ_SANITIZERS=OFF"] if arguments.fast else [])
    limits = [f"-max_total_time={arguments.seconds}", f"-runs={arguments.runs}"]
    # A list, not a generator, so that every target runs.
    sys.exit(0 if all([fuzz(arguments.build_folder, programs, target, limits, arguments.jobs) for target in targets]) else 1)


if __name__ == "__main__":
    main()
