"""The accepted configuration on the data partition: `config/<digest>/`, and the link `current` that names it.

A directory has the text without its secrets, and each file under its key (`server.tls_key`). It is complete before the
link names it, and the link is replaced atomically. A device whose boot partition never had an edge-serve.toml has the
empty file `never-configured` instead: it has no settings to lose.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from image.device import files
from image.device.provision.configuration import (
    Configuration,
    StoredSecrets,
    has_stored_login,
    is_inline,
    without_login,
)
from image.device.provision.mistakes import FILE, Refused
from image.device.provision.read import Parsed, parse
from image.device.provision.schema import KEYS, Kind

_LOGINS = "logins"
_NEVER = "never-configured"
_MOST = 4 * 1024 * 1024


class StoredConfiguration(NamedTuple):
    """The configuration in force.

    Attributes:
        digest: of all its files.
    """

    digest: str
    parsed: Parsed
    secrets: StoredSecrets


def content(text: str, configuration: Configuration) -> dict[str, bytes]:
    """Return the files of a configuration.

    Args:
        text: of edge-serve.toml, without secrets.
    """
    logins = [one for one in (configuration.proxy, *configuration.urls) if without_login(one) != one]
    return {FILE: text.encode(), _LOGINS: "\n".join(logins).encode(), **configuration.files}


def digest(content: Mapping[str, bytes]) -> str:
    """Return the name of the directory for a content."""
    found = hashlib.sha256()
    for name, data in sorted(content.items()):
        found.update(f"{name} {len(data)}\n".encode() + data)
    return found.hexdigest()[:16]


def load(state: Path) -> StoredConfiguration | None:
    """Return the configuration in force; None if there is none, or it is damaged."""
    folder = state / "current"
    text = files.read_if_there(folder / FILE, _MOST)
    if text is None:
        return None
    if not _is_whole(folder.resolve()):
        return None
    found = _files(folder)
    logins = files.read_if_there(folder / _LOGINS, _MOST) or b""
    try:
        parsed = parse(text)
    except Refused:
        return None
    known = tuple(logins.decode(errors="replace").split("\n"))
    secrets = StoredSecrets(found, dict(_names(parsed)), known, frozenset(_lost(parsed, found, known)))
    return StoredConfiguration(folder.resolve().name, parsed, secrets)


def _files(folder: Path) -> dict[str, bytes]:
    return {key.name: data for key in KEYS if (data := files.read_if_there(folder / key.name, _MOST)) is not None}


def _is_whole(folder: Path) -> bool:
    """Return whether a directory has the content that its name says."""
    texts = {name: files.read_if_there(folder / name, _MOST) or b"" for name in (FILE, _LOGINS)}
    return digest({**texts, **_files(folder)}) == folder.name


def _lost(parsed: Parsed, found: Mapping[str, bytes], logins: Sequence[str]) -> Iterator[str]:
    """Yield the keys of files, and the addresses, that a stored configuration has without their secret."""
    yield from (name for name, _ in _names(parsed) if name not in found)
    network, ota = parsed.values.get("network", {}), parsed.values.get("ota", {})
    known = {without_login(one) for one in logins}
    for one in (network.get("proxy", ""), *ota.get("url", ())):
        if has_stored_login(one) and one not in known:
            yield one


def _names(parsed: Parsed) -> list[tuple[str, str]]:
    """Return the keys of files that are named, with the names."""
    found = []
    for key in (key for key in KEYS if key.kind is Kind.FILE):
        table = parsed.values.get(key.path[0])
        name = table.get(key.path[1]) if isinstance(table, dict) else None
        if isinstance(name, str) and not is_inline(name):
            found.append((key.name, name))
    return found


def save(state: Path, content: Mapping[str, bytes]) -> None:
    """Store a configuration durably, put it in force, and remove the one before. One that is in force is left as it is.

    Raises:
        OSError: the data partition cannot be written; the configuration before stays in force.
    """
    folder = state / "config"
    files.make_directory(folder, 0o700)
    name = digest(content)
    if not _is_whole(folder / name):
        files.remove_directory(folder / name)
        files.write_directory(folder / name, content)
    if not (state / "current").is_symlink() or os.readlink(state / "current") != f"config/{name}":
        files.replace_link(state / "current", f"config/{name}")
    for other in sorted(folder.iterdir()):
        if other.name != name:
            files.remove_directory(other)
    files.remove(state / _NEVER)


def note_never_configured(state: Path) -> None:
    """Store that the boot partition had no edge-serve.toml, for a device that never had a configuration.

    Raises:
        OSError: the data partition cannot be written.
    """
    if not is_never_configured(state):
        files.replace(state / _NEVER, b"")


def is_never_configured(state: Path) -> bool:
    """Return whether an earlier start found no edge-serve.toml, and no configuration was stored since."""
    return (state / _NEVER).exists()
