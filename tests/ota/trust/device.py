"""A device under attack: its state on disk, and what it does in one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ota.errors import OtaError
from ota.source import RepositorySource
from ota.trust.client import TrustClient
from ota.trust.floors import Floors
from tests.ota.simulator import NOW

MANIFEST = "bundles/det/det.1.json"


class Device:
    """A device with its metadata and the two places of its floors."""

    def __init__(self, directory: Path, root: bytes) -> None:
        self.metadata = directory / "metadata"
        self.places = (directory / "floors.json", directory / "other" / "floors.json")
        self.root = root

    def trust(
        self, source: RepositorySource | list[RepositorySource], now: float = NOW, floors: Floors | None = None
    ) -> TrustClient:
        """Return a client that has not refreshed yet."""
        return TrustClient(self.metadata, self.root, source, floors or self.floors(), now)

    def run(self, source: RepositorySource | list[RepositorySource], now: float = NOW) -> TrustClient:
        """Refresh, and return the client."""
        trust = self.trust(source, now)
        trust.refresh()
        return trust

    def floors(self) -> Floors:
        """Return the floors as they are on disk."""
        return Floors(self.places)

    def lose_metadata(self, *names: str) -> None:
        """Lose local metadata: files, or all."""
        for path in sorted(self.metadata.rglob("*")):
            if path.is_file() and (not names or path.name in names) and path.name != ".lock":
                path.unlink()

    def lose_floors(self) -> None:
        """Lose both places."""
        for place in self.places:
            place.unlink(missing_ok=True)


def refused(
    device: Device,
    source: RepositorySource | list[RepositorySource],
    error: type[OtaError],
    match: str,
    now: float = NOW,
) -> None:
    """Expect that a run takes nothing: neither the document nor, after it, a lower floor.

    The class must be `error` exactly: status and fleets tell `expired`, `rolled_back`, and `untrusted` apart.
    """
    before = device.floors().values()
    with pytest.raises(OtaError, match=match) as caught:
        device.run(source, now).document(MANIFEST, 1000)
    assert type(caught.value) is error, caught.value
    after = device.floors().values()
    assert {name: max(value, after.get(name, 0)) for name, value in before.items()} == {
        name: after.get(name, 0) for name in before
    }
