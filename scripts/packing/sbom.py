#!/usr/bin/env python3
"""Writes what a tarball of scripts/dist holds as SPDX 2.3 JSON: every file with its sums, and every library with
version, licence and supplier, from the metadata of Debian packages and Python wheels.

    sbom.py --top FOLDER --packed FILE --version V --source TEXT --epoch SECONDS --site-packages FOLDER --out FILE

`packed` has a line "PATH BELOW TOP <tab> WHERE IT CAME FROM" for each file that is not this project's. The same content
gives the same bytes.
"""

import argparse
import datetime
import hashlib
import json
import pathlib
import re
import uuid

import origins

# Compiled into the programs: one static library and header-only libraries.
COMPILED_IN = {"liburing-dev": "STATIC_LINK", "libcli11-dev": "STATIC_LINK", "nlohmann-json3-dev": "STATIC_LINK"}


def spdx_id(*words):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join(words)).strip("-")


def file_entry(top, path):
    data = (top / path).read_bytes()
    sums = {name: hashlib.new(name.lower(), data).hexdigest() for name in ("SHA1", "SHA256")}
    return {
        "SPDXID": spdx_id("File", str(path)),
        "fileName": f"./{path}",
        "checksums": [{"algorithm": name, "checksumValue": value} for name, value in sums.items()],
        "licenseConcluded": "NOASSERTION",
        "copyrightText": "NOASSERTION",
    }


def verification_code(files):
    sums = sorted(entry["checksums"][0]["checksumValue"] for entry in files)
    return {"packageVerificationCodeValue": hashlib.sha1("".join(sums).encode()).hexdigest()}


def package_entry(origin, files):
    entry = {
        "SPDXID": spdx_id("Package", origin.kind, origin.name),
        "name": origin.name,
        "versionInfo": origin.version,
        "supplier": origin.supplier,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": bool(files),
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": origin.license,
        "copyrightText": "NOASSERTION",
    }
    if origin.license_note:
        entry["licenseComments"] = origin.license_note
    if origin.purl:
        entry["externalRefs"] = [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": origin.purl}
        ]
    if files:
        entry["packageVerificationCode"] = verification_code(files)
    return entry


def relation(a, kind, b):
    return {"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}


def extracted_licenses(packages):
    """Returns the text of a licence that SPDX's list does not have, as SPDX requires; the tarball contains it."""
    found = {}
    for package in packages:
        for name in re.findall(r"LicenseRef-[A-Za-z0-9.-]+", package["licenseDeclared"]):
            found[name] = {
                "licenseId": name,
                "extractedText": f"The texts that came with {package['name']} are in licenses/.",
            }
    return [found[name] for name in sorted(found)]


def main():
    parser = argparse.ArgumentParser()
    for name in ("top", "packed", "version", "source", "epoch", "site-packages", "out"):
        parser.add_argument(f"--{name}", required=True)
    o = parser.parse_args()
    top, out = pathlib.Path(o.top), pathlib.Path(o.out)
    finder = origins.Finder(pathlib.Path(o.site_packages))
    lines = [line.split("\t") for line in pathlib.Path(o.packed).read_text(encoding="utf-8").splitlines()]
    finder.ask_dpkg([source for _, source in lines])
    of_file = {path: finder.find(pathlib.Path(source)) for path, source in lines}

    ours = origins.Origin("fsdp", "fsdp", o.version, "BSD-3-Clause", "Organization: the FSDP toolkit authors", "", "")
    files, groups = [], {ours: []}
    for path in sorted(p.relative_to(top) for p in top.rglob("*") if p.is_file() and not p.is_symlink()):
        if (top / path) == out:
            continue
        files.append(file_entry(top, path))
        groups.setdefault(of_file.get(str(path), ours), []).append(files[-1])
    packages, relations = [], []
    for origin, members in sorted(groups.items(), key=lambda item: (item[0] is not ours, item[0].name)):
        packages.append(package_entry(origin, members))
        relations += [relation(packages[-1]["SPDXID"], "CONTAINS", member["SPDXID"]) for member in members]
    main_id = packages[0]["SPDXID"]
    packages[0]["sourceInfo"] = o.source
    relations.insert(0, relation("SPDXRef-DOCUMENT", "DESCRIBES", main_id))
    relations += [relation(main_id, "DEPENDS_ON", package["SPDXID"]) for package in packages[1:]]
    for name, kind in COMPILED_IN.items():
        origin = finder.debian(name)
        if origin and origin not in groups:
            packages.append(package_entry(origin, []))
            relations.append(relation(main_id, kind, packages[-1]["SPDXID"]))

    created = datetime.datetime.fromtimestamp(int(o.epoch), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    content = hashlib.sha256("".join(entry["checksums"][1]["checksumValue"] for entry in files).encode()).hexdigest()
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": top.name,
        "documentNamespace": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, top.name + content)}",
        "creationInfo": {"created": created, "creators": ["Tool: fsdp-scripts-dist"]},
        "packages": packages,
        "files": files,
        "relationships": relations,
    }
    licenses = extracted_licenses(packages)
    if licenses:
        document["hasExtractedLicensingInfos"] = licenses
    out.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
