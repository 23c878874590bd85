"""Part of stage speed: rates of this GPU and host without a model, from tests/bench_gpu_rates (tests/bench/gpu_rates.cpp):
products of a block's shapes, GB/s of every kernel beside a copy's, copies to and from the host, the host's time per launch."""

import re

from checks import FAIL, NOTE, Skipped, Trouble, reason_in
from power import Sampled, words

# Rows of the weights of a block, by its name in the lines.
BLOCKS = {"CodeLlama-7b": {"q|k|v": (3 * 4096, 4096), "attention out": (4096, 4096), "inner": (2 * 11008, 4096), "down": (4096, 11008)},
          "GPT-2": {"q|k|v": (3 * 768, 768), "attention out": (768, 768), "inner": (3072, 768), "down": (768, 3072)}}
SLOWEST = 3  # kernels that the line names
INNER = "CodeLlama-7b, inner, forward"  # the product that is also measured for seconds


def products_alone(rates, block):
    """Returns TFLOP/s of the twelve products of a block's forward and backward one after the other, with gradients of weights
    in bf16: what the block would reach without anything else. None if a rate is missing."""
    seconds = operations = 0
    for weight, (rows, columns) in BLOCKS[block].items():
        for kind in ("forward", "input's gradient", "weight's gradient, bf16"):
            rate, _ = rates.get(f"{block}, {weight}, {kind}", (0, ""))
            if not rate:
                return None
            seconds, operations = seconds + rows * columns / rate, operations + rows * columns
    return operations / seconds


def run_program(stage, name, program, *arguments):
    """Runs a program of tests/ that only prints figures. Returns its log, what it printed, and clocks."""
    if stage.machine.device != "cuda":
        raise Skipped("needs a GPU")
    there = stage.machine.test_program(program)
    if there is None:
        raise Skipped(f"no tests/{program} beside the programs: scripts/build --with-tests makes it, with a CUDA back end")
    path, variables = there
    with Sampled(stage.machine) as gpu:
        log = stage.run(name, [path, *arguments], 90, variables, may_fail=True)
    return log, log.read_text(encoding="utf-8", errors="replace"), gpu.found


def check(stage):
    log, said, clocks = run_program(stage, "rates", "bench_gpu_rates")
    found = re.findall(r"(?m)^rate: (.*) = (\S+) (\S+)$", said)
    rates = {name: (float(value), unit) for name, value, unit in found}
    if "copy" not in rates:
        raise Trouble(f"no rates: {reason_in(log)} ({log})")
    copy = rates["copy"][0]
    transfers = ("host", "device", "pages")
    kernels = {name: rate / copy for name, (rate, unit) in rates.items() if unit == "GB/s" and not name.startswith(transfers) and name != "copy"}
    slowest = ", ".join(f"{name} {100 * kernels[name]:.0f} %" for name in sorted(kernels, key=kernels.get)[:SLOWEST])
    blocks = ", ".join(f"{block} {rate:.0f} TFLOP/s" for block in BLOCKS if (rate := products_alone(rates, block)))
    launch, group = (rates.get(name, (0, ""))[0] for name in ("launch of a kernel of this project", "group of collectives"))
    figures = {"rates": [{"name": name, "value": value, "unit": unit} for name, (value, unit) in rates.items()], "clocks": clocks}
    burst, sustained = (rates.get(f"{INNER}{kind}", (0, ""))[0] for kind in ("", ", sustained"))
    failed = "" if re.search("(?m)^done$", said) else f"; but it did not end well: {log}"  # the figures count nevertheless
    return FAIL if failed else NOTE, (
        f"products alone: {blocks}{words(clocks)}; {INNER} {burst:.0f} TFLOP/s, {sustained:.0f} after a second; copy {copy:.0f} GB/s, slowest kernels to it: {slowest}; "
        f"host: {launch:.1f} us a launch, {group:.0f} us a group of collectives{failed}"), figures
