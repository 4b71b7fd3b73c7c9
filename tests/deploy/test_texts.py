"""Licences, changes and the bill of materials, from wheels that the test writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from deploy.bill import bill_of_materials
from deploy.debian.texts import changelog, copyright_file
from deploy.requirements import INSTALLED, Locked, write
from deploy.wheels import Wheel, read_wheels

EPOCH = 1795341600
VERSION = "0.1.0+git484.1cac580-1+deb12"

#: name, version, metadata, files
WHEELS: list[tuple[str, str, str, dict[str, str]]] = [
    ("edge_serve", "0.1.0", "License: Apache-2.0\nRequires-Dist: numpy>=1.23\nRequires-Dist: onnx; extra == 'x'\n", {}),
    ("numpy", "2.4.6", "License-Expression: BSD-3-Clause AND Zlib\n", {
        "numpy-2.4.6.dist-info/licenses/LICENSE.txt": "Copyright (c) 2005-2025, NumPy Developers.\n\nRedistribution\n",
        "numpy.libs/libgfortran-1.so": "code",
    }),
    ("onnxruntime", "1.32.0", "License: MIT License\n", {
        "onnxruntime/LICENSE": "MIT License\nCopyright (c) 2018 Microsoft\n",
        "onnxruntime/ThirdPartyNotices.txt": "curl\n",
    }),
    ("nvidia-ml-py", "13.6", "License: BSD\n", {
        "nvidia_ml_py-13.6.dist-info/top_level.txt": "pynvml\n",
        "pynvml.py": "##\n# Copyright (c) 2011-2025, NVIDIA.\n#\n# Redistribution in a header\n\nimport sys\n",
    }),
    ("other-name", "1.32.0", "License: MIT License\n", {
        "other_name-1.32.0.dist-info/top_level.txt": "other\n",
        "other/LICENSE": "MIT License\nCopyright (c) 2018 Another\n",
        "other/ThirdPartyNotices.txt": "zlib\n",
        "other_name.libs/libz-1.so": "code",
    }),
    ("wordy", "1", "License: All of\n the text\nClassifier: License :: OSI Approved :: BSD License\n", {}),
]  # fmt: skip


@pytest.fixture
def wheels(tmp_path: Path) -> list[Wheel]:
    """Return the wheels that a program's folder contains."""
    packages = tmp_path / "lib/python3.11/site-packages"
    for name, version, metadata, files in WHEELS:
        folder = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{metadata}\n\nText\n"
        )
        for path, text in files.items():
            (packages / path).parent.mkdir(parents=True, exist_ok=True)
            (packages / path).write_text(text)
    locked = [Locked(name, version, (name[0].encode().hex() * 32,)) for name, version, *_ in WHEELS[1:]]
    (tmp_path / INSTALLED).write_text(write("About", locked))
    return read_wheels(tmp_path, "3.11")


def test_copyright_file_has_every_licence_and_its_owners(wheels: list[Wheel]) -> None:
    text = copyright_file(wheels)

    assert text.startswith("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n")
    for part in ("Copyright: Copyright (c) 2005-2025, NumPy Developers.", " curl\n", " Redistribution\n", " .\n"):
        assert part in text
    stanzas = [stanza for stanza in re.split(r"\n\n", text) if stanza.startswith("Files: ")]
    assert len(stanzas) == len(WHEELS)
    for stanza in stanzas:
        assert re.match(r"Files: \S+\nCopyright: .+\n(?: .+\n)*License: .+\n .+", stanza), stanza
    (nvml,) = (stanza for stanza in stanzas if "nvidia-ml-py" in stanza)
    assert nvml.startswith(
        "Files: opt/edge-serve/package/lib/*/site-packages/pynvml*\nCopyright: Copyright (c) 2011-2025"
    )
    assert nvml.endswith(" Redistribution in a header")
    assert "Apache" not in nvml


def test_a_distribution_whose_module_has_another_name_has_its_texts(wheels: list[Wheel]) -> None:
    (found,) = (wheel for wheel in wheels if wheel.name == "other-name")

    assert [*found.texts] == ["other/LICENSE", "other/ThirdPartyNotices.txt"]
    assert [*found.libraries] == ["libz-1.so"]
    assert " Another\n" in copyright_file(wheels)
    assert " zlib\n" in copyright_file(wheels)


def test_bill_of_materials_is_cyclonedx(wheels: list[Wheel]) -> None:
    text = bill_of_materials(wheels, VERSION, EPOCH)
    bill: dict[str, Any] = json.loads(text)

    assert text == bill_of_materials(wheels, VERSION, EPOCH), "the same input gives the same text"
    assert check(bill) == []
    parts = {part["name"]: part for part in bill["components"]}
    assert parts["numpy"]["purl"] == "pkg:pypi/numpy@2.4.6"
    assert parts["numpy"]["hashes"] == [{"alg": "SHA-256", "content": "6e" * 32}]
    assert parts["numpy"]["licenses"] == [{"expression": "BSD-3-Clause AND Zlib"}]
    assert parts["numpy"]["components"][0]["name"] == "libgfortran-1.so"
    assert parts["onnxruntime"]["licenses"] == [{"license": {"id": "MIT"}}]
    assert parts["wordy"]["licenses"] == [{"license": {"name": "BSD License"}}]
    assert bill["metadata"]["component"]["version"] == VERSION
    assert bill["metadata"]["timestamp"] == "2026-11-22T10:00:00Z"
    assert {"ref": "edge-serve", "dependsOn": ["pkg:pypi/numpy@2.4.6"]} in bill["dependencies"]


def check(bill: dict[str, Any]) -> list[str]:
    """Return the faults of a document, for the parts of CycloneDX 1.6 that are used here."""
    wrong = []
    if bill["bomFormat"] != "CycloneDX" or bill["specVersion"] != "1.6" or bill["version"] != 1:
        wrong.append("head")
    if not re.fullmatch(r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", bill["serialNumber"]):
        wrong.append("serialNumber")
    parts = [bill["metadata"]["component"], *bill["components"]]
    parts += [inner for part in parts for inner in part.get("components", [])]
    known = {"type", "bom-ref", "name", "version", "licenses", "purl", "hashes", "components"}
    for part in parts:
        if part.keys() - known or part["type"] not in ("application", "library", "file") or not part["name"]:
            wrong.append(f"component {part}")
        if any(not re.fullmatch("[0-9a-f]{64}", digest["content"]) for digest in part.get("hashes", [])):
            wrong.append(f"hashes of {part['name']}")
        for licence in part.get("licenses", []):
            if not (licence.keys() == {"expression"} or licence.get("license", {}).keys() in ({"id"}, {"name"})):
                wrong.append(f"licence of {part['name']}")
    references = [part["bom-ref"] for part in parts]
    if len(references) != len(set(references)):
        wrong.append("references are not unique")
    for needs in bill["dependencies"]:
        if not {needs["ref"], *needs["dependsOn"]} <= set(references):
            wrong.append(f"dependencies of {needs['ref']}")
    return wrong


def test_changelog_lists_fragments_of_the_newest_issue_first(tmp_path: Path) -> None:
    for name in ("7-commands.fixed", "13-lock.added", "13-old.fixed", "13-new.changed"):
        (tmp_path / f"{name}.md").write_text(f"About {name},\n" + "and more words " * 10)

    text = changelog(tmp_path.glob("*-*.md"), VERSION, "bookworm", EPOCH)

    assert text.startswith(f"edge-serve ({VERSION}) bookworm; urgency=medium\n\n  * changed: About 13-new.changed, and")
    assert re.findall(r"\* (\w+): About (\d+)", text) == [
        ("changed", "13"),
        ("added", "13"),
        ("fixed", "13"),
        ("fixed", "7"),
    ]
    assert text.endswith("\n\n -- edge-serve <edge-serve@localhost>  Sun, 22 Nov 2026 10:00:00 +0000\n")
    assert max(map(len, text.splitlines())) <= 80
