"""Documents by the target path under which the repository lists them. The path tells their kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ota.documents.device import DeviceDocument, read_device
from ota.documents.floor import read_floor
from ota.documents.manifest import FileEntry, Manifest, read_manifest
from ota.documents.rollout import Rollout, read_rollout
from ota.documents.system import SystemDocument, read_system
from ota.errors import Untrusted

#: the mapping is a floor: bundle -> the lowest release counter
Document = Rollout | DeviceDocument | Manifest | SystemDocument | Mapping[str, int]


def has_document(target: str) -> bool:
    """Return whether a target is a document. Those of the role `engines` are files of models."""
    return not target.startswith("engines/")


def read_document(target: str, data: bytes) -> Document:
    """Return the document of a target.

    Raises:
        Untrusted: it is malformed, another target's, or devices read none at this path.
        Unsuitable: its schema is newer than this agent.
    """
    folder, _, rest = target.removesuffix(".json").partition("/")
    if folder == "devices":
        return read_device(data, rest)
    if folder == "rollout":
        return read_rollout(data, rest)
    if folder == "system":
        return read_system(data, target)
    family, _, name = rest.partition("/")
    if folder == "bundles" and name == "floor":
        return read_floor(data, family)
    bundle, _, number = name.rpartition(".")
    if (
        folder != "bundles" or not number.isdecimal() or len(number) > 16
    ):  # as long as the highest integer in a document
        raise Untrusted(f"{target} is a path at which devices read no document")
    manifest = read_manifest(data, bundle, int(number))
    if manifest.family != family:
        raise Untrusted(f"{target} is a manifest of the family {manifest.family}: devices refuse it")
    return manifest


def files_of(document: Document) -> Iterator[FileEntry]:
    """Yield the files whose blobs a document names."""
    if isinstance(document, Manifest):
        yield from (entry for _, entry in document.every_file())
    if isinstance(document, SystemDocument):
        yield from document.files.values()
