"""For tests of tarballs: the files of a bare Debian, in which a tarball, LibTorch and a loopback interface are all there is. The
files come from Debian's mirror once and stay in .deps; a test starts itself again in namespaces of its own. CMake gives
FSDP_BUILD."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["FSDP_BUILD"])


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(77)


def make(suite, packages):
    """Returns the folder of a Debian's files with these packages."""
    root = SOURCE / ".deps" / suite
    if root.exists():
        return root
    part = root.with_name(f"{suite}.{os.getpid()}")
    made = subprocess.run(["mmdebstrap", "--variant=extract", f"--include={packages}", suite, part, "http://deb.debian.org/debian"],
                          capture_output=True, text=True, check=False)
    if made.returncode:
        shutil.rmtree(part, ignore_errors=True)
        skip(f"no Debian {suite} from the mirror: {(made.stderr.strip().splitlines() or ['mmdebstrap said nothing'])[-1]}")
    if not (part / "bin/sh").exists():
        (part / "bin/sh").symlink_to("dash")
    (part / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (part / "etc/nsswitch.conf").write_text("passwd: files\nhosts: files\n")
    (part / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.0.1 hub.example\n")
    try:
        part.rename(root)
    except OSError:  # another test run made it in the meantime
        shutil.rmtree(part)
    return root


def cache():
    return (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")


def site_packages():
    """Returns the folder of the package torch of the build."""
    include = next(line.partition("=")[2] for line in cache().splitlines() if line.startswith("LibTorch_INCLUDE_DIR:"))
    return pathlib.Path(include).parents[1]


def pack(work, *options):
    """Returns the tarball of scripts/dist."""
    subprocess.run([SOURCE / "scripts/dist", "--no-build", "--out", work, *options], check=True, capture_output=True,
                   env={**os.environ, "FSDP_BUILD_DIR": str(BUILD)})
    return next(pathlib.Path(work).glob("*.tar.*[tz]"))


def enter(work, root, folders, script):
    """Starts `script --inside ROOT` without a network; returns its code. `folders`: what is seen at which path inside."""
    mounts = [(f"{work}/root", f"--bind {root}"), *((f"{work}/root{to}", "-t tmpfs tmpfs") for to in ("/tmp", "/opt")),
              *((f"{work}/root{to}", f"--bind {folder}") for to, folder in folders.items()),
              *((f"{work}/root{to}", f"--rbind {to}") for to in ("/proc", "/sys", "/dev"))]
    lines = "".join(f"mkdir -p {to}; mount {how} {to}\n" for to, how in mounts)
    return subprocess.run(["unshare", "-mn", "--propagation", "private", "sh", "-ec", lines + 'ip link set lo up; exec "$@"', "sh",
                           sys.executable, script, "--inside", f"{work}/root"], check=False).returncode


def call(root, command, environment, timeout=100):
    """Runs a command below the root with these variables alone."""
    bare = {"HOME": "/tmp", "OMP_NUM_THREADS": "1", "FSDP_CPU_FLOPS": "1e11"}
    variables = [f"{name}={value}" for name, value in {**bare, **environment}.items()]
    return subprocess.run(["chroot", root, "/usr/bin/env", "-i", "-C", "/tmp", *variables, *command], capture_output=True, text=True,
                          check=False, timeout=timeout)


def main(start):
    """Inside: returns the root. Outside: calls start(work), which enters it, and ends with its code."""
    if sys.argv[1:2] == ["--inside"]:
        root = pathlib.Path(sys.argv.pop(2))
        sys.argv.pop(1)
        return root
    for tool in ("patchelf", "mmdebstrap", "unshare", "ip", "openssl"):
        if not shutil.which(tool):
            skip(f"no {tool}: scripts/setup --full")
    if os.geteuid() != 0 or subprocess.run(["unshare", "-mn", "true"], capture_output=True, check=False).returncode:
        skip("only root may make namespaces for mounts and network here")
    if "FSDP_SYSROOT:" in cache():
        skip("the programs are for another architecture")
    with tempfile.TemporaryDirectory(prefix="fsdp-bare-") as work:
        sys.exit(start(pathlib.Path(work)))
