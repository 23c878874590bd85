"""Part of stage ranks: a rank is stopped or killed during training, with more launches queued behind it than a driver takes.
The other rank ends and names it, and no process is left."""

import contextlib
import os
import pathlib
import re
import signal
import time

from checks import PASS, Trouble, descendants, skip

# 40 layers recomputed launch about 1,500 kernels a step; a driver takes about 1,000 before it blocks the host.
SHAPE = dict(kind="mingpt", layers=40, width=64, heads=2, ffn=256, vocab=1000, length=64, rows=8)
TIMEOUT = 10  # seconds of --collective-timeout
MARGIN = 20  # seconds more for answers, the end of the program and the launcher's
STUB_COLLECTIVE = 175  # on a stub driver the rank stops itself, in the second step
RANK_ONE = {b"PMI_RANK=1", b"PMIX_RANK=1", b"OMPI_COMM_WORLD_RANK=1"}
SIGNALS = {"stopped": signal.SIGSTOP, "killed": signal.SIGKILL}
NAMED = r"did not (answer|arrive): rank 1\b|\brank 1 did not arrive"
# The launcher may end the others of a killed rank before they notice.
WORDS = {"stopped": NAMED, "killed": rf"{NAMED}|[Ss]ignal 9|EXIT CODE: 9"}


def of_run(folder):
    """Returns the processes whose command line has the name of the run and the folder of all runs, which is this call's own."""
    wanted, found = {os.fsencode(folder.name), os.fsencode(folder.parent)}, []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if wanted <= set(path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
        except OSError:
            pass  # the process ended meanwhile
    return found


def rank_one(process):
    """Returns the process of rank 1 below the launcher."""
    for pid in descendants(process.pid):
        try:
            program = pathlib.Path(os.readlink(f"/proc/{pid}/exe")).name
            variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if program == "fsdp-finetune" and RANK_ONE & set(variables):
            return pid
    raise Trouble("none of the launcher's processes is rank 1 by its variables: MPIEXEC names another launcher")


class Loss:
    def __init__(self, truth, how):
        self.truth, self.how, self.at = truth, how, None
        self.name = f"rank-1-{how}"
        self.lines = truth.machine.work / "runs" / self.name / "metrics.jsonl"

    def signal_rank(self, process):
        """Waits for a few steps, then sends the signal."""
        end = time.monotonic() + 60
        while not (self.lines.exists() and self.lines.read_bytes().count(b'"loss"') >= 3):
            if process.poll() is not None or time.monotonic() > end:
                return  # run() tells why
            time.sleep(0.05)
        os.kill(rank_one(process), SIGNALS[self.how])
        self.at = time.monotonic()

    def command(self, launch):
        options = ("--activation-checkpointing", "all", "--collective-timeout", TIMEOUT)
        return launch(self.truth.trainings.ours_command("deep", self.name, "float32", 1000000, 1, options))

    def left_over(self):
        """Waits for the ranks' ends after the launcher's; kills and returns what is still there."""
        end = time.monotonic() + TIMEOUT
        while (there := of_run(self.lines.parent)) and time.monotonic() < end:
            time.sleep(0.1)
        for pid in there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return there


def check(truth, how):
    machine, lost = truth.machine, Loss(truth, how)
    if why := truth.why_no_ranks(2):
        return skip(why)
    launch, over = truth.ranks(2)
    if not truth.trainings.folder("deep").exists():
        truth.trainings.make_model("deep", SHAPE, 60)
    stub = {"FSDP_STUB_STALL": f"{STUB_COLLECTIVE}:1:{'stop' if how == 'stopped' else 'kill'}"} if machine.computes_nothing else {}
    begin = time.monotonic()
    log = truth.stage.run(lost.name, lost.command(launch), 60 + TIMEOUT + MARGIN, stub, None if stub else lost.signal_rank, may_fail=True)
    if lost.at is None and not stub:
        raise Trouble(f"the run ended before rank 1 was {how}: {log}")
    seconds = time.monotonic() - (lost.at or begin)
    left = lost.left_over()
    said = log.read_text(encoding="utf-8", errors="replace")
    if left:
        raise Trouble(f"{len(left)} processes were left {TIMEOUT} s after the end: {log}")
    if not re.search(WORDS[how], said):
        raise Trouble(f"no rank named the {how} one: {log}")
    if not stub and seconds > TIMEOUT + MARGIN:
        raise Trouble(f"ended {seconds:.0f} s after rank 1 was {how}, --collective-timeout was {TIMEOUT}: {log}")
    by = "named" if re.search(NAMED, said) else "the launcher noticed"
    since = "its start" if stub else f"rank 1 was {how}"
    return PASS, f"ended {seconds:.1f} s after {since} (--collective-timeout {TIMEOUT}), {by}{over}", {"seconds": seconds}
