"""The TUF client with the clock floor: judges the clock before and after each refresh."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ota.clock import TimeSource
from ota.errors import Expired
from ota.source import RepositorySource
from ota.trust import clock_floor
from ota.trust.client import TrustClient
from ota.trust.clock_floor import ClockReading
from ota.trust.floors import Floors


class ExpiryCheckedTrust(TrustClient):
    """The trusted metadata of a repository, with the expiry judged by a clock that may be wrong. Implements
    `agent.components.TrustedMetadata`.

    Args:
        clock: of the system.
        certain: a time server, or the operator at this device, has confirmed the clock.
    """

    def __init__(
        self,
        metadata_dir: Path,
        root: bytes,
        source: RepositorySource | Sequence[RepositorySource],
        floors: Floors,
        clock: TimeSource,
        *,
        certain: bool,
        grace: float = 0.0,
    ) -> None:
        super().__init__(metadata_dir, root, source, floors, max(clock.now(), clock_floor.BUILT), grace=grace)
        self._clock, self._certain = clock, certain

    def refresh(self, now: float | None = None) -> None:
        """Fetch and verify the metadata. Expiry is judged by one reading of the clock, which is then stored as certain:
        another reading, after a jump of the clock, would be stored unchecked.

        Args:
            now: the reading, in seconds since the epoch; None = read the clock.

        Raises:
            Expired: nothing proves that the clock is right, so that expiry is unknown; models go on. OtaError: as
                `TrustClient.refresh`.
        """
        system = self._clock.now() if now is None else now
        try:
            super().refresh(max(system, clock_floor.BUILT))
        except Expired as error:
            if doubt := self._judge(system).doubt:
                raise Expired(doubt) from error
            raise
        found = self._judge(system)
        if found.doubt:
            self._updater = None  # else the next document of the run would need no refresh, and be accepted
            raise Expired(found.doubt)
        # a refresh that accepts expired metadata does not prove that the clock is not far ahead
        clock_floor.record_time(system, self._floors, certain=not self._grace and not found.unset)

    def clock_unset(self) -> bool:
        """Return whether the system clock is behind a time that is certain."""
        return self._judge(self._clock.now()).unset

    def _judge(self, system: float) -> ClockReading:
        return clock_floor.judge(system, self._floors, self._certain)
