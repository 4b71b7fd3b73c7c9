"""How much a client may ask for that costs us something and it nothing: resets, pings, settings, empty frames.

Each of the known floods (CVE-2019-9511 to 9518, CVE-2023-44487) is a frame that is legal once and cheap to repeat. They
share one bucket, which no ordinary client empties: 10,000 points, refilled with 2,000 a second.
"""

from __future__ import annotations

from edge_serve.clock import Clock
from edge_serve.protocol.http2_frames import Code, ConnectionFault

_FULL = 10_000
_PER_SECOND = 2_000

#: a frame that has to be looked at and does nothing, or is answered with a few bytes
TRIFLE = 1
#: a request that was begun and thrown away (rapid reset), or refused
WASTED_REQUEST = 5


class Allowance:
    """One connection's bucket. The clock is read only when it is empty."""

    __slots__ = ("_clock", "_left", "_since_ns")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = float(_FULL)
        self._since_ns = clock.now_ns()

    def spend(self, points: int) -> None:
        """Take `points`.

        Raises:
            ConnectionFault: there are none left.
        """
        self._left -= points
        if self._left >= 0:
            return
        now_ns = self._clock.now_ns()
        self._left = min(_FULL, self._left + (now_ns - self._since_ns) / 1e9 * _PER_SECOND)
        self._since_ns = now_ns
        if self._left < 0:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")
