#!/usr/bin/env python3
"""Loads the module files with Lmod and environment-modules on an installed tree: loading finds programs, pages,
completion and the library, unloading restores the shell. A tool that is not installed is skipped: Debian has lmod and
environment-modules, but only one at a time. CMake gives FSDP_BUILD and FSDP_CMAKE; FSDP_MODULECMD may name a modulecmd.tcl."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

LMOD = pathlib.Path("/usr/share/lmod/lmod/init/bash")
MODULECMD = pathlib.Path(os.environ.get("FSDP_MODULECMD", "/usr/lib/x86_64-linux-gnu/modulecmd.tcl"))
KEPT = ("PATH", "MANPATH", "CMAKE_PREFIX_PATH", "PKG_CONFIG_PATH", "FSDP_PREFIX", "LD_LIBRARY_PATH")
SHOW = "show() { for name in " + " ".join(KEPT) + '; do echo "$1 $name=${!name-unset}"; done; }\n'


class Modules(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = pathlib.Path(tempfile.mkdtemp(prefix="fsdp-module-"))
        cls.addClassCleanup(shutil.rmtree, cls.work)
        cls.prefix = cls.work / "tree"
        for component in ("programs", "manual", "library", "modules"):
            subprocess.run(
                [
                    os.environ["FSDP_CMAKE"],
                    "--install",
                    os.environ["FSDP_BUILD"],
                    "--prefix",
                    cls.prefix,
                    "--component",
                    component,
                ],
                check=True,
                capture_output=True,
            )
        cls.files = cls.prefix / "share/modulefiles"

    def shell(self, begin, script):
        clean = "export MANPATH=/before/man\nunset CMAKE_PREFIX_PATH PKG_CONFIG_PATH FSDP_PREFIX"
        text = f"set -e\n{clean}\n{begin}\n{SHOW}{script}"
        run = subprocess.run(
            ["bash", "--norc", "-c", text],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.work), "TERM": "dumb"},
        )
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        return run.stdout + run.stderr

    def check(self, begin):
        said = self.shell(
            begin,
            f"""
            module use {self.files}
            show before
            module load fsdp
            echo "program $(command -v fsdp-finetune)"
            echo "page $(man -w fsdp-finetune 2>&1)"
            echo "completion $(complete -p fsdp-eval)"
            echo "package $(pkg-config --modversion fsdp 2>&1)"
            show loaded
            module unload fsdp
            show after
            command -v fsdp-finetune && exit 1
            module whatis fsdp 2>&1; module help fsdp 2>&1""",
        )
        self.assertIn(f"program {self.prefix}/bin/fsdp-finetune\n", said)
        if shutil.which("man"):
            self.assertIn(f"page {self.prefix}/share/man/man1/fsdp-finetune.1\n", said)
        self.assertIn("completion complete -F _fsdp fsdp-eval\n", said)
        if shutil.which("pkg-config"):
            self.assertIn("package 0.", said)
        self.assertIn(f"loaded FSDP_PREFIX={self.prefix}\n", said)
        self.assertIn(f"loaded CMAKE_PREFIX_PATH={self.prefix}\n", said)
        self.assertRegex(said, f"loaded MANPATH={self.prefix}/share/man:/before/man")
        state = {
            when: [line.split(" ", 1)[1] for line in said.splitlines() if line.startswith(when + " ")]
            for when in ("before", "after")
        }
        self.assertEqual(len(state["before"]), len(KEPT))
        self.assertEqual([line.rstrip(":") for line in state["before"]], [line.rstrip(":") for line in state["after"]])
        self.assertIn("fully sharded data parallel training", said)
        self.assertIn("man fsdp-finetune", said)

    def check_wrong_place(self, begin, file):
        """A module file that was moved without setting PREFIX reports it."""
        (self.work / "moved/fsdp").mkdir(parents=True, exist_ok=True)
        shutil.copy(self.files / "fsdp" / file, self.work / "moved/fsdp" / file)
        said = self.shell(
            begin,
            f"module use {self.work}/moved\nmodule load fsdp || echo refused\n"
            "command -v fsdp-finetune || echo no program\n",
        )
        self.assertIn("there is no bin/fsdp-finetune in", said)
        self.assertIn("no program", said)
        moved = self.work / "moved/fsdp" / file
        named = moved.read_text(encoding="utf-8").replace('prefix = ""', f'prefix = "{self.prefix}"', 1)
        moved.write_text(named.replace('set prefix ""', f'set prefix "{self.prefix}"', 1), encoding="utf-8")
        said = self.shell(begin, f"module use {self.work}/moved\nmodule load fsdp\ncommand -v fsdp-finetune\n")
        self.assertIn(f"{self.prefix}/bin/fsdp-finetune", said)
        shutil.rmtree(self.work / "moved")

    @unittest.skipUnless(LMOD.exists(), "no Lmod: apt-get install -y lmod")
    def test_lmod(self):
        begin = f"export LMOD_PAGER=none\nset +e\nsource {LMOD}\nset -e"
        self.check(begin)
        self.check_wrong_place(begin, self.version() + ".lua")

    @unittest.skipUnless(MODULECMD.exists(), "no environment-modules: apt-get install -y environment-modules")
    def test_environment_modules(self):
        begin = f'module() {{ eval "$({MODULECMD} bash "$@")"; }}'
        self.check(begin)
        self.check_wrong_place(begin, self.version())

    def version(self):
        return next(path.name for path in (self.files / "fsdp").iterdir() if path.suffix != ".lua")


if __name__ == "__main__":
    unittest.main(verbosity=2)
