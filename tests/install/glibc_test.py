#!/usr/bin/env python3
"""A tarball of scripts/dist runs where the C library is older than the build's: in the files of a Debian 11 (glibc 2.31), in
which the tarball, LibTorch and a loopback interface are all there is (bare_root.py). Packs --thin, with the LibTorch of the
build. CMake gives FSDP_BUILD."""

import json
import pathlib
import re
import subprocess
import sys
import unittest

import bare_root

# The packed mpiexec is a shell script; unpacked packages have no /bin/sh before their scripts have run.
PACKAGES = "libc6,libgcc-s1,libcrypt1,dash,bash,coreutils,grep,sed,libc-bin,libtinfo6,libpcre3,libselinux1,libacl1,libattr1,libgmp10"
REPO = "org/tiny"

sys.path.insert(0, str(bare_root.SOURCE / "tests/cli"))
from hub_server import HubServer, Repo  # noqa: E402


class OlderGlibc(unittest.TestCase):
    root = None

    def call(self, *command, code=0, **environment):
        bare = {"PATH": "/opt/fsdp/bin:/usr/bin:/bin", "FSDP_TORCH": "/opt/site/torch"}
        run = bare_root.call(self.root, command, {**bare, **environment})
        self.assertEqual(run.returncode, code, f"{command}\n{run.stdout}{run.stderr}")
        return run.stdout + run.stderr

    def test_programs_start(self):
        self.assertIn("2.31", self.call("ldd", "--version"))
        for program in ("finetune", "eval", "ckpt-convert", "memprobe", "bf16check", "download"):
            self.assertIn(f"fsdp-{program} ", self.call(f"fsdp-{program}", "--version", LD_BIND_NOW="1"))
        test = "/opt/fsdp/tests/gpu_backend"  # a variable of the C library is copied into it
        if (self.root / test[1:]).exists():
            self.assertIn("doctest", self.call(test, "--version", LD_LIBRARY_PATH="/opt/site/torch/lib"))

    def test_two_ranks(self):
        ranks = ("mpiexec", "-n", "2")
        self.call(*ranks, "fsdp-finetune", "--model", "mingpt", "--num-layers", "2", "--num-heads", "2", "--embed-size", "32", "--seq-len", "32",
                  "--batch-size", "2", "--max-steps", "3", "--device", "cpu", "--precision", "float32", "--run-name", "r",
                  "--train-data", "/opt/fsdp/data/shakespeare/train.h5")
        latest = "runs/r/checkpoints/latest"
        said = self.call(*ranks, "fsdp-eval", latest, "--data", "/opt/fsdp/data/shakespeare/validation.h5", "--json")
        self.assertAlmostEqual(float(re.search(r'"loss": ([\d.]+)', said)[1]), 10.728350, places=4)  # as on the build machine
        self.call(*ranks, "fsdp-ckpt-convert", latest, "r.pt")
        self.call("fsdp-ckpt-convert", "--verify", latest, "r.pt")

    def test_exceptions(self):
        """Each of these is thrown in one library and caught in another."""
        self.assertIn("--model nothing", self.call("fsdp-finetune", "--model", "nothing", code=4))
        self.assertIn("/nonexistent", self.call("fsdp-ckpt-convert", "--inspect", "/nonexistent", code=4))

    def test_an_older_cxx_library_of_a_module(self):
        old = self.root / "tmp/gcc-4/lib64"
        old.mkdir(parents=True)
        (old / "libstdc++.so.6").touch()
        for program in ("finetune", "download"):
            self.assertIn(f"fsdp-{program} ", self.call(f"fsdp-{program}", "--version", LD_LIBRARY_PATH="/tmp/gcc-4/lib64"))

    def test_tokens(self):
        (self.root / "tmp/text.jsonl").write_text("".join(json.dumps({"text": f"To be or not {i}"}) + "\n" for i in range(100)))
        self.assertIn("/tmp/t.h5", self.call("fsdp-download", "tokens", "--input", "/tmp/text.jsonl", "--tokenizer", "gpt2", "--output", "/tmp/t.h5"))

    def test_download_by_https(self):
        """The name of the host comes from the C library's own files, the certificate from a file named by the user."""
        pem, certificate = self.root / "tmp/hub.pem", self.root / "tmp/cert.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                        "-keyout", pem, "-out", certificate, "-subj", "/CN=hub", "-addext", "subjectAltName=DNS:hub.example,IP:127.0.0.1,IP:127.0.0.2"], capture_output=True, check=True)
        pem.write_bytes(pem.read_bytes() + certificate.read_bytes())
        files = {"config.json": b'{"model_type": "llama"}\n', "model.safetensors": bytes(range(256)) * 8000}
        with HubServer({("model", REPO): Repo(files)}, certificate=pem) as hub:
            endpoint = {"HF_ENDPOINT": hub.url().replace("127.0.0.1", "hub.example"), "HF_HOME": "/tmp/hf"}
            self.assertIn("certificate", self.call("fsdp-download", REPO, code=1, **endpoint))
            self.call("fsdp-download", REPO, "--local-dir", "/tmp/tiny", SSL_CERT_FILE="/tmp/cert.pem", **endpoint)
        for name, content in files.items():
            self.assertEqual((self.root / "tmp/tiny" / name).read_bytes(), content)

    def test_finds_the_libtorch_of_the_site(self):
        version = ("fsdp-finetune", "--version")
        for folder in ("/opt/site/torch", "/opt/site", "/opt/site/torch/lib"):
            self.assertIn("LibTorch ", self.call(*version, FSDP_TORCH=folder))
        self.assertIn("LibTorch ", self.call(*version, FSDP_TORCH="", LD_LIBRARY_PATH="/opt/site/torch/lib"))
        (self.root / "tmp/bin").mkdir()
        python = self.root / "tmp/bin/python3"
        python.write_text("#!/bin/sh\necho /opt/site/torch\n")
        python.chmod(0o755)
        self.assertIn("LibTorch ", self.call(*version, FSDP_TORCH="", PATH="/tmp/bin:/opt/fsdp/bin:/usr/bin:/bin"))
        self.assertIn("no LibTorch", self.call(*version, FSDP_TORCH="", code=1))
        self.assertIn("/tmp holds no LibTorch", self.call(*version, FSDP_TORCH="/tmp", code=1))
        other = self.root / "tmp/other/torch"
        (other / "lib").mkdir(parents=True)
        (other / "lib/libtorch_cpu.so").touch()
        (other / "version.py").write_text("__version__ = '2.1.2+cu121'\n")
        self.assertIn("/tmp/other/torch has 2.1.2", self.call(*version, FSDP_TORCH="/tmp/other", code=1))


def start(work):
    """Packs the tarball, and starts this file again where there is no network."""
    tarball = bare_root.pack(work, "--thin", "--quick")
    subprocess.run(["tar", "-C", work, "-xf", tarball], check=True)
    top = next(path for path in work.glob("fsdp-*-thin") if path.is_dir())
    return bare_root.enter(work, bare_root.make("bullseye", PACKAGES), {"/opt/fsdp": top, "/opt/site": bare_root.site_packages()}, __file__)


if __name__ == "__main__":
    OlderGlibc.root = bare_root.main(start)
    unittest.main(verbosity=2)
