#!/usr/bin/env python3
"""Checks the installed manual pages, bash completion and docs: every option is there, nothing is malformed, and words
are completed. CMake gives FSDP_BUILD (the build folder) and FSDP_BIN."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["FSDP_BUILD"])
sys.path.insert(0, str(SOURCE / "cmake" / "manual"))
import completion  # noqa: E402
import make  # noqa: E402
import option_tables  # noqa: E402

PROGRAMS = {words: make.describe(pathlib.Path(os.environ["FSDP_BIN"]), words) for words in make.PROGRAMS}


def page_of(words):
    return BUILD / "man" / (words.replace(" ", "-") + ".1")


def complete(*words, at=None):
    """Returns bash's proposals for the last word, after splitting the line as bash does."""
    parts = [part for word in words for part in (re.split("([=:])", word) if word.startswith("--") else [word]) if part]
    parts += [""] * (words[-1] == "")
    script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _fsdp "$1" 2>/dev/null; '
    script += 'printf "%s\\n" "${COMPREPLY[@]}"'
    run = subprocess.run(
        ["bash", "-c", script, "bash", str(BUILD / "completion" / "fsdp"), *parts],
        capture_output=True,
        text=True,
        check=True,
        cwd=at,
    )
    return run.stdout.split()


class ManualPages(unittest.TestCase):
    def test_each_option_of_help_is_there(self):
        for words, program in PROGRAMS.items():
            command, *rest = words.split()
            said = subprocess.run(
                [pathlib.Path(os.environ["FSDP_BIN"]) / command, *rest, "--help"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            listed = {name for line in re.findall(r"^  (-\S+)", said, re.M) for name in line.split(",")}
            listed = {name.split("{")[0] for name in listed if "_" not in name}
            self.assertGreater(len(listed), 5, words)
            text = page_of(words).read_text(encoding="utf-8").replace("\\-", "-")
            for name in listed:
                self.assertIn(f"\\fB{name}\\fR", text, words)
            self.assertEqual(listed - {n for option in program["options"] for n in option["names"]}, set())

    def test_each_page_has_its_parts(self):
        for words in PROGRAMS:
            titles = re.findall(r"^\.SH (.*)", page_of(words).read_text(encoding="utf-8"), re.M)
            for title in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"):
                self.assertIn(title, titles, words)
            if words != "fsdp-download tokens" and words != "fsdp-bf16check":
                self.assertIn("EXAMPLES", titles, words)
        self.assertIn("FILES", re.findall(r"^\.SH (.*)", page_of("fsdp-finetune").read_text(encoding="utf-8"), re.M))

    def test_groff_and_mandoc_do_not_complain(self):
        tools = {"groff": ["groff", "-man", "-Tutf8", "-ww", "-z"], "mandoc": ["mandoc", "-T", "lint", "-W", "warning"]}
        there = [command for tool, command in tools.items() if shutil.which(tool)]
        if not there:
            self.skipTest("neither groff nor mandoc: apt-get install -y mandoc")
        for command in there:
            for words in PROGRAMS:
                run = subprocess.run([*command, str(page_of(words))], capture_output=True, text=True, check=False)
                complaints = [line for line in (run.stdout + run.stderr).splitlines() if "ADJUST" not in line]
                self.assertEqual(complaints, [], " ".join(command))

    def test_an_unknown_argument_beside_it_is_refused(self):
        run = subprocess.run(
            [pathlib.Path(os.environ["FSDP_BIN"]) / "fsdp-finetune", "--describe-options", "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual((run.returncode, run.stdout), (2, ""))


class Completion(unittest.TestCase):
    def test_all_options(self):
        for words, program in PROGRAMS.items():
            offered = complete(*words.split(), "--")
            self.assertEqual(
                set(offered), {name for o in program["options"] for name in completion.spellings(o)}, words
            )

    def test_words(self):
        self.assertEqual(complete("fsdp-finetune", "--sharding", "hybrid-g"), ["hybrid-grad-shard"])
        self.assertEqual(complete("fsdp-finetune", "--sharding=hybrid-g"), ["hybrid-grad-shard"])
        self.assertEqual(complete("fsdp-finetune", "--backward_prefetch", "p"), ["pre", "post"])
        self.assertEqual(complete("fsdp-memprobe", "--sharding", "full-shard,grad"), ["full-shard,grad-shard"])
        self.assertEqual(complete("fsdp-memprobe", "--gpu", "a100-8"), ["a100-80g"])
        self.assertEqual(complete("fsdp-finetune", "--wrap", "s"), ["size:"])
        self.assertEqual(complete("fsdp-download", "--type", ""), ["model", "dataset"])
        self.assertEqual(complete("fsdp-finetune", "--save-e"), ["--save-every"])
        self.assertEqual(complete("fsdp-finetune", "--num-layers", ""), [])
        self.assertEqual(complete("fsdp-download", "tok"), ["tokens"])
        self.assertEqual(complete("/opt/bin/fsdp-download", "tokens", "--documents", "--se"), ["--seq-len", "--seed"])

    def test_files_and_folders(self):
        data = SOURCE / "data"
        self.assertEqual(
            set(complete("fsdp-finetune", "--train-data", "shakespeare/tr", at=data)),
            {f"shakespeare/{p.name}" for p in (data / "shakespeare").glob("tr*")},
        )
        self.assertEqual(
            set(complete("fsdp-finetune", "--out-dir", "", at=data)), {p.name for p in data.iterdir() if p.is_dir()}
        )
        self.assertEqual(complete("fsdp-ckpt-convert", "ch", at=data), ["chess"])

    def test_gpus_are_those_that_are_known(self):
        run = subprocess.run(
            [pathlib.Path(os.environ["FSDP_BIN"]) / "fsdp-memprobe", "--ranks", "1", "--gpu", "?"],
            capture_output=True,
            text=True,
            check=False,
        )
        known = re.search(r"choose from (.*), or give bytes", run.stderr)[1].split(", ")
        offered = next(o["suggestions"] for o in PROGRAMS["fsdp-memprobe"]["options"] if "--gpu" in o["names"])
        self.assertEqual(sorted(offered), sorted(known))


class Docs(unittest.TestCase):
    """The pages of docs/ that list options say what the programs say."""

    def pages_of(self, words):
        name = words.replace(" ", "-")
        more = {"fsdp-finetune": ["options"], "fsdp-eval": ["runs"], "fsdp-memprobe": ["options"]}.get(name, [])
        pages = [name, *(f"{name}-{part}" for part in more)]
        return "\n".join((SOURCE / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in pages)

    def test_each_option_is_told(self):
        ours = {name for option in PROGRAMS["fsdp-finetune"]["options"] for name in option["names"]}
        for words, program in PROGRAMS.items():
            told = set(re.findall(r"`(?:[\w-]+ )?(--[\w-]+)", self.pages_of(words).replace("[no-]", "")))
            for option in program["options"]:
                known = option["positional"] or "-h" in option["names"]
                known = known or words == "fsdp-memprobe" and ours & set(option["names"])
                self.assertTrue(known or told & set(option["names"]), f"{words} {option['names']}")

    def test_tables_of_options_are_the_programs(self):
        for page in sorted((SOURCE / "docs").glob("*.md")):
            text = page.read_text(encoding="utf-8")
            new = option_tables.renewed(text, PROGRAMS)
            self.assertEqual(text.splitlines(), new.splitlines(), f"renew {page.name}: CONTRIBUTING.md says how")

    def test_variables_that_are_read_are_listed(self):
        """Compares lib/base/process/variables.cpp with what programs, scripts and tests read from their environment."""
        read = re.compile(
            r"""(?:getenv|variable_value|folder)\("(FSDP_\w+)|environ(?:\.\w+\(|\[)["'](FSDP_\w+)|\$\{?!?(FSDP_[A-Z]\w*)|"""
            r"""(?:export |set_?env[( ]+|env\.set\()"?(FSDP_\w+)|compgen -e (FSDP_\w+)"""
        )
        found, past_the_table = set(), []
        for folder in ("apps", "lib", "examples", "scripts", "slurm", "pbs", "packaging", "tests"):
            for file in sorted((SOURCE / folder).rglob("*")):
                if file.suffix in (".cmake", ".md", ".h5") or file.name == "CMakeLists.txt" or not file.is_file():
                    continue
                text = file.read_text(encoding="utf-8", errors="replace")
                found |= {name for names in read.findall(text) for name in names if name}
                if folder in ("apps", "lib") and 'getenv("FSDP_' in text:
                    past_the_table.append(file.name)
        # The user's command reads the variables of --on-event.
        events = (SOURCE / "apps" / "finetune" / "reports" / "job_events.cpp").read_text(encoding="utf-8")
        found |= set(re.findall(r'\{"(FSDP_\w+)"', events))
        self.assertEqual(past_the_table, [], "variable_value() reads these")
        listed = {variable["name"] for variable in PROGRAMS["fsdp-finetune"]["variables"]}
        known = re.compile("|".join(name.replace("*", r"\w*") for name in listed))
        self.assertEqual({name for name in found if not known.fullmatch(name)}, set(), "not listed")
        used = {name for name in listed if any(re.fullmatch(name.replace("*", r"\w*"), one) for one in found)}
        self.assertEqual(listed - used, set(), "read by nothing")

    def test_what_a_restart_takes_over(self):
        text = (SOURCE / "docs" / "resuming.md").read_text(encoding="utf-8")
        table = text[text.index("| | options |") : text.index("Not from the checkpoint")]
        told = set(re.findall(r"--[a-z][\w-]+", table))
        saved = [option for option in PROGRAMS["fsdp-finetune"]["options"] if option["saved"]]
        self.assertLessEqual(told, {name for option in saved for name in option["names"]})
        for option in saved:
            of_optimizer = option["belongs_to"] == "optimizer"  # "and its own options"
            self.assertTrue(of_optimizer or told & set(option["names"]), option["names"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
