"""Makes a program's manual page from its option descriptions and its page in docs/."""

import re

import markdown


def section(title, lines):
    lines = list(lines)
    return [f".SH {title}", *lines[1 if lines[:1] == [".PP"] else 0 :]] if lines else []


def names(option):
    """Returns names such as "-h, --help", without spellings that differ only in underscores."""
    shown = [
        name
        for name in option["names"]
        if name.replace("_", "-") == name or name.replace("_", "-") not in option["names"]
    ]
    return ", ".join("\\fB" + markdown.escape(name) + "\\fR" for name in shown)


def value(option):
    if option["flag"]:
        return ""
    return " \\fI" + markdown.escape(option["type"] or "FILE") + "\\fR" + ("..." if option["several"] else "")


def facts(option):
    """Returns the facts that --help shows in its left column."""
    said = []
    if option["required"]:
        said.append("Required.")
    if option["choices"]:
        said.append("One of " + ", ".join("\\fB" + markdown.escape(word) + "\\fR" for word in option["choices"]) + ".")
    if option["range"] and not option["choices"]:
        said.append("Range: " + markdown.escape(option["range"].split(" Excludes")[0]) + ".")
    if option["default"]:
        said.append("Default: \\fB" + markdown.escape(option["default"]) + "\\fR.")
    return " ".join(said)


def options(program):
    out, groups = [], {}
    for option in program["options"]:
        groups.setdefault(option["group"], []).append(option)
    for group, members in groups.items():
        out.append(".SS " + markdown.escape("General" if group == "Options" else group))
        for option in members:
            out += [".TP", names(option) + value(option), markdown.escape(option["description"]) or "\\&"]
            if facts(option):
                out += [".br", facts(option)]
    return out


def description(program):
    """Returns the description's paragraphs as roff; indented lines are commands."""
    text = re.sub(
        r"^(  \S.*(?:\n   .*)*)", lambda m: re.sub("^  ", "    ", m[0], flags=re.M), program["description"], flags=re.M
    )
    return markdown.to_roff(text.splitlines())


def find(sections, beginning):
    return next((lines for title, lines in sections.items() if title.startswith(beginning)), [])


def make(program, page, exit_codes, date, others):
    """
    program     what --describe-options printed
    page        the text of docs/PROGRAM.md
    exit_codes  the text of docs/exit-codes.md
    others      the names of all programs
    """
    name = program["name"].replace(" ", "-")
    sections = markdown.sections(page)
    first = re.split(r"[.:]\s", program["description"] + " ")[0].replace("\n", " ")
    table = [line for line in exit_codes.splitlines() if line.startswith("|")]
    nested = {m: find(sections, m) for m in ("Synopsis", "Recipes", "Files", "Environment", "Exit")}
    usage = [".nf", *map(markdown.escape, program["usage"].removeprefix("Usage: ").strip().splitlines()), ".fi"]
    see = ", ".join(
        "\\fB" + markdown.escape(other.replace(" ", "-")) + "\\fR(1)" for other in others if other != program["name"]
    )
    lines = [
        '.\\" Made from the program and its page in docs/: do not edit.',
        f'.TH {markdown.escape(name.upper())} 1 "{date}" "fsdp {program["version"]}" "fsdp"',
        ".SH NAME",
        f"{markdown.escape(name)} \\- {markdown.escape(first[0].lower() + first[1:])}",
        *section("SYNOPSIS", markdown.to_roff(nested["Synopsis"]) or usage),
        *section("DESCRIPTION", description(program)),
        ".SH OPTIONS",
        "An option that is given twice takes its last value.",
        "Every option with a dash inside its name has a second spelling with underscores.",
        *options(program),
        *section(
            "EXAMPLES", markdown.to_roff(nested["Recipes"]) or markdown.to_roff(program["footer"].splitlines()[1:])
        ),
        *section("FILES", markdown.to_roff(nested["Files"])),
        *section("ENVIRONMENT", markdown.to_roff(nested["Environment"])),
        *section("EXIT STATUS", [*markdown.to_roff(nested["Exit"]), *markdown.table(table)]),
        *section(
            "SEE ALSO",
            [see + ".", "The pages in \\fIshare/doc/fsdp\\fR below the folder where this is installed tell more."],
        ),
    ]
    # Write names of characters, because not every formatter knows a page's encoding.
    return re.sub(r"[^\x00-\x7f]", lambda m: f"\\[u{ord(m[0]):04X}]", "\n".join(lines) + "\n")
