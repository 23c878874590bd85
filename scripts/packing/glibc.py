#!/usr/bin/env python3
"""Lets packed programs and libraries run with an older C library than the one they were linked with.

    glibc.py change --newest VERSION --libc FILE... --shim FILE FOLDER
        changes the files below FOLDER that ask for a newer version, and prints which: they need the shim (glibc.c);
        --libc: the C library that they were linked with
    glibc.py check --newest VERSION FOLDER
        prints for each file below FOLDER the newest GLIBC, GLIBCXX and CXXABI that it asks for; ends with 1 if a GLIBC
        is newer than VERSION, or if a packed library lacks a version that it is asked for

A file asks for a function together with the version in which the linker's C library gave the function its present
behaviour. Most newer versions only say that a function moved (2.34: from libpthread to libc) or reports errors in
another way (2.29: pow): there the oldest version, which every C library has, is put in the newer one's place, as a
linker would have done on an older machine. Functions that an older C library lacks are left to the shim; so is
sysconf, which newer headers ask for values that an older library does not know.
"""

import argparse
import mmap
import pathlib
import re
import struct
import sys

DYNSYM, VERDEF, VERNEED, VERSYM = 11, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF  # types of sections
OLDEST = {62: "GLIBC_2.2.5", 183: "GLIBC_2.17"}  # by machine: x86-64, AArch64
ANY_VERSION = 1  # a symbol's index into the versions, if it has none


def number(version):
    """Returns "GLIBC_2.34" as (2, 34), and () for a version without number. Versions of another ABI came with 2.36."""
    if version.startswith("GLIBC_ABI_"):
        return (2, 36)
    return tuple(map(int, re.findall(r"\d+", version.partition("_")[2])))


def elf_hash(name):
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        value = (value ^ ((value & 0xF0000000) >> 24)) & 0x0FFFFFFF
    return value


class Need:
    """A version that a file asks a library for: its name, its index in the file, and the place of its record."""

    def __init__(self, library, name, index, place):
        self.library, self.name, self.index, self.place = library, name, index, place


class Elf:
    """The dynamic symbols of a 64-bit little-endian ELF file and their versions."""

    def __init__(self, path, writable=False):
        self.path = path
        with path.open("r+b" if writable else "rb") as file:  # mapped, because NVIDIA's libraries have gigabytes
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        self.machine = self.unpack("<H", 18)[0]
        sections, size, count = self.unpack("<Q", 40)[0], *self.unpack("<HH", 58)
        self.sections = [self.unpack("<IIQQQQIIQQ", sections + i * size) for i in range(count)]
        self.by_type = {section[1]: section for section in self.sections}

    def unpack(self, layout, place):
        return struct.unpack_from(layout, self.data, place)

    def text(self, place):
        return self.data[place : self.data.find(b"\0", place)].decode()

    def strings_of(self, kind):
        """Returns the place of the strings that a section refers to."""
        return self.sections[self.by_type[kind][6]][4]

    def symbols(self):
        """Yields a symbol's name, whether the file defines it, whether it is weak, and the place of its version."""
        if DYNSYM not in self.by_type or VERSYM not in self.by_type:
            return
        table, versions, strings = self.by_type[DYNSYM], self.by_type[VERSYM][4], self.strings_of(DYNSYM)
        for i in range(1, table[5] // 24):
            name, info, _, section = self.unpack("<IBBH", table[4] + 24 * i)
            yield self.text(strings + name), section != 0, info >> 4 == 2, versions + 2 * i

    def needs(self):
        if VERNEED not in self.by_type:
            return []
        found, strings, place = [], self.strings_of(VERNEED), self.by_type[VERNEED][4]
        for _ in range(self.by_type[VERNEED][7]):
            _, count, file, first, following = self.unpack("<HHIII", place)
            record = place + first
            for _ in range(count):
                _, _, index, name, after = self.unpack("<IHHII", record)
                found.append(Need(self.text(strings + file), self.text(strings + name), index, record))
                record += after
            place += following
        return found

    def defined_versions(self):
        """Returns the names of the versions that a library defines, by index."""
        if VERDEF not in self.by_type:
            return {}
        found, strings, place = {}, self.strings_of(VERDEF), self.by_type[VERDEF][4]
        for _ in range(self.by_type[VERDEF][7]):
            _, _, index, _, _, first, following = self.unpack("<HHHHIII", place)
            found[index] = self.text(strings + self.unpack("<I", place + first)[0])
            place += following
        return found

    def versions_of_symbols(self):
        """Returns for each symbol that the library defines the names of all its versions."""
        versions, found = self.defined_versions(), {}
        for name, defined, _, place in self.symbols():
            if defined:
                found.setdefault(name, set()).add(versions.get(self.unpack("<H", place)[0] & 0x7FFF, ""))
        return found


def is_elf(path):
    with path.open("rb") as file:
        return file.read(6) == b"\x7fELF\x02\x01"


def make_older(elf, newest, older, of_shim):
    """Replaces versions newer than `newest` in a file. `older` has the C library's versions of each symbol. Returns
    whether the file was changed, and the names of symbols that nothing provides."""
    needs, oldest = [need for need in elf.needs() if need.name.startswith("GLIBC_")], OLDEST[elf.machine]
    by_index = {need.index: need for need in needs}
    too_new = [need for need in needs if number(need.name) > newest]
    if not too_new:
        return False, []
    missing = [need.name for need in too_new if need.name.startswith("GLIBC_ABI_")]
    for name, _, weak, place in elf.symbols():  # a program also defines variables that it takes, to copy them
        need = by_index.get(elf.unpack("<H", place)[0] & 0x7FFF)
        if need is None or (need not in too_new and name not in of_shim):
            continue
        versions = older.get(name, set())
        if name not in of_shim and oldest in versions:
            continue  # asks for the oldest version when the name of the version has been replaced
        if name in of_shim or any(() < number(version) <= newest for version in versions):
            struct.pack_into("<H", elf.data, place, ANY_VERSION)
        elif not weak:
            missing.append(f"{name} ({need.name})")
    name_places = [elf.unpack("<I", need.place + 8)[0] for need in needs if need.name == oldest]
    if not name_places:
        return False, [f"{oldest}, which nothing else in the file is taken from"]
    for need in too_new:
        struct.pack_into("<I", elf.data, need.place, elf_hash(oldest))
        struct.pack_into("<I", elf.data, need.place + 8, name_places[0])
    return True, missing


def change(elfs, options):
    newest, older, failed = number(f"GLIBC_{options.newest}"), {}, False
    for library in options.libc:
        for name, versions in Elf(library).versions_of_symbols().items():
            older.setdefault(name, set()).update(versions)
    of_shim = set(Elf(options.shim).versions_of_symbols())
    for elf in elfs:
        was_changed, missing = make_older(elf, newest, older, set() if elf.path == options.shim else of_shim)
        if was_changed:
            print(elf.path)
        for name in missing:
            failed = True
            print(f"glibc.py: {elf.path} needs {name}, which glibc {options.newest} lacks: add it to "
                  "scripts/packing/glibc.c, or allow a newer one by scripts/dist --glibc", file=sys.stderr)
    return failed


def check(elfs, options):
    newest, failed = number(f"GLIBC_{options.newest}"), False
    packed = {elf.path.name: set(elf.defined_versions().values()) for elf in elfs}
    for elf in elfs:
        kinds = {}
        for need in elf.needs():
            kinds.setdefault(need.name.partition("_")[0], []).append(need.name)
            if need.library in packed and need.name not in packed[need.library]:
                failed = True
                print(f"glibc.py: {elf.path} asks for {need.name}, which the packed {need.library} lacks",
                      file=sys.stderr)
        highest = [max(kinds.get(kind, ["-"]), key=number) for kind in ("GLIBC", "GLIBCXX", "CXXABI")]
        print(*(f"{version:14}" for version in highest), elf.path.relative_to(options.top))
        if number(highest[0]) > newest:
            failed = True
            print(f"glibc.py: {elf.path} asks for {highest[0]}, newer than {options.newest}", file=sys.stderr)
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("change", "check"))
    parser.add_argument("--newest", required=True)
    parser.add_argument("--libc", type=pathlib.Path, action="append")
    parser.add_argument("--shim", type=pathlib.Path)
    parser.add_argument("top", type=pathlib.Path)
    options = parser.parse_args()
    files = [path for path in sorted(options.top.rglob("*")) if path.is_file() and not path.is_symlink()]
    elfs = [Elf(path, writable=options.what == "change") for path in files if is_elf(path)]
    return int(change(elfs, options) if options.what == "change" else check(elfs, options))


if __name__ == "__main__":
    sys.exit(main())
