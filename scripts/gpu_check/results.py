"""Results of all stages, gathered over several calls: gpu-check.json, and gpu-check.md to paste."""

import datetime
import json
import os
import tarfile
import tempfile

from machine import CannotRun

FORMAT = "fsdp-gpu-check 1"
ORDER = ["contact", "speed", "ranks", "rest", "sanitizers", "profile", "truth"]  # the last: of an earlier version
JSON, MARKDOWN, ARCHIVE = "gpu-check.json", "gpu-check.md", "gpu-check.tar.gz"


def read(out):
    """Reads the results of earlier stages."""
    path = out / JSON
    if not path.exists():
        return {"format": FORMAT, "stages": {}}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] == FORMAT and set(found["stages"]) <= set(ORDER):
            return found
    except (ValueError, KeyError, TypeError):
        pass
    raise CannotRun(f"{path} is none of this program's results: give another --out")


def write_whole(path, text):
    """Writes by a rename, so that a reader finds either the old content or the new."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def pack(out):
    """Puts results and logs into one file, for machines that hand back few files."""
    part = out / f".{ARCHIVE}.part"
    try:
        with tarfile.open(part, "w:gz") as archive:
            for name in (JSON, MARKDOWN, "logs"):
                archive.add(out / name, f"gpu-check/{name}")
        os.replace(part, out / ARCHIVE)
    finally:
        part.unlink(missing_ok=True)


def add(out, stage, machine, seconds, copy):
    """Replaces the earlier results of a stage, or with --only those of the checks that ran."""
    found = read(out)
    rows = stage.rows
    if stage.only and stage.name in found["stages"]:
        new = {row["check"]: row for row in rows}
        before = [new.pop(row["check"], row) for row in found["stages"][stage.name]["checks"]]
        rows = before + list(new.values())
    found["stages"][stage.name] = {"finished": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                                   "seconds": round(seconds), "machine": machine.summary(), "checks": rows,
                                   **({"not_begun": stage.not_begun} if stage.not_begun else {})}
    found["stages"] = dict(sorted(found["stages"].items(), key=lambda each: ORDER.index(each[0])))
    text = json.dumps(found, indent=1) + "\n"
    for path in [out / JSON, *([copy] if copy else [])]:
        write_whole(path, text)
    write_whole(out / MARKDOWN, markdown(found))
    pack(out)


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def markdown(found):
    lines = ["# gpu-check", ""]
    for name, stage in found["stages"].items():
        counts = {}
        for row in stage["checks"]:
            counts[row["verdict"]] = counts.get(row["verdict"], 0) + 1
        facts = stage["machine"]
        lines += [f"## {name}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()), "",
                  f"{facts.get('gpu') or facts['device'].upper()}, PyTorch {facts['torch']}"
                  + (f", driver {facts['driver']}" if "driver" in facts else "") + f"; {stage['finished']}, {stage['seconds']} s", "",
                  "| check | | figures | s |", "|---|---|---|---|"]
        lines += [f"| {cell(row['check'])} | {row['verdict']} | {cell(row['text'])} | {row['seconds']} |" for row in stage["checks"]]
        lines.append("")
        if "not_begun" in stage:
            lines += [f"Not begun after a wrong number: {', '.join(stage['not_begun'])}", ""]
        for row in stage["checks"]:
            if rates := row["figures"].get("rates"):
                lines += ["| rate | | |", "|---|---|---|"]
                lines += [f"| {cell(each['name'])} | {each['value']:.4g} | {each['unit']} |" for each in rates] + [""]
            if contention := row["figures"].get("contention"):
                lines += ["| thread blocks beside the products | multiprocessors that cuBLAS aims for | ms | times alone |", "|---|---|---|---|"]
                lines += [f"| {each['blocks']}{' in clusters of 4' if each['in_clusters'] else ''} | {each['target'] or 'all'} | {each['ms']} | {each['times']} |" for each in contention] + [""]
            kernels = row["figures"].get("kernels")
            if kernels:
                lines += ["| kernel | ms a step | calls a step |", "|---|---|---|"]
                lines += [f"| `{cell(each['name'])}` | {each['ms_per_step']} | {each['calls_per_step']} |" for each in kernels] + [""]
    return "\n".join(lines)
