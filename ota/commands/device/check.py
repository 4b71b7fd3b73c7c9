"""`edge-ota run-check-device`: check root.json and device.json before they are put in force. For the device image.

The settings name the files and the device: --root, --device-file ("" = not checked), and --device ("" = any name).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from ota import files
from ota.agent.device.identity import public_identity
from ota.documents.device import MOST_BYTES, read_device
from ota.errors import OtaError, Untrusted
from ota.layout import StateLayout
from ota.settings import AgentSettings
from ota.trust.roots import factory_root

HELP = "for the device image: check root.json and device.json before they are put in force"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments: settings name the files."""


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Print a line for each problem, with the kind of the file before it; the exit status is 1 if there is one."""
    found = [*_root(settings.root), *_device(settings)]
    print("\n".join(found) or "good")
    return 1 if found else 0


def _root(path: Path) -> Iterator[str]:
    if path == Path():
        return
    try:
        _require_signed(factory_root(path), path)
    except OtaError as error:
        yield f"root: {error.message}"


def _require_signed(data: bytes, path: Path) -> None:
    """Check that a root is signed by its own keys.

    Raises:
        Untrusted: it is not.
    """
    from tuf.api.exceptions import RepositoryError, UnsignedMetadataError
    from tuf.api.metadata import Metadata, Root

    hint = "copy root.json from the publisher again"
    try:
        metadata = Metadata[Root].from_bytes(data)
        metadata.signed.verify_delegate(Root.type, metadata.signed_bytes, metadata.signatures)
    except UnsignedMetadataError:
        raise Untrusted(f"{path} is not signed by the keys that it names: {hint}") from None
    except (RepositoryError, ValueError) as error:
        raise Untrusted(f"{path} is not a root of trust ({error}): {hint}") from None


def _device(settings: AgentSettings) -> Iterator[str]:
    path = settings.device_file
    if path == Path():
        return
    hint = "get device.json of this device from the publisher ('edge-ota publish device add NAME --out device.json')"
    try:
        data = files.read(path, MOST_BYTES) or b""
        name = settings.device or _name(data)
        document = read_device(data, name)
    except OtaError as error:
        yield f"device: {error.message}; {hint}"
        return
    known, _ = public_identity(StateLayout(settings.state_dir).identity)
    if document.fingerprint and known and document.fingerprint != known:
        yield f"device: it is for the key {document.fingerprint[:16]}..., and this device has {known[:16]}...; {hint}"


def _name(data: bytes) -> str:
    """Return the name in a document; "?" if it has none, which `read_device` then refuses."""
    try:
        found = json.loads(data)["device"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "?"
    return found if isinstance(found, str) else "?"
