#!/usr/bin/env python3
"""Writes cast_values.json: bit patterns before and after a cast by PyTorch or numpy. cast_test.cpp reads it.

    make_cast_values.py > cast_values.json
"""
import json
import random

import numpy as np
import torch

BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8}
# (exponent bits, mantissa bits). Rounding errors occur near the values that the target represents and near the midpoints
# between them.
FORMATS = {"float64": (11, 52), "float32": (8, 23), "float16": (5, 10), "bfloat16": (8, 7), "float8_e4m3fn": (4, 3),
           "float8_e5m2": (5, 2)}
UNSIGNED = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32, 64: torch.uint64}


def tensor_of(bits, dtype):
    array = np.array(bits, dtype=f"uint{BITS[dtype]}")
    return torch.from_numpy(array).view(getattr(torch, dtype))


def bits_of(tensor, dtype):
    return [int(x) for x in tensor.view(UNSIGNED[BITS[dtype]]).numpy()]


def inputs(source, target, rng):
    """Returns bit patterns of `source`: special ones, random ones, and the surroundings of values and midpoints of `target`."""
    width = BITS[source]
    exponent, mantissa = FORMATS[source]
    top = 1 << (width - 1)
    infinity = ((1 << exponent) - 1) << mantissa
    bits = [0, top, 1, top | 1, infinity, top | infinity, infinity - 1, infinity | 1 << (mantissa - 1), top | infinity | 1]
    bits += [rng.getrandbits(width) for _ in range(24)]
    if BITS[target] < width or (BITS[target] == width and source != target):
        drop = max(mantissa - FORMATS[target][1], 1)
        bias_source, bias_target = (1 << (exponent - 1)) - 1, (1 << (FORMATS[target][0] - 1)) - 1
        lowest = max(1, bias_source - bias_target - FORMATS[target][1] - 2)
        highest = min((1 << exponent) - 2, bias_source + bias_target + 2)
        for _ in range(40):
            e = rng.choice([rng.randint(lowest, highest), lowest + rng.randint(0, 6), highest - rng.randint(0, 4)])
            e = min(max(e, 1), highest)
            extra = rng.choice([0, rng.randint(0, min(FORMATS[target][1] + 1, mantissa - drop))])  # subnormal targets
            step = 1 << min(drop + extra, mantissa)
            m = rng.getrandbits(mantissa) // step * step + rng.choice([0, step // 2, step // 2 + 1, max(step // 2 - 1, 0), 1])
            bits.append(rng.getrandbits(1) * top | e << mantissa | m % (1 << mantissa))
    return [b % (1 << width) for b in bits]


def cast(bits, source, target):
    if source == "float64" and target in ("float32", "float16"):  # numpy rounds once, while PyTorch converts through float32
        with np.errstate(all="ignore"):
            array = np.array(bits, dtype="uint64").view("float64").astype(target)
        return [int(x) for x in array.view(f"uint{BITS[target]}")]
    return bits_of(tensor_of(bits, source).to(getattr(torch, target)), target)


def main():
    rng = random.Random(4)
    pairs = []
    for source in BITS:
        for target in BITS:
            if source == target or (source == "float64" and target not in ("float32", "float16")):
                continue
            bits = inputs(source, target, rng)
            pairs.append({"from": source, "to": target, "in": bits, "out": cast(bits, source, target)})
    print("[\n" + ",\n".join(json.dumps(pair, separators=(",", ":")) for pair in pairs) + "\n]")


if __name__ == "__main__":
    main()
