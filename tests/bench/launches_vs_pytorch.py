"""Compares launches for one CodeLlama-7b layer, its head and its optimizer with eager PyTorch FSDP2.

Both run on the stub driver (tests/gpu/stub_card.hpp), which counts the calls of a program to the GPU and computes nothing.
The counts equal those of a real GPU and are the same in every run; no time is measured. FSDP_GPU_LAUNCHES names our
program, FSDP_STUB_CUDA the driver.
"""

import json
import os
import pathlib
import subprocess
import sys

SKIPPED = 77
UNITS = 3  # the root and two blocks
PYTORCHS = pathlib.Path(__file__).resolve().parents[1] / "gpu/launches_of_pytorch.py"


def run(command, **more):
    done = subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def main():
    stub = os.environ.get("FSDP_STUB_CUDA", "")
    if not stub:
        print("SKIPPED: the CUDA back end was not built, or not for CUDA 12.8 or 13 on x86-64")
        return SKIPPED
    import torch
    if not torch.backends.cuda.is_built():
        print("SKIPPED: this PyTorch was built without CUDA")
        return SKIPPED
    ours = run([os.environ["FSDP_GPU_LAUNCHES"], "--json"])
    peer = run([sys.executable, str(PYTORCHS), "--json"], LD_PRELOAD=stub)
    print(f"{'':<16} {'ours':>18} {'FSDP2, torch ' + torch.__version__:>30}   PyTorch's / ours")
    kinds = ("kernels", "products", "attention")
    for part in ("block_forward", "block_backward", "head"):
        times = ours["head_chunks"] if part == "head" else 1
        mine, theirs = [times * ours[part][kind] for kind in kinds], [peer[part][kind] for kind in kinds]
        print(f"{part.replace('_', ' '):<16} {' + '.join(map(str, mine)):>18} {' + '.join(map(str, theirs)):>30}   {sum(theirs) / sum(mine):.1f}")
    per_unit = (peer["optimizer"]["kernels"] + peer["optimizer"]["copies"]) / UNITS
    print(f"{'per unit, AdamW':<16} {ours['launches_per_unit']:>18.1f} {per_unit:>30.1f}   {per_unit / ours['launches_per_unit']:.1f}")
    print("kernels + products + attention of a layer, 4 x 512 tokens, bf16; our head goes over logits in " + str(ours["head_chunks"]) + " chunks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
