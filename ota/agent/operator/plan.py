"""Computes the effect of an update without running it: for `edge-ota check`, `plan`, and `explain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ota.agent import checks, desired
from ota.agent.components import Components
from ota.agent.system.state import as_journal, find_state, is_begun
from ota.decide.system import reason_not_to_run, version_to_cancel
from ota.decide.variant import Candidate
from ota.documents.names import SYSTEM
from ota.documents.rollout import Rollout
from ota.errors import OtaError
from ota.store import journal
from ota.store.journal import Journal


@dataclass(frozen=True, slots=True)
class PlannedUpdate:
    """The effect that a run would have on a bundle.

    Attributes:
        release: the one that serves; wanted: the one that this device shall run.
        why: the reason for this release, or for waiting.
        variant, missing_bytes: of the wanted release; "" and -1 = not computed, or nothing to do.
        taken_back: a system that waits for its restart, which the run removes; 0 = none.
        error: why the update cannot run.
    """

    bundle: str
    release: int
    wanted: int
    why: str = ""
    variant: str = ""
    missing_bytes: int = -1
    taken_back: int = 0
    error: OtaError | None = None

    @property
    def is_due(self) -> bool:
        """Return whether there is something to do."""
        return self.wanted not in (0, self.release)


def plan(components: Components, rollout: Rollout, only: Sequence[str], *, detailed: bool) -> list[PlannedUpdate]:
    """Return the effect of a run. `detailed` also reads manifests and checks the disk space.

    Args:
        only: bundles, or SYSTEM; () = all.

    Raises:
        UsageError: the fleet does not have one of them.
    """
    desired.check_bundles(rollout, (one for one in only if one != SYSTEM))
    found = [
        _plan(components, rollout, bundle, detailed) for bundle in sorted(rollout.models) if not only or bundle in only
    ]
    return found + (list(_plan_system(components, rollout)) if not only or SYSTEM in only else [])


def _plan_system(components: Components, rollout: Rollout) -> Iterator[PlannedUpdate]:
    """Yield the effect on the system of a device of the image, if the rollout names a version, or an update began."""
    state = find_state(components.settings.system_root)
    if state is None:
        return
    if rollout.system is None:
        if is_begun(state, components.layout):
            yield PlannedUpdate(SYSTEM, state.version, 0, desired.reason_not_named(SYSTEM), taken_back=state.waiting)
        return
    choice = desired.choose(components, rollout, SYSTEM, as_journal(state, components.layout))
    why = reason_not_to_run(state, choice.release, rollout.system.deny) or choice.why
    taken_back = version_to_cancel(state, choice.release)
    yield PlannedUpdate(SYSTEM, state.version, choice.release, why, taken_back=taken_back)


def _plan(components: Components, rollout: Rollout, bundle: str, detailed: bool) -> PlannedUpdate:
    wish = rollout.models[bundle]
    entry = journal.read(components.layout, wish.bundle) or Journal(wish.bundle)
    wanted, why, variant, missing = 0, "", "", -1
    try:
        choice = desired.choose(components, rollout, bundle, entry)
        wanted, why = choice.release, choice.why
        if detailed and wanted not in (0, entry.serving()):
            manifest, _ = desired.manifest(components, wish, wanted)
            checks.check_names(components, manifest, entry)
            chosen = desired.variant(components, manifest, patient=False)
            variant = chosen.id
            missing = components.fetcher.missing(desired.files(manifest, chosen))
    except OtaError as error:
        return PlannedUpdate(wish.bundle, entry.serving(), wanted, why, variant, missing, error=error)
    return PlannedUpdate(wish.bundle, entry.serving(), wanted, why, variant, missing)


def explain(components: Components, rollout: Rollout, bundle: str) -> tuple[PlannedUpdate, list[Candidate]]:
    """Return the effect of a run on a bundle, and each variant of the wanted release with the reason why it does not
    fit.
    """
    found = _plan(components, rollout, bundle, True)
    if not found.wanted:
        return found, []
    manifest, _ = desired.manifest(components, rollout.models[bundle], found.wanted)
    return found, desired.candidates(components, manifest, patient=True)
