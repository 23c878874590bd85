#!/usr/bin/env python3
"""The kit of scripts/dist --kit is small, and works where there is a python3 with PyTorch and nothing else: no compiler, no tar,
no xz, no network (bare_root.py). CMake gives FSDP_BUILD."""

import json
import shutil
import sysconfig
import unittest

import bare_root

# PyTorch itself needs the C++ library.
PACKAGES = "python3,libstdc++6,bash,dash,coreutils,grep,sed,libc-bin"
MOST_BYTES = 24 << 20
PROGRAMS = {"fsdp-finetune", "fsdp-memprobe", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "hide-hydra-banner"}


class Kit(unittest.TestCase):
    root = None

    @classmethod
    def setUpClass(cls):
        tarball = next((cls.root / "opt/kit").glob("*-kit.tar.xz"))
        opened = cls.call("python3", "-m", "tarfile", "-e", f"/opt/kit/{tarball.name}")
        assert opened.returncode == 0, opened.stdout + opened.stderr
        cls.top = f"/tmp/{tarball.name.removesuffix('.tar.xz')}"
        cls.bytes = tarball.stat().st_size

    @classmethod
    def call(cls, *command, **environment):
        return bare_root.call(cls.root, command, {"PATH": "/usr/bin:/bin", "PYTHONPATH": "/opt/site", **environment}, timeout=400)

    def test_size_and_contents(self):
        self.assertLessEqual(self.bytes, MOST_BYTES)
        top = self.root / self.top[1:]
        self.assertEqual({path.name for path in top.iterdir()},
                         {"bin", "lib", "libexec", "licenses", "scripts", "tests", "LICENSE", "README", "sbom.spdx.json"})
        self.assertEqual({path.name for path in (top / "bin").iterdir()}, PROGRAMS)
        self.assertEqual({path.name for path in (top / "tests").iterdir()}, {"bench_gpu_rates", "gpu_backend", "gpu_device"})
        self.assertEqual({path.name for path in (top / "lib/fsdp").iterdir()}, {"libfsdp_cuda.so", "libfsdp_mpi.so"})
        print(f"{self.bytes / 2**20:.1f} MiB, unpacked {sum(path.stat().st_size for path in top.rglob('*') if path.is_file()) / 2**20:.1f} MiB")

    def test_its_stages_start(self):
        """Numbers against PyTorch, two ranks, memory: one check of each stage that runs on a CPU."""
        run = self.call(f"{self.top}/scripts/gpu-check", "contact", "ranks", "rest", "--device", "cpu", "--out", "/tmp/out", "--only", "machine", "minGPT float32",
                        "two ranks, full-shard, bf16", "memory of mingpt")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        stages = json.loads((self.root / "tmp/out/gpu-check.json").read_text())["stages"]
        found = {row["check"]: row["verdict"] for stage in stages.values() for row in stage["checks"]}
        self.assertEqual(found, {"machine": "NOTE", "minGPT float32": "PASS", "two ranks, full-shard, bf16": "PASS", "memory of mingpt, float32": "PASS"})
        self.assertTrue((self.root / "tmp/out/gpu-check.tar.gz").exists())

    def test_no_library_is_missing(self):
        libraries = json.loads(self.call("python3", f"{self.top}/scripts/gpu_check/facts.py", "cpu").stdout)["folders"]
        for program in ("libexec/fsdp-finetune", "libexec/fsdp-memprobe", "tests/bench_gpu_rates", "tests/gpu_device", "tests/gpu_backend", "lib/fsdp/libfsdp_cuda.so"):
            said = self.call("ldd", f"{self.top}/{program}", LD_LIBRARY_PATH=":".join(libraries))
            self.assertNotIn("not found", said.stdout + said.stderr, program)


def start(work):
    """Packs the kit, and starts this file again where there is no network."""
    if sysconfig.get_python_version() != "3.11":
        bare_root.skip("the PyTorch of the build is for another python3 than Debian 12's")
    if not (bare_root.BUILD / "lib/libfsdp_cuda.so").exists():
        bare_root.skip("the CUDA back end was not built")
    tarball = bare_root.pack(work, "--kit")
    (work / "kit").mkdir()
    shutil.move(tarball, work / "kit")
    return bare_root.enter(work, bare_root.make("bookworm", PACKAGES), {"/opt/kit": work / "kit", "/opt/site": bare_root.site_packages()}, __file__)


if __name__ == "__main__":
    Kit.root = bare_root.main(start)
    unittest.main(verbosity=2)
