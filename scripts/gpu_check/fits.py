"""Part of stage rest: the largest batch that fsdp-memprobe finds really trains, without repeated calls of cudaMalloc, and one
row more does not; memory outside the allocator against the usual value."""

import json

from checks import NOTE, PASS, SKIP, Trouble, verdict_of

SHAPE = dict(kind="llama", layers=8, width=2048, heads=16, ffn=5504, vocab=32016, length=2048, rows=256)
SMALL = dict(kind="llama", layers=2, width=64, heads=4, ffn=176, vocab=1000, length=64, rows=512)
STEPS = 3
CPU_MEMORY = "300MiB"  # of a rehearsal without a GPU, where the limit binds the search alone


def trained(truth, batch, name):
    """Returns the log of a run with this batch, and its memory.json if it ended well."""
    stage, machine = truth.stage, truth.machine
    log = stage.run(name, truth.trainings.ours_command("fits", name, "bf16", STEPS, batch), 90, may_fail=True)
    memory = machine.work / "runs" / name / "memory.json"
    return log, json.loads(memory.read_text(encoding="utf-8")) if memory.exists() else None


def check(truth):
    stage, machine = truth.stage, truth.machine
    shape = SMALL if machine.small else SHAPE
    truth.trainings.make_model("fits", shape, 60)
    memory = [] if truth.on_gpu else ["--memory", CPU_MEMORY]
    log = stage.run("largest batch", [machine.programs / "fsdp-memprobe", "--model", truth.trainings.folder("fits") / "config.json", "--precision", "bf16",
                                      "--seq-len", shape["length"], "--device", machine.device, *memory, "--max-batch", shape["rows"] - 1, "--search", "--json", "--quiet"], 90)
    text = log.read_text(encoding="utf-8")
    found = json.loads(text[text.index("{"):text.rindex("}") + 1])
    largest = found["largest_batch_per_device"]
    log, memory = trained(truth, largest, "largest-batch")
    if memory is None:
        raise Trouble(f"the largest batch, {largest} rows, did not train: {log}")
    outside, usual = memory["overhead_bytes"], found["breakdown"].get("cuda_context", 0) + found["breakdown"].get("nccl", 0)
    said = f"{largest} rows of {shape['length']} trained, {memory['alloc_retries']} retries"
    figures = {"largest": largest, "memory": memory, "usual_overhead_bytes": usual}
    if not truth.on_gpu:
        return PASS, f"{said}; a batch that does not fit needs a GPU", figures
    said += f"; {outside / 2**20:.0f} MiB outside the allocator, {usual / 2**20:.0f} expected"
    if largest == shape["rows"] - 1:
        return SKIP, f"{said}; more rows than this check has would fit", figures
    log, more = trained(truth, largest + 1, "one-row-more")
    if more is None and "out of memory" not in log.read_text(encoding="utf-8", errors="replace"):
        raise Trouble(f"a row more ended without the reason: {log}")
    figures["one_more"] = more
    if more is not None and more["alloc_retries"] == 0:
        return NOTE, f"{said}; a row more would have fitted, too", figures
    said += f"; a row more {'ran out of memory and said so' if more is None else 'trained with retries'}"
    return verdict_of(memory["alloc_retries"] == 0), said, figures
