"""When a connection is asked whether its client is there, when it is too old, and when a client asks too often.

What gRPC's own servers do (grpc doc/keepalive.md and proposal A8, A9), decided from the time and a few counts.
"""

from __future__ import annotations

import enum
import math
import sys
from dataclasses import dataclass

#: how often a client without calls may ask, unless keepalive without calls is permitted
_IDLE_INTERVAL_NS = 2 * 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class KeepaliveSettings:
    """The `--grpc-keepalive-*`, `--grpc-http2-*` and `--grpc-max-connection-age*` settings; seconds.

    Attributes:
        time: of silence before we ask; timeout: for the answer.
        without_calls: with no call under way, too.
        max_pings_without_data: questions of ours without anything sent between; 0 = no end.
        min_interval: between questions of a client with nothing sent between; max_strikes: of shorter ones; 0 = no end.
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
        """How often to look at the time: what is due is done at most a quarter late."""
        return min(1.0, max(0.01, min(self.time, self.timeout, self.max_age, self.age_grace) / 4))


class Due(enum.Enum):
    """What is to be done with a connection."""

    NOTHING = enum.auto()
    #: ask whether the client is there
    ASK = enum.auto()
    #: ask it to go elsewhere
    LEAVE = enum.auto()
    #: close it: nobody is there, or the grace is over
    CLOSE = enum.auto()


class Keepalive:
    """One connection's.

    Args:
        spread: 0.9 to 1.1, so that connections made together do not end together.
    """

    __slots__ = ("_asked_ns", "_expires_ns", "_heard_ns", "_last_ping_ns", "_left_ns", "_pings", "_received", "_sent",
                 "_sent_at_ping", "_settings", "_strikes")  # fmt: skip

    def __init__(self, settings: KeepaliveSettings, now_ns: int, spread: float = 1.0) -> None:
        self._settings = settings
        self._expires_ns = now_ns + settings.max_age * spread * 1e9
        self._left_ns: int | None = None
        self._heard_ns = now_ns
        self._asked_ns: int | None = None
        self._received = self._sent = self._pings = 0
        self._sent_at_ping = -1
        self._last_ping_ns: float = -math.inf
        self._strikes = 0

    def look(self, now_ns: int, calls: int, received: int, sent: int) -> Due:
        """What is due now, given counts of what the client has sent and was sent."""
        settings = self._settings
        if self._left_ns is None and now_ns >= self._expires_ns:
            self._left_ns = now_ns
            return Due.LEAVE
        if self._left_ns is not None and now_ns - self._left_ns >= settings.age_grace * 1e9:
            return Due.CLOSE
        if received != self._received:
            self._received, self._heard_ns, self._asked_ns = received, now_ns, None
        if sent != self._sent:
            self._sent, self._pings = sent, 0
        if self._asked_ns is not None:
            return Due.CLOSE if now_ns - self._asked_ns >= settings.timeout * 1e9 else Due.NOTHING
        if now_ns - self._heard_ns < settings.time * 1e9 or not (calls or settings.without_calls):
            return Due.NOTHING
        if settings.max_pings_without_data and self._pings >= settings.max_pings_without_data:
            return Due.NOTHING
        self._pings += 1
        self._asked_ns = now_ns
        return Due.ASK

    def heard_ns(self, received: int) -> int:
        """When a look last found that the client had sent something; the latest time of all when it has since."""
        return self._heard_ns if received == self._received else sys.maxsize

    def on_ping(self, now_ns: int, calls: int, sent: int) -> bool:
        """The client has asked; whether it did so too often."""
        settings = self._settings
        if sent != self._sent_at_ping:
            self._sent_at_ping, self._strikes, self._last_ping_ns = sent, 0, -math.inf
        interval = settings.min_interval * 1e9 if calls or settings.without_calls else _IDLE_INTERVAL_NS
        early = now_ns - self._last_ping_ns < interval
        self._last_ping_ns = now_ns
        self._strikes += early
        return early and 0 < settings.max_strikes < self._strikes
