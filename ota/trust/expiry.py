"""The TUF client with the clock floor: judges the clock before and after each refresh."""

from __future__ import annotations

from ota.clock import TimeSource
from ota.errors import Expired
from ota.trust import clock_floor
from ota.trust.client import TrustClient
from ota.trust.clock_floor import ClockReading
from ota.trust.floors import Floors


class ExpiryCheckedTrust:
    """Implements `agent.components.TrustedMetadata`.

    Args:
        certain: a time server, or the operator at this device, has confirmed the clock.
        kept: a refresh proves that the clock is not far ahead. False where expired metadata is accepted.
    """

    def __init__(
        self, trust: TrustClient, floors: Floors, clock: TimeSource, *, certain: bool, kept: bool = True
    ) -> None:
        self._trust, self._floors, self._clock = trust, floors, clock
        self._certain, self._kept = certain, kept

    def reading(self) -> ClockReading:
        """Judge the system clock now."""
        return self._judge(self._clock.now())

    def _judge(self, system: float) -> ClockReading:
        return clock_floor.judge(system, self._floors, self._certain)

    def refresh(self) -> None:
        """Fetch and verify the metadata. Expiry is judged by one reading of the clock, which is then stored as certain:
        another reading, after a jump of the clock, would be stored unchecked.

        Raises:
            Expired: nothing proves that the clock is right, so that expiry is unknown; models go on.
        """
        system = self._clock.now()
        try:
            self._trust.refresh(max(system, clock_floor.BUILT))
        except Expired as error:
            if doubt := self._judge(system).doubt:
                raise Expired(doubt) from error
            raise
        found = self._judge(system)
        if found.doubt:
            raise Expired(found.doubt)
        clock_floor.record_time(system, self._floors, certain=self._kept and not found.unset)

    def is_refreshed(self) -> bool:
        """Return whether the metadata of this run is verified, so that documents need no refresh."""
        return self._trust.is_refreshed()

    def target(self, path: str) -> tuple[str, int] | None:
        """Return SHA-256 and length of a target; None = not listed."""
        return self._trust.target(path)

    def document(self, path: str, most_bytes: int) -> bytes:
        """Return the verified bytes of a small target."""
        return self._trust.document(path, most_bytes)

    def floor(self, name: str, path: str) -> int:
        """Return the floor of a value in a document; 0 = none."""
        return self._trust.floor(name, path)

    def raise_floor(self, name: str, path: str, value: int) -> None:
        """Raise the floor of a value in a document."""
        self._trust.raise_floor(name, path, value)

    def expires(self) -> dict[str, float]:
        """Return when each role expires (epoch)."""
        return self._trust.expires()

    def clock_unset(self) -> bool:
        """Return whether the system clock is behind a time that is certain."""
        return self.reading().unset
