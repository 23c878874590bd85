#!/usr/bin/env python3
"""Fails on comments that begin as riddles do, with a preposition or a pronoun whose noun stands elsewhere, or nowhere; and
on old or poetic words in comments and documentation.

    plain_words.py [--root DIR]      the repository by default
"""
import argparse
import pathlib
import re
import sys

RIDDLE = r" *(Of|Likewise|What|Those|Whoever|Whatever|Who|By its|By their|By what|By how|As many|As much|Without \w+ of (?:its|their) own)\b(?!.*\?)"
ODD = r"(?:[Nn]obody|[Aa]new|kin)"
# A later part of a text, a list or a step comes after the others; streams and copies queue up one after the other.
BEHIND = r"(?<!queued )(?<!queue )(?<!ordered )(?<!wait )(?<!left )(?<!nothing )[Bb]ehind(?! an? interface)"
C_COMMENT, HASH_COMMENT, LUA_COMMENT, DOCSTRING = r"//[/!]?<?", r"(?:^|\s)#(?!!)", r"^\s*--", r'^\s*"""'
FOLDERS = (".ci", "apps", "cmake", "examples", "lib", "packaging", "pbs", "scripts", "slurm", "tests")
BY_SUFFIX = {**dict.fromkeys((".c", ".cpp", ".hpp", ".cu", ".cuh"), (C_COMMENT,)), ".py": (HASH_COMMENT, DOCSTRING), ".lua": (LUA_COMMENT,),
             **dict.fromkeys((".cmake", ".def", ".in", ".pbs", ".sh", ".tcl", ".yaml"), (HASH_COMMENT,))}
BY_NAME = dict.fromkeys(("CMakeLists.txt", "Dockerfile", "Makefile"), (HASH_COMMENT,))


def marks_of(file):
    """Returns the patterns that begin a comment in this file; none if it is not a source."""
    if file.name in BY_NAME:
        return BY_NAME[file.name]
    if not file.suffix and file.is_file() and file.read_bytes()[:2] == b"#!":
        return HASH_COMMENT, DOCSTRING
    return BY_SUFFIX.get(file.suffix, ())


def riddles(lines, mark):
    """Yields the number and the first word of each comment that begins as a riddle; lines that go on are left out."""
    begin = re.compile(mark + RIDDLE)
    for number, line in enumerate(lines, 1):
        before = lines[number - 2].strip() if number > 1 else ""
        goes_on = mark != DOCSTRING and re.match(mark, before) and not re.search(r"[.:;]$", before)
        found = begin.search(line)
        if found and not goes_on:
            yield number, found.group(1)


def odd_words(lines, begin, words):
    """Yields the number and the word of each odd word after the pattern `begin`."""
    for number, line in enumerate(lines, 1):
        start = re.search(begin, line)
        for found in re.finditer(rf"\b(?:{words})\b", line[start.end():]) if start else ():
            yield number, found.group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root
    found, files = [], 0
    for file in sorted([*root.glob("*"), *(p for folder in FOLDERS for p in (root / folder).rglob("*"))]):
        marks = marks_of(file)
        files += bool(marks)
        lines = file.read_text(encoding="utf-8").splitlines() if marks else []
        for number, word in sorted(r for mark in marks for r in riddles(lines, mark)):
            found.append(f"{file.relative_to(root)}:{number}: a comment that begins with '{word}': say who does what")
        odd = odd_words(lines, "|".join(marks), f"{ODD}|{BEHIND}") if marks else ()
        found += [f"{file.relative_to(root)}:{number}: a comment says '{word}': use a plain word" for number, word in odd]
    for page in sorted([*root.glob("*.md"), *(root / "docs").glob("*.md")]):
        odd = odd_words(page.read_text(encoding="utf-8").splitlines(), r"^(?!\|)", ODD)  # tables have the programs' own texts
        found += [f"{page.relative_to(root)}:{number}: '{word}': use a plain word" for number, word in odd]
    print("\n".join(found) if found else f"{files} files have plain comments")
    return 1 if found or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
