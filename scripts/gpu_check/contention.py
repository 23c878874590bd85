"""Part of stage speed: how much longer the products of a block take beside kernels that hold multiprocessors as NCCL's do, and
whether cuBLAS's target of multiprocessors helps, from tests/gpu_device (tests/gpu/contention_test.cpp)."""

import re

from checks import FAIL, NOTE, Trouble, reason_in
from power import words
from rates import run_program

LINE = r"(?m)^contention: (\d+) blocks(| in clusters of 4), (no target|target (\d+)): (\S+) ms, (\S+) times$"


def check(stage):
    log, said, clocks = run_program(stage, "contention", "gpu_device", "--test-suite=gpu/contention", "--no-skip")
    found = [{"blocks": int(blocks), "in_clusters": bool(clusters), "target": int(target) if target else None, "ms": float(ms), "times": float(times)}
             for blocks, clusters, _, target, ms, times in re.findall(LINE, said)]
    in_clusters = any(each["in_clusters"] for each in found)
    alone = next((each["ms"] for each in found if each["blocks"] == 0), None)
    if alone is None:
        raise Trouble(f"no figures: {reason_in(log)} ({log})")

    def times(with_target, clusters=in_clusters):
        return ", ".join(f"{each['times']:.3f} beside {each['blocks']}" for each in found
                         if each["blocks"] and (each["target"] is not None) == with_target and each["in_clusters"] == clusters)
    missing = re.search(r"(?m)^contention: (no target .*)$", said)
    with_target = times(True) or (missing[1] if missing else "nothing")
    one_by_one = f"; blocks that are not in clusters as NCCL's: {times(False, False)}" if in_clusters else ""
    failed = "" if "Status: SUCCESS" in said else f"; but the suite failed: {log}"  # its figures count nevertheless
    return FAIL if failed else NOTE, (f"twelve products {alone:.2f} ms alone; times that: {times(False)} blocks; with a target: {with_target}{one_by_one}{words(clocks)}"
                                      f"{failed}"), {"contention": found, "clocks": clocks}
