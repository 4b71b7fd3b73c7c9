"""The software bill of materials of a package: CycloneDX 1.6 as JSON."""

from __future__ import annotations

import datetime
import json
import uuid
from typing import Any

from deploy.wheels import Wheel

#: of pyproject.toml
NAME = "edge-serve"
#: SPDX identifiers and expressions have these characters only; other text is a licence's name
_EXPRESSION_WORDS = {"AND", "OR", "WITH"}
_SPDX = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "MIT", "MPL-2.0", "PSF-2.0", "Zlib",
}  # fmt: skip


def bill_of_materials(wheels: list[Wheel], version: str, epoch: int) -> str:
    """Return the document for a package of a version; the same input gives the same text."""
    ours = next(wheel for wheel in wheels if wheel.name == NAME)
    others = [wheel for wheel in wheels if wheel is not ours]
    made = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc)
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": made.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {**_component(ours), "type": "application", "bom-ref": NAME, "version": version},
        },
        "components": [_component(wheel) for wheel in others],
        "dependencies": [{"ref": _reference(wheel), "dependsOn": _needs(wheel, wheels)} for wheel in wheels],
    }
    content = json.dumps(document, sort_keys=True)
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}"
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _reference(wheel: Wheel) -> str:
    return NAME if wheel.name == NAME else f"pkg:pypi/{wheel.name}@{wheel.version}"


def _needs(wheel: Wheel, wheels: list[Wheel]) -> list[str]:
    return [_reference(other) for other in wheels if other.name in wheel.requires]


def _component(wheel: Wheel) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": _reference(wheel),
        "name": wheel.name,
        "version": wheel.version,
        "licenses": _licences(wheel.licence),
    }
    if wheel.name != NAME:
        component["purl"] = f"pkg:pypi/{wheel.name}@{wheel.version}"
    if wheel.hashes:
        component["hashes"] = [{"alg": "SHA-256", "content": digest} for digest in wheel.hashes]
    if wheel.libraries:
        component["components"] = [
            {
                "type": "file",
                "bom-ref": f"{_reference(wheel)}#{name}",
                "name": name,
                "hashes": [{"alg": "SHA-256", "content": digest}],
            }
            for name, digest in wheel.libraries.items()
        ]
    return component


def _licences(text: str) -> list[dict[str, Any]]:
    words = text.replace("(", " ").replace(")", " ").split()
    if text in _SPDX:
        return [{"license": {"id": text}}]
    if words and set(words) <= _SPDX | _EXPRESSION_WORDS:
        return [{"expression": text}]
    return [{"license": {"name": text}}]
