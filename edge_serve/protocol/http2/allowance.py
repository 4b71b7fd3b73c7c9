"""Token bucket against floods of frames that cost the client nothing: resets, pings, settings, empty frames.

Each of the known floods (CVE-2019-9511 to 9518, CVE-2023-44487, CVE-2025-8671) repeats a cheap frame. All of them share
one bucket, which no ordinary client empties: 10,000 tokens, and 2,000 more a second. Each frame of an answer adds four,
because a busy client of gRPC's C core sends one or two pings and window updates for each.
"""

from __future__ import annotations

from edge_serve.clock import Clock
from edge_serve.protocol.http2.frames import Code, ConnectionFault
from edge_serve.protocol.http2.send import DataSender

_FULL = 10_000
_PER_SECOND = 2_000
_PER_ANSWER = 4

#: price of a frame that changes nothing, or that is answered with a few bytes
TRIFLE = 1
#: price of a request that its client cancelled (rapid reset) or provoked us to reset, or that was refused
WASTED_REQUEST = 5


class Allowance:
    """The token bucket of one connection. Reads the clock and the count of answers only when it is empty.

    Args:
        sender: counts the frames of answers.
    """

    __slots__ = ("_answered", "_clock", "_left", "_sender", "_since_ns")

    def __init__(self, clock: Clock, sender: DataSender) -> None:
        self._clock = clock
        self._sender = sender
        self._left = float(_FULL)
        self._since_ns = clock.now_ns()
        self._answered = sender.sent

    def spend(self, points: int) -> None:
        """Take `points` tokens out of the bucket.

        Raises:
            ConnectionFault: the bucket is empty.
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
