#!/usr/bin/env python3
"""scripts/dist gives the same bytes in each run, whatever the user's settings; checksum and signature are valid; the list
of contents (SPDX) has every file and describes each library. Packs --thin, which is small; tests/cluster/dist.sh tests the whole.
CMake gives FSDP_BUILD."""

import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = os.environ["FSDP_BUILD"]
EPOCH = "1700000000"


def dist(out, *options, umask=0o022, **environment):
    run = subprocess.run(
        [SOURCE / "scripts/dist", "--thin", "--no-build", "--quick", "--out", out, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "FSDP_BUILD_DIR": BUILD, "SOURCE_DATE_EPOCH": EPOCH, **environment},
        check=False,
        umask=umask,
    )
    if run.returncode != 0:
        raise AssertionError(f"scripts/dist ended with {run.returncode}: {run.stderr}")
    return next(pathlib.Path(out).glob("fsdp-*.tar.*[tz]"))


@unittest.skipUnless(shutil.which("patchelf"), "no patchelf: apt-get install -y patchelf")
class Tarball(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = pathlib.Path(tempfile.mkdtemp(prefix="fsdp-tarball-"))
        cls.addClassCleanup(shutil.rmtree, cls.work)
        cls.first = dist(cls.work / "first")
        subprocess.run(["tar", "-C", cls.work, "-xf", cls.first], check=True)
        cls.top = next(path for path in cls.work.glob("fsdp-*") if path.is_dir())
        cls.sbom = json.loads((cls.top / "sbom.spdx.json").read_text(encoding="utf-8"))

    def test_what_is_opened_by_name(self):
        """Tests the selection of --with-cuda, whose tarball has several GB: without NVRTC the first fused kernel fails."""
        packages = pathlib.Path(sysconfig.get_paths()["purelib"])
        if not (packages / "nvidia").is_dir():
            self.skipTest(f"no NVIDIA libraries in {packages}: scripts/setup --full")
        listing = ["bash", "-ec", f'source "{SOURCE}/scripts/packing/opened.sh"; opened_by_name "$0"', packages]
        found = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\n")
        names = {pathlib.Path(path).name for path in found if path}
        wanted = {b"libnvrtc-builtins.so"}  # opened by NVRTC
        for path in (packages / "nvidia/cudnn/lib").glob("libcudnn*.so.*"):
            wanted |= set(re.findall(rb"\0(lib(?:cudnn_[a-z_]+|nvrtc)\.so)(?=\0)", path.read_bytes()))
        self.assertLessEqual({b"libnvrtc.so", b"libcudnn_graph.so", b"libcudnn_engines_precompiled.so"}, wanted)
        for name in wanted:
            self.assertTrue([other for other in names if other.startswith(name.decode())], f"{name} is not packed: {names}")

    def test_same_bytes_again_and_signed(self):
        with tempfile.TemporaryDirectory(prefix="gpg-") as home:  # short path, because it holds gpg-agent's socket
            sign = self.make_key(home) if shutil.which("gpg") else ()
            second = dist(
                self.work / "second",
                *sign,
                umask=0o077,
                TZ="Pacific/Apia",
                LC_ALL="C",
                HOME="/nonexistent",
                GNUPGHOME=home,
            )
            sums = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (self.first, second)}
            self.assertEqual(len(sums), 1, "two runs differ")
            if not sign:
                self.skipTest("the signature: no gpg")
            check = ["gpg", "--homedir", home, "--batch", "--quiet", "--verify", f"{second}.asc", second]
            self.assertEqual(subprocess.run(check, capture_output=True, check=False).returncode, 0)
            with second.open("r+b") as file:
                file.seek(100)
                file.write(b"changed")
            self.assertNotEqual(subprocess.run(check, capture_output=True, check=False).returncode, 0)
            subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)

    @staticmethod
    def make_key(home):
        gpg = ["gpg", "--homedir", home, "--batch", "--quiet", "--passphrase", ""]
        subprocess.run([*gpg, "--quick-gen-key", "packer@example.org", "ed25519", "sign"], check=True)
        return "--sign", "packer@example.org"

    def test_owners_times_and_modes(self):
        listing = subprocess.run(
            ["tar", "-tvf", self.first, "--numeric-owner", "--full-time", "--utc"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        names = [line.split()[5] for line in listing]
        self.assertEqual(names, sorted(names, key=lambda name: name.replace("/", "\0")))
        for line in listing:
            self.assertRegex(line, r"^[-dl]rw[x-]r-[x-]r-[x-] 0/0 +\d+ 2023-11-14 22:13:20 |^lrwxrwxrwx 0/0 ")

    def test_sum(self):
        subprocess.run(["sha256sum", "-c", "--quiet", f"{self.first.name}.sha256"], cwd=self.first.parent, check=True)

    def test_unknown_key_is_refused_before_packing(self):
        with self.assertRaisesRegex(AssertionError, "no secret key"):
            dist(self.work / "unsigned", "--sign", "nobody@example.org")
        self.assertFalse((self.work / "unsigned").exists())

    def test_contents_have_every_file(self):
        listed = {
            entry["fileName"]: {c["algorithm"]: c["checksumValue"] for c in entry["checksums"]}
            for entry in self.sbom["files"]
        }
        files = [path for path in self.top.rglob("*") if path.is_file() and not path.is_symlink()]
        there = {"./" + str(path.relative_to(self.top)) for path in files}
        self.assertEqual(set(listed), there - {"./sbom.spdx.json"})
        for name in list(listed)[::7] + ["./bin/fsdp-finetune"]:
            self.assertEqual(listed[name]["SHA256"], hashlib.sha256((self.top / name).read_bytes()).hexdigest(), name)

    def test_contents_say_what_each_library_is(self):
        packages = {package["SPDXID"]: package for package in self.sbom["packages"]}
        holder = {
            r["relatedSpdxElement"]: packages[r["spdxElementId"]]
            for r in self.sbom["relationships"]
            if r["relationshipType"] == "CONTAINS"
        }
        for entry in self.sbom["files"]:
            package = holder[entry["SPDXID"]]
            self.assertTrue(
                package["versionInfo"] and package["supplier"] and package["licenseDeclared"], package["name"]
            )
            if entry["fileName"].startswith("./lib/lib") and entry["fileName"] != "./lib/libfsdp_glibc.so":
                self.assertNotEqual(package["name"], "fsdp", entry["fileName"])
                self.assertIn("purl", json.dumps(package.get("externalRefs", "")), entry["fileName"])
        ours = next(package for package in packages.values() if package["name"] == "fsdp")
        self.assertEqual(
            (ours["versionInfo"], ours["licenseDeclared"]), ((SOURCE / "VERSION").read_text().strip(), "BSD-3-Clause")
        )
        self.assertEqual(self.sbom["creationInfo"]["created"], "2023-11-14T22:13:20Z")

    def test_contents_are_valid(self):
        ids = [e["SPDXID"] for kind in ("packages", "files") for e in self.sbom[kind]] + ["SPDXRef-DOCUMENT"]
        self.assertEqual(len(ids), len(set(ids)))
        for relation in self.sbom["relationships"]:
            self.assertIn(relation["spdxElementId"], ids)
            self.assertIn(relation["relatedSpdxElement"], ids)
        if not importlib.util.find_spec("spdx_tools"):
            self.skipTest("the rest: no spdx-tools in this Python")
        from spdx_tools.spdx.parser.parse_anything import parse_file
        from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

        found = validate_full_spdx_document(parse_file(str(self.top / "sbom.spdx.json")))
        self.assertEqual([message.validation_message for message in found], [])

    def test_runs_on_glibc_2_28(self):
        """Compares the versions that the linker's tools find with the ones that scripts/packing/glibc.py lists."""
        listed = subprocess.run([sys.executable, SOURCE / "scripts/packing/glibc.py", "check", "--newest", "2.28", self.top],
                                check=True, capture_output=True, text=True).stdout.splitlines()
        print("\n".join(listed))
        for line in listed:
            newest, _, _, name = line.split()
            read = subprocess.run(["objdump", "-p", self.top / name], check=True, capture_output=True, text=True).stdout
            references = read.partition("Version References:")[2]
            versions = [tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", references)]
            self.assertLessEqual(max(versions, default=(0,)), (2, 28), name)
            self.assertEqual(max(versions, default=()), tuple(map(int, re.findall(r"\d+", newest))), name)

    def test_files_above_the_bound_are_refused(self):
        library = self.work / "bound" / "libfmt.so.9"
        library.parent.mkdir()
        shutil.copy(self.top / "lib/libstdc++.so.6", library)
        run = subprocess.run([sys.executable, SOURCE / "scripts/packing/glibc.py", "check", "--newest", "2.17", library.parent],
                             check=False, capture_output=True, text=True)
        self.assertEqual(run.returncode, 1)
        self.assertRegex(run.stderr, r"libfmt\.so\.9 asks for GLIBC_2\.25, newer than 2\.17")

    def test_no_path_of_this_machine(self):
        """Programs in tests/ are exempt: they contain the path of the build folder, where they look first for the back end."""
        place = str(SOURCE).encode()
        with_path = [str(path) for path in sorted(self.top.rglob("*"))
                     if path.is_file() and not path.is_symlink() and path.parent.name != "tests" and place in path.read_bytes()]
        self.assertEqual(with_path, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
