"""Keepalive: decides when to ping a client, when to close its connection, and when a client pings too often.

The rules are those of gRPC's own servers (grpc doc/keepalive.md and proposals A8, A9). They use the time and counts.
"""

from __future__ import annotations

import enum
import math
import sys

from edge_serve.records import frozen

#: least time between pings of a client without calls, unless keepalive without calls is permitted
_IDLE_INTERVAL_NS = 2 * 3600 * 1_000_000_000


@frozen
class KeepaliveSettings:
    """The `--grpc-keepalive-*`, `--grpc-http2-*` and `--grpc-max-connection-age*` settings, in seconds.

    Attributes:
        time: of silence before the server pings; timeout: for the answer.
        without_calls: ping connections without open calls, too.
        max_pings_without_data: pings of the server with no answer to a call between them; 0 = no limit.
        min_interval: between pings of a client with no frame of a call between them, in either direction.
        max_strikes: pings of a client that may come earlier than that; 0 = no limit.
        max_age: of a connection; age_grace: for its calls after that.
    """

    time: float = 7200.0
    timeout: float = 20.0
    without_calls: bool = False
    max_pings_without_data: int = 2
    min_interval: float = 300.0
    max_strikes: int = 2
    max_age: float = math.inf
    age_grace: float = math.inf

    def sweep_interval(self) -> float:
        """Return the seconds between checks, so that no timeout is more than a quarter late."""
        return min(1.0, max(0.01, min(self.time, self.timeout, self.max_age, self.age_grace) / 4))


class Due(enum.Enum):
    """The action that is due on a connection."""

    NOTHING = enum.auto()
    #: send a PING
    PING = enum.auto()
    #: drain it: the client is to connect again
    DRAIN = enum.auto()
    #: close it: the PING was not answered, or the grace period is over
    CLOSE = enum.auto()


class Keepalive:
    """Keepalive of one connection.

    Args:
        spread: 0.9 to 1.1, so that connections made together do not end together.
    """

    __slots__ = (
        "_drained_ns",
        "_exchanged_at_ping",
        "_expires_ns",
        "_heard_ns",
        "_last_ping_ns",
        "_pinged_ns",
        "_pings",
        "_received",
        "_sent",
        "_settings",
        "_strikes",
    )  # fmt: skip

    def __init__(self, settings: KeepaliveSettings, now_ns: int, spread: float = 1.0) -> None:
        self._settings = settings
        self._expires_ns = now_ns + settings.max_age * spread * 1e9
        self._drained_ns: int | None = None
        self._heard_ns = now_ns
        self._pinged_ns: int | None = None
        self._received = self._sent = self._pings = 0
        self._exchanged_at_ping = -1
        self._last_ping_ns: float = -math.inf
        self._strikes = 0

    def check(self, now_ns: int, calls: int, received: int, sent: int, *, reading: bool = True) -> Due:
        """Return the action that is due, given the bytes `received` from the client and the frames `sent` to it.

        Args:
            reading: the server reads from the client. While it does not, the client's answers stay in the kernel.
        """
        settings = self._settings
        if self._drained_ns is None and now_ns >= self._expires_ns:
            self._drained_ns = now_ns
            return Due.DRAIN
        if self._drained_ns is not None and now_ns - self._drained_ns >= settings.age_grace * 1e9:
            return Due.CLOSE
        if received != self._received:
            self._received, self._heard_ns, self._pinged_ns = received, now_ns, None
        if not reading:
            self._heard_ns, self._pinged_ns = now_ns, None
        if sent != self._sent:
            self._sent, self._pings = sent, 0
        if self._pinged_ns is not None:
            return Due.CLOSE if now_ns - self._pinged_ns >= settings.timeout * 1e9 else Due.NOTHING
        if now_ns - self._heard_ns < settings.time * 1e9 or not (calls or settings.without_calls):
            return Due.NOTHING
        if settings.max_pings_without_data and self._pings >= settings.max_pings_without_data:
            return Due.NOTHING
        self._pings += 1
        self._pinged_ns = now_ns
        return Due.PING

    def heard_ns(self, received: int) -> int:
        """Return when a check last found new bytes from the client; `sys.maxsize` if it has sent more since."""
        return self._heard_ns if received == self._received else sys.maxsize

    def on_ping(self, now_ns: int, calls: int, exchanged: int) -> bool:
        """Count a PING of the client, and return whether it sends too many.

        Args:
            exchanged: frames of calls so far: those of requests that were accepted, and those of answers.
        """
        settings = self._settings
        if exchanged != self._exchanged_at_ping:
            self._exchanged_at_ping, self._strikes, self._last_ping_ns = exchanged, 0, -math.inf
        interval = settings.min_interval * 1e9 if calls or settings.without_calls else _IDLE_INTERVAL_NS
        early = now_ns - self._last_ping_ns < interval
        self._last_ping_ns = now_ns
        self._strikes += early
        return early and 0 < settings.max_strikes < self._strikes
