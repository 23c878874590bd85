"""One line per check: runs commands under a time limit, prints verdicts, and cleans up when a stage is interrupted."""

import os
import pathlib
import re
import signal
import subprocess
import time
import traceback

PASS, FAIL, SKIP, NOTE, LATE = "PASS", "FAIL", "SKIP", "NOTE", "LATE"


class Trouble(Exception):
    """The reason why a check fails, in one line."""


class NoNumber(Trouble):
    """A loss or norm that cannot be compared: a wrong number."""


class Late(Exception):
    """The stage's time ended before a check did, which says nothing about the check."""


class Skipped(Exception):
    """The reason why this machine cannot run a check, found during the check."""


class Stopped(BaseException):
    """This program received a signal."""


def stop_on_signals():
    def stop(number, _):
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)  # do not interrupt the clean-up, which is short
        raise Stopped(signal.Signals(number).name)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def descendants(pid):
    """Returns the ids of all processes below `pid`; mpiexec's ranks are in sessions of their own."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue  # the process ended meanwhile
            parents.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def kill_tree(process):
    """Sends SIGKILL, because fsdp-finetune saves a checkpoint on any other signal."""
    for pid in [process.pid, *descendants(process.pid)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def reason_in(log):
    """Returns the line of a log that states the reason: a program's `error:`, the end of a traceback, else the last line."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    ours = [line for line in lines if "error: " in line]
    pythons = [line for line in lines if re.match(r"(\[rank\d+\]: *)?[\w.]*(Error|Exception)\b", line)]
    return (ours[:1] or pythons[-1:] or lines[-1:] or ["it printed nothing"])[0][:200]


class Stage:
    """Runs the checks of a stage, which ends within `seconds`: a check gets its own limit or the time that is left.
    After a wrong number no further check begins, unless the stage `keeps_going`.
    `only`: words, of which a check's name must contain one; without words all checks run.
    `contenders`: those that take part in speed; without them all do."""

    def __init__(self, name, machine, seconds, only=(), keeps_going=False, contenders=()):
        self.name, self.machine, self.rows = name, machine, []
        self.end = time.monotonic() + seconds
        self.only, self.keeps_going, self.contenders = [word.lower() for word in only], keeps_going, contenders
        self.wrong, self.not_begun = None, []  # the check with the first wrong number; names of checks after it

    def log_of(self, name):
        return self.machine.logs / f"{self.name}-{re.sub(r'[^a-z0-9]+', '-', name.lower())}.log"

    def run(self, log_name, command, limit, env=None, during=None, may_fail=False):
        """Runs a command to its end; returns its log, stdout and stderr. Raises Trouble unless it ends within the limit, and
        with 0 or `may_fail`. `during`: is called with the process while it runs."""
        left = self.end - time.monotonic()
        if left <= 1:
            raise Late("not started: the stage's time was over")
        log = self.log_of(log_name)
        with open(log, "wb") as file:
            process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                       env={**self.machine.environment, **(env or {})}, start_new_session=True)
        try:
            begin = time.monotonic()
            if during:
                during(process)
            code = process.wait(timeout=max(0.1, min(limit, left) - (time.monotonic() - begin)))
        except subprocess.TimeoutExpired:
            if left < limit:
                raise Late(f"stopped after {left:.0f} s, when the stage's time was over: {log}") from None
            raise Trouble(f"no end after {limit:.0f} s: {log}") from None
        finally:
            if process.poll() is None:
                kill_tree(process)
        if code and not may_fail:
            how = f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
            raise Trouble(f"{how}: {reason_in(log)} ({log})")
        return log

    def wanted(self, name):
        return not self.only or any(word in name.lower() for word in self.only)

    def check(self, name, function, *arguments, stops=True):
        """Runs a check, prints and keeps its row. `function` returns verdict, text and figures. If it returns FAIL, it has
        compared numbers, and the stage stops, unless the check only asks for speed (`stops` is False)."""
        if not self.wanted(name):
            return
        if self.wrong and not self.keeps_going:
            self.not_begun.append(name)
            return
        start = time.monotonic()
        wrong = False
        try:
            verdict, text, figures = function(*arguments)
            wrong = verdict == FAIL and stops
        except NoNumber as trouble:
            verdict, text, figures, wrong = FAIL, str(trouble), {}, stops
        except Trouble as trouble:
            verdict, text, figures = FAIL, str(trouble), {}
        except Late as reason:
            verdict, text, figures = LATE, str(reason), {}
        except Skipped as why:
            verdict, text, figures = skip(str(why))
        except Exception as surprise:  # unexpected output of a tool ends one check, not the stage
            verdict, text, figures = FAIL, f"the check itself failed: {type(surprise).__name__}: {surprise}", {}
            self.log_of(name).write_text(traceback.format_exc(), encoding="utf-8")
        if wrong and self.machine.computes_nothing:
            verdict, text, wrong = NOTE, f"rehearsed: {text}", False
        seconds = round(time.monotonic() - start, 1)
        self.rows.append({"stage": self.name, "check": name, "verdict": verdict, "text": text, "figures": figures, "seconds": seconds})
        print(f"{verdict}  {name:<36}  {text}   {seconds} s", flush=True)
        if wrong and not self.wrong:
            self.wrong = name

    def close(self, seconds):
        """Says how long the stage took, and what did not begin after a wrong number."""
        if self.not_begun:
            print(f"-- {self.name} ended at its first wrong number, {self.wrong}: {len(self.not_begun)} checks did not begin "
                  "(--keep-going begins them, --only some)", flush=True)
        if self.rows:
            print(f"-- {self.name}: {seconds:.0f} s", flush=True)


def skip(why):
    """Returns the verdict of a check that this machine cannot run."""
    return SKIP, why, {}


def verdict_of(good):
    return PASS if good else FAIL
