"""Lists the entries of a backend directory, and what is wrong with each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from edge_serve.backends.packs import MANIFEST, Pack, find_pack
from edge_serve.errors import EdgeServeError
from edge_serve.records import frozen


@frozen
class Listed:
    """One pack, or something that looks like one.

    Attributes:
        version: of the pack; "" = it says none, as one that was made by hand.
        python: of its environment; "" = the server's interpreter runs it.
        fault: why it cannot be used; "" = it can.
    """

    name: str
    version: str = ""
    python: str = ""
    is_python_based: bool = False
    fault: str = ""


def packs_in(root: Path) -> Iterator[Listed]:
    """Yield what is in a backend directory, by name; nothing if there is no such directory.

    Raises:
        OSError: it cannot be read.
    """
    if not root.is_dir():
        return
    for name in sorted(path.name for path in root.iterdir() if not path.name.startswith(".")):
        try:
            pack = find_pack(root, name)
        except EdgeServeError as error:
            yield Listed(name, fault=error.message)
        else:
            if pack is not None and pack.name == name:
                yield _entry(pack)


def _entry(pack: Pack) -> Listed:
    try:
        manifest = json.loads((pack.directory / MANIFEST).read_bytes())
    except (OSError, ValueError):
        manifest = {}
    version, python = str(manifest.get("version", "")), str(manifest.get("python", ""))
    return Listed(pack.name, version, python if pack.environment else "", pack.is_python_based)
