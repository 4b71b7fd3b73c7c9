"""The files copyright and changelog of the package (Debian policy 12.5 and 12.7)."""

from __future__ import annotations

import datetime
import re
import textwrap
from collections.abc import Iterable
from email.utils import format_datetime
from pathlib import Path

from deploy.wheels import Wheel

MAINTAINER = "edge-serve <edge-serve@localhost>"

_HEAD = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: edge-serve
Comment: The program contains libraries of other authors, under the licences below. Their files are in
 /{folder}; the service runs a copy of it in /{copies}.
"""
#: licence of edge-serve's own files
_LICENCE = "Apache-2.0"
_COMMON = "On Debian systems the full text of the Apache License 2.0 is in /usr/share/common-licenses/Apache-2.0."
#: the order of the changes
_KINDS = ("changed", "removed", "added", "fixed")


def copyright_file(
    wheels: list[Wheel], folder: str = "opt/edge-serve/package/lib", copies: str = "opt/edge-serve/versions"
) -> str:
    """Return the licences of edge-serve and of every wheel with it, in Debian's machine-readable format.

    Args:
        folder: in which the wheels are.
        copies: in which the copies are that run.
    """
    ours = next((wheel for wheel in wheels if wheel.name == "edge-serve"), None)
    head = _HEAD.format(folder=folder, copies=copies)
    licence = ours.licence if ours is not None else _LICENCE
    stanzas = [head, _stanza("*", ["the authors of edge-serve"], licence, _COMMON)]
    for wheel in wheels:
        if wheel is not ours:
            text = "\n\n".join(f"--- {name} ---\n\n{text.strip()}" for name, text in wheel.texts.items())
            files = "\n ".join(f"{folder}/*/site-packages/{module}*" for module in wheel.modules)
            without = _COMMON if "Apache" in wheel.licence else "The wheel has no text of its licence."
            stanzas.append(_stanza(files, _holders(wheel), f"{wheel.name}: {wheel.licence}", text or without))
    return "\n".join(stanzas)


def changelog(fragments: Iterable[Path], version: str, release: str, epoch: int, package: str = "edge-serve") -> str:
    """Return the entry of this version, made from docs/changes."""
    told = sorted(fragments, key=lambda path: (_KINDS.index(_kind(path)), -int(path.name.split("-")[0]), path.name))
    items = []
    for path in told:
        text = " ".join(path.read_text().split())
        items.append(textwrap.fill(f"{_kind(path)}: {text}", 78, initial_indent="  * ", subsequent_indent="    "))
    date = format_datetime(datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc))
    return f"{package} ({version}) {release}; urgency=medium\n\n" + "\n".join(items) + f"\n\n -- {MAINTAINER}  {date}\n"


def _kind(path: Path) -> str:
    return path.name.split(".")[-2]


def _holders(wheel: Wheel) -> list[str]:
    """Return the lines of the licence texts that name owners."""
    main = next(iter(wheel.texts.values()), "")
    lines = [" ".join(line.split()) for line in main.splitlines()]
    found = [line for line in lines if re.match(r"(Copyright|\(c\)|©).*\d{4}", line, re.IGNORECASE)]
    return list(dict.fromkeys(found)) or [f"the authors of {wheel.name}"]


def _stanza(files: str, holders: list[str], licence: str, text: str) -> str:
    owners = "\n ".join(holders)
    lines = "".join(f" {line}\n" if line.strip() else " .\n" for line in text.splitlines())
    return f"Files: {files}\nCopyright: {owners}\nLicense: {licence}\n{lines}"
