"""The gate of a rollout: counts devices by reports, metrics, or both, and decides by `decide.gate`."""

from __future__ import annotations

from dataclasses import dataclass

from ota.decide import gate
from ota.decide.gate import GateDecision, GateLimits, GateRuling
from ota.documents.rollout import BundleRollout, Rollout
from ota.publish.reports import prometheus
from ota.publish.reports.collect import collect
from ota.publish.reports.history import ReportHistory
from ota.publish.repository import RepositoryState
from ota.publish.rollouts import read_devices
from ota.publish.workspace import Workspace, acquire_lock

_ORDER = (GateDecision.HALT, GateDecision.WAIT, GateDecision.GO)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The sources of the gate's evidence.

    Attributes:
        reports: directories and URLs. prometheus: a URL, or "". matchers: labels of the fleet's targets there.
    """

    reports: tuple[str, ...] = ()
    prometheus: str = ""
    matchers: str = ""


def rule(
    workspace: Workspace,
    state: RepositoryState,
    rollout: Rollout,
    wish: BundleRollout,
    evidence: Evidence,
    bounds: GateLimits,
    now: float,
) -> GateRuling:
    """Return whether the next step of a rollout is allowed. With two kinds of evidence, return the stricter ruling.

    The workspace is locked here, to store the chains of reports.

    Raises:
        UsageError: a place of evidence is none. FetchError: it does not answer.
    """
    devices = read_devices(workspace, state, rollout.fleet)
    rulings = []
    if evidence.reports:
        collected = collect(evidence.reports, devices)
        with acquire_lock(workspace.path):
            memory = ReportHistory(workspace.path)
            memory.take(collected.genuine)
            memory.save()
        tally = gate.count(wish, devices.values(), collected.newest, bounds, now)
        rulings.append(gate.decide(tally, bounds))
    if evidence.prometheus:
        included = sum(gate.is_included(wish, one) for one in devices.values())
        tally = prometheus.ask(evidence.prometheus, wish, included, evidence.matchers, bounds)
        rulings.append(gate.decide(tally, bounds))
    return min(rulings, key=lambda one: _ORDER.index(one.answer))
