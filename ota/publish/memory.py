"""The signer's memory: which versions of metadata a key has signed, or has seen published before it signed.

It is a file beside the key. A request is described as a difference only from metadata that the memory confirms, so that
made-up published metadata cannot hide a part of the change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Root

from ota import files
from ota.errors import Untrusted
from ota.publish.ceremony import SigningRequest
from ota.publish.description import describe
from ota.publish.roles import ROOT
from ota.strict_json import parse, to_canonical_json

#: role and version, such as `root 2` -> SHA-256 of the signed part
Memory = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Doubts:
    """The doubts of a signer's machine about a request.

    Attributes:
        notes: a sentence for each.
        roles: roles of the change whose published metadata is in doubt: the signer must see their whole content.
    """

    notes: list[str]
    roles: set[str]


def read_memory(path: Path) -> dict[str, str]:
    """Return the memory of a key; {} if there is none.

    Raises:
        Untrusted: the file is damaged.
    """
    data = files.read(path)
    if data is None:
        return {}
    return {name: str(value) for name, value in parse(data, str(path), files.MOST_DOCUMENT).items()}


def memory_of_root(data: bytes, what: str) -> dict[str, str]:
    """Return the memory of a signer that trusts the root in a file.

    Raises:
        Untrusted: the file is not a root.
    """
    try:
        root: Metadata[Any] = Metadata.from_bytes(data)
    except (RepositoryError, ValueError) as error:
        raise Untrusted(f"{what} is damaged ({error}): expected the root.json of the repository") from None
    if not isinstance(root.signed, Root):
        raise Untrusted(f"{what} is the metadata of {root.signed.type}: expected the root.json of the repository")
    return dict([_entry(ROOT, root)])


def write_memory(path: Path, request: SigningRequest, memory: Memory, roles: Sequence[str]) -> None:
    """Store the versions that a key has signed, and the published ones that the signer saw them compared with."""
    published = [_entry(role, metadata) for role, metadata in request.published.newest.items()]
    signed = [_entry(role, request.change[role]) for role in roles]
    files.write_durably(path, to_canonical_json({**memory, **dict(published + signed)}), 0o600)


def find_doubts(request: SigningRequest, memories: Sequence[Memory]) -> Doubts:
    """Compare a request with the memories of the signer's keys.

    Raises:
        Untrusted: the keys know roots, and the published roots have none of them.
    """
    found = Doubts([], set())
    if request.published.roots and not _is_root_known(request, memories):
        newest = request.published.root.version
        if known := sorted(name for memory in memories for name in memory if name.startswith(f"{ROOT} ")):
            raise Untrusted(
                f"the published root {newest} in this request does not go on from {known[-1]}, which this key knows; "
                "do not sign, and ask the publisher. If the key also signs for another repository, give a root.json of "
                "this one from a place that you trust with --root"
            )
        found.notes.append(
            f"NOTE: this key does not know the published root {newest}, so the change is shown in full, and that root: "
            "compare each key with the notes of the ceremony, or give a root.json from a place that you trust with "
            "--root. After the signature, this key trusts that root"
        )
        found.notes.extend(describe("the published root", None, request.published.root, request.names))
        found.roles.update(request.change)
    for role in request.change:
        if notes := [note for memory in memories for note in _contradictions(request, role, memory)]:
            found.notes.extend(notes)
            found.roles.add(role)
    return found


def _is_root_known(request: SigningRequest, memories: Sequence[Memory]) -> bool:
    """Return whether a memory has one of the published roots, of which each is signed by the keys of the one before."""
    entries = [_entry(ROOT, root) for root in request.published.roots]
    return any(memory.get(name) == digest for memory in memories for name, digest in entries)


def _contradictions(request: SigningRequest, role: str, memory: Memory) -> Iterator[str]:
    """Yield a note for each version of a role of which the memory has other content, or a later one."""
    change = request.change[role]
    name, digest = _entry(role, change)
    if memory.get(name, digest) != digest:
        yield (
            f"NOTE: this key has signed another version {change.signed.version} of {role} before; that is right only "
            "if the publisher dropped that change: ask"
        )
    if role in request.published.newest:
        name, digest = _entry(role, request.published.newest[role])
        if memory.get(name, digest) != digest:
            yield (
                f"NOTE: the published {name} is not the one that this key has signed; that is right only if the "
                "publisher dropped that change: ask"
            )
    versions = [int(one.rpartition(" ")[2]) for one in memory if one.rpartition(" ")[0] == role]
    if (latest := max(versions, default=0)) > change.signed.version:
        yield f"NOTE: this key has signed or seen {role} {latest} before, which is later: ask why {role} goes back"


def _entry(role: str, metadata: Metadata[Any]) -> tuple[str, str]:
    return f"{role} {metadata.signed.version}", hashlib.sha256(metadata.signed_bytes).hexdigest()
