#!/usr/bin/env python3
"""Checks that CITATION.cff and the recipes in packaging/ agree with VERSION, each other and the dependencies of the build."""

import ast
import pathlib
import re
import subprocess
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PACKAGING = SOURCE / "packaging"
VERSION = (SOURCE / "VERSION").read_text(encoding="utf-8").strip()


def text(name):
    return (PACKAGING / name).read_text(encoding="utf-8")


class Recipes(unittest.TestCase):
    def test_versions(self):
        self.assertRegex(VERSION, r"^\d+\.\d+\.\d+$")
        self.assertEqual(re.findall(r'^    version\("([^"]+)"', text("spack/fsdp/package.py"), re.M), [VERSION])
        self.assertIn(f'version: "{VERSION}"', text("conda/meta.yaml"))
        for name in ("apptainer/fsdp.def", "docker/Dockerfile"):
            self.assertEqual(set(re.findall(r"fsdp-(\d[\d.]*\d)-linux", text(name))), {VERSION}, name)
        self.assertIn(f"\nversion: {VERSION}\n", (SOURCE / "CITATION.cff").read_text(encoding="utf-8"))
        changelog = (SOURCE / "CHANGELOG.md").read_text(encoding="utf-8")
        self.assertRegex(changelog, rf"(?m)^## \[{re.escape(VERSION)}\] - \d{{4}}-\d\d-\d\d$|^## \[Unreleased\]$")

    def test_the_same_libtorch_everywhere(self):
        pinned = re.search(r"torch==\$\{chosen_torch:-(\d+\.\d+)", (SOURCE / "scripts/common.sh").read_text(encoding="utf-8"))[1]
        self.assertEqual(set(re.findall(r"py-torch@([\d.]+)", text("spack/fsdp/package.py"))), {pinned})
        self.assertEqual(set(re.findall(r"libtorch ([\d.]+)\.\*", text("conda/meta.yaml"))), {pinned})

    def test_python_of_the_recipe(self):
        tree = ast.parse(text("spack/fsdp/package.py"))
        self.assertEqual([node.name for node in tree.body if isinstance(node, ast.ClassDef)], ["Fsdp"])
        self.assertLess(max(map(len, text("spack/fsdp/package.py").splitlines())), 100)

    def test_each_dependency_of_the_build_is_named(self):
        """Compares with find_package and pkg_check_modules; a new dependency must be added to the recipes."""
        asked = set()
        for file in [
            SOURCE / "CMakeLists.txt",
            *(SOURCE / "lib").rglob("CMakeLists.txt"),
            SOURCE / "cmake/FsdpTargets.cmake",
        ]:
            asked |= set(re.findall(r"(?:find_package|pkg_check_modules)\((\w+)", file.read_text(encoding="utf-8")))
        names = {
            "ZLIB": ("zlib-api", "zlib"),
            "nlohmann_json": ("nlohmann-json", "nlohmann_json"),
            "CLI11": ("cli11", "cli11"),
            "LibTorch": ("py-torch", "libtorch"),
            "MPI": ("mpi", "mpich"),
            "HDF5": ("hdf5", "hdf5"),
            "fmt": ("fmt", "fmt"),
            "PkgConfig": ("pkgconfig", "pkg-config"),
            "PCRE2": ("pcre2", "pcre2"),
            "Utf8Proc": ("utf8proc", "libutf8proc"),
            "YAML": ("libyaml", "yaml"),
            "SentencePiece": ("sentencepiece", "libsentencepiece"),
            "CURL": ("curl", "libcurl"),
            "OpenSSL": ("openssl", "openssl"),
            "ZSTD": ("zstd", "zstd"),
            "Deflate": ("libdeflate", "libdeflate"),
            "ArrowParquet": ("arrow", "libparquet"),
            "Threads": None,
        }
        self.assertEqual(asked - set(names), set())
        for name in asked:
            if names[name]:
                self.assertRegex(text("spack/fsdp/package.py"), rf'depends_on\("{names[name][0]}[@" ]', name)
                self.assertRegex(text("conda/meta.yaml"), rf"(?m)^    - {re.escape(names[name][1])}( |$)", name)

    def test_shell_of_the_definition(self):
        sections = re.split(r"(?m)^%(\w+)$", text("apptainer/fsdp.def"))
        scripts = dict(zip(sections[1::2], sections[2::2]))
        for name in ("post", "environment", "test", "runscript"):
            run = subprocess.run(
                ["sh", "-n"],
                input=scripts[name].replace("{{ tarball }}", "x"),
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertEqual(run.returncode, 0, f"%{name}: {run.stderr}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
