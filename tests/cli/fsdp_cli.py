"""Shared by the tests in this folder: runs the programs, alone or under mpiexec, and reads what they write.

CMake gives, as environment variables, FSDP_BIN (folder of the programs), FSDP_MPIEXEC (launcher of the programs' MPI),
FSDP_FIXTURES (tests/fixtures), FSDP_DATA (data) and FSDP_LOADED (folder of loaded_programs). A test file ends with `fsdp_cli.main()`: exit code 0 passed,
1 failed, 77 when every test was skipped.
"""

import atexit
import contextlib
import functools
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

SKIPPED = 77
STOPPED_EARLY = 85


@contextlib.contextmanager
def needed():
    """Skips the whole test where a package is missing that is imported inside."""
    try:
        yield
    except ImportError as missing:
        print(f"SKIPPED: {missing}")
        sys.exit(SKIPPED)


with needed():
    import h5py
    import numpy

# In the background of a script SIGINT is ignored, and would be in the programs that are tested.
signal.signal(signal.SIGINT, signal.default_int_handler)

VOCAB = 97
SEQ_LEN = 32
# 2 layers, 32 wide, vocabulary 97: a step takes milliseconds.
TINY_MODEL = ["--num-layers", "2", "--num-heads", "2", "--embed-size", "32", "--vocab-size", str(VOCAB),
              "--seq-len", str(SEQ_LEN)]
COMMON = ["--device", "cpu"]


# A rank's number in the environment: by hydra, by mpirun of Open MPI. A word for shells.
RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
SHELL_RANK = '"${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"'

ALL = bool(os.environ.get("FSDP_ALL"))  # whole products: tests labelled long


def share(cases, every, first=0):
    """Returns every n-th case from number `first` on; all with FSDP_ALL=1. n is prime to the length of runs of similar cases."""
    return list(cases) if ALL else list(cases)[first::every]


def folder(variable):
    return pathlib.Path(os.environ[variable])


class Result:
    """Result of a program that has ended."""

    def __init__(self, command, code, out, err):
        self.command, self.code, self.out, self.err = command, code, out, err

    def __str__(self):
        return f"{' '.join(map(str, self.command))}\nexit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"

    def errors(self):
        """Returns the program's error messages, one per rank that printed one."""
        return [line for line in self.err.splitlines() if "error:" in line]

    def json(self):
        return json.loads(self.out)


def command(program, arguments, ranks, programs=None):
    launcher = [os.environ["FSDP_MPIEXEC"], "-n", str(ranks)] if ranks else []
    return launcher + [str((programs or folder("FSDP_BIN")) / program)] + [str(a) for a in arguments]


@functools.cache
def loaded_programs(preload=None):
    """Starts the process of loaded_programs.cpp, with a library loaded before the others; returns the path of its socket."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="fsdp-loaded.")) / "socket"
    atexit.register(shutil.rmtree, path.parent, True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        process = subprocess.Popen(folder("FSDP_LOADED") / "loaded_programs", stdin=listener,
                                   env=environment({"LD_PRELOAD": preload} if preload else None))
    atexit.register(process.wait)
    atexit.register(process.kill)
    return str(path)


def loaded(program, env, arguments=()):
    """Returns the folder in which the program is one that starts loaded; None where a run needs the program itself: with
    variables that libraries read when they load, in a search by measuring, which starts its own executable, and in whole
    products. The stub driver of GPUs is preloaded there, too."""
    place = pathlib.Path(os.environ.get("FSDP_LOADED", "none")) / "loaded"
    stub = {"LD_PRELOAD": os.environ.get("FSDP_STUB_CUDA")}
    wanted = not any(name.startswith(("LD_", "OMP_", "MKL_", "ATEN_", "ONEDNN_", "MALLOC_")) for name, value in (env or {}).items()
                     if stub.get(name) != value) and not (
        "--measure" in arguments and "--search" in arguments)
    return place if wanted and "FSDP_ALL" not in os.environ and (place / program).exists() else None


def link_programs(place):
    """Makes a folder of all programs for scripts, of those that start loaded where there are such; returns the variables
    that the scripts' environment needs."""
    place.mkdir()
    for program in folder("FSDP_BIN").iterdir():
        (place / program.name).symlink_to((loaded(program.name, None) or program.parent) / program.name)
    return {"FSDP_BIN": str(place), **({"FSDP_LOADED_PROGRAMS": loaded_programs()} if loaded("fsdp-finetune", None) else {})}


def environment(extra=None):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PMI_", "PMIX_", "PALS_"))}
    env["OMP_NUM_THREADS"] = "1"
    env.setdefault("FSDP_CPU_FLOPS", "1e11")  # saves measuring at each start; a test of speeds sets it to ""
    env.update(extra or {})
    return env


def run(program, arguments, ranks=0, env=None, cwd=None, limit_seconds=90, before=None, within=()):
    """Runs a program to its end. ranks 0: without a launcher. `before` runs in the child before exec; `within` is a
    command line prefix that runs the rest of the line."""
    programs = None if before or within else loaded(program, env, arguments)
    if programs:
        env = {**(env or {}), "FSDP_LOADED_PROGRAMS": loaded_programs((env or {}).get("LD_PRELOAD"))}
    line = [*within, *command(program, arguments, ranks, programs)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                               env=environment(env), cwd=cwd, start_new_session=True, preexec_fn=before)
    try:
        out, err = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        end_group(process)
        out, err = process.communicate()
        raise AssertionError(f"no end after {limit_seconds} s:\n{Result(line, None, out, err)}") from None
    return Result(line, process.returncode, out, err)


def wrap(programs, program, lines):
    """Makes a folder with a script of the program's name that runs shell commands and becomes the program. Returns the folder."""
    programs.mkdir()
    script = programs / program
    script.write_text(f"#!/bin/sh\n{lines}\nexec '{folder('FSDP_BIN')}/{program}' \"$@\"\n")
    script.chmod(0o755)
    return programs


def start(program, arguments, ranks, log, env=None, programs=None):
    """Starts a program in the background; stdout and stderr go to the file `log`."""
    with open(log, "wb") as file:
        return subprocess.Popen(command(program, arguments, ranks, programs), stdout=file, stderr=file, env=environment(env),
                                start_new_session=True)


def wait_for(process, log, condition):
    """Waits for the condition while the program of start() runs."""
    end = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.01)


def end_group(process):
    """Ends a program of start() or run() and everything it started in its session."""
    for pid in [*descendants(process.pid), process.pid]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def descendants(pid):
    """Returns the process ids below `pid`, nearest first."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(0), [])
        found += children
        queue += children
    return found


def rank_processes(pid, program):
    """Returns the process ids of the ranks that the mpiexec `pid` started."""
    found = []
    for child in descendants(pid):
        try:
            name = pathlib.Path(os.readlink(f"/proc/{child}/exe")).name
        except OSError:
            continue
        if name == program:
            found.append(child)
    return found


def processes_of_ranks(pid, program="fsdp-finetune"):
    """Returns the process ids by rank."""
    found = {}
    for child in rank_processes(pid, program):
        entries = pathlib.Path(f"/proc/{child}/environ").read_bytes().decode().split("\0")
        variables = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        found[int(next(variables[name] for name in RANK_VARIABLES if name in variables))] = child
    return found


def write_tokens(path, ids, dtype="uint16", vocab_size=None):
    """Writes an HDF5 file with input_ids [rows, ids]. Ids of a file that names its vocabulary are not looked at before they are needed."""
    with h5py.File(path, "w") as file:
        file["input_ids"] = numpy.asarray(ids).astype(dtype)
        if vocab_size is not None:
            file.attrs["vocab_size"] = vocab_size
    return path


def random_tokens(rows=64, width=SEQ_LEN + 1, seed=0, vocab=VOCAB):
    """Returns learnable rows: the next id is the previous one plus the row's own step, with some noise."""
    random = numpy.random.default_rng(seed)
    first = random.integers(0, vocab, (rows, 1))
    step = random.integers(1, 4, (rows, 1))
    ids = (first + step * numpy.arange(width)) % vocab
    noise = random.random((rows, width)) < 0.05
    return numpy.where(noise, random.integers(0, vocab, (rows, width)), ids)


def records(run_directory):
    with open(pathlib.Path(run_directory) / "metrics.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def steps(run_directory):
    return [r for r in records(run_directory) if "loss" in r]


def losses(run_directory):
    """Returns the losses of steps 1, 2, 3, ..., each of which must be there once."""
    found = steps(run_directory)
    numbers = [r["step"] for r in found]
    assert numbers == list(range(1, len(found) + 1)), f"{run_directory}: steps {numbers}"
    return [r["loss"] for r in found]


def difference(a, b):
    """Returns the largest absolute difference of two equally long lists."""
    assert len(a) == len(b) and a, f"{len(a)} and {len(b)} values"
    return max(abs(x - y) for x, y in zip(a, b))


class Case(unittest.TestCase):
    """A test with a folder of its own that holds train.h5 (64 rows x 33 ids) and val.h5 (21 rows)."""

    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="fsdp-cli."))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.train_data = write_tokens(cls.folder / "train.h5", random_tokens())
        cls.val_data = write_tokens(cls.folder / "val.h5", random_tokens(rows=21, seed=1))
        cls.runs = cls.folder / "runs"

    def run_directory(self, name):
        return self.runs / name

    def checkpoints(self, name):
        return self.run_directory(name) / "checkpoints"

    def train_arguments(self, name, *more):
        return ["--train-data", self.train_data, "--out-dir", self.runs, "--run-name", name, *COMMON, *TINY_MODEL, *more]

    def train(self, name, *more, ranks=0, code=0, **how):
        """Trains the tiny model as run `name`, checks the exit code, returns the Result."""
        result = run("fsdp-finetune", self.train_arguments(name, *more), ranks, **how)
        self.assertEqual(result.code, code, str(result))
        return result

    def losses(self, name):
        return losses(self.run_directory(name))

    def evaluate(self, checkpoint, *more, ranks=0, code=0):
        """Runs fsdp-eval --json; returns its report, or the Result if an exit code other than 0 is expected."""
        result = run("fsdp-eval", [checkpoint, "--json", *COMMON, *more], ranks)
        self.assertEqual(result.code, code, str(result))
        return result.json() if code == 0 else result

    def small_disk(self, size):
        """Returns a tmpfs of `size`; skips the test if this user may not mount one."""
        disk = self.folder / "disk"
        disk.mkdir(exist_ok=True)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], capture_output=True, text=True, check=False)
        if mounted.returncode:
            self.skipTest(f"no tmpfs can be mounted here (the file-size test stands in): {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=False)
        return disk

    def assert_refused(self, result, code, *words):
        """Expects one message that names `words`, and the exit code."""
        self.assertEqual(result.code, code, str(result))
        self.assertEqual(len(result.errors()), 1, str(result))
        for word in words:
            self.assertIn(str(word), result.errors()[0])


def say(text):
    """Prints a figure to the test's log."""
    print(text, flush=True)


def main():
    program = unittest.main(exit=False, verbosity=2)
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    for case, reason in result.skipped:
        print(f"SKIPPED: {case.id().removeprefix('__main__.')}: {reason}")
    if result.testsRun and len(result.skipped) == result.testsRun:
        sys.exit(SKIPPED)
    if result.skipped:
        print(f"SKIPPED: {len(result.skipped)} of {result.testsRun} cases; the others passed")
