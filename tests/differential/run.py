#!/usr/bin/env python3
"""Compares the programs with other implementations on random cases, for as long as wanted.

    run.py [KIND...] [--seconds N]        random seeds; the time is shared among the kinds, all by default
    run.py KIND --first N --cases M       the seeds N to N+M-1
    run.py KIND --seed N                  one seed
    run.py KIND --case FILE               a case that was written before

A case that differs is made smaller as long as it differs alike, and written to FOLDER/KIND/SEED with both results and the
command that repeats it. Differences that are chosen (KNOWN of a kind's module) are counted, with the reason. Exit code 1
if others were found; 77 if a library to compare with is missing.
"""
import argparse
import collections
import importlib
import json
import pathlib
import random
import re
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SKIPPED = 77
# Each has a module KIND_cases.py with
#   BATCH                how many cases are compared at once
#   KNOWN                a list of (reason, function of case and difference: whether it is that one)
#   generate(random)     returns a case, which is JSON
#   differences(cases)   returns for each case None or a text; the first line of the text says what kind of difference it is
KINDS = ["tokenizers", "templates", "configs", "adapters", "checkpoints", "chats", "jobs"]
MOST_ALIKE = 3  # cases that are made smaller per kind of difference
MOST_SECONDS = 20  # for making one case smaller


def smaller(value):
    """Yields values that are a little, or much, smaller than a JSON value, the smallest first."""
    if isinstance(value, list):
        size = len(value)
        while size > 0:
            for begin in range(0, len(value), size):
                yield value[:begin] + value[begin + size:]
            size //= 2
        for i, item in enumerate(value):
            if isinstance(item, list):
                yield value[:i] + item + value[i + 1:]
        for i, item in enumerate(value):
            for less in smaller(item):
                yield value[:i] + [less] + value[i + 1:]
    elif isinstance(value, dict):
        for key in value:
            yield {k: v for k, v in value.items() if k != key}
        for key in value:
            for less in smaller(value[key]):
                yield {**value, key: less}
    elif isinstance(value, str):
        size = len(value)
        while size > 0:
            for begin in range(0, len(value), size):
                yield value[:begin] + value[begin + size:]
            size //= 2
        for i, character in enumerate(value):
            if character not in "ab 01":
                yield value[:i] + "a" + value[i + 1:]
    elif isinstance(value, bool):
        if value:
            yield False
    elif isinstance(value, int) and value not in (0, 1):
        yield from (0, 1, value // 2)
    elif isinstance(value, float) and value not in (0.0, 1.0):
        yield from (0.0, 1.0, float(round(value)))


def kind_of(difference):
    return re.sub(r"[0-9]+", "N", difference.split("\n", 1)[0])


class Kind:
    """Runs the cases of one module and collects what it finds."""

    def __init__(self, name, folder):
        self.name, self.module, self.folder = name, importlib.import_module(f"{name}_cases"), folder
        self.cases, self.seconds, self.found = 0, 0.0, collections.Counter()
        self.known = collections.Counter()

    def generate(self, seed):
        return self.module.generate(random.Random(f"{self.name} {seed}"))

    def known_reason(self, case, difference):
        return next((reason for reason, is_it in self.module.KNOWN if is_it(case, difference)), None)

    def differences_if_cases(self, candidates):
        """Compares smaller cases, some of which may be none any more: those have no difference."""
        try:
            return self.module.differences(candidates)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, OSError):
            return [None] if len(candidates) == 1 else [self.differences_if_cases([one])[0] for one in candidates]

    def shrink(self, case, difference):
        """Returns the smallest case found that differs in the same way, and its difference."""
        kind, deadline, again = kind_of(difference), time.monotonic() + MOST_SECONDS, True
        while again:
            again, candidates = False, smaller(case)
            while time.monotonic() < deadline:
                batch = [c for _, c in zip(range(self.module.BATCH), candidates)]
                if not batch:
                    break
                for candidate, other in zip(batch, self.differences_if_cases(batch)):
                    if other and kind_of(other) == kind and not self.known_reason(candidate, other):
                        case, difference, again = candidate, other, True
                        break
                if again:
                    break
        return case, difference

    def report(self, seed, case, difference):
        kind = kind_of(difference)
        self.found[kind] += 1
        if self.found[kind] > MOST_ALIKE:
            return
        case, difference = self.shrink(case, difference)
        place = self.folder / self.name / str(seed)
        place.mkdir(parents=True, exist_ok=True)
        (place / "case.json").write_text(json.dumps(case, ensure_ascii=True, indent=1) + "\n", encoding="utf-8")
        lines = (f"scripts/differential --seed {seed} {self.name}\n"
                 f"scripts/differential --case {place / 'case.json'} {self.name}\n")
        (place / "difference.txt").write_text(f"{difference}\n\n{lines}", encoding="utf-8", errors="backslashreplace")
        shown = ascii(case)
        print(f"{self.name}: seed {seed}: {difference}\n  smallest case: {shown[:1500]}{'...' if len(shown) > 1500 else ''}\n"
              f"  in {place}", flush=True)

    def compare(self, seeds, cases):
        for seed, case, difference in zip(seeds, cases, self.module.differences(cases)):
            self.cases += 1
            reason = difference and self.known_reason(case, difference)
            if reason:
                self.known[reason] += 1
            elif difference:
                self.report(seed, case, difference)

    def run(self, seeds, deadline):
        """Compares the cases of `seeds` until they or the time end."""
        begin = time.monotonic()
        while time.monotonic() < deadline:
            batch = [seed for _, seed in zip(range(self.module.BATCH), seeds)]
            if not batch:
                break
            self.compare(batch, [self.generate(seed) for seed in batch])
        self.seconds = time.monotonic() - begin
        rate = self.cases / max(self.seconds, 1e-9)
        print(f"{self.name}: {self.cases} cases in {self.seconds:.0f} s ({rate:.3g} per second), "
              f"{sum(self.found.values())} differ", flush=True)
        for kind, count in self.found.most_common():
            print(f"  {count} times: {kind}")
        for reason, count in self.known.most_common():
            print(f"  {count} times as chosen: {reason}")
        about = getattr(self.module, "summary", None)
        if about:
            print(f"  {about()}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--first", type=int)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--case", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "differential")
    arguments = parser.parse_args()
    kinds = arguments.kinds or KINDS
    if any(kind not in KINDS for kind in kinds):
        parser.error(f"expected kinds among {', '.join(KINDS)}")
    if (arguments.seed is not None or arguments.case) and len(kinds) != 1:
        parser.error("--seed and --case need one kind")
    sys.path.insert(0, str(HERE))
    try:
        runs = [Kind(name, arguments.folder) for name in kinds]
    except ImportError as error:
        print(f"skipped: {error}")
        return SKIPPED
    for run in runs:
        if arguments.case:
            case = json.loads(arguments.case.read_text(encoding="utf-8"))
            print(run.module.differences([case])[0] or "no difference")
            continue
        first, count = arguments.first, arguments.cases
        if arguments.seed is not None:
            first, count = arguments.seed, 1
        if first is None:
            first = random.SystemRandom().randrange(10**12)
        print(f"{run.name}: seeds from {first}", flush=True)
        seeds = iter(range(first, first + count if count else 10**15))
        seconds = float("inf") if count else arguments.seconds / len(runs)
        run.run(seeds, time.monotonic() + seconds)
    return 1 if any(run.found for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
