#!/usr/bin/env python3
"""Writes gguf_blocks.json: a block of random bytes of each quantised type of ggml, and its elements as gguf-py (0.19) computes them.

    make_gguf_blocks.py > gguf_blocks.json       needs gguf and numpy
"""
import json

import gguf
import numpy

# Offsets of the float16 numbers in a block, which random bytes could make infinite.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def main():
    source, found = numpy.random.default_rng(7), {}
    for name, offsets in HALVES.items():
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        block = source.integers(0, 256, size, dtype=numpy.uint8)
        for number, offset in enumerate(offsets):
            block[offset:offset + 2] = numpy.array([0.0137 * (number + 1)], dtype=numpy.float16).view(numpy.uint8)
        values = gguf.dequantize(block[None], kind).astype(numpy.float32).ravel()
        assert values.size == elements
        found[name] = {"block": block.tobytes().hex(), "values": values.tobytes().hex()}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
