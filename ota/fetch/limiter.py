"""Keeps a download within its limits: waits for the rate, ends outside of its hours, retries, and reports progress."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TypeVar

from ota.clock import TimeSource
from ota.errors import FetchError, Postponed
from ota.fetch.limits import Retries, TokenBucket, check_hours, check_rate, reason_to_wait
from ota.settings import AgentSettings

Value = TypeVar("Value")
#: received bytes, and total bytes
Progress = Callable[[int, int], None]
REPORT_SECONDS = 0.5


def no_progress(done: int, total: int) -> None:
    """Ignore the progress."""


class DownloadLimiter:
    """The limits and the progress of one run's downloads.

    Args:
        apply: an operator asked for the download: hours and the metered link do not count.
        jitter: from 0 to 1.
    """

    def __init__(
        self,
        settings: AgentSettings,
        clock: TimeSource,
        *,
        apply: bool = False,
        jitter: Callable[[], float] = lambda: random.random(),  # looked up at each call, for tests
    ) -> None:
        self._clock, self._jitter = clock, jitter
        self._hours = "" if apply else check_hours(settings.download_hours)
        self._metered = settings.metered and not apply
        now = clock.monotonic()
        self._bucket = TokenBucket(check_rate(settings.rate_limit), now)
        self._minutes = settings.most_minutes
        self._ends = now + settings.most_minutes * 60 if settings.most_minutes else math.inf
        self._retries = Retries()
        self._checked = now
        self._progress: Progress = no_progress
        self._total = self._done = 0
        self._reported = now
        self.received = 0  # bytes from the network in this run

    def begin(self, total: int, progress: Progress = no_progress) -> None:
        """Start a download of `total` bytes.

        Args:
            progress: called at most twice a second, and once at the end.

        Raises:
            Postponed: blobs may not be fetched now.
        """
        self._total, self._done, self._progress = total, 0, progress
        self._check()

    def came(self, count: int) -> None:
        """Count bytes from the network, and wait as the rate limit requires.

        Raises:
            Postponed: the hours are over, or the run lasted its time.
        """
        self.received += count
        self.done(count)
        wait = self._bucket.take(count, self._clock.monotonic())
        if wait:
            self._clock.sleep(wait)
        if self._clock.monotonic() - self._checked >= 1.0:
            self._check()

    def done(self, count: int) -> None:
        """Count bytes that are on disk; negative = discarded bytes."""
        self._done += count
        now = self._clock.monotonic()
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            self._progress(self._done, self._total)

    def finish(self) -> None:
        """Report the final progress."""
        self._progress(self._done, self._total)

    def headway(self) -> None:
        """Reset the count of consecutive failures."""
        self._retries.headway()

    def persist(self, act: Callable[[], Value]) -> Value:
        """Return the result of `act`. Retry it while its errors are worth a retry.

        Raises:
            FetchError: the last error of `act`.
            Postponed: the run lasted its time.
        """
        while True:
            try:
                return act()
            except FetchError as error:
                delay = self._retries.delay(error, self._jitter())
                if delay is None:
                    raise
            self._clock.sleep(delay)
            self._check_run()

    def _check(self) -> None:
        self._checked = self._clock.monotonic()
        reason = reason_to_wait(self._hours, self._metered, self._clock.now())
        if reason:
            raise Postponed(reason)
        self._check_run()

    def _check_run(self) -> None:
        if self._clock.monotonic() >= self._ends:
            raise Postponed(
                f"this run fetched for {self._minutes:g} minutes (MOST_MINUTES): the next run resumes where it stopped"
            )
