"""Converts the Markdown that the pages in docs/ use to the language of manual pages (roff, man macros)."""

import re


def sections(text):
    """Returns {title: lines} by `## ` headings; deeper headings stay among the lines."""
    found, title, fenced = {}, None, False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("## ") and not fenced:
            title = line[3:].strip()
            found[title] = []
        elif title:
            found[title].append(line)
    return found


def escape(text):
    """Escapes text for roff: dashes stay ASCII dashes, and no line is read as a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text)


def inline(text):
    """Converts code and strong text to bold, emphasis to italic, and links to their text."""
    text = re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", text)
    parts = re.split(r"(`[^`]*`|\*\*[^*]+\*\*|(?<![\w*])\*[^*\s][^*]*\*(?![\w*]))", text)
    out = ""
    for part in parts:
        if len(part) > 2 and part[0] == part[-1] == "`":
            out += "\\fB" + escape(part[1:-1]) + "\\fR"
        elif part.startswith("**") and part.endswith("**") and len(part) > 4:
            out += "\\fB" + escape(part[2:-2]) + "\\fR"
        elif len(part) > 2 and part[0] == part[-1] == "*":
            out += "\\fI" + escape(part[1:-1]) + "\\fR"
        else:
            out += escape(part)
    return out


def code(lines):
    while lines and not lines[-1].strip():
        lines.pop()
    return [".PP", ".RS 4", ".nf", *(escape(line) or "\\&" for line in lines), ".fi", ".RE"]


def cells(row):
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))]


def table(rows):
    """Converts a table to a list with the first column as terms. Leaves out the heading and the line below it."""
    out = []
    for row in rows[2:]:
        first, *rest = cells(row)
        said = [cell for cell in rest if cell]
        out += [".TP", inline(first) or "\\&", "; ".join(map(inline, said)) or "\\&"]
    return out


def to_roff(lines):
    """Converts paragraphs, lists, tables, code (indented by four or fenced) and headings from ### on."""
    out, i, lines = [], 0, list(lines)
    while i < len(lines):
        line, block = lines[i], []
        if not line.strip() or line.startswith("<!--"):
            i += 1
        elif line.startswith("```"):
            i += 1
            while i < len(lines) and not lines[i].startswith("```"):
                block.append(lines[i])
                i += 1
            i += 1
            out += code(block)
        elif line.startswith("    "):
            while i < len(lines) and (lines[i].startswith("    ") or not lines[i].strip()):
                block.append(lines[i][4:])
                i += 1
            out += code(block)
        elif line.startswith("|"):
            while i < len(lines) and lines[i].startswith("|"):
                block.append(lines[i])
                i += 1
            out += table(block)
        elif line.startswith("#"):
            out += [".SS " + inline(line.lstrip("# "))]
            i += 1
        elif re.match(r"[-*] ", line):
            block, i = [line[2:]], i + 1
            while i < len(lines) and lines[i].startswith("  ") and lines[i].strip():
                block.append(lines[i].strip())
                i += 1
            out += [".IP \\(bu 2", inline(" ".join(block))]
        else:
            while i < len(lines) and lines[i].strip() and not re.match(r"(    |\||#|```|[-*] )", lines[i]):
                block.append(lines[i])
                i += 1
            out += [".PP", inline(" ".join(block))]
    # A heading inserts space itself, so the paragraph mark after it is dropped.
    return [line for n, line in enumerate(out) if line != ".PP" or (n and not out[n - 1].startswith(".SS"))]
