"""How much a client may ask for that costs us something and it nothing: resets, pings, settings, empty frames.

Each of the known floods (CVE-2019-9511 to 9518, CVE-2023-44487, CVE-2025-8671) is a frame that is cheap to repeat. They
share one bucket, which no ordinary client empties: 10,000 points, refilled with 2,000 a second, and with some for each
frame of an answer, because a busy client of gRPC's C core has one or two pings and window updates for each.
"""

from __future__ import annotations

from edge_serve.clock import Clock
from edge_serve.protocol.http2.frames import Code, ConnectionFault
from edge_serve.protocol.http2.send import DataSender

_FULL = 10_000
_PER_SECOND = 2_000
_PER_ANSWER = 4

#: a frame that has to be looked at and does nothing, or is answered with a few bytes
TRIFLE = 1
#: a request that was begun and thrown away: by its client (rapid reset), by a fault of its (made to reset), or refused
WASTED_REQUEST = 5


class Allowance:
    """One connection's bucket. The clock and what was answered are looked at only when it is empty.

    Args:
        sender: has counted the frames of answers.
    """

    __slots__ = ("_answered", "_clock", "_left", "_sender", "_since_ns")

    def __init__(self, clock: Clock, sender: DataSender) -> None:
        self._clock = clock
        self._sender = sender
        self._left = float(_FULL)
        self._since_ns = clock.now_ns()
        self._answered = sender.sent

    def spend(self, points: int) -> None:
        """Take `points`.

        Raises:
            ConnectionFault: there are none left.
        """
        self._left -= points
        if self._left >= 0:
            return
        now_ns, answered = self._clock.now_ns(), self._sender.sent
        earned = (now_ns - self._since_ns) / 1e9 * _PER_SECOND + (answered - self._answered) * _PER_ANSWER
        self._left = min(_FULL, self._left + earned)
        self._since_ns, self._answered = now_ns, answered
        if self._left < 0:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")
