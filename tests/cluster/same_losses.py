#!/usr/bin/env python3
"""Compares the training losses of two runs, step by step.

    same_losses.py A/metrics.jsonl B/metrics.jsonl [--relative TOLERANCE] [--steps N]

Each file must hold every step from 1 on exactly once, and both equally many (N if given). Without a tolerance the losses
must be equal to the last digit.
"""
import argparse
import json
import sys


def losses(path, steps):
    with open(path, encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    found = [(record["step"], record["loss"]) for record in records if "loss" in record]
    numbers = [step for step, _ in found]
    if not found or numbers != list(range(1, len(found) + 1)):
        sys.exit(f"{path}: the steps are not 1, 2, 3, ... each once: {numbers}")
    if steps and len(found) != steps:
        sys.exit(f"{path}: {len(found)} steps, expected {steps}")
    return [loss for _, loss in found]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--relative", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=0)
    options = parser.parse_args()
    a, b = losses(options.a, options.steps), losses(options.b, options.steps)
    if len(a) != len(b):
        sys.exit(f"{len(a)} and {len(b)} steps")
    worst, step = max((abs(x - y) / max(abs(x), 1e-30), step) for step, (x, y) in enumerate(zip(a, b), 1))
    print(f"{len(a)} steps, last loss {a[-1]} and {b[-1]}, largest relative difference {worst:.3g} at step {step}")
    return 0 if worst <= options.relative else 1


if __name__ == "__main__":
    sys.exit(main())
