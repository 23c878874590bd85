"""Prints the facts of this PyTorch and GPU as one JSON object: facts.py cuda|cpu. A program of its own that imports torch and nothing
else of it, because every call of scripts/gpu-check begins with these facts."""

import json
import pathlib
import re
import sys

import torch


def library_folders():
    """Returns the folders of this PyTorch's libraries and of the CUDA and NCCL that came with it; folders that the system's
    loader searches anyway are left out."""
    found = {}
    for line in pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = pathlib.Path(line.split(maxsplit=5)[-1])
        if re.match(r"lib(torch|c10|cu|nv|nccl)[\w-]*\.so", path.name) and not str(path).startswith(("/lib/", "/lib64/", "/usr/lib")):
            found[str(path.parent)] = True
    return list(found)


def facts(device):
    found = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": None, "gpus": 0, "folders": library_folders()}
    if device == "cuda":
        try:
            found |= {"gpus": torch.cuda.device_count(), "gpu": torch.cuda.get_device_name(0),
                      "uuid": f"GPU-{getattr(torch.cuda.get_device_properties(0), 'uuid', None)}",
                      "gpu_bytes": torch.cuda.get_device_properties(0).total_memory,
                      "capability": ".".join(map(str, torch.cuda.get_device_capability(0)))}
        except (AssertionError, RuntimeError) as reason:  # no CUDA in this build, or no driver
            found["no_gpu"] = str(reason).splitlines()[0]
    print(json.dumps(found))


if __name__ == "__main__":
    facts(sys.argv[1])
