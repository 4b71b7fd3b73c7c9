"""Tries several mirrors of one repository. A bad mirror does not block the others, and none is trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ota.clock import TimeSource
from ota.errors import FetchError, NotInRepository, OtaError, Untrusted, UsageError
from ota.fetch.directory import DirectorySource
from ota.fetch.failures import RequestFailed
from ota.settings import NAMED_FILE, AgentSettings
from ota.source import RepositorySource

Value = TypeVar("Value")
#: how long a mirror that failed comes after the others
DEMOTED_SECONDS = 300.0


class DownloadRestarted(FetchError):
    """What several sources, or runs, delivered is wrong. The download starts over, and no source is demoted for it."""


class Mirrors:
    """Tries sources in order. A source that failed recently comes after the others; one with wrong bytes comes last.

    One object lives for one run.
    """

    def __init__(self, sources: Sequence[RepositorySource], clock: TimeSource) -> None:
        self._sources = list(sources)
        self._clock = clock
        self._failed: dict[int, float] = {}
        self._lied: set[int] = set()

    def first(self, act: Callable[[RepositorySource, bool], Value]) -> Value:
        """Return the result of `act` with the first source for which it does not fail.

        Args:
            act: receives a source, and whether another one that has not failed recently comes after it.

        Raises:
            NotInRepository: no source has the file.
            DownloadRestarted: the caller asks again.
            FetchError: no source delivered, and at least one may do so later.
            Untrusted: each source delivered what is not signed.
        """
        failures: list[OtaError] = []
        order = self._order()
        good = sum(self._rank(number)[0] == 0 for number in order)
        for place, number in enumerate(order, 1):
            try:
                value = act(self._sources[number], place < good)
            except DownloadRestarted:
                raise
            except NotInRepository as error:
                failures.append(error)
            except FetchError as error:
                self._failed[number] = self._clock.monotonic()
                failures.append(error)
            except Untrusted as error:
                self._lied.add(number)
                failures.append(error)
            else:
                self._failed.pop(number, None)
                return value
        raise _most_telling(failures)

    def _order(self) -> list[int]:
        return sorted(range(len(self._sources)), key=self._rank)

    def _rank(self, number: int) -> tuple[int, float, int]:
        if number in self._lied:
            return 2, 0.0, number
        failed = self._failed.get(number)
        if failed is not None and self._clock.monotonic() - failed < DEMOTED_SECONDS:
            return 1, failed, number
        return 0, 0.0, number


def _most_telling(failures: Sequence[OtaError]) -> OtaError:
    """Return one error for all sources. A fault that may pass counts first, then wrong bytes, then a missing file."""

    def rank(error: OtaError) -> int:
        if isinstance(error, NotInRepository):
            return 3
        if isinstance(error, FetchError):
            return 1 if isinstance(error, RequestFailed) and not error.again else 0
        return 2

    worst = min(failures, key=rank)
    if len(failures) > 1:
        worst.message = "no mirror delivered: " + "; ".join(dict.fromkeys(one.message for one in failures))
        worst.args = (worst.message,)
    return worst


def open_sources(settings: AgentSettings) -> list[RepositorySource]:
    """Return the mirrors of the setting URL: web servers, and directories (`/mnt/mirror`).

    Raises:
        UsageError: there is none; or a URL, the proxy, or a PEM file is unusable.
    """
    from ota.fetch.http import HttpOptions, HttpSource

    if not settings.url:
        raise UsageError(f"URL is not set: write URL=https://... of the repository into {NAMED_FILE}")
    options = HttpOptions(settings.timeout, settings.proxy, settings.ca_cert, settings.client_cert, settings.client_key)
    return [DirectorySource(Path(one)) if one.startswith("/") else HttpSource(one, options) for one in settings.url]
