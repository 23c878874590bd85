#!/usr/bin/env python3
"""Debian packages without root, and without dpkg: fetched by their SHA-256, unpacked into a folder, and made to find each
other there (docs/install.md, "Without root"). Runs on Python 3.6.

  packages.py list LIST [--from URL]...            prints SHA-256 and address of each package of LIST
  packages.py fetch LIST FOLDER [--from URL]...    brings the packages that FOLDER lacks; other files are left alone
  packages.py unpack ROOT PACKAGE...               unpacks package files; ROOT/packages says which file is of which package
  packages.py connect ROOT [--own-libc]            lets programs and libraries in ROOT find each other's files
  packages.py pin NAME...                          writes a LIST: these packages of Debian 12 with all that they need

A LIST has lines "mirror: URL" and "SHA-256 SIZE PATH BELOW THE MIRROR". --from comes before the mirrors of the LIST. With
--own-libc the programs in ROOT use its C library instead of the system's.
"""
import argparse
import concurrent.futures
import hashlib
import io
import lzma
import os
import pathlib
import platform
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

TRIPLET = platform.machine() + "-linux-gnu"
# Nothing here is used by compilers, CMake or programs. Licences are kept.
LEFT_OUT = re.compile(r"(usr/share/(man|info|locale|lintian|bug|bash-completion|doc-base|gdb|emacs|vim|zsh)|var|boot|usr/sbin)/|"
                      r"usr/share/doc/[^/]+/(?!copyright$)")
# Packages that unpacked programs do not need: they serve installing itself, or documentation.
NOT_PINNED = re.compile(r"(perl|libperl[0-9.]*|perl-.*|lib.*-perl|debconf|dpkg|tar|init-system-helpers|usrmerge|procps|libproc2-.*|openssl|"
                        r"readline-common|libgdbm.*|media-types|libgfortran.*|rpcsvc-proto|python3-(distutils|lib2to3)|libmd0|libgprofng0|"
                        r"libselinux1|libtirpc-common)$")


def say(text):
    print("setup: " + text, file=sys.stderr)


def fail(text):
    say(text)
    sys.exit(1)


class Wanted:
    """The packages of a LIST."""

    def __init__(self, path, mirrors):
        self.mirrors, self.files = [url.rstrip("/") for url in mirrors], []
        for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
            if line.startswith("mirror: "):
                self.mirrors.append(line.split()[1].rstrip("/"))
            elif line and not line.startswith("#"):
                digest, size, name = line.split()
                self.files.append((digest, int(size), name))

    def addresses(self, name):
        return [mirror + "/" + urllib.parse.quote(name, safe="/+~") for mirror in self.mirrors]


def digest_of(path):
    digest = hashlib.sha256()
    with open(str(path), "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def is_there(path, digest, size):
    return path.is_file() and path.stat().st_size == size and digest_of(path) == digest


def download(path, digest, size, addresses):
    """Writes path, complete or not at all; returns why it could not, by address, or nothing."""
    reasons = []
    part = path.with_name("%s.%d.part" % (path.name, os.getpid()))
    for address in addresses:
        try:
            with urllib.request.urlopen(address, timeout=60) as source, open(str(part), "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            if is_there(part, digest, size):
                part.rename(path)
                return None
            reasons.append("%s has SHA-256 %s and %d bytes, expected %s and %d"
                           % (address, digest_of(part), part.stat().st_size, digest, size))
        except (OSError, ValueError) as error:  # urllib's errors are OSErrors; ValueError: no address at all
            reasons.append("%s: %s" % (address, error))
    if part.exists():
        part.unlink()
    return "; ".join(reasons) or "no mirror is known"


def fetch(wanted, folder):
    folder.mkdir(parents=True, exist_ok=True)
    missing = []
    for digest, size, name in wanted.files:
        path = folder / name.rpartition("/")[2]
        if not is_there(path, digest, size):
            missing.append((path, digest, size, wanted.addresses(name)))
    if not missing:
        return
    say("fetching %d packages (%d MB) into %s" % (len(missing), sum(row[2] for row in missing) / 1e6 + 1, folder))
    left = missing
    # A mirror may fail for a moment. Where nothing arrives, there is no network.
    for pause in (0, 2, 8):
        time.sleep(pause)
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            reasons = list(threads.map(lambda row: download(*row), left))
        left, reasons = [row for row, reason in zip(left, reasons) if reason], [reason for reason in reasons if reason]
        if len(left) in (0, len(missing)):
            break
    if reasons:
        fail("%d of %d packages could not be fetched: %s. scripts/setup --user --list prints all addresses; fetch them on another "
             "machine, put the files into %s and start again, or name another mirror in FSDP_DEBIAN_MIRROR"
             % (len(reasons), len(missing), reasons[0], folder))


def open_data(path):
    """Returns the tar archive of a package's files."""
    with open(str(path), "rb") as file:
        if file.read(8) != b"!<arch>\n":
            fail("%s is no Debian package" % path)
        for header in iter(lambda: file.read(60), b""):
            name, size = header[:16].decode().strip().rstrip("/"), int(header[48:58])
            if name.startswith("data.tar"):
                if name.endswith(".zst"):  # Ubuntu's, where dpkg-deb is
                    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(path)], stdout=subprocess.PIPE, check=True).stdout
                else:
                    data = file.read(size)
                    data = lzma.decompress(data) if name.endswith(".xz") else data
                return tarfile.open(fileobj=io.BytesIO(data))
            file.seek(size + size % 2, os.SEEK_CUR)
    return fail("%s has no files" % path)


def unpack_one(root, path, record):
    package = path.name.partition("_")[0]
    record.write(package + " /\n")
    with open_data(path) as archive:
        for member in archive:
            name = member.name[2:] if member.name.startswith("./") else member.name
            if member.isdir() or LEFT_OUT.match(name):
                continue
            target = root / name
            if ".." in target.parts:
                fail("%s has a file %s" % (path, name))
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_symlink() or target.exists():
                target.unlink()
            if member.issym():
                to = member.linkname
                if to.startswith("/"):
                    to = os.path.relpath(str(root / to[1:]), os.path.realpath(str(target.parent)))
                target.symlink_to(to)
            elif member.islnk():
                os.link(str(root / member.linkname), str(target))
            elif member.isfile():
                with archive.extractfile(member) as source, open(str(target), "wb") as file:
                    shutil.copyfileobj(source, file)
                target.chmod(0o755 if member.mode & 0o111 else 0o644)
            else:
                continue
            real = os.path.join(os.path.realpath(str(target.parent)), target.name)
            record.write("%s /%s\n" % (package, os.path.relpath(real, str(root))))


def unpack(root, files):
    root.mkdir(parents=True, exist_ok=True)
    root = root.resolve()
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (root / name).is_symlink():
            (root / name).symlink_to("usr/" + name)
    with open(str(root / "packages"), "a", encoding="utf-8") as record:
        for path in files:
            unpack_one(root, path, record)


def program_headers(path):
    """Returns the types of the program headers of a 64-bit ELF file that can be loaded, else an empty set."""
    with open(str(path), "rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:5] != b"\x7fELF\x02" or struct.unpack_from("<H", head, 16)[0] not in (2, 3):
            return set()
        offset, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
        file.seek(offset)
        table = file.read(size * count)
    return {struct.unpack_from("<I", table, size * i)[0] for i in range(count)}


def connect(root, own_libc):
    """Writes the place of ROOT into files that name /usr: libraries' run paths, programs' loaders, pkg-config, links."""
    root = root.resolve()
    rows = [line.partition(" /")[::2] for line in (root / "packages").read_text(encoding="utf-8").splitlines()]
    libraries = "%s/usr/lib/%s" % (root, TRIPLET)
    loader = next((str(path) for path in (root / "usr/lib64").glob("ld-linux*")), "") if own_libc else ""
    elf, programs = [], []
    for package, name in dict.fromkeys(rows):
        path = root / name
        if path.is_symlink():
            # The library of a -dev package may be installed in the system.
            outside = pathlib.Path("/" + os.path.relpath(os.path.realpath(str(path)), str(root)))
            if not path.exists() and not own_libc and outside.exists():
                path.unlink()
                path.symlink_to(str(outside))
        elif path.suffix == ".pc":
            text = path.read_text(encoding="utf-8").replace(str(root), "")  # of an earlier call
            path.write_text(re.sub(r"(?m)(^\w+=|-[IL])/usr(?=/|$)", r"\1%s/usr" % root, text), encoding="utf-8")
        elif name and path.is_file() and package != "libc6":  # the C library finds its parts itself
            headers = program_headers(path)
            if 2 in headers:  # PT_DYNAMIC
                elf.append(str(path))
            if 3 in headers and loader:  # PT_INTERP
                programs.append(str(path))
    patchelf = root / "usr/bin/patchelf"
    with tempfile.TemporaryDirectory(dir=str(root)) as work:  # patchelf cannot write to files that it runs from
        tool = [shutil.copy(str(patchelf) if patchelf.exists() else shutil.which("patchelf") or "patchelf", work)]
        if loader:
            for name in ("libstdc++.so.6", "libgcc_s.so.1"):
                if os.path.exists(libraries + "/" + name):
                    shutil.copy(libraries + "/" + name, work)
            if patchelf.exists():
                tool = [loader, "--library-path", work + ":" + libraries] + tool
        # In two calls, because patchelf 0.14 mixes up the two strings in one.
        for change, files in ((["--set-rpath", libraries], elf), (["--set-interpreter", loader], programs)):
            if files:
                subprocess.run(tool + change + files, check=True)


def pin(names):
    """Asks apt for what the packages need where nothing is installed."""
    with tempfile.TemporaryDirectory() as work:
        (pathlib.Path(work) / "sources.list").write_text("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
                                                         "http://deb.debian.org/debian bookworm main\n", encoding="utf-8")
        options = ["-o", "Dir::State::status=/dev/null", "-o", "Dir::Etc::sourcelist=%s/sources.list" % work, "-o", "Dir::Etc::sourceparts=-",
                   "-o", "Dir::Cache::archives=%s/" % work, "-o", "Debug::NoLocking=1", "-o", "APT::Install-Recommends=0"]
        said = subprocess.run(["apt-get", *options, "--print-uris", "-y", "install", *names], stdout=subprocess.PIPE, check=True).stdout.decode()
        chosen = []
        for name in re.findall(r"^'[^']+' (\S+)_[^_]+\.deb \d", said, re.M):
            package, version = urllib.parse.unquote(name).split("_")
            if not NOT_PINNED.match(package):
                chosen.append(package + "=" + version)
        said = subprocess.run(["apt-cache", *options, "show", *chosen], stdout=subprocess.PIPE, check=True).stdout.decode()
    rows = set()
    for paragraph in said.split("\n\n"):
        fields = dict(re.findall(r"^(Filename|Size|SHA256): (\S+)", paragraph, re.M))
        if fields:
            rows.add((fields["Filename"], fields["SHA256"], fields["Size"]))
    if len(rows) != len(chosen):
        fail("apt-cache shows %d of %d packages" % (len(rows), len(chosen)))
    print("# Packages of Debian 12 for x86-64 that scripts/setup --user unpacks where the system's own do not serve: compilers,\n"
          "# C library, tools, headers and libraries. Written on a Debian 12 after apt-get update by\n"
          "# scripts/without_root/packages.py pin " + " ".join(names) + "\n"
          "mirror: http://deb.debian.org/debian\nmirror: http://archive.debian.org/debian\n"
          "mirror: http://snapshot.debian.org/archive/debian/" + time.strftime("%Y%m%dT000000Z"))
    for name, digest, size in sorted(rows):
        print(digest, size, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("list", "fetch", "unpack", "connect", "pin"))
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--from", dest="mirrors", action="append", default=[])
    parser.add_argument("--own-libc", action="store_true")
    options = parser.parse_args()
    paths = [pathlib.Path(name) for name in options.arguments]
    if options.action == "pin":
        pin(options.arguments)
    elif options.action == "unpack":
        unpack(paths[0], paths[1:])
    elif options.action == "connect":
        connect(paths[0], options.own_libc)
    elif options.action == "fetch":
        fetch(Wanted(paths[0], options.mirrors), paths[1])
    else:
        wanted = Wanted(paths[0], options.mirrors)
        for digest, _, name in wanted.files:
            print(digest, wanted.addresses(name)[0])


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        fail("%s ended with %d" % (" ".join(error.cmd[:6]), error.returncode))
    except OSError as error:  # a full disk, a missing tool
        fail(str(error))
