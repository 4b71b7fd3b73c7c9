"""TensorRT plans for the system that runs. They are built on its first start, before the health gate judges it.

A plan runs only on the TensorRT that built it, and a new system may bring another one. The release keeps its own plans,
and a copy of it for the running system gets the new ones (`store/releases`). So the system before it, which a fall back
starts, serves at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from ota import files
from ota.agent import switch
from ota.agent.components import ModelServer
from ota.agent.plan_builder import PlanBuilder
from ota.agent.status_file import StatusFile
from ota.agent.system.state import find_state, open_layout
from ota.clock import SystemClock, TimeSource
from ota.decide.system import SystemState
from ota.documents.manifest import Manifest, Variant, read_manifest
from ota.errors import NoSpace, OtaError, ServerError, StoreError
from ota.layout import StateLayout
from ota.server.admin_client import AdminClient
from ota.server.build import UnitBuild
from ota.server.doctor import device_facts
from ota.settings import AgentSettings
from ota.store import directories, garbage, history, journal, links, releases
from ota.store.history import HistoryEvent
from ota.store.journal import Journal, UpdateStage
from ota.store.lock import acquire_lock

#: seconds of all builds in one run: the health gate of a new system waits for them
MOST_SECONDS = 2 * 3600.0
#: seconds to wait for another edge-ota
_PATIENCE = 60.0


class SystemPlans:
    """One run that compares all plans with the running system, and builds those that it lacks.

    Under a system that is tried, only the releases that serve are considered. The others follow when it is confirmed.
    """

    def __init__(
        self, settings: AgentSettings, builder: PlanBuilder, server: ModelServer, clock: TimeSource,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._layout, self._repository = open_layout(settings), settings.model_repository
        self._state = find_state(settings.system_root)
        self._builder, self._server, self._clock, self._say = builder, server, clock, say
        self._status = StatusFile(self._layout)
        self._end = clock.monotonic() + MOST_SECONDS

    def prepare(self) -> None:
        """Build the plans that are missing. An error of one release is printed and recorded, not raised.

        Raises:
            OtaError: another edge-ota works, or the disk does not take the state.
        """
        done = files.read(self._layout.plans_system)
        if self._state is None or done == str(self._state.version).encode() or not _has_plans(self._layout):
            return
        with acquire_lock(self._layout, "run-plans", _PATIENCE):
            directories.prepare(self._layout)
            if done is not None:  # what this system builds, the other one lacks
                with files.wrap_errors(self._layout.plans_system):
                    files.unlink(self._layout.plans_system)
            self._status = StatusFile(self._layout)
            try:
                self._prepare_all(self._state, done != _unconfirmed(self._state), list(journal.read_all(self._layout)))
            finally:
                self._status.write(self._clock.now(), state="idle", building="")

    def record_failure(self, error: OtaError) -> None:
        """Print an error of `prepare`, and record it in the status file."""
        self._say(error.message)
        self._status.failed(self._clock.now(), "plans", error)

    def _prepare_all(self, state: SystemState, is_new: bool, entries: Sequence[Journal]) -> None:
        """Build all plans that are missing.

        Args:
            is_new: whether no run under this system reached its end before.
        """
        for entry in entries:
            self._guarded(entry, entry.serving())
        if state.is_tried:
            return
        for entry in entries:
            for release in {entry.active, entry.previous} - {entry.serving(), 0}:
                self._guarded(entry, release)
            if is_new:
                self._repeat_build(entry)
        mark = _unconfirmed(state)
        if state.version in state.confirmed:
            self._remove_old(state, entries)
            mark = str(state.version).encode()
        files.write_durably(self._layout.plans_system, mark, directories.FILE_MODE)

    def _guarded(self, entry: Journal, release: int) -> None:
        try:
            self._prepare(entry, release)
        except OtaError as error:
            self._say(f"{entry.bundle} {release}: {error.message}")
            self._note(entry, release, "failed", error.message)
            self._status.failed(self._clock.now(), "plans", error)
            self._status.bundle(self._clock.now(), entry, reason=error.message)

    def _prepare(self, entry: Journal, release: int) -> None:
        found = self._read(entry, release)
        if found is None:
            return
        manifest, variant = found
        text = f"TensorRT plans of {entry.bundle} {release} are built for system {self._layout.running}"
        self._say(text)
        self._status.write(self._clock.now(), state="building", building=text)
        self._status.bundle(self._clock.now(), entry, reason=text)
        plans, seconds = self._make(manifest, variant)
        changed = [model for model in manifest.models if self._lacks(model, release, _plans_of(model, plans))]
        for model in changed:
            releases.install_copy(self._layout, model, release, _plans_of(model, plans))
        if changed:
            self._note(entry, release, "built", f"plans for system {self._layout.running} in {seconds:.0f} s")
        if changed and release == entry.serving():
            links.apply(self._layout, self._repository, entry.wanted_links())
            self._load(entry)
        self._status.bundle(self._clock.now(), entry)

    def _read(self, entry: Journal, release: int) -> tuple[Manifest, Variant] | None:
        """Return the manifest and variant of an installed release; None if its variant has no plans to build.

        Raises:
            StoreError: the manifest that this device installed is lost.
        """
        models = entry.models.get(release, ())
        record = releases.find_complete(self._layout, models[0], release) if models else None
        if record is None:
            return None  # the next run of the agent repairs it
        data = files.read(self._layout.manifest(entry.bundle, release)) or b""
        if sha256(data).hexdigest() != record.manifest:
            if not record.built:
                return None
            raise StoreError("its manifest is not on this device, so no plan can be built: publish a newer release")
        manifest = read_manifest(data, entry.bundle, release)
        variant = manifest.find_variant(record.variant)
        return (manifest, variant) if variant is not None and variant.build else None

    def _make(self, manifest: Manifest, variant: Variant) -> tuple[dict[tuple[str, str], Path], float]:
        """Return the plans of a release, and the seconds of the builds. Collect garbage if the disk is full."""
        places = {model: self._layout.release(model, manifest.release) for model in manifest.models}
        try:
            return self._builder.make(manifest, variant, places, self._end - self._clock.monotonic())
        except NoSpace:
            garbage.collect(self._layout, self._repository, self._clock.now())
            return self._builder.make(manifest, variant, places, self._end - self._clock.monotonic())

    def _lacks(self, model: str, release: int, plans: dict[str, Path]) -> bool:
        """Return whether the running system would serve other plans of a model."""
        record = releases.read_record(releases.serving_directory(self._layout, model, release))
        return any(record is None or record.built.get(path) != files.sha256_of(plan) for path, plan in plans.items())

    def _load(self, entry: Journal) -> None:
        """Make the server load the plans. Loading runs the golden tests.

        Raises:
            TrialFailed: a model did not load.
        """
        try:
            switch.load_models(self._server, self._repository, entry)
        except ServerError as error:
            self._say(f"{entry.bundle}: {error.message}; it loads the plans when it starts")

    def _repeat_build(self, entry: Journal) -> None:
        """Let the next run build and test a release again that waits for its hours since the system before."""
        following = entry.next
        if following is not None and following.stage in (UpdateStage.READY, UpdateStage.TESTED):
            models = entry.models.get(following.release, ())
            records = [releases.read_record(self._layout.release(model, following.release)) for model in models]
            if any(record is not None and record.built for record in records):
                journal.write(self._layout, replace(entry, next=replace(following, stage=UpdateStage.INSTALLED)))

    def _remove_old(self, state: SystemState, entries: Sequence[Journal]) -> None:
        """Remove the plans that no system on this device can serve any more."""
        startable = {state.version, state.previous, state.pending, *state.confirmed} - {0}
        for entry in entries:
            for release in entry.releases():
                for model in entry.models.get(release, ()):
                    self._remove_copies(model, release, startable)

    def _remove_copies(self, model: str, release: int, startable: set[int]) -> None:
        directory, used = self._layout.release(model, release), {}
        for system, copy in releases.copies(self._layout, model, release).items():
            if system in startable and releases.is_copy(copy, directory):
                used[system] = copy
            else:
                files.remove_tree(copy)
        if used.keys() == startable:  # each system has plans of its own, so those of the release serve none
            releases.remove_built(self._layout, model, release, used[self._layout.running])

    def _note(self, entry: Journal, release: int, event: str, message: str) -> None:
        """Add an event to the history. A full disk must not stop the other releases."""
        try:
            found = HistoryEvent(self._clock.now(), event, entry.bundle, release, message=message)
            history.append(self._layout, found)
        except OtaError as error:
            self._say(f"the history lacks an event: {error.message}")


def open_plans(settings: AgentSettings, say: Callable[[str], None]) -> SystemPlans:
    """Return the run with the real components of this device."""
    layout = open_layout(settings)
    builds = UnitBuild(settings.build_socket, settings.edge_serve, layout.plans / "made")
    facts = functools.cache(lambda: device_facts(settings.build_socket, settings.edge_serve))
    builder = PlanBuilder(layout, builds, facts)
    return SystemPlans(settings, builder, AdminClient(settings.admin_socket), SystemClock(), say)


def _unconfirmed(state: SystemState) -> bytes:
    """Return the mark of a system that is neither tried nor confirmed: its plans are compared in each run."""
    return f"{state.version} unconfirmed".encode()


def _has_plans(layout: StateLayout) -> bool:
    return any(layout.plans.glob("*.plan"))


def _plans_of(model: str, plans: dict[tuple[str, str], Path]) -> dict[str, Path]:
    return {path: plan for (owner, path), plan in plans.items() if owner == model}
