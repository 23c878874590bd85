"""Part of stage truth: compares a run that saves, ends and resumes with an uninterrupted run of PyTorch, which shows
whether a checkpoint holds all state of the device."""

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
