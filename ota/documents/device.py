"""The document of a device: a TUF target, listed by the role `rollout`. It names the fleet and ring of the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ota.documents.names import name
from ota.errors import Untrusted
from ota.strict_json import Members, parse

SCHEMA = 1
MOST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class DeviceDocument:
    """The signed document of a device.

    Attributes:
        fingerprint: the SHA-256 of the device's public key (DER, SubjectPublicKeyInfo); "" = not known yet.
        labels: for match constraints of variants (`label.site`).
    """

    device: str
    fleet: str
    ring: str
    labels: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""


def read_device(data: bytes, device: str) -> DeviceDocument:
    """Return the document of a device.

    Raises:
        Untrusted: it is malformed, or another device's.
        Unsuitable: its schema is newer than this agent.
    """
    what = f"the document of the device {device}"
    members = Members(parse(data, what, MOST_BYTES), what)
    members.check_schema(SCHEMA)
    named = name(members.text("device"), f"{what}: device")
    if named != device:
        raise Untrusted(f"{what} is that of {named}: give this device its own")
    document = DeviceDocument(
        device=named,
        fleet=name(members.text("fleet"), f"{what}: fleet"),
        ring=name(members.text("ring"), f"{what}: ring"),
        labels=members.texts("labels", {}, most=64),
        fingerprint=members.sha256("fingerprint") if members.has("fingerprint") else "",
    )
    members.end()
    return document
