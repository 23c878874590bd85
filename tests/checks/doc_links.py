#!/usr/bin/env python3
"""Fails when a link in README.md, CHANGELOG.md, CONTRIBUTING.md, docs/*.md or another .md file of the project leads to a
file or a heading that is not there, docs/README.md leaves out a page, or rows of a table stand apart from it. Links into
the net are not followed.

    doc_links.py [--root FOLDER]
"""
import argparse
import pathlib
import re
import subprocess
import sys

LINK = re.compile(r"\]\(([^)\s]+)\)")  # the text of a link may begin on the line before
FENCE = re.compile(r"^(```|~~~)")


def prose(text):
    """Returns (number, line) without code: fenced or indented blocks and spans. Indented text inside a list stays."""
    fenced, after_blank, in_list = False, True, False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line.strip()):
            fenced = not fenced
        in_list = bool(re.match(r"\s*([-*]|\d+\.)\s", line)) or in_list and (not line.strip() or line.startswith(" "))
        code = fenced or line.startswith("    ") and after_blank and not in_list
        after_blank = not line.strip() or code
        if not code:
            yield number, re.sub(r"`[^`]*`", lambda span: "x" * len(span.group()), line)


def anchors(text):
    """Returns the anchors that GitHub gives the headings."""
    found, fenced = {}, False
    for line in text.splitlines():
        if FENCE.match(line.strip()):
            fenced = not fenced
        heading = re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if fenced or not heading:
            continue
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    return {name if i == 0 else f"{name}-{i}" for name, count in found.items() for i in range(count + 1)}


def documents(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", "*.md"], capture_output=True, text=True, check=False)
    names = listed.stdout.split("\n") if listed.returncode == 0 else []
    return sorted({root / name for name in names if name} or set(root.glob("*.md")) | set(root.glob("*/*.md")))


def problems_of(path, root):
    for number, line in prose(path.read_text(encoding="utf-8")):
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            there = (path.parent / name).resolve() if name else path
            where = f"{path.relative_to(root)}:{number}: {target}"
            if not there.exists():
                yield f"{where}: there is no such file"
            elif anchor and there.suffix == ".md" and anchor not in anchors(there.read_text(encoding="utf-8")):
                yield f"{where}: {there.name} has no such heading"


def broken_tables(path, root):
    """Complains about rows after a blank line: the line ends the table, and rows without a new head are shown as text."""
    lines = dict(prose(path.read_text(encoding="utf-8")))
    for number, line in lines.items():
        begins = line.startswith("|") and not lines.get(number - 1, "").startswith("|")
        if begins and not re.match(r"\|[ :|-]+$", lines.get(number + 1, "")):
            yield f"{path.relative_to(root)}:{number}: a row without the head of its table"


def unlisted_pages(root):
    index = root / "docs/README.md"
    listed = index.read_text(encoding="utf-8") if index.exists() else ""
    for page in sorted((root / "docs").glob("*.md")):
        if page != index and f"]({page.name}" not in listed:
            yield f"docs/README.md: does not list {page.name}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[2])
    root = parser.parse_args().root.resolve()
    files = [path for path in documents(root) if path.exists()]
    problems = [problem for path in files for look in (problems_of, broken_tables) for problem in look(path, root)]
    problems += unlisted_pages(root)
    print("\n".join(problems) if problems else f"{len(files)} documents, all listed, all links lead somewhere, all tables are whole")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
