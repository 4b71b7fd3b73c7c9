"""Watches a release in probation: reads statistics from edge-serve's status document, and judges them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ota.decide.probation import ProbationLimits, ProbationVerdict, VersionStatistics, judge
from ota.errors import ServerError
from ota.server.admin_client import LOAD_SECONDS
from ota.settings import AgentSettings
from ota.store.journal import Journal

#: failures that the model causes; it does not cause REJECTED and CANCELED
_OWN_FAILURES = ("BACKEND", "OTHER")
_SERVES = ("ready", "busy")
_INTERVAL_SECONDS = 2.0


class StatusSource(Protocol):
    """Returns the status document. Implemented by `server.admin_client.AdminClient`."""

    def status(self) -> dict[str, Any]:
        """Return the status document. Raises ServerError."""


class StatusProbation:
    """Implements `components.Probation`."""

    def __init__(self, server: StatusSource, settings: AgentSettings) -> None:
        self._server = server
        self._limits = ProbationLimits(
            settings.probation_seconds, settings.probation_requests, settings.most_failures, settings.most_slower,
            loading_seconds=LOAD_SECONDS,
        )  # fmt: skip
        #: (model, version) -> whether it is loading, and the monotonic time since which it has not served so
        self._unready: dict[tuple[str, str], tuple[bool, float]] = {}
        #: bundle -> process ID and uptime of the server as they were last, and its restarts since the first judgement
        self._servers: dict[str, tuple[object, float, int]] = {}

    def interval(self) -> float:
        """Return the seconds between two judgements."""
        return _INTERVAL_SECONDS

    def baseline(self, models: Sequence[str]) -> dict[str, object]:
        """Return statistics of the serving versions of models for the journal, taken before the switch.

        A server that does not answer gives none: the new release is then compared with a release without failures.
        """
        try:
            document = self._server.status()
        except ServerError:
            return {}
        found: dict[str, object] = {}
        for model in models:
            version = _highest_serving(document, model)
            if version:
                try:
                    figures = figures_of(document, model, version)
                except ServerError:
                    continue
                found[model] = {
                    "requests": figures.requests, "failures": figures.failures, "counts": list(figures.counts),
                }  # fmt: skip
        return found

    def judge(self, entry: Journal, now: float) -> tuple[ProbationVerdict, str]:
        """Return the verdict on the next release: BAD if one of its models is, GOOD if all are.

        Args:
            now: of the monotonic clock.
        """
        following = entry.next
        assert following is not None, "only a release in probation is judged"
        outcomes = []
        try:
            document = self._server.status()
            watched = {
                model: self._watched(document, model, str(following.release), now)
                for model in entry.models[following.release]
            }
        except ServerError as error:
            return ProbationVerdict.WAIT, error.message
        restarts = self._count_restarts(entry.bundle, document)
        if restarts and restarts >= following.tries:  # a switch may have used up all tries
            return ProbationVerdict.BAD, f"edge-serve was started again {restarts} times while it was new"
        for model, figures in watched.items():
            bounds = _floats(document.get("duration_bounds_seconds"))
            before = _stored(entry.baseline.get(model))
            outcome, reason = judge(before, figures, bounds, following.elapsed(now), self._limits)
            outcomes.append((outcome, f"{model}: {reason}"))
        for wanted in (ProbationVerdict.BAD, ProbationVerdict.WAIT):
            if reasons := [reason for outcome, reason in outcomes if outcome is wanted]:
                return wanted, "; ".join(reasons)
        return ProbationVerdict.GOOD, "; ".join(reason for _, reason in outcomes)

    def _count_restarts(self, bundle: str, document: Mapping[str, Any]) -> int:
        """Return how often the server was started since the first judgement of a bundle.

        The boot step, which counts starts otherwise, gets no lock while the agent watches.
        """
        pid, uptime = _process(document)
        if uptime == math.inf:
            return 0
        before, last, restarts = self._servers.get(bundle, (pid, uptime, 0))
        restarts += before != pid or uptime < last
        self._servers[bundle] = pid, uptime, restarts
        return restarts

    def _watched(self, document: Mapping[str, Any], model: str, version: str, now: float) -> VersionStatistics:
        """Return the statistics of a version, with the seconds for which it has not served."""
        figures = figures_of(document, model, version)
        if figures.ready:
            self._unready.pop((model, version), None)
            return figures
        loading, since = self._unready.get((model, version), (figures.loading, now))
        since = since if loading is figures.loading else now
        self._unready[model, version] = figures.loading, since
        return replace(figures, unready_seconds=now - since)


def figures_of(document: Mapping[str, Any], model: str, version: str) -> VersionStatistics:
    """Return the statistics of a version from a status document. docs/status.md has its members.

    Raises:
        ServerError: a member has another type.
    """
    try:
        return _figures(document, model, version)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        text = f"the status document of edge-serve is malformed at {model} {version} ({error})"
        raise ServerError(f"{text}: install an edge-serve that fits this edge-ota") from error


def _figures(document: Mapping[str, Any], model: str, version: str) -> VersionStatistics:
    row = next((one for one in _rows(document, model) if str(one.get("version")) == version), None)
    if row is None:
        return VersionStatistics(ready=False, reason=f"version {version} does not exist")
    totals = row.get("totals") or {}
    failures = totals.get("failures") or {}
    errors = int(failures.get("MODEL") or 0)  # Triton counts these requests as answered
    return VersionStatistics(
        requests=max(0, int(totals.get("requests") or 0) - errors),
        failures=errors + sum(int(failures.get(reason) or 0) for reason in _OWN_FAILURES),
        # compute time only: queue time depends on the traffic, not on the release
        counts=tuple(int(count) for count in totals.get("compute_counts") or ()),
        restarts=_restarts(document, f"{model}:{version}"),
        ready=row.get("condition") in _SERVES,
        reason=str(row.get("reason") or row.get("condition") or ""),
        loading=row.get("condition") == "loading",
        served_seconds=_process(document)[1] - float(row.get("load_seconds") or 0.0),
    )


def _process(document: Mapping[str, Any]) -> tuple[object, float]:
    """Return process ID and uptime of the server in seconds; inf = unknown."""
    server = document.get("server")
    uptime = server.get("uptime_seconds") if isinstance(server, Mapping) else None
    if not isinstance(server, Mapping) or not isinstance(uptime, (int, float)):
        return None, math.inf
    return server.get("pid"), uptime


def _rows(document: Mapping[str, Any], model: str) -> list[dict[str, Any]]:
    rows = document.get("models")
    return [row for row in rows if isinstance(row, dict) and row.get("name") == model] if isinstance(rows, list) else []


def _restarts(document: Mapping[str, Any], label: str) -> int:
    """Return the restarts of workers that serve this version alone: in a shared one, another model may have crashed."""
    workers = [one for one in document.get("workers") or () if isinstance(one, dict)]
    return sum(int(one.get("restarts") or 0) for one in workers if one.get("models") == [label])


def _highest_serving(document: Mapping[str, Any], model: str) -> str:
    found = [str(row["version"]) for row in _rows(document, model) if row.get("condition") in _SERVES]
    return max((one for one in found if one.isdigit()), key=int, default="")


def _stored(found: object) -> VersionStatistics:
    """Return the statistics that `baseline` put into the journal."""
    if not isinstance(found, Mapping):
        return VersionStatistics()
    counts = found.get("counts")
    requests, failures = (found.get(name) for name in ("requests", "failures"))
    return VersionStatistics(
        requests if isinstance(requests, int) else 0,
        failures if isinstance(failures, int) else 0,
        tuple(one for one in counts if isinstance(one, int)) if isinstance(counts, (list, tuple)) else (),
    )


def _floats(found: object) -> list[float]:
    return [float(one) for one in found if isinstance(one, (int, float))] if isinstance(found, list) else []
