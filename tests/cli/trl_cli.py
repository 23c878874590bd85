"""Starts of adapters as TRL's fixtures have them (tests/fixtures/recipes)."""

import os
import pathlib
import sys

import numpy
import safetensors.numpy

sys.path.insert(0, str(pathlib.Path(os.environ["FSDP_FIXTURES"]) / "numerics"))
import prng  # noqa: E402  counter-based numbers, beside the other fixtures


def write_initial_adapter(file, trained, seed, whole=None):
    """Writes peft's file: lora_A by counter-based numbers, lora_B of zeros, and whole modules by their names.

    trained: pairs of a name and a shape, as the model lists what it trains
    """
    whole = whole or {}
    tensors = {name: values for name, values in whole.items()}
    for name, shape in trained:
        if "lora_A" in name:
            tensors[name] = prng.tensor(name, seed, shape, shape[1] ** -0.5)
        elif "lora_B" in name:
            tensors[name] = numpy.zeros(shape, numpy.float32)
    safetensors.numpy.save_file({"base_model.model." + name: values for name, values in tensors.items()}, file)
