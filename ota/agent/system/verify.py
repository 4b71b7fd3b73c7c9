"""Verifies a staged system for the root side, which trusts nothing that the agent's user may write.

It has metadata and version floors of its own. So a thief of the agent's user can neither forge a system, nor bring an
old one back.
"""

from __future__ import annotations

from pathlib import Path

from ota import files
from ota.agent.system.state import read_state
from ota.clock import TimeSource
from ota.decide import system as decide
from ota.documents.names import system_target
from ota.documents.system import MOST_BYTES, read_system
from ota.errors import NotInRepository, RolledBack, StoreError, Unsuitable, Untrusted
from ota.fetch.staged import StagedRepository
from ota.layout import StateLayout
from ota.settings import AgentSettings
from ota.store import system_stage

#: below `system_root`; only root may write it
TRUST = Path("var/lib/edge-system/trust")


def verify(settings: AgentSettings, version: int, clock: TimeSource) -> bytes:
    """Return the signed document of a staged system that this device may install.

    Raises:
        Untrusted: a signature, the document, or a file is not what the keys of the role `system` signed.
        RolledBack: the version is not higher than the running one, or the metadata is older than what was seen.
        Unsuitable: it is for another product, profile, or processor, or this is no device of the image.
        StoreError: a file is missing.
    """
    from ota.trust.expiry import ExpiryCheckedTrust
    from ota.trust.floors import Floors
    from ota.trust.roots import factory_root

    state, layout = read_state(settings.system_root), StateLayout(settings.state_dir)
    if version <= state.version:
        raise RolledBack(f"system {version} is not newer than {state.version}, which runs: publish a higher version")
    place = settings.system_root / TRUST
    files.make_directory(place, 0o700)
    document_path = system_stage.document_path(layout, state.product, version)
    source = StagedRepository(layout.state_dir, document_path.relative_to(layout.state_dir))
    # a doubt about the clock is the agent's: an update from a stick may be of a device that never asks a time server
    trust = ExpiryCheckedTrust(
        place / "metadata", factory_root(settings.root), source, Floors([place / "floors.json"]), clock, certain=True
    )
    trust.refresh()
    target = system_target(state.product, state.profile, state.arch, version)
    try:
        data = trust.document(target, MOST_BYTES)
    except NotInRepository as error:
        raise Unsuitable(f"no system {version} is signed for this device: {error.message}") from error
    document = read_system(data, target)
    if why := decide.reason_not_to_fit(state, document):
        raise Unsuitable(why)
    for entry in document.files.values():
        _check_file(layout.staged_system(version) / entry.path, entry.sha256, entry.size)
    return data


def _check_file(path: Path, sha256: str, size: int) -> None:
    try:
        found, length = files.sha256_of(path)
    except StoreError as error:
        raise StoreError(f"{error.message}; 'edge-ota system apply' fetches it") from error
    if (found, length) != (sha256, size):
        raise Untrusted(
            f"{path} has {length} bytes and the SHA-256 {found[:12]}..., expected {size} bytes and {sha256[:12]}...: "
            "'edge-ota system apply' fetches it again"
        )
