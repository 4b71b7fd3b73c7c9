"""One update, step by step: refresh, decide, fetch, install, build, test, switch, watch. OTA.md 4.5.

Each step is durable before the next one begins, and safe to repeat: the next run continues where a run was interrupted.
The steps before the switch may last for hours, so the switch is decided again, by the rollout and the hours of that
moment. A release that fails is undone and added to the bad list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from ota.agent import checks, desired, recovery, switch
from ota.agent.components import Components
from ota.agent.recorder import UpdateRecorder
from ota.agent.rollout import CurrentRollout
from ota.agent.system.update import SystemUpdate
from ota.decide.probation import ProbationVerdict
from ota.decide.rollout import ReleaseChoice, reason_not_to_switch
from ota.documents.manifest import Manifest, Variant
from ota.documents.names import SYSTEM
from ota.documents.rollout import BundleRollout, Rollout
from ota.errors import OtaError, Postponed, ServerError, TrialFailed, Untrusted
from ota.store import directories, journal, releases
from ota.store.bad import ANY_VARIANT
from ota.store.journal import Journal, NextRelease, UpdateStage
from ota.store.lock import acquire_lock

#: a run stops watching a probation after so many times PROBATION_SECONDS; the next run continues
_LONGEST_WATCH = 10.0


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """The differences between an operator's run and a run of the timer.

    Attributes:
        by_hand: an operator asked: waits after transient failures, metered links, and download hours do not count.
        now: the switching hours do not count either.
        only: bundles, or SYSTEM; () = all.
    """

    by_hand: bool = True
    now: bool = False
    only: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class BundleOutcome:
    """The result of a run for one bundle: the release that serves, the reason for waiting, or the error."""

    bundle: str
    release: int
    waiting_for: str = ""
    error: OtaError | None = None


class Update:
    """One run of the agent. Lives for one command."""

    def __init__(self, components: Components, options: UpdateOptions = UpdateOptions()) -> None:
        self._components, self._options = components, options
        self._layout, self._repository = components.layout, components.settings.model_repository
        self._recorder = UpdateRecorder(components)
        self._rollout = CurrentRollout(components, self._recorder)
        self._system = SystemUpdate(
            components, self._recorder, self._rollout, now=options.now, patient=not options.by_hand
        )

    def run(self, command: str = "apply") -> list[BundleOutcome]:
        """Update all bundles to the releases that this device should run, and then its system.

        Raises:
            OtaError: before any bundle: busy, disk, repository, trust, a wrong name. An error of one bundle is in its
                outcome.
        """
        with acquire_lock(self._layout, command):
            directories.prepare(self._layout)
            recovery.tidy(self._layout)
            self._system.note_results()
            try:
                outcomes: dict[str, BundleOutcome] = {}
                for step in (self.repair, self.check_probation, self.undo_denied, self.finish):
                    for bundle in journal.bundles(self._layout):
                        self._run_step(outcomes, bundle, step)
                if self._is_paused():
                    return list(outcomes.values())
                rollout = self._rollout.read()
                desired.check_bundles(rollout, (one for one in self._options.only if one != SYSTEM))
                for bundle in sorted(rollout.models):
                    if not self._options.only or bundle in self._options.only:
                        self._run_step(outcomes, bundle, self.update)
                outcomes |= {one.bundle: one for one in self._system_outcomes(rollout)}
                self._collect(rollout)
            finally:
                self._recorder.write_status(state="idle")
            return list(outcomes.values())

    def repair(self, bundle: str) -> BundleOutcome:
        """Repair the journal and the links of a bundle, and finish a way back that an earlier run left open."""
        restored = recovery.restore(self._layout, self._repository, bundle)
        entry = restored.entry
        for text in restored.found:
            self._recorder.record_event("healed", bundle, entry.serving(), message=text)
            self._components.tell(text)
        stage = entry.next.stage if entry.next else None
        if stage is UpdateStage.UNDOING:
            entry = switch.go_back(self._components, entry)
        elif restored.changed and stage is not UpdateStage.SWITCHING:
            switch.load(self._components, entry)
        return self._wait(entry, "")

    def check_probation(self, bundle: str) -> BundleOutcome:
        """Go back from a release that has failed its probation. First, because a silent network holds up the run."""
        entry = self._entry(bundle)
        if entry.next is not None and entry.next.stage is UpdateStage.PROBATION:
            self._judge(entry)
        return BundleOutcome(bundle, entry.serving())

    def undo_denied(self, bundle: str) -> BundleOutcome:
        """Go back from a release in a switch or a probation if the rollout denies it."""
        entry = self._entry(bundle)
        if entry.next is None or not self._is_denied(entry):
            return BundleOutcome(bundle, entry.serving())
        why = f"release {entry.next.release} is denied"
        return self._wait(switch.undo_denied(self._components, entry), why)

    def finish(self, bundle: str) -> BundleOutcome:
        """Finish a switch or a probation that an earlier run left open."""
        outcome, entry = self.undo_denied(bundle), self._entry(bundle)  # again: other bundles were watched meanwhile
        if entry.next is not None and entry.next.stage is UpdateStage.SWITCHING:
            entry = self._switch_again(entry, entry.next)
        if entry.next is not None and entry.next.stage is UpdateStage.PROBATION:
            return self._watch(entry)
        return outcome

    def update(self, bundle: str) -> BundleOutcome:
        """Update one bundle to the release that this device should run."""
        self._recorder.check_pause()
        rollout = self._rollout.read()
        wish, entry = desired.wish(rollout, bundle), self._entry(bundle)
        if entry.next is not None and entry.next.stage in journal.UNFINISHED:
            return self._wait(entry, f"{entry.next.release} is in {entry.next.stage.value}; it ends first")
        if entry.active in wish.deny:
            entry = self._go_back_from_denied(wish, entry)
        choice = desired.choose(self._components, rollout, bundle, entry)
        if choice.release == entry.active and journal.has_complete(self._layout, entry, entry.active):
            return self._nothing(entry, choice)
        if choice.release == 0:
            return self._withdraw(entry, choice.why)
        try:
            return self._replace(wish, entry, choice)
        except OtaError as error:
            if entry.active in wish.deny and (error.permanent or isinstance(error, Untrusted)):
                self._withdraw(self._entry(bundle), choice.why)
            raise

    def _replace(self, wish: BundleRollout, entry: Journal, choice: ReleaseChoice) -> BundleOutcome:
        """Replace the active release by the one that was chosen."""
        manifest, sha256 = desired.manifest(self._components, wish, choice.release)
        checks.check_names(self._components, manifest, entry)
        variant = desired.variant(self._components, manifest, patient=not self._options.by_hand)
        entry = self._planned(entry, manifest, variant)
        try:
            self._fetch(entry, manifest, variant, sha256)
            checks.check_code(self._components, manifest, variant)
            entry = self._install(entry, manifest, variant, sha256)
            self._recorder.check_pause()
            entry = self._build(entry, manifest, variant)
            beside = self._components.device.fits_beside(variant.memory_bytes)
            entry = self._try(entry, manifest) if beside else entry
            self._check_switch(entry, manifest.release)
            entry = self._switch(entry, beside=beside)
        except Postponed:
            raise
        except OtaError as error:
            self._recorder.record_failure(wish.bundle, variant.id, error)
            raise
        return self._watch(entry)

    def _check_switch(self, entry: Journal, release: int) -> None:
        """Decide again, right before the switch: the steps before it may have lasted for hours.

        Raises:
            Postponed: updates are paused, it is outside of the hours, the rollout wants another release, or the
                metadata could not be refreshed.
        """
        rollout = self._rollout.read_before_switch(release)
        self._recorder.check_pause()
        choice = desired.choose(self._components, rollout, entry.bundle, entry)
        if why := reason_not_to_switch(choice, release, ignore_hours=self._options.now):
            raise Postponed(why)

    # ---- the steps --------------------------------------------------------------------------------------------------

    def _is_paused(self) -> bool:
        text = self._recorder.read_pause()
        if text:
            self._components.tell(text)
        return bool(text)

    def _is_denied(self, entry: Journal) -> bool:
        """Return whether the rollout denies the release that is switched to or in probation.

        Without a network it counts as not denied: a device must be able to finish what it has begun.
        """
        if entry.next is None or entry.next.stage not in journal.SWITCHED:
            return False
        try:
            return entry.next.release in desired.wish(self._rollout.read(), entry.bundle).deny
        except OtaError:
            return False

    def look(self) -> Rollout:
        """Refresh the metadata for a command that changes nothing else, and so collects no garbage either."""
        try:
            return self._rollout.refresh()
        finally:
            self._recorder.write_status(state="idle")

    def _planned(self, entry: Journal, manifest: Manifest, variant: Variant) -> Journal:
        """Continue with the same release and variant, or start with another one."""
        following = entry.next
        if following is None or (following.release, following.variant) != (manifest.release, variant.id):
            following = NextRelease(
                manifest.release, variant.id, UpdateStage.PLANNED, self._components.settings.tries, 0.0
            )
        models = {**entry.models, manifest.release: tuple(sorted(manifest.models))}
        entry = replace(entry, models=models)
        return self._recorder.write_stage(entry, replace(following, reason=""))

    def _fetch(self, entry: Journal, manifest: Manifest, variant: Variant, sha256: str) -> None:
        if self._recorder.has_reached(entry, UpdateStage.INSTALLED) and releases.is_installed(
            self._layout, manifest, sha256
        ):
            return
        self._recorder.fetch(entry, manifest.release, desired.files(manifest, variant))

    def _install(self, entry: Journal, manifest: Manifest, variant: Variant, sha256: str) -> Journal:
        changed = releases.install(self._layout, manifest, variant, sha256)
        if self._recorder.has_reached(entry, UpdateStage.INSTALLED) and not changed:
            return entry
        self._recorder.record_event("installed", manifest.bundle, manifest.release, variant.id)
        return self._recorder.record_stage(entry, UpdateStage.INSTALLED)

    def _build(self, entry: Journal, manifest: Manifest, variant: Variant) -> Journal:
        if self._recorder.has_reached(entry, UpdateStage.READY):
            return entry
        if variant.build:
            self._recorder.write_status(state="building")
            directories = {model: self._layout.release(model, manifest.release) for model in manifest.models}
            with self._recorder.spend_try(entry) as entry:
                seconds = self._components.builder.build(manifest, variant, directories)
            if seconds:
                self._recorder.status.set_total("engine_build_seconds", seconds)
        return self._recorder.record_stage(entry, UpdateStage.READY, tries=self._components.settings.tries)

    def _try(self, entry: Journal, manifest: Manifest) -> Journal:
        """Load the release outside the server, and run its golden tests."""
        if self._recorder.has_reached(entry, UpdateStage.TESTED):
            return entry
        self._recorder.write_status(state="testing")
        self._components.tell(f"{manifest.bundle} {manifest.release}: testing")
        with (
            self._recorder.spend_try(entry) as entry,
            checks.trial_repository(self._layout, manifest) as repository,
        ):
            models = sorted(manifest.models)
            self._components.trial.run(repository, models, self._components.settings.trial_timeout)
        assert entry.next is not None
        self._recorder.record_event("tested", manifest.bundle, manifest.release, entry.next.variant)
        return self._recorder.record_stage(entry, UpdateStage.TESTED, tries=self._components.settings.tries)

    def _switch(self, entry: Journal, *, beside: bool) -> Journal:
        self._check_server()
        self._recorder.write_status(state="switching")
        assert entry.next is not None
        self._components.tell(f"{entry.bundle}: switching from {entry.active or 'nothing'} to {entry.next.release}")
        baseline = self._components.probation.baseline(entry.models.get(entry.active, ())) if entry.active else {}
        return switch.switch(self._components, replace(entry, baseline=baseline), entry.next, unload_first=not beside)

    def _switch_again(self, entry: Journal, following: NextRelease) -> Journal:
        """Finish an interrupted switch."""
        self._check_server()  # first: a server that is stopped is no fault of the release
        variant = desired.planned_variant(self._layout, entry)
        beside = variant is None or self._components.device.fits_beside(variant.memory_bytes)
        try:
            entry = self._recorder.use_try(entry)
            assert entry.next is not None
            return switch.switch(self._components, entry, entry.next, unload_first=not beside)
        except TrialFailed as error:
            self._recorder.record_failure(entry.bundle, following.variant, error)
            raise

    def _check_server(self) -> None:
        if not self._components.server.is_there():
            raise ServerError(
                "edge-serve does not answer or is starting, so nothing was switched: start it "
                "(systemctl start edge-serve), then run 'edge-ota apply'"
            )

    def _watch(self, entry: Journal) -> BundleOutcome:
        """Watch the serving release until it is GOOD, or roll back if it fails or is denied."""
        self._recorder.write_bundle(entry)
        clock = self._components.clock
        until = clock.monotonic() + _LONGEST_WATCH * self._components.settings.probation_seconds
        while True:
            verdict, why = self._judge(entry)  # first: a refresh may last for minutes
            if self._is_denied(entry):
                return self.undo_denied(entry.bundle)
            if self._recorder.status.document.get("state") != "probation":  # at first, and after a refresh
                self._recorder.write_status(state="probation")
            if verdict is ProbationVerdict.GOOD:
                entry = switch.accept(self._components, entry)
                self._components.tell(f"{entry.bundle}: release {entry.active} is good")
                self._recorder.write_bundle(entry)
                return BundleOutcome(entry.bundle, entry.active)
            if clock.monotonic() > until:
                return self._wait(entry, f"probation: {why}")
            clock.sleep(self._components.probation.interval())

    def _judge(self, entry: Journal) -> tuple[ProbationVerdict, str]:
        """Judge a probation. Return the verdict and its reason. Roll back if the release has failed.

        Raises:
            TrialFailed: it has.
        """
        verdict, why = self._components.probation.judge(entry, self._components.clock.monotonic())
        if verdict is ProbationVerdict.BAD:
            error = TrialFailed(f"{entry.bundle} {entry.serving()} failed its probation: {why}")
            self._recorder.record_failure(entry.bundle, ANY_VARIANT, error)
            raise error
        return verdict, why

    def _go_back_from_denied(self, wish: BundleRollout, entry: Journal) -> Journal:
        """Go back from a denied release to the one before, if that may run, before a replacement is fetched."""
        older, failed = entry.previous, journal.releases_failed_as_installed(self._layout, entry.bundle)
        if older in (0, *wish.deny, *failed) or not journal.has_complete(self._layout, entry, older):
            return entry
        try:
            desired.manifest(self._components, wish, older)  # it may be below the floor by now
        except OtaError as error:
            self._components.tell(f"{entry.bundle} {older} is no replacement for {entry.active}: {error.message}")
            return entry
        entry = switch.go_back_to(self._components, entry, older, f"release {entry.active} is denied")
        self._recorder.write_bundle(entry)
        return entry

    # ---- the results of a run ---------------------------------------------------------------------------------------

    def _nothing(self, entry: Journal, choice: ReleaseChoice) -> BundleOutcome:
        if entry.next is not None and entry.next.stage not in journal.UNFINISHED:
            entry = switch.write_stage(self._components, entry, None)  # the rollout went back before the switch
        return self._wait(entry, "" if entry.active else choice.why)

    def _withdraw(self, entry: Journal, why: str) -> BundleOutcome:
        """Remove the links of a bundle that this device may no longer serve."""
        if entry.active:
            entry = switch.go_back_to(self._components, entry, 0, why)
        return self._wait(entry, why)

    def _wait(self, entry: Journal, why: str) -> BundleOutcome:
        self._recorder.write_bundle(entry, why)
        return BundleOutcome(entry.bundle, entry.serving(), why)

    def _run_step(self, outcomes: dict[str, BundleOutcome], bundle: str, step: Callable[[str], BundleOutcome]) -> None:
        """Run one step of a bundle, unless a step before has failed. Put its outcome into `outcomes`."""
        if bundle not in outcomes or outcomes[bundle].error is None:
            outcomes[bundle] = self._guarded(bundle, step)

    def _guarded(self, bundle: str, step: Callable[[str], BundleOutcome]) -> BundleOutcome:
        """Run one step of a bundle. Turn its error into an outcome, so that the other bundles continue."""
        try:
            self._system.check_models_may_change()
            return step(bundle)
        except Postponed as wait:
            return self._wait(self._entry(bundle), wait.message)
        except OtaError as error:
            self._recorder.status.failed(self._recorder.now(), "apply", error)
            return BundleOutcome(bundle, self._entry(bundle).serving(), error=error)

    def _entry(self, bundle: str) -> Journal:
        return journal.read(self._layout, bundle) or Journal(bundle)

    def _system_outcomes(self, rollout: Rollout) -> Iterator[BundleOutcome]:
        """Update the system if the rollout names a version, or did when an update began, and this device is of the
        image or an operator asks.
        """
        asked, before = SYSTEM in self._options.only, self._system.journal()
        if not (asked or (before is not None and not self._options.only)):
            return
        if rollout.system is None and not self._system.is_begun():
            self._system.write_status()
            return
        version = before.serving() if before else 0
        try:
            version, waiting_for = self._system.run()
            self._system.write_status(waiting_for)
            yield BundleOutcome(SYSTEM, version, waiting_for)
        except Postponed as wait:
            self._system.write_status(wait.message)
            yield BundleOutcome(SYSTEM, version, wait.message)
        except OtaError as error:
            self._system.record_failure(error)
            yield BundleOutcome(SYSTEM, version, error=error)

    def _collect(self, rollout: Rollout) -> None:
        """Collect garbage, except for what the rollout names."""
        own = self._components.device.name if rollout.models else ""
        wishes = rollout.models.values()
        self._recorder.collect([(one.bundle, release) for one in wishes for release in (one.want, one.pin.get(own, 0))])
