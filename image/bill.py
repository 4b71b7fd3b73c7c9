"""The software bill of materials of the image: CycloneDX 1.6 with Debian's packages and the wheels of edge-serve."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any
from urllib.parse import quote

_SECTION = re.compile(r"^==== (\S+) ====$", re.MULTILINE)
_LICENCE = re.compile(r"^License:[ \t]*(\S[^\n]*)$", re.MULTILINE)


def bill_of_materials(
    name: str, version: str, packages: list[tuple[str, str, str]], licences: str, program: str
) -> str:
    """Return the document of an image; the same input gives the same text.

    Args:
        packages: Debian's packages: name, version, architecture.
        licences: the text of `mkosi.finalize`: the file `copyright` of each package below a line with its name.
        program: the document of the package edge-serve, which has the wheels.
    """
    ours = json.loads(program)
    names = licence_names(licences)
    server = {**ours["metadata"]["component"], "components": ours["components"]}
    document: dict[str, Any] = {
        "$schema": ours["$schema"],
        "bomFormat": "CycloneDX",
        "specVersion": ours["specVersion"],
        "version": 1,
        "metadata": {
            "timestamp": ours["metadata"]["timestamp"],
            "component": {"type": "operating-system", "bom-ref": name, "name": name, "version": version},
        },
        "components": [server, *(_component(*package, names.get(package[0], [])) for package in packages)],
        "dependencies": ours["dependencies"],
    }
    content = json.dumps(document, sort_keys=True)
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}"
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def licence_names(text: str) -> dict[str, list[str]]:
    """Return the names of licences that each package's file `copyright` has, in Debian's machine-readable format."""
    parts = _SECTION.split(text)
    return {name: sorted(set(_LICENCE.findall(body))) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _component(name: str, version: str, arch: str, licences: list[str]) -> dict[str, Any]:
    reference = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={arch}&distro=trixie"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "purl": reference,
    }
    if licences:
        component["licenses"] = [{"license": {"name": one}} for one in licences]
    return component
