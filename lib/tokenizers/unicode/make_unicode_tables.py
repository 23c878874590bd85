#!/usr/bin/env python3
"""Writes unicode_tables.cpp beside this file. Needs unicodedataplus 16.0.0.post1 from PyPI, and clang-format.

The tables hold what Hugging Face's tokenizers 0.23.3 knows of Unicode, which no library of the host decides: general
categories and scripts are those of Unicode 16 (Oniguruma, and Rust's regex crate); its Punctuation is that of Unicode 8
(the crate unicode_categories), and its NFC that of Unicode 9 (the crate unicode-normalization-alignments). That these
are the versions was found by asking the library about every code point: tests/fixtures/tokenizers/make_unicode.py.
"""
import pathlib
import subprocess

import unicodedataplus as unicode

CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn").split()
SCRIPTS = ("Arabic Armenian Bengali Cyrillic Devanagari Georgian Greek Han Hangul Hebrew Hiragana Katakana Khmer Lao Latin "
           "Tamil Thai").split()
# Punctuation in Unicode 8, and something else today.
FORMER_PUNCTUATION = {0x166D, 0x111C9}
NEWER, PUNCTUATION = 1 << 5, 1 << 6
END = 0x110000


def age_of(character):
    age = unicode.age(character)
    return float("inf") if age == "Unassigned" else float(age)


def facts_of(code):
    character = chr(code)
    category = unicode.category(character)
    facts = CATEGORIES.index(category)
    if age_of(character) > 9:
        facts |= NEWER
    if (category.startswith("P") and age_of(character) <= 8) or code in FORMER_PUNCTUATION:
        facts |= PUNCTUATION
    return facts


def runs_of(value_of):
    """Returns (first, last, value) of each run of code points with one value."""
    runs, first = [], 0
    for code in range(1, END + 1):
        if code == END or value_of(code) != value_of(first):
            runs.append((first, code - 1, value_of(first)))
            first = code
    return runs


def main():
    assert unicode.unidata_version == "16.0.0", unicode.unidata_version
    facts = [facts_of(code) for code in range(END)]
    runs = ", ".join(hex(first << 7 | value) for first, _, value in runs_of(facts.__getitem__))
    scripts = [unicode.script(chr(code)) for code in range(END)]
    rows = ", ".join(f"{{{first:#x}, {last:#x}, {SCRIPTS.index(script)}}}"
                     for first, last, script in runs_of(scripts.__getitem__) if script in SCRIPTS)
    quoted = lambda names: ", ".join(f'"{name}"' for name in names)
    text = f"""// Written by make_unicode_tables.py.
#include "lib/tokenizers/unicode/unicode_tables.hpp"

#include <array>

namespace fsdp {{
namespace {{

constexpr auto kCategories = std::to_array<std::string_view>({{{quoted(CATEGORIES)}}});
constexpr auto kScripts = std::to_array<std::string_view>({{{quoted(SCRIPTS)}}});

constexpr auto kRuns = std::to_array<std::uint32_t>({{{runs}}});

constexpr auto kScriptRuns = std::to_array<ScriptRun>({{{rows}}});

}}  // namespace

std::span<const std::string_view> unicode_categories() {{ return kCategories; }}
std::span<const std::string_view> unicode_scripts() {{ return kScripts; }}
std::span<const std::uint32_t> unicode_runs() {{ return kRuns; }}
std::span<const ScriptRun> unicode_script_runs() {{ return kScriptRuns; }}

}}  // namespace fsdp
"""
    file = pathlib.Path(__file__).with_name("unicode_tables.cpp")
    file.write_text(text, "utf-8")
    subprocess.run(["clang-format", "-i", str(file)], check=True)


if __name__ == "__main__":
    main()
