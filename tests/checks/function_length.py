#!/usr/bin/env python3
"""Fails on functions of more than 80 lines or with more than eight parameters, in lib/ and apps/.

    function_length.py [--root DIR]      the repository by default
"""
import argparse
import pathlib
import re
import sys

MOST_LINES = 80
MOST_PARAMETERS = 8
# Strings, characters and comments are blanked; line breaks stay.
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.MULTILINE)
SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b[^()]*$")
BODY = re.compile(r"(?:\)|\bconst|\bnoexcept|\boverride|\bfinal|\}|->\s*[\w:<>,\s*&]+)\s*$")


def blank(match):
    return "".join(c if c == "\n" else " " for c in match.group())


def closing(text, start):
    """Returns the index of the brace that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return i
    return len(text) - 1


def parameters(head):
    """Returns the number of parameters in the first parentheses of a function's head; names and types are not checked."""
    start = head.find("(")
    if re.search(r"\boperator\s*\($", head[:start + 1]):
        start = head.find("(", start + 1)
    depth, count, empty = 0, 1, True
    for c in head[start + 1:]:
        if c in "(<[{":
            depth += 1
        elif c in ")>]}":
            if depth == 0:
                break
            depth -= 1
        elif c == "," and depth == 0:
            count += 1
        empty = empty and c.isspace()
    return 0 if empty else count


def functions(text):
    """Returns (name, first line, lines, parameters, head) of each function with a body; a lambda counts with its function."""
    text = PREPROCESSOR.sub(blank, NOISE.sub(blank, text))
    begin, i = 0, 0
    while i < len(text):
        c = text[i]
        if c in ";}":
            begin = i + 1
        elif c == "{":
            head = text[begin:i]
            if SCOPE.search(head):
                begin = i + 1
            elif "(" in head and "=" not in re.sub(r"\([^()]*(?:\([^()]*\)[^()]*)*\)|operator\s*\W+|[=!<>]=", "", head) and BODY.search(head):
                end = closing(text, i)
                words = head.strip()
                first = text.count("\n", 0, begin + len(head) - len(head.lstrip())) + 1
                name = re.search(r"([\w:~]+|operator\s*\W+)\s*\(", words)
                yield (name.group(1) if name else words.split("(")[0], first, text.count("\n", 0, end) + 2 - first, parameters(head), words)
                i = begin = end
                begin += 1
            else:
                i = closing(text, i)  # skip an initialiser
        i += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root
    found, count = [], 0
    for folder in ("lib", "apps"):
        for file in sorted(p for p in (root / folder).rglob("*") if p.suffix in {".cpp", ".hpp", ".cu", ".cuh"}):
            for name, first, lines, arguments, words in functions(file.read_text(encoding="utf-8")):
                count += 1
                where = f"{file.relative_to(root)}:{first}: {name}()"
                if lines > MOST_LINES:
                    found.append(f"{where} has {lines} lines, {MOST_LINES} are the most")
                if arguments > MOST_PARAMETERS and not words.startswith("extern"):  # a C library fixes its callbacks' parameters
                    found.append(f"{where} has {arguments} parameters, {MOST_PARAMETERS} are the most")
    print("\n".join(found) if found else f"{count} functions keep to {MOST_LINES} lines and {MOST_PARAMETERS} parameters")
    return 1 if found or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
