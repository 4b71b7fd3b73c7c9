"""Reads the wheels of an installed program: names, versions, licences, and their bundled shared libraries."""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from pathlib import Path

from deploy import requirements
from deploy.requirements import normalized

#: licence texts beside a wheel's metadata, or in the packages that it installs, which may have other names
_TEXTS = ("licenses/**/*", "LICENSE*", "LICENCE*", "COPYING*", "NOTICE*")
_PACKAGE_TEXTS = ("LICENSE*", "ThirdPartyNotices*")

#: SPDX identifiers for the texts that authors of wheels write
_SPDX = {"Apache 2.0": "Apache-2.0", "MIT License": "MIT", "3-Clause BSD License": "BSD-3-Clause"}

_CLASSIFIER = "License :: OSI Approved :: "


@dataclass(frozen=True, slots=True)
class Wheel:
    """One distribution of an installed program.

    Attributes:
        name: as package indexes normalize it
        licence: an SPDX expression, or the text of the wheel's author
        texts: licence texts by file name
        hashes: SHA-256 of the wheel; none for edge-serve itself
        libraries: shared libraries that were copied into the wheel, with their SHA-256
        requires: names of the distributions that it needs
        modules: the import names of its modules
    """

    name: str
    version: str
    licence: str
    texts: dict[str, str]
    hashes: tuple[str, ...]
    libraries: dict[str, str]
    requires: tuple[str, ...]
    modules: tuple[str, ...]


def read_wheels(home: Path, python: str) -> list[Wheel]:
    """Return the wheels in the program at `home`, sorted by name."""
    locked = {entry.name: entry.hashes for entry in requirements.read((home / requirements.INSTALLED).read_text())}
    packages = home / "lib" / f"python{python}" / "site-packages"
    found = [_read(folder, locked) for folder in packages.glob("*.dist-info")]
    names = {wheel.name for wheel in found}
    return sorted((_without(wheel, names) for wheel in found), key=lambda wheel: wheel.name)


def _without(wheel: Wheel, names: set[str]) -> Wheel:
    """Return the wheel without requirements that the program lacks."""
    return replace(wheel, requires=tuple(sorted(set(wheel.requires) & names)))


def _read(folder: Path, locked: dict[str, tuple[str, ...]]) -> Wheel:
    metadata = HeaderParser().parsestr((folder / "METADATA").read_text())
    name, distribution = normalized(metadata["Name"]), folder.name.partition("-")[0]
    packages = folder.parent
    top = folder / "top_level.txt"
    modules = tuple(sorted(top.read_text().split())) if top.exists() else (name,)
    texts = {}
    for base, patterns in ((folder, _TEXTS), *((packages / module, _PACKAGE_TEXTS) for module in modules)):
        for pattern in patterns:
            for path in sorted(base.glob(pattern)):
                if path.is_file():
                    texts[str(path.relative_to(packages))] = path.read_text(errors="replace")
    if not texts:
        texts = {f"{module}.py": _header(packages / f"{module}.py") for module in modules}
        texts = {path: text for path, text in texts.items() if "Copyright" in text}
    licence = _licence(metadata["License-Expression"], metadata["License"], metadata.get_all("Classifier", []))
    libraries = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in packages.glob(f"{distribution}.libs/*")
    }
    requires = tuple(normalized(re.split("[^A-Za-z0-9._-]", text)[0]) for text in metadata.get_all("Requires-Dist", []))
    hashes = locked.get(name, ())
    return Wheel(name, metadata["Version"], licence, texts, hashes, dict(sorted(libraries.items())), requires, modules)


def _header(module: Path) -> str:
    """Return the comment at the head of a module: some wheels have their only licence text there."""
    lines = module.read_text(errors="replace").splitlines() if module.exists() else []
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return "\n".join(line.lstrip("#").removeprefix(" ") for line in comment)


def _licence(expression: str | None, words: str | None, classifiers: list[str]) -> str:
    """Return the licence in one line; some wheels have the whole text in place of its name."""
    if expression:
        return expression
    if words and "\n" not in words:
        return _SPDX.get(words, words)
    classified = [text.removeprefix(_CLASSIFIER) for text in classifiers if text.startswith(_CLASSIFIER)]
    return ", ".join(classified) or "see the texts"
