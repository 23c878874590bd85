"""The contents of a disk after a power failure: replays the operations that tests/support/power_loss.c recorded of a real run.

Only data that was forced to disk before is certain to be there. Of the many possible states two are tried:

    strict     a file has the bytes of its last fsync; a name (of a file, link or folder) appears or disappears only once
               the folder that holds it is synced
    reordered  every name is immediately as it was last, but bytes that were not synced are missing: some file systems
               leave this state after "write, rename" without fsync

An fsync also forces the names of the folders on its path to disk, as every journalling file system does.
"""

import os
import pathlib
import shutil

import fsdp_cli

STRICT, REORDERED = "strict", "reordered"


class Node:
    """A file, a link or a folder, with its state on disk."""

    def __init__(self, entries=None, target=None, durable=b""):
        self.entries, self.target, self.durable = entries, target, durable
        self.durable_entries = {}


class Disk:
    def __init__(self, root, mode):
        self.root, self.mode = pathlib.Path(root), mode
        self.top = self.scan(self.root)

    def scan(self, path):
        """Reads the state before the run, which counts as completely on disk."""
        if path.is_symlink():
            return Node(target=os.readlink(path))
        if not path.is_dir():
            return Node(durable=path.read_bytes())
        node = Node(entries={child.name: self.scan(child) for child in path.iterdir()})
        node.durable_entries = dict(node.entries)
        return node

    def folder_of(self, path):
        node = self.top
        for part in pathlib.Path(path).relative_to(self.root).parts[:-1]:
            node = node.entries[part]
        return node

    def node(self, path):
        return self.top if pathlib.Path(path) == self.root else self.folder_of(path).entries[pathlib.Path(path).name]

    def set(self, path, node):
        folder = self.folder_of(path)
        name = pathlib.Path(path).name
        if node is None:
            folder.entries.pop(name, None)
        else:
            folder.entries[name] = node
        if self.mode == REORDERED:
            folder.durable_entries = dict(folder.entries)

    def force_folders(self, folder):
        """Returns the names of the folder and of the folders above it."""
        node = self.top
        for part in pathlib.Path(folder).relative_to(self.root).parts:
            node.durable_entries.setdefault(part, node.entries[part])
            node = node.entries[part]

    def apply(self, line, copies):
        """Applies one operation. Returns True if the state on disk may differ from before."""
        operation, _, rest = line.partition(" ")
        first, _, second = rest.partition("\t")
        if operation == "sync":
            self.node(second).durable = pathlib.Path(f"{copies}.{first}").read_bytes()
            self.force_folders(pathlib.Path(second).parent)
            return True
        if operation == "syncdir":
            node = self.node(first)
            node.durable_entries = dict(node.entries)
            self.force_folders(first)
            return True
        if operation == "create":
            self.set(first, Node())
        elif operation == "mkdir":
            self.set(first, Node(entries={}))
        elif operation == "trunc":
            if self.mode == REORDERED:
                self.node(first).durable = b""
        elif operation == "symlink":
            self.set(second, Node(target=first))
        elif operation == "link":
            self.set(second, self.node(first))
        elif operation == "remove":
            self.set(first, None)
        elif operation == "rename":
            node = self.node(first)
            self.set(first, None)
            self.set(second, node)
        elif operation == "exchange":
            one, other = self.node(first), self.node(second)
            self.set(first, other)
            self.set(second, one)
        return self.mode == REORDERED

    def write(self, target, node=None):
        """Makes the folder `target` equal to the state on disk."""
        node = node or self.top
        target = pathlib.Path(target)
        if node.target is not None:
            target.symlink_to(node.target)
        elif node.entries is None:
            target.write_bytes(node.durable)
        else:
            target.mkdir()
            for name, child in node.durable_entries.items():
                self.write(target / name, child)

    def image(self, node=None):
        """Returns the state on disk as a value that can be compared."""
        node = node or self.top
        if node.target is not None or node.entries is None:
            return node.target or hash(node.durable)
        return tuple(sorted((name, self.image(child)) for name, child in node.durable_entries.items()))


class Recorder:
    """Runs programs with the library and returns the states that a power failure could leave."""

    def __init__(self, root, work):
        self.root, self.work = pathlib.Path(root).resolve(), pathlib.Path(work)
        self.log = self.work / "operations"
        self.disks = [Disk(self.root, mode) for mode in (STRICT, REORDERED)]

    def environment(self):
        return {"LD_PRELOAD": os.environ["FSDP_POWER_LOSS"], "FSDP_POWER_ROOT": str(self.root), "FSDP_POWER_LOG": str(self.log)}

    def states(self):
        """Yields (mode, position in the run, folder) for every different state. Afterwards finals() has the states at the end
        of the run."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        target = self.work / "after"
        for disk in self.disks:
            last = None
            for number, line in enumerate(lines):
                if not disk.apply(line, self.log):
                    continue
                image = disk.image()
                if image == last:
                    continue
                last = image
                shutil.rmtree(target, ignore_errors=True)
                disk.write(target)
                yield disk.mode, f"{disk.mode}, after operation {number}: {line}", target
        fsdp_cli.say(f"{len(lines)} operations on names and syncs")

    def finals(self):
        for disk in self.disks:
            target = self.work / f"final-{disk.mode}"
            shutil.rmtree(target, ignore_errors=True)
            disk.write(target)
            yield disk.mode, target
