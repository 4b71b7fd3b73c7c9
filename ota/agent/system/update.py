"""The update of the system in one run: decide, fetch, stage, and ask the root side to install it.

The state is in the files of the image and in the staged directory, so each run decides anew, and a run that was
interrupted needs no repair. The root side verifies everything again, writes the free slot, and restarts the machine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ota.agent import desired
from ota.agent.components import Components
from ota.agent.recorder import UpdateRecorder
from ota.agent.rollout import CurrentRollout
from ota.agent.system.state import as_journal, find_state, is_begun, read_state
from ota.decide import system as decide
from ota.decide.rollout import ReleaseChoice, reason_not_to_switch
from ota.decide.system import SystemState
from ota.decide.window import in_window
from ota.documents.names import SYSTEM, system_target
from ota.documents.rollout import BundleRollout, Rollout
from ota.documents.system import MOST_BYTES, SystemDocument, read_system
from ota.errors import OtaError, Postponed, ServerError, StoreError, TrialFailed, Unsuitable, Untrusted, WrongBytes
from ota.fetch.limits import check_hours
from ota.server.system_unit import SystemUnit
from ota.store import bad, history, journal, system_stage
from ota.store.bad import ANY_VARIANT, BadRelease
from ota.store.journal import Journal


class SystemUpdate:
    """The part of a run that updates the system.

    Args:
        now: an operator asked: the hours of the rollout and of SYSTEM_WINDOW do not count.
        patient: wait after the root side has refused a version.
    """

    def __init__(
        self, components: Components, recorder: UpdateRecorder, rollout: CurrentRollout, *, now: bool, patient: bool
    ) -> None:
        self._components, self._recorder, self._rollout = components, recorder, rollout
        self._now, self._patient = now, patient
        self._layout, self._root = components.layout, components.settings.system_root
        self._unit = SystemUnit(self._root)

    def check_models_may_change(self) -> None:
        """Refuse to update models while a system is tried or waits for its restart.

        Raises:
            Postponed: with the reason.
        """
        state = find_state(self._root)
        if state is not None and (why := decide.reason_models_wait(state)):
            raise Postponed(why)

    def note_results(self) -> None:
        """Record the results of earlier updates: a version that was confirmed, and versions that failed.

        An error of the disk is recorded, not raised, and the next run tries again: this one may free the disk.
        """
        state = find_state(self._root)
        if state is None:
            return
        try:
            self._note_results(state)
        except StoreError as error:
            self._components.tell(error.message)
            self.record_failure(error)

    def _note_results(self, state: SystemState) -> None:
        known = bad.load(self._layout)
        for version in sorted(set(state.bad) - known.releases(SYSTEM)):
            error = TrialFailed(state.bad[version])
            self._remember(version, error)
            self._recorder.record_event("rolled_back", SYSTEM, version, message=error.message)
            self._recorder.status.count(f"{SYSTEM}/{error.reason}")
        if state.version in state.confirmed and _last_good(history.read(self._layout)) != state.version:
            bad.save(self._layout, bad.load(self._layout).without(SYSTEM, state.version))
            self._recorder.record_event("good", SYSTEM, state.version)

    def is_begun(self) -> bool:
        """Return whether `run` has something to end if no rollout names a version."""
        state = find_state(self._root)
        return state is not None and is_begun(state, self._layout)

    def run(self) -> tuple[int, str]:
        """Update the system to the version that this device should run. Return the running version, and what waits.

        Raises:
            Unsuitable: this device is not of the image, or the version is not for it.
            Postponed: it waits. OtaError: it failed.
        """
        self._recorder.check_pause()
        state, rollout = read_state(self._root), self._rollout.read()
        choice = self._choose(state, rollout)
        if decide.version_to_cancel(state, choice.release):
            state = self._cancel(state, choice.why)
        if choice.release in (0, state.version):
            self._discard_staged()
            return state.version, decide.reason_models_wait(state) if choice.release else choice.why
        wish = desired.wish(rollout, SYSTEM)
        self._refuse_while_busy(state)
        if decide.is_way_back(state, choice.release, wish.deny):
            return state.version, self._roll_back(choice)
        if why := decide.reason_not_to_run(state, choice.release, wish.deny):
            self._discard_staged()  # those of a version that failed, or that is no longer wanted
            raise Postponed(why)
        self._refuse_after_failure(choice.release)
        self._unit.check()
        document = self._fetch(wish, state, choice.release)
        # decided again: the download may have lasted for hours
        again = self._choose(state, self._rollout.read_before_switch(choice.release))
        if why := reason_not_to_switch(again, choice.release, ignore_hours=self._now):
            raise Postponed(why)
        self._recorder.check_pause()
        return state.version, self._install(document)

    def journal(self) -> Journal | None:
        """Return the state in the form of a journal, for status; None = not of the image."""
        state = find_state(self._root)
        return as_journal(state, self._layout) if state else None

    def _choose(self, state: SystemState, rollout: Rollout) -> ReleaseChoice:
        """Return the version that this device should run by a rollout and the hours of this moment."""
        if rollout.system is None:
            return ReleaseChoice(0, may_switch=False, why=desired.reason_not_named(SYSTEM))
        choice = desired.choose(self._components, rollout, SYSTEM, Journal(SYSTEM, active=state.version))
        own = check_hours(self._components.settings.system_window, "SYSTEM_WINDOW")
        wish = rollout.system
        if wish.window or state.version in wish.deny:  # a denied version is left at once, as `choose` does
            return choice
        if not in_window(own, self._components.clock.now()):
            return ReleaseChoice(choice.release, False, f"{choice.why}; the system is updated at {own} local time")
        return choice

    def _discard_staged(self) -> None:
        """Remove what is staged. Files that cannot be removed must not hide why no version is installed."""
        try:
            system_stage.keep_only(self._layout, 0)
        except StoreError as error:
            self._recorder.show_leftover(error)

    def _refuse_while_busy(self, state: SystemState) -> None:
        """Wait for the verdict about the running system, and for switched models.

        A pending system waits for neither: its installation was cut off, or its restart failed, and the request is
        repeated. Models wait for it, so that none of them could end anything first.
        """
        if state.is_tried:
            raise Postponed(decide.reason_models_wait(state).partition(";")[0])
        if decide.reason_models_wait(state):
            return
        for entry in journal.read_all(self._layout):
            if entry.next is not None and entry.next.stage in journal.UNFINISHED:
                raise Postponed(f"{entry.bundle} {entry.next.release} is in {entry.next.stage.value}; it ends first")

    def _refuse_after_failure(self, version: int) -> None:
        """Wait after wrong bytes, and after a refusal by the root side, which reads all files each time."""
        found = bad.load(self._layout).find(SYSTEM, version, ANY_VARIANT, "", self._recorder.now())
        if found is not None and self._patient:
            until = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.until))
            raise Postponed(f"system {version} was not installed: {found.message}; not tried again before {until}")

    def _fetch(self, wish: BundleRollout, state: SystemState, version: int) -> SystemDocument:
        """Stage a version: its document first, which keeps its files from garbage collection."""
        document, data = self._document(wish, state, version)
        system_stage.begin(self._layout, document, data)
        if system_stage.is_assembled(self._layout, document):
            return document
        try:
            self._recorder.fetch(as_journal(state, self._layout), version, list(document.files.values()))
        except WrongBytes as error:
            self._remember(version, error)
            raise
        system_stage.assemble(self._layout, document)
        self._recorder.record_event("installed", SYSTEM, version, message="staged")
        return document

    def _document(self, wish: BundleRollout, state: SystemState, version: int) -> tuple[SystemDocument, bytes]:
        """Return the verified document of a version for this device."""
        if wish.family != state.product:
            raise Unsuitable(f"the rollout is of the product {wish.family}, and this device has {state.product}")
        target = system_target(state.product, state.profile, state.arch, version)
        if self._components.trust.target(target) is None:
            raise Unsuitable(
                f"{state.product} {version} is not published for this device ({state.profile}, {state.arch}): "
                "publish that image with 'edge-ota publish system'"
            )
        data = self._components.trust.document(target, MOST_BYTES)
        document = read_system(data, target)
        if why := decide.reason_not_to_fit(state, document):
            raise Unsuitable(why)
        return document, data

    def _install(self, document: SystemDocument) -> str:
        """Hand a version to the root side. The machine restarts, and may end this process, right after the answer."""
        version = document.version
        self._recorder.write_status(state="switching")
        self._recorder.record_event("switching", SYSTEM, version)
        self._components.tell(f"{SYSTEM}: installing {version}; the device restarts after that")
        try:
            self._unit.install(version)
        except ServerError as error:
            self._recorder.record_event("refused", SYSTEM, version, message=error.message)
            self._remember(version, error)
            if damaged := system_stage.discard_damaged(self._layout, document):
                raise Untrusted(
                    f"{', '.join(damaged)}: damaged on this disk, and removed; the next run fetches it again"
                ) from error
            raise
        return f"{version} is installed, and the device restarts into it"

    def _cancel(self, state: SystemState, why: str) -> SystemState:
        """Take back a version that waits for its restart, which any restart would start. Return the state after it."""
        self._unit.cancel()
        self._components.tell(f"{SYSTEM}: {state.pending} is taken back: {why}")
        self._recorder.record_event("withdrawn", SYSTEM, state.pending, message=why)
        return read_state(self._root)

    def _remember(self, version: int, error: OtaError) -> None:
        """Put a version on the bad list: for good, or for a time."""
        now, permanent = self._recorder.now(), error.permanent
        entry = BadRelease(SYSTEM, version, ANY_VARIANT, "", error.reason, error.message, now, permanent)
        bad.save(self._layout, bad.load(self._layout).add(entry))

    def _roll_back(self, choice: ReleaseChoice) -> str:
        """Go back to the other good version, because the rollout denies the running one."""
        if not choice.may_switch and not self._now:
            return choice.why
        self._components.tell(f"{SYSTEM}: going back to {choice.release}: {choice.why}")
        self._recorder.record_event("switching", SYSTEM, choice.release, message=choice.why)
        self._unit.roll_back()
        return f"the device restarts into {choice.release} ({choice.why})"

    def write_status(self, reason: str = "") -> None:
        """Write the state of the system to the status file, as that of a bundle."""
        if (entry := self.journal()) is not None:
            self._recorder.write_bundle(entry, reason)

    def record_failure(self, error: OtaError) -> None:
        """Count a failure, and show it."""
        self._recorder.status.failed(self._recorder.now(), SYSTEM, error)
        self.write_status(error.message)


def _last_good(events: list[Mapping[str, Any]]) -> int:
    """Return the version of the system that was confirmed last; 0 = none, or the history no longer has it."""
    found = [one for one in events if (one.get("event"), one.get("bundle")) == ("good", SYSTEM)]
    return int(found[-1].get("release", 0)) if found else 0
