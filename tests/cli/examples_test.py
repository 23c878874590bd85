"""Runs the commands of README and docs/ as they are printed, page by page, and compares their output; and the tiny models
of the examples.

A command of a block begins with `$ `. What cannot run offline on two cores in seconds (a cluster, a download) is written
without it; a command that ends otherwise than with 0 has a comment `# exits with N`. Commands of a page run in its order,
in one folder that has build/bin, data, scripts and the job scripts. Of the output shown, words are equal and numbers within 2 %, since
processors round differently, but equal where fsdp-memprobe predicts for a GPU, which no processor changes; times, speeds
and hashes are not compared, and a line `...` stands for any lines.

long.cli.examples runs them in a clean clone of the last commit, with the programs that README's first command builds there,
README's in the clone's own folder.
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

import fsdp_cli

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOLERANCE = 0.02
NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
MEASURED = re.compile(rf"\d+:\d\d(?::\d\d)?|\b[0-9a-f]{{16}}\b|{NUMBER} ?(?:s\b|ms\b|s/step|tok/s|[KMG]i?B/s|TFLOP/s|% of peak|times slower)")


def commands_of(page):
    """Returns [command, lines of output shown] for each `$ ` line of the page."""
    found, block, heredoc = [], False, None
    for line in page.splitlines():
        fence = line.startswith("```")
        if fence or (line.strip() and not line.startswith("    ")):
            block = None
        if fence or not line.startswith("    "):
            continue
        text = line[4:]
        if heredoc:
            found[-1][0] += "\n" + text
            heredoc = None if text == heredoc else heredoc
        elif block and found[-1][0].endswith("\\"):
            found[-1][0] = found[-1][0][:-1] + text.strip()
        elif text.startswith("$ "):
            found.append([text[2:], []])
            block = True
            heredoc = next(iter(re.findall(r"<<'(\w+)'", text)), None)
        elif block:
            found[-1][1].append(text.rstrip())
    return found


def alike(shown, said, tolerance):
    shown, said = (re.sub(r"\s+", " ", MEASURED.sub("T", line)).strip() for line in (shown, said))
    if shown.endswith(" ...") or shown.endswith(" …"):
        shown = shown[:-4].rstrip()
        said = said[: len(shown)] if re.sub(NUMBER, "0", said).startswith(re.sub(NUMBER, "0", shown)) else said
    if re.sub(NUMBER, "0", shown) != re.sub(NUMBER, "0", said):
        return False
    pairs = zip(re.findall(NUMBER, shown), re.findall(NUMBER, said))
    return all(abs(a - b) <= tolerance * max(abs(a), abs(b)) for a, b in
               ((float(x.replace(",", "")), float(y.replace(",", ""))) for x, y in pairs))


def first_difference(shown, said, tolerance):
    """Returns the first shown line that is not in what was said, in this order; None: all are."""
    rest = iter(said)
    for line in shown:
        if line.strip() not in ("", "...", "…") and not any(alike(line, other, tolerance) for other in rest):
            return line
    return None


def built_first():
    """Returns the targets that README's first command builds; none: all programs."""
    return re.search(r"(?m)^show scripts/build\b(.*)$", (ROOT / "scripts/demo").read_text())[1].split()


def clone_and_build(place):
    cloned = subprocess.run(["git", "clone", "--quiet", ROOT, place], capture_output=True, text=True, check=False)
    if cloned.returncode != 0:
        raise unittest.SkipTest(f"no clone of {ROOT}: {cloned.stderr}")
    (place / ".deps").symlink_to(ROOT / ".deps")
    env = {name: value for name, value in os.environ.items() if not name.startswith("FSDP_")}
    # ccache knows the objects of a clone in another folder by paths relative to this one.
    env.update(CCACHE_BASEDIR=str(place), CCACHE_NOHASHDIR="1")
    built = subprocess.run([place / "scripts/build", *built_first()], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, errors="replace", check=False)
    if built.returncode != 0:
        raise AssertionError(f"scripts/build ended with {built.returncode} in a clean clone:\n{built.stdout[-4000:]}")


class Examples(fsdp_cli.Case):
    def environment(self, programs, variables):
        path = f"{programs}:{pathlib.Path(os.environ['FSDP_MPIEXEC']).parent}:{os.environ['PATH']}"
        return fsdp_cli.environment({**variables, "PATH": path, "FSDP_CPU_FLOPS": "", "HOME": str(self.folder)})

    def folder_of(self, page, source, programs):
        """Returns the folder in which a page's commands run: README's are typed in a clone itself."""
        if page == source / "README.md" and source != ROOT:
            return source
        folder = self.folder / page.stem
        (folder / "build").mkdir(parents=True)
        os.symlink(programs, folder / "build/bin")
        for name in ("data", "scripts", "examples", "slurm", "pbs"):
            os.symlink(source / name, folder / name)
        return folder

    def test_commands_of_all_pages(self):
        if fsdp_cli.ALL:
            source = self.folder / "clone"
            clone_and_build(source)
            programs, variables = source / "build/bin", {"FSDP_BIN": str(source / "build/bin")}
        else:
            source, programs = ROOT, self.folder / "programs"
            variables = fsdp_cli.link_programs(programs)
            for program in programs.glob("fsdp-*"):
                if built_first() and program.name not in built_first():
                    program.unlink()
        chosen = os.environ.get("PAGES", "").split()  # to try some: PAGES='README own-data'
        env = self.environment(programs, variables)
        count = 0
        for page in [source / "README.md", *sorted((source / "docs").glob("*.md"))]:
            commands = commands_of(page.read_text(encoding="utf-8"))
            if not commands or (chosen and page.stem not in chosen):
                continue
            folder = self.folder_of(page, source, programs)
            with self.subTest(page.name):
                for command, shown in commands:
                    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=folder, env=env, text=True,
                                          errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=120)
                    code = re.search(r"# exits with (\d+)", command)
                    self.assertEqual(done.returncode, int(code[1]) if code else 0, f"{page.name}: {command}\n{done.stdout}")
                    is_exact = "fsdp-memprobe" in command and "--gpu" in command
                    missing = first_difference(shown, done.stdout.splitlines(), 0 if is_exact else TOLERANCE)
                    self.assertIsNone(missing, f"{page.name}: $ {command}\nshows: {missing}\nsaid:\n{done.stdout}")
                    count += 1
        self.assertGreater(count, 0 if chosen else 20)

    def test_the_tiny_models_refuse(self):
        made = subprocess.run([ROOT / "scripts/tiny_llama", "tiny-llama"], cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual((made.returncode, made.stdout), (0, "tiny-llama\n"), made.stderr)
        again = subprocess.run([ROOT / "scripts/tiny_llama", "tiny-llama"], cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual(again.returncode, 2)
        for name, lacks in (("tiny_llama", "tokenizer.model"), ("tiny_qwen", "scripts/tiny_llama"), ("tiny_falcon", "scripts/tiny_qwen"), ("tiny_adder", "scripts/tiny_qwen")):
            alone = self.folder / "copied" / "bin" / name
            alone.parent.mkdir(parents=True, exist_ok=True)
            alone.write_text((ROOT / "scripts" / name).read_text())
            lost = subprocess.run([sys.executable, alone, "lost"], cwd=self.folder, capture_output=True, text=True, check=False)
            self.assertEqual((lost.returncode, lacks in lost.stderr, "Traceback" in lost.stderr), (1, True, False), lost.stderr)
            self.assertFalse((self.folder / "lost").exists())
            place = "tiny-llama/config.json/below"  # cannot be created
            lost = subprocess.run([ROOT / "scripts" / name, place], cwd=self.folder, capture_output=True, text=True, check=False)
            self.assertEqual((lost.returncode, place in lost.stderr, "Traceback" in lost.stderr), (1, True, False), lost.stderr)

    def test_no_step_passes_the_peak(self):
        measured = {"FSDP_CPU_FLOPS": ""}
        result = self.train("mfu", "--max-steps", 6, "--log-every", 1, "--embed-size", 256, "--num-heads", 4, "--batch-size", 8, ranks=2,
                            env=measured)
        shares = [r["mfu"] for r in fsdp_cli.steps(self.run_directory("mfu"))]
        self.assertEqual(len(shares), 6)
        self.assertTrue(all(0 < share <= 1 for share in shares), shares)
        self.assertTrue(all(int(percent) <= 100 for percent in re.findall(r"(\d+) % of peak", result.err)), result.err)


if __name__ == "__main__":
    fsdp_cli.main()
