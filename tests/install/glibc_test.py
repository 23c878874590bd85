#!/usr/bin/env python3
"""A tarball of scripts/dist runs where the C library is older than the build's: in the files of a Debian 11 (glibc 2.31), in
which the tarball, LibTorch and a loopback interface are all there is. Packs --thin, with the LibTorch of the build. CMake gives
FSDP_BUILD.

The files come from Debian's mirror once and stay in .deps/bullseye. The second half runs in namespaces of its own."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["FSDP_BUILD"])
ROOT = SOURCE / ".deps/bullseye"
# The packed mpiexec is a shell script; unpacked packages have no /bin/sh before their scripts have run.
PACKAGES = "libc6,libgcc-s1,libcrypt1,dash,bash,coreutils,grep,sed,libc-bin,libtinfo6,libpcre3,libselinux1,libacl1,libattr1,libgmp10"
REPO = "org/tiny"

sys.path.insert(0, str(SOURCE / "tests/cli"))
from hub_server import HubServer, Repo  # noqa: E402


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(77)


def make_root():
    if ROOT.exists():
        return
    part = ROOT.with_name(f"bullseye.{os.getpid()}")
    made = subprocess.run(["mmdebstrap", "--variant=extract", f"--include={PACKAGES}", "bullseye", part, "http://deb.debian.org/debian"],
                          capture_output=True, text=True, check=False)
    if made.returncode:
        shutil.rmtree(part, ignore_errors=True)
        skip(f"no Debian 11 from the mirror: {(made.stderr.strip().splitlines() or ['mmdebstrap said nothing'])[-1]}")
    if not (part / "bin/sh").exists():
        (part / "bin/sh").symlink_to("dash")
    (part / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (part / "etc/nsswitch.conf").write_text("passwd: files\nhosts: files\n")
    (part / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.0.1 hub.example\n")
    try:
        part.rename(ROOT)
    except OSError:  # another test run made it in the meantime
        shutil.rmtree(part)


def prepare():
    """Makes what needs the network, and starts this file again where there is none."""
    for tool in ("patchelf", "mmdebstrap", "unshare", "ip", "openssl"):
        if not shutil.which(tool):
            skip(f"no {tool}: scripts/setup --full")
    if os.geteuid() != 0 or subprocess.run(["unshare", "-mn", "true"], capture_output=True, check=False).returncode:
        skip("only root may make namespaces for mounts and network here")
    cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
    if "FSDP_SYSROOT:" in cache:
        skip("the programs are for another architecture")
    torch = next((pathlib.Path(line.partition("=")[2]) for line in cache.splitlines() if line.startswith("LibTorch_INCLUDE_DIR:")))
    make_root()
    with tempfile.TemporaryDirectory(prefix="fsdp-glibc-") as work:
        subprocess.run([SOURCE / "scripts/dist", "--thin", "--no-build", "--quick", "--out", work], check=True, capture_output=True,
                       env={**os.environ, "FSDP_BUILD_DIR": str(BUILD)})
        subprocess.run(["tar", "-C", work, "-xf", next(pathlib.Path(work).glob("*.tar.*[tz]"))], check=True)
        top = next(path for path in pathlib.Path(work).glob("fsdp-*-thin") if path.is_dir())
        mounts = "".join(f"mkdir -p {to}; mount {how} {to}\n" for to, how in (
            (f"{work}/root", f"--bind {ROOT}"), (f"{work}/root/tmp", "-t tmpfs tmpfs"), (f"{work}/root/opt", "-t tmpfs tmpfs"),
            (f"{work}/root/opt/fsdp", f"--bind {top}"), (f"{work}/root/opt/site", f"--bind {torch.parents[1]}"),
            (f"{work}/root/proc", "--rbind /proc"), (f"{work}/root/sys", "--rbind /sys"), (f"{work}/root/dev", "--rbind /dev")))
        inside = ["unshare", "-mn", "--propagation", "private", "sh", "-ec", mounts + 'ip link set lo up; exec "$@"', "sh",
                  sys.executable, __file__, "--inside", f"{work}/root"]
        return subprocess.run(inside, check=False).returncode


class OlderGlibc(unittest.TestCase):
    root = None

    def call(self, *command, code=0, **environment):
        bare = {"PATH": "/opt/fsdp/bin:/usr/bin:/bin", "HOME": "/tmp", "OMP_NUM_THREADS": "1", "FSDP_CPU_FLOPS": "1e11", "FSDP_TORCH": "/opt/site/torch"}
        variables = [f"{name}={value}" for name, value in {**bare, **environment}.items()]
        run = subprocess.run(["chroot", self.root, "/usr/bin/env", "-i", "-C", "/tmp", *variables, *command], capture_output=True,
                             text=True, check=False, timeout=100)
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
        self.assertIn("'nothing'", self.call("fsdp-finetune", "--model", "nothing", code=2))
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
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", pem, "-out", certificate, "-subj",
                        "/CN=hub", "-addext", "subjectAltName=DNS:hub.example,IP:127.0.0.1,IP:127.0.0.2"], capture_output=True, check=True)
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


if __name__ == "__main__":
    if sys.argv[1:2] != ["--inside"]:
        sys.exit(prepare())
    OlderGlibc.root = pathlib.Path(sys.argv.pop(2))
    sys.argv.pop(1)
    unittest.main(verbosity=2)
