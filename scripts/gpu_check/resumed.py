"""Part of stage ranks: compares runs that save and resume with an uninterrupted run of PyTorch, which shows whether a checkpoint
holds all state of the device."""

import json

from checks import verdict_of
from training import read_lines


def compare(truth, model, steps, rows, limit):
    truth.pytorch(model)
    name, machine = f"{model}-resumed", truth.machine
    for part, until in enumerate((steps // 2, steps)):
        command = truth.trainings.ours_command(model, name, "float32", until, rows, saves=True)
        truth.stage.run(f"{name} {part}", [*command, *(["--restart", "latest"] if part else [])], limit)
    ours = [line for line in read_lines(machine.work / "runs" / name / "metrics.jsonl") if "loss" in line]
    good, text, figures = truth.judged(f"{name} 1", model, "float32", ours)
    return verdict_of(good), f"saved after {steps // 2} of {steps} steps; {text}", figures


def compare_snapshot(truth, model, steps, rows, limit):
    """Resumes from a checkpoint that was written while the following steps ran."""
    truth.pytorch(model)
    trainings, half = truth.trainings, steps // 2
    saving = trainings.ours("snapshot", model, "float32", steps, rows, limit, ("--save-every", 1), saves=True)
    run = truth.machine.work / "runs" / "snapshot"
    resumed = trainings.ours("snapshot resumed", model, "float32", steps, rows, limit, ("--restart", run / "checkpoints" / f"step-{half:08d}"))
    good, text, figures = truth.judged("snapshot resumed", model, "float32", saving[:half] + resumed)
    saves = json.loads((run / "job.json").read_text(encoding="utf-8"))["saves"]
    waited, seconds = (sum(save[key] for save in saves) / len(saves) for key in ("waited_seconds", "seconds"))
    return (verdict_of(good), f"{len(saves)} saves of {saves[0]['bytes'] / 2**20:.0f} MiB, {1e3 * seconds:.0f} ms each, of which training waited "
            f"{1e3 * waited:.0f} ms; from the one after {half} steps: {text}", {**figures, "waited_seconds": waited, "seconds": seconds})
