"""A memory limit enforced by the kernel: a control group of version 1 or 2, if this user may make one."""

import os
import pathlib
import unittest

ROOT = pathlib.Path("/sys/fs/cgroup")


class MemoryGroup:
    """Programs that enter() the group have `limit_bytes` in total; beyond that the kernel kills one. May raise SkipTest."""

    def __init__(self, name, limit_bytes):
        second = (ROOT / "cgroup.controllers").exists()
        self.path = (ROOT if second else ROOT / "memory") / f"{name}-{os.getpid()}"
        self.peak_file = self.path / ("memory.peak" if second else "memory.max_usage_in_bytes")
        try:
            if second and "memory" not in (ROOT / "cgroup.subtree_control").read_text():
                (ROOT / "cgroup.subtree_control").write_text("+memory")
            self.path.mkdir()
            (self.path / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(limit_bytes))
            if second and (self.path / "memory.swap.max").exists():
                (self.path / "memory.swap.max").write_text("0")
        except OSError as problem:
            self.remove()
            raise unittest.SkipTest(f"no memory group can be made here: {problem}") from problem

    def enter(self):
        """Call in the child before exec."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak_bytes(self):
        return int(self.peak_file.read_text()) if self.peak_file.exists() else None

    def remove(self):
        try:
            self.path.rmdir()
        except OSError:
            pass
