"""Finds the package that a file of this machine belongs to, and the package's version, licence and supplier."""

import csv
import email
import functools
import os
import pathlib
import re
import subprocess
import typing


class Origin(typing.NamedTuple):
    kind: str  # "deb", "pypi", "fsdp" or "file"
    name: str
    version: str
    license: str  # an SPDX expression, or NOASSERTION
    supplier: str
    purl: str
    license_note: str


# Debian's short licence names that differ from SPDX's.
OF_DEBIAN = {
    "Expat": "MIT",
    "BSD-3-clause": "BSD-3-Clause",
    "BSD-3-Clause": "BSD-3-Clause",
    "BSD3": "BSD-3-Clause",
    "OpenLDAP-2.8": "OLDAP-2.8",
    "BSD-2-clause": "BSD-2-Clause",
    "BSD-3": "BSD-3-Clause",
    "GPL-2": "GPL-2.0-only",
    "GPL-2+": "GPL-2.0-or-later",
    "GPL-3+": "GPL-3.0-or-later",
    "LGPL-2+": "LGPL-2.0-or-later",
    "LGPL-2.1": "LGPL-2.1-only",
    "LGPL-2.1+": "LGPL-2.1-or-later",
    "LGPL-3+": "LGPL-3.0-or-later",
    "zlib": "Zlib",
    "Zlib": "Zlib",
    "Apache-2.0": "Apache-2.0",
    "Apache-2": "Apache-2.0",
    "MIT": "MIT",
    "ISC": "ISC",
    "curl": "curl",
    "BSL-1.0": "BSL-1.0",
    "public-domain": "LicenseRef-public-domain",
    "GPL-3": "GPL-3.0-only",
}
SPDX = re.compile(r"(BSD-[23]-Clause|Apache-2\.0|MIT|LicenseRef-[A-Za-z0-9.-]+)")


def run(*command, may_fail=False):
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
        )
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 or may_fail else ""


def debian_license(package):
    """Returns the licence of most of the package's files, from its copyright file if that is machine-readable."""
    try:
        text = pathlib.Path(f"/usr/share/doc/{package}/copyright").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "NOASSERTION"
    found = re.search(r"^Files:\s*\*\s*\n(?:.*\n)*?License:\s*(.+)$", text, re.M)
    if not found:
        return "NOASSERTION"
    words = re.split(r"\s+(and|or)\s+", found[1].strip())
    known = [OF_DEBIAN.get(word, word.upper() if word in ("and", "or") else "") for word in words]
    return " ".join(known) if all(known) else "LicenseRef-Debian-" + re.sub(r"[^A-Za-z0-9.-]+", "-", found[1].strip())


class Finder:
    def __init__(self, site_packages):
        """Reads which files the wheels in a Python's site-packages installed, also outside that folder."""
        self.wheels, self.owners = {}, {}
        place = os.path.realpath(site_packages)
        for record in sorted(site_packages.glob("*.dist-info/RECORD")):
            with record.open(encoding="utf-8", newline="") as lines:
                for row in csv.reader(lines):
                    if row:
                        self.wheels[os.path.normpath(f"{place}/{row[0]}")] = record.parent

    def ask_dpkg(self, paths):
        """Asks for all files in one call, because each call takes a third of a second."""
        names = {name for path in paths for name in self.names_of(path)}
        for line in run("dpkg-query", "-S", *sorted(names), may_fail=True).splitlines():
            owner, _, name = line.partition(": ")
            self.owners[name] = owner.split(",")[0].split(":")[0]

    @staticmethod
    def names_of(path):
        """Returns the path with and without /usr: /lib is a link to /usr/lib, and dpkg knows only one of the names."""
        real = os.path.realpath(path)
        return [str(path), real, real.removeprefix("/usr"), f"/usr{path}"]

    def find(self, path):
        """Returns the origin of a file; for a file of no package, an origin with the file's name."""
        wheel = self.wheels.get(os.path.realpath(path))
        if wheel:
            return self.wheel(wheel)
        for name in self.names_of(path):
            if name in self.owners:
                return self.debian(self.owners[name])
        return Origin("file", path.name, "unknown", "NOASSERTION", "NOASSERTION", "", "")

    @functools.cache
    def debian(self, name):
        """Returns the origin of a Debian package; None if it is not installed."""
        said = run(
            "dpkg-query", "-W", "-f=${Version}\t${Architecture}\t${source:Package}\t${db:Status-Status}\n", name
        ).splitlines()
        if not said or not said[0].endswith("\tinstalled"):
            return None
        version, architecture, source, _ = said[0].split("\t")
        return Origin(
            "deb",
            name,
            version,
            debian_license(name),
            "Organization: Debian",
            f"pkg:deb/debian/{name}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={architecture}",
            f"What Debian says of most files of the source package {source}; of all: licenses/{name}.",
        )

    @functools.cache
    def wheel(self, folder):
        said = email.message_from_string((folder / "METADATA").read_text(encoding="utf-8"))
        name, version = said["Name"], said["Version"]
        declared = said["License-Expression"] or said["License"] or ""
        who = (
            said["Author"]
            or said["Maintainer"]
            or (said["Author-email"] or said["Maintainer-email"] or "").split("<")[0]
        )
        first = declared.splitlines()[0][:100] if declared else ""
        note = f"The wheel's metadata says '{first}'; its texts are in licenses/."
        return Origin(
            "pypi",
            name,
            version,
            declared if SPDX.fullmatch(declared) else "NOASSERTION",
            f"Organization: {who.strip()}" if who.strip() else "NOASSERTION",
            f"pkg:pypi/{name.lower().replace('_', '-')}@{version}",
            note,
        )
