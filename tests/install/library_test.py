#!/usr/bin/env python3
"""Uses the library from another project: installed, found by CMake and by pkg-config, linked by examples/library, which
trains a model of its own. CMake gives FSDP_BUILD, FSDP_BIN, FSDP_MPIEXEC and FSDP_CMAKE."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["FSDP_BUILD"])
CONVERT = pathlib.Path(os.environ["FSDP_BIN"]) / "fsdp-ckpt-convert"
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if k not in ("CMAKE_PREFIX_PATH", "Torch_DIR")},
    "OMP_NUM_THREADS": "1",
}


def call(*command, cwd=None, code=0):
    run = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, env=ENVIRONMENT, cwd=cwd, check=False
    )
    if run.returncode != code:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {run.returncode}\n{run.stdout}\n{run.stderr}")
    return run.stdout + run.stderr


class Library(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = pathlib.Path(tempfile.mkdtemp(prefix="fsdp-library-"))
        cls.addClassCleanup(shutil.rmtree, cls.work)
        cls.prefix = cls.work / "prefix"
        call(os.environ["FSDP_CMAKE"], "--install", BUILD, "--prefix", cls.prefix, "--component", "library")
        cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
        generator = re.search(r"^CMAKE_GENERATOR:INTERNAL=(.*)", cache, re.M)[1]
        call(
            os.environ["FSDP_CMAKE"],
            "-S",
            cls.prefix / "share/fsdp/examples/library",
            "-B",
            cls.work / "build",
            "-G",
            generator,
            "-D",
            f"CMAKE_PREFIX_PATH={cls.prefix}",
            "-D",
            "CMAKE_BUILD_TYPE=Release",
            "-D",
            "CMAKE_CXX_FLAGS=-Wall -Wextra -Werror",
        )
        call(os.environ["FSDP_CMAKE"], "--build", cls.work / "build")
        cls.program = cls.work / "build" / "my_model"
        cls.two = cls.run_model(2, "two")

    @classmethod
    def run_model(cls, ranks, checkpoint, code=0):
        launcher = [os.environ["FSDP_MPIEXEC"], "-n", str(ranks)] if ranks else []
        text = call(*launcher, cls.program, cls.work / checkpoint, code=code)
        return (
            text
            if code
            else {what.strip(): float(loss) for what, loss in re.findall(r"^(.*\S) +loss (\S+)", text, re.M)}
        )

    def test_headers_are_those_of_the_sources(self):
        there = {path.relative_to(self.prefix / "include/fsdp") for path in (self.prefix / "include").rglob("*.hpp")}
        self.assertIn(pathlib.Path("lib/engine/fsdp/engine.hpp"), there)
        for name in there:
            for included in re.findall(r'#include "(lib/[^"]+)"', (SOURCE / name).read_text(encoding="utf-8")):
                self.assertIn(pathlib.Path(included), there, name)

    def test_it_learns_the_same_on_any_number_of_ranks(self):
        self.assertLess(self.two["trained"], 0.05 * self.two["zeros"])
        for ranks in (0, 3):
            other = self.run_model(ranks, f"on-{ranks}")
            self.assertEqual(other.keys(), self.two.keys())
            for what, loss in self.two.items():
                # Six digits are printed; another order of sums changes the last one after 200 steps.
                self.assertAlmostEqual(other[what], loss, delta=2e-5, msg=f"{what} on {ranks} ranks")

    def test_what_is_saved_is_loaded(self):
        self.assertEqual(self.two["loaded"], self.two["trained"])
        for ranks in (0, 3):
            loaded = self.run_model(ranks, "two")
            self.assertEqual(list(loaded), ["loaded"])
            self.assertAlmostEqual(loaded["loaded"], self.two["trained"], delta=2e-6)
        said = call(CONVERT, "--inspect", self.work / "two")
        call(CONVERT, self.work / "two", self.work / "one.pt")
        self.assertEqual(self.run_model(2, "one.pt"), {"loaded": self.two["trained"]})
        self.assertRegex(said, r"model\.blocks\.0\.up\.weight +float32 +2 ")
        call(CONVERT, "--check", self.work / "two")

    def test_what_does_not_fit_is_refused(self):
        call(CONVERT, self.work / "two", self.work / "without.pt", "--exclude", "model.head.weight")
        self.assertIn("has no 'model.head.weight'", self.run_model(2, "without.pt", code=4))
        call(
            CONVERT,
            self.work / "two",
            self.work / "other.pt",
            "--exclude",
            "model.first.weight",
            "--rename",
            r"^model\.head\.weight=model.first.weight",
        )
        self.assertIn("'model.first.weight' has the shape [1, 48], not [48, 8]", self.run_model(0, "other.pt", code=4))
        shutil.copytree(self.work / "two", self.work / "damaged")
        file = self.work / "damaged" / "__1_0.distcp"
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 4
        file.write_bytes(data)
        self.run_model(2, "damaged", code=4)

    def test_pkg_config(self):
        if not shutil.which("pkg-config"):
            self.skipTest("no pkg-config")
        ask = lambda what: call(
            "env", f"PKG_CONFIG_PATH={self.prefix / 'lib/pkgconfig'}", "pkg-config", what, "fsdp"
        ).split()
        objects = list((self.work / "build").rglob("main.cpp.o"))
        call("c++", *objects, *ask("--libs"), "-o", self.work / "linked")
        self.assertIn(f"loss {self.two['trained']:.4f}"[:-1], call(self.work / "linked", self.work / "two"))
        small = self.work / "small.cpp"
        small.write_text(
            '#include "lib/engine/sharding/wrap.hpp"\n#include "lib/ranks/mpi_plugin.hpp"\n'
            "int main() { return std::string(fsdp::detail::kMpiPluginAbi).empty(); }\n",
            encoding="utf-8",
        )
        flags = [flag.replace('\\"', '"') for flag in ask("--cflags")]
        call("c++", "-fsyntax-only", *flags, small)


if __name__ == "__main__":
    unittest.main(verbosity=2)
