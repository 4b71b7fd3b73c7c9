"""Pure decisions about a download: its rate, its hours, and its retries.

Time and randomness are arguments. `limiter` acts on these decisions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import tzinfo

from ota.decide.window import in_window
from ota.errors import FetchError, NotInRepository, UsageError
from ota.fetch.failures import RequestFailed

#: failed requests of one run, over all files; each is followed by a wait and another try
MOST_RETRIES = 100
#: consecutive failed requests without any bytes
MOST_IN_A_ROW = 5
LEAST_RATE = 1000
FIRST_DELAY = 1.0
LONGEST_DELAY = 60.0
#: if a server asks for a longer wait, the next run retries
LONGEST_RETRY_AFTER = 300.0


class TokenBucket:
    """A token bucket: a rate limit with bursts of up to a quarter of a second.

    Args:
        rate: bytes per second; 0 = no limit.
    """

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._most = rate / 4
        self._tokens = self._most
        self._at = now

    def take(self, count: int, now: float) -> float:
        """Count received bytes. Return the seconds to wait before the next ones."""
        if not self._rate:
            return 0.0
        self._tokens = min(self._most, self._tokens + (now - self._at) * self._rate) - count
        self._at = now
        return max(0.0, -self._tokens / self._rate)


@dataclass(slots=True)
class SpeedWindow:
    """Detects a source that sends less than `least` bytes per second, averaged over at least `window` seconds."""

    least: int
    window: float
    received: int = 0
    seconds: float = 0.0

    def add(self, count: int, seconds: float) -> bool:
        """Count received bytes, and the seconds that they took. Return whether the window has ended and was too slow;
        `received` and `seconds` are those of the window then.
        """
        self.received += count
        self.seconds += seconds
        if self.seconds <= self.window:
            return False
        if self.received < self.least * self.seconds:
            return True
        self.received, self.seconds = 0, 0.0
        return False


@dataclass(slots=True)
class Retries:
    """The number of failed requests that one run may retry."""

    left: int = MOST_RETRIES
    in_a_row: int = 0

    def headway(self) -> None:
        """Reset the count of consecutive failures, because bytes arrived."""
        self.in_a_row = 0

    def delay(self, error: FetchError, random: float) -> float | None:
        """Return the seconds to wait before a retry; None = no retry in this run.

        Args:
            random: from 0 to 1, so that a fleet does not come back at the same moment.
        """
        asked = error.retry_after if isinstance(error, RequestFailed) else None
        final = isinstance(error, NotInRepository) or (isinstance(error, RequestFailed) and not error.again)
        if final or self.left <= 0 or self.in_a_row >= MOST_IN_A_ROW - 1 or (asked or 0.0) > LONGEST_RETRY_AFTER:
            return None
        self.left -= 1
        self.in_a_row += 1
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** (self.in_a_row - 1)) * (0.5 + random / 2)
        return max(delay, (asked or 0.0) * (1.0 + random / 4))


def check_rate(rate: int) -> int:
    """Return the setting RATE_LIMIT if it is plausible.

    Raises:
        UsageError: a download would take days; another unit was meant.
    """
    if 0 < rate < LEAST_RATE:
        raise UsageError(
            f"RATE_LIMIT: found {rate}, expected bytes per second: at least {LEAST_RATE}, or 0 for no limit"
        )
    return rate


def check_hours(text: str, setting: str = "DOWNLOAD_HOURS") -> str:
    """Return a setting with hours if it is valid.

    Raises:
        UsageError: it is something else than hours of the day.
    """
    if text and not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d", text):
        raise UsageError(f"{setting}: found {text[:60]!r}, expected local times such as 22:00-06:00")
    return text


def reason_to_wait(hours: str, metered: bool, now: float, zone: tzinfo | None = None) -> str:
    """Return why no blob may be fetched now; "" = it may.

    Args:
        hours: `HH:MM-HH:MM` in local time; "" = always. zone: None = that of the system.
    """
    if metered:
        return "the link is metered (METERED=true): 'edge-ota apply' fetches now"
    if not in_window(hours, now, zone):
        return f"downloads wait for their hours ({hours} local time, DOWNLOAD_HOURS): 'edge-ota apply' fetches now"
    return ""
