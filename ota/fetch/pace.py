"""Keeps a download within its limits: waits for the rate, ends it with its hours, repeats what failed, and reports."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from ota.clock import Clock
from ota.errors import FetchError, Postponed
from ota.fetch.limits import Retries, TokenBucket, read_hours, why_wait
from ota.settings import Settings

Value = TypeVar("Value")
#: done bytes, total bytes, bytes per second
Progress = Callable[[int, int, float], None]
REPORT_SECONDS = 0.5


def _no_progress(done: int, total: int, rate: float) -> None:
    """Report nothing."""


class Pace:
    """The limits of one run.

    Args:
        apply: an operator asked for the download: hours and the metered link do not count.
        progress: called at most twice a second, and once at the end.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        apply: bool = False,
        progress: Progress = _no_progress,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._clock, self._progress, self._jitter = clock, progress, jitter
        self._hours = None if apply else read_hours(settings.download_hours)
        self._metered = settings.metered and not apply
        now = clock.monotonic()
        self._bucket = TokenBucket(settings.rate_limit, now)
        self._minutes = settings.most_minutes
        self._ends = now + settings.most_minutes * 60
        self._retries = Retries()
        self._checked = now
        self._total = self._done = 0
        self._reported, self._reported_bytes, self._rate = now, 0, 0.0
        self.received = 0  # bytes from the network in this run

    def begin(self, total: int) -> None:
        """Start the count of a download of `total` bytes.

        Raises:
            Postponed: blobs may not be fetched now.
        """
        self._total, self._done = total, 0
        self._check()

    def came(self, count: int) -> None:
        """Count bytes from the network, and wait as the rate limit says.

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
        """Count bytes that are on the disk now; fewer than 0 = that many were discarded."""
        self._done += count
        now = self._clock.monotonic()
        passed = now - self._reported
        if passed >= REPORT_SECONDS:
            self._rate = (self.received - self._reported_bytes) / passed
            self._reported, self._reported_bytes = now, self.received
            self._progress(self._done, self._total, self._rate)

    def finish(self) -> None:
        """Report the end."""
        self._progress(self._done, self._total, self._rate)

    def headway(self) -> None:
        """Start the count of failures in a row anew."""
        self._retries.headway()

    def persist(self, act: Callable[[], Value]) -> Value:
        """Return what `act` returns; repeat it while its errors are worth another try.

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
        reason = why_wait(self._hours, self._metered, self._clock.now())
        if reason:
            raise Postponed(reason)
        self._check_run()

    def _check_run(self) -> None:
        if self._clock.monotonic() >= self._ends:
            raise Postponed(
                f"this run fetched for {self._minutes:g} minutes (MOST_MINUTES): the next run resumes where it stopped"
            )
