"""One line per check: commands under a time limit, verdicts, and what is left when a stage is cut short."""

import os
import pathlib
import re
import signal
import subprocess
import time
import traceback

PASS, FAIL, SKIP, NOTE = "PASS", "FAIL", "SKIP", "NOTE"


class Trouble(Exception):
    """What a check meets that makes it a FAIL, in one line."""


class Skipped(Exception):
    """What turns up in a check and says that this machine cannot make it."""


class Stopped(BaseException):
    """A signal to this program."""


def stop_on_signals():
    def stop(number, _):
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)  # the tidying up is short and is not to be cut itself
        raise Stopped(signal.Signals(number).name)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def descendants(pid):
    """Process ids below `pid`: mpiexec's ranks are in sessions of their own."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue  # it ended meanwhile
            parents.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def kill_tree(process):
    """SIGKILL: fsdp-finetune takes anything less as a wish to save a checkpoint."""
    for pid in [process.pid, *descendants(process.pid)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def reason_in(log):
    """The line of a log that says why: a program's `error:`, the end of a traceback, else the last."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    ours = [line for line in lines if "error: " in line]
    pythons = [line for line in lines if re.match(r"(\[rank\d+\]: *)?[\w.]*(Error|Exception)\b", line)]
    return (ours[:1] or pythons[-1:] or lines[-1:] or ["it printed nothing"])[0][:200]


class Stage:
    """The checks of a stage, which ends within `seconds`: a check gets its limit or what is left."""

    def __init__(self, name, machine, seconds):
        self.name, self.machine, self.rows = name, machine, []
        self.end = time.monotonic() + seconds

    def log_of(self, name):
        return self.machine.logs / f"{self.name}-{re.sub(r'[^a-z0-9]+', '-', name.lower())}.log"

    def run(self, log_name, command, limit, env=None):
        """Runs a command to its end; returns its log, stdout and stderr. Anything but code 0 within the limit is Trouble."""
        limit = min(limit, self.end - time.monotonic())
        if limit <= 1:
            raise Trouble("not started: the stage's time was over")
        log = self.log_of(log_name)
        with open(log, "wb") as file:
            process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                       env={**self.machine.environment, **(env or {})}, start_new_session=True)
        try:
            code = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            raise Trouble(f"no end after {limit:.0f} s: {log}") from None
        finally:
            if process.poll() is None:
                kill_tree(process)
        if code:
            how = f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
            raise Trouble(f"{how}: {reason_in(log)} ({log})")
        return log

    def check(self, name, function, *arguments):
        """Prints and keeps a row. `function` gives a verdict, a text and figures. Returns whether it did not fail."""
        start = time.monotonic()
        try:
            verdict, text, figures = function(*arguments)
        except Trouble as trouble:
            verdict, text, figures = FAIL, str(trouble), {}
        except Skipped as why:
            verdict, text, figures = skip(str(why))
        except Exception as surprise:  # output of a tool that is unlike what was expected ends a check, not a stage
            verdict, text, figures = FAIL, f"the check itself failed: {type(surprise).__name__}: {surprise}", {}
            self.log_of(name).write_text(traceback.format_exc(), encoding="utf-8")
        seconds = round(time.monotonic() - start, 1)
        self.rows.append({"stage": self.name, "check": name, "verdict": verdict, "text": text, "figures": figures, "seconds": seconds})
        print(f"{verdict}  {name:<36}  {text}   {seconds} s", flush=True)
        return verdict != FAIL


def skip(why):
    """A check that this machine cannot make."""
    return SKIP, why, {}


def verdict_of(good):
    return PASS if good else FAIL
