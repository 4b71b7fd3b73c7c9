"""A system that someone else has signed: real keys and metadata of TUF, but not those that the device trusts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ota.documents.names import system_target
from ota.documents.system import MOST_BYTES
from ota.fetch.directory import DirectorySource
from ota.layout import StateLayout
from ota.store import directories
from ota.trust.client import TrustClient
from ota.trust.floors import Floors
from tests.ota.publish.publisher import Publisher


@dataclass(frozen=True, slots=True)
class Forged:
    """What a taken-over agent would put into its state directory.

    Attributes:
        root: the forger's root of trust
        files: path below the state directory -> content; without the files of the system
    """

    root: bytes
    files: dict[str, bytes]


def forge(base: Path, paths: Sequence[Path], version: int, arch: str = "x86_64") -> Forged:
    """Publish the files of a system under new keys, and verify them with these keys as an agent does.

    The environment needs EDGE_OTA_PUBLISH_PASSPHRASE.
    """
    base.mkdir()
    forger = Publisher(base)
    forger.init("--family", "vision")
    forger.do("role", "system", "--preset", "small")
    forger.do("system", *paths)
    root = (forger.dir / "root.json").read_bytes()
    layout = StateLayout(base / "state")
    directories.prepare(layout)
    source, floors = DirectorySource(forger.repository), Floors([layout.floors])
    trust = TrustClient(layout.metadata, root, source, floors, time.time())
    trust.refresh()
    document = trust.document(system_target("edge", "base", arch, version), MOST_BYTES)
    metadata = [path for path in layout.metadata.rglob("*") if path.is_file() and not path.is_symlink()]
    files = {f"metadata/{path.relative_to(layout.metadata)}": path.read_bytes() for path in metadata}
    return Forged(root, {**files, f"system/{version}/edge_{version}.json": document})
