"""This device: its name, its signed document, its facts, and its available memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ota import files
from ota.agent.components import TrustedMetadata
from ota.agent.device.identity import Identity, default_name
from ota.agent.status_file import version
from ota.documents import device as device_document
from ota.documents.device import DeviceDocument
from ota.documents.names import device_target, name
from ota.errors import NotInRepository, ServerError, Untrusted, UsageError
from ota.server.doctor import DOCTOR_SECONDS, device_facts
from ota.settings import AgentSettings
from ota.strict_json import to_canonical_json

#: facts that change while the system stays the same
_PASSING = ("memory_bytes",)
#: the publisher's labels among the facts
_LABEL = "label."


class ThisHardware:
    """The facts that this device finds by itself. Implements `components.Hardware`.

    Args:
        root: stands in for / in tests.
    """

    def __init__(self, settings: AgentSettings, root: Path = Path("/")) -> None:
        self._settings = settings
        self._root = root
        self._facts: dict[str, str] = {}

    def facts(self, limit: float = DOCTOR_SECONDS) -> Mapping[str, str]:
        """Return the facts of `edge-serve doctor --json`, and the version of this agent.

        Args:
            limit: seconds for doctor, which runs once.

        Raises:
            ServerError: doctor did not print them in time, or the unit that runs it cannot be used.
        """
        if not self._facts:
            self._facts = {
                **device_facts(self._settings.build_socket, self._settings.edge_serve, limit),
                "edge_ota": version() or "0",
            }
        return self._facts

    def known_facts(self) -> Mapping[str, str]:
        """Return the facts if this run has read them, else {}."""
        return self._facts

    def fingerprint(self, limit: float = DOCTOR_SECONDS) -> str:
        """Return a digest of the facts, "" = unknown. When the digest changes, a bad release may be tried again.

        Labels do not count: they describe no hardware and no program, and are unknown before `ThisDevice.document`.

        Args:
            limit: seconds for doctor, if it did not run yet.
        """
        try:
            found = self.facts(limit)
        except ServerError:
            return ""
        facts = {key: value for key, value in found.items() if key not in _PASSING and not key.startswith(_LABEL)}
        return hashlib.sha256(to_canonical_json(facts)).hexdigest()[:16]

    def fits_beside(self, memory_bytes: int) -> bool:
        """Return whether `memory_bytes` are available beside the running models. True if either figure is unknown."""
        available = _available(self._root)
        return not memory_bytes or not available or memory_bytes <= available


class ThisDevice(ThisHardware):
    """This device with its key and its signed document. Implements `components.Device`.

    Args:
        root: stands in for / in tests.
    """

    def __init__(self, settings: AgentSettings, identity: Identity, root: Path = Path("/")) -> None:
        super().__init__(settings, root)
        self.identity = identity
        self._labels: dict[str, str] = {}

    @property
    def name(self) -> str:
        """The name of this device: from the settings, the file of its document, or its key."""
        return device_name(self._settings, self.identity.fingerprint)

    def document(self, trust: TrustedMetadata) -> DeviceDocument:
        """Return the signed document of this device.

        Raises:
            Untrusted: it is malformed, or that of another key.
            NotInRepository: the publisher has not added this device.
        """
        own = self.name
        try:
            data = trust.document(device_target(own), device_document.MOST_BYTES)
        except NotInRepository:
            text = f"the repository does not know this device: {own}, key {self.identity.fingerprint}"
            hint = f"edge-ota publish device add {own} --fleet FLEET --ring RING --key device.pub"
            raise NotInRepository(f"{text}; on the publisher's machine: {hint}") from None
        found = device_document.read_device(data, own)
        if found.fingerprint and found.fingerprint != self.identity.fingerprint:
            text = f"the document of {own} is for the key {found.fingerprint[:16]}..., and this device has "
            hint = "two devices have this name, or the key was replaced: add this device under a name of its own"
            raise Untrusted(f"{text}{self.identity.fingerprint[:16]}...: {hint}")
        self._labels = {f"{_LABEL}{label}": value for label, value in found.labels.items()}
        return found

    def facts(self, limit: float = DOCTOR_SECONDS) -> Mapping[str, str]:
        """Return the facts of the hardware, and the labels of the device. Raises as there."""
        return {**super().facts(limit), **self._labels}


def device_name(settings: AgentSettings, fingerprint: str) -> str:
    """Return the name of this device: from the settings, the file of its document, or its key."""
    if settings.device:
        return name(settings.device, "the setting DEVICE")
    data = files.read(settings.device_file, device_document.MOST_BYTES)
    return _name_in(data, settings.device_file) if data is not None else default_name(fingerprint)


def _name_in(data: bytes, path: Path) -> str:
    try:
        found: Any = json.loads(data)
        return name(found["device"], str(path))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f"{path} is not a device document: copy it again from the publisher") from None


def _available(root: Path) -> int:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0
