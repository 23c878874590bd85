"""Part of stage truth: compares a run that saves, ends and resumes with an uninterrupted run of PyTorch, which shows
whether a checkpoint holds all state of the device."""

from checks import FAIL, verdict_of
from training import read_lines, worst


def compare(truth, model, steps, rows, limit, tolerance):
    if model not in truth.theirs:
        return FAIL, "PyTorch's own run is missing", {}
    name, machine = f"{model}-resumed", truth.machine
    for part, until in enumerate((steps // 2, steps)):
        command = [word for word in truth.trainings.ours_command(model, name, "float32", until, rows) if word != "--no-save"]
        truth.stage.run(f"{name} {part}", [*command, *(["--restart", "latest"] if part else [])], limit)
    ours = [line for line in read_lines(machine.work / "runs" / name / "metrics.jsonl") if "loss" in line]
    loss, norm = worst(ours, truth.theirs[model]["float32"])
    most_loss, most_norm = tolerance
    return (verdict_of(loss <= most_loss and norm <= most_norm),
            f"saved after {steps // 2} of {steps} steps: loss within {loss:.1e} of {most_loss:g}, gradient norm {norm:.1e} of {most_norm:g}",
            {"loss": loss, "grad_norm": norm, "tolerances": list(tolerance)})
