"""Entry point of scripts/gpu-check, whose head describes it."""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import contenders
import kernels
import llmc
import results
import speed
from checks import FAIL, LATE, Stage, Stopped, stop_on_signals
from machine import CannotRun, Machine
from truth import Truth

# In the order of their worth; seconds include the start and the clean-up.
STAGES = {
    "contact": (300, lambda stage: Truth(stage).contact()), "speed": (600, speed.run), "ranks": (240, lambda stage: Truth(stage).over_ranks()),
    "rest": (480, lambda stage: Truth(stage).rest()), "sanitizers": (150, lambda stage: Truth(stage).sanitizers()), "profile": (290, kernels.run)}
GROUPS = {"truth": ("contact", "ranks", "rest", "sanitizers")}
PASSED, COULD_NOT_RUN, FAILED = 0, 1, 3


def parsed():
    parser = argparse.ArgumentParser(prog="gpu-check", add_help=False, allow_abbrev=False)
    parser.add_argument("stages", nargs="*", metavar="STAGE")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/gpu-check"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--llmc", type=pathlib.Path)
    parser.add_argument("--old", type=pathlib.Path)
    parser.add_argument("--contenders", nargs="+", default=[])
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    for stage in options.stages:
        if stage not in (*STAGES, *GROUPS):
            parser.error(f"no stage is called '{stage}': {', '.join((*STAGES, *GROUPS))}")
    for option, given in (("--only", options.only), ("--contenders", options.contenders)):
        if swallowed := [word for word in given if word in (*STAGES, *GROUPS)]:
            parser.error(f"{option} {swallowed[0]}: stages are given before {option}")
    for word in options.contenders:
        if word not in contenders.WORDS:
            parser.error(f"no contender is called '{word}': {', '.join(contenders.WORDS)}")
    if not options.seconds > 0:
        parser.error(f"--seconds {options.seconds:g}: a stage needs time")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")
    if options.llmc and not any((options.llmc / name).exists() for name in (llmc.SOURCE, llmc.PROGRAM)):
        parser.error(f"--llmc {options.llmc}: there is no {llmc.SOURCE}, it names the folder of llm.c's source")
    if options.old and not (options.old / "bin/fsdp-finetune").exists():
        parser.error(f"--old {options.old}: there is no bin/fsdp-finetune, it names the folder of an unpacked kit")
    for word, option, given in (("old", "--old", options.old), ("llmc", "--llmc", options.llmc)):
        if word in options.contenders and not given:
            parser.error(f"--contenders {word} needs {option} DIR")
    if options.rehearse and options.device == "cpu":
        parser.error("--rehearse is for a stub driver: --device cpu rehearses without it")
    stages = [each for stage in options.stages for each in GROUPS.get(stage, (stage,))]
    options.stages = list(dict.fromkeys(stages)) or list(STAGES)
    return options


def run_stages(options, work):
    options.out = options.out.resolve()
    results.read(options.out)  # fail before time is spent if the results cannot be extended
    begin = time.monotonic()
    machine = Machine(options.device, options.out, work, options.rehearse, options.llmc and options.llmc.resolve(), options.old)
    print(f"{machine.facts['gpu'] or options.device}, PyTorch {machine.facts['torch']}, {machine.version.splitlines()[0]}"
          + (f", old: {machine.old.version.splitlines()[0]}" if machine.old else ""), flush=True)
    rows = []
    for name in options.stages:
        seconds, run = STAGES[name]
        stage = Stage(name, machine, min(seconds, options.seconds) - (time.monotonic() - begin), options.only, options.keep_going,
                      [contenders.WORDS[word] for word in options.contenders])
        print(f"-- {name}", flush=True)
        run(stage)
        stage.close(time.monotonic() - begin)
        if stage.rows:
            results.add(options.out, stage, machine, time.monotonic() - begin, options.json)
        rows += stage.rows
        begin = time.monotonic()
    if not rows:
        words = [f"contains {' or '.join(options.only)}"] * bool(options.only) + [f"has {' or '.join(options.contenders)}"] * bool(options.contenders)
        raise CannotRun(f"no check {' and '.join(words)}")
    failed, late = (sum(row["verdict"] == verdict for row in rows) for verdict in (FAIL, LATE))
    print(f"{failed} failed{f', {late} not seen for lack of time: --only repeats them' if late else ''}; {options.out / results.MARKDOWN}", flush=True)
    return FAILED if failed else COULD_NOT_RUN if late else PASSED


def main():
    options = parsed()
    stop_on_signals()
    work = None
    try:
        work = pathlib.Path(tempfile.mkdtemp(prefix="fsdp-gpu-check."))
        return run_stages(options, work)
    except Stopped as signal:
        print(f"gpu-check: stopped by {signal}: nothing of the stage that ran was kept", file=sys.stderr)
    except (CannotRun, OSError, subprocess.TimeoutExpired) as reason:
        print(f"gpu-check: {reason}", file=sys.stderr)
    finally:
        end = time.monotonic() + 5
        while work and work.exists() and time.monotonic() < end:  # killed ranks may still write for a moment
            shutil.rmtree(work, ignore_errors=True)
    return COULD_NOT_RUN


if __name__ == "__main__":
    sys.exit(main())
