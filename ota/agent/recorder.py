"""Records the progress of an update: the journal, the status file, the history, and the bad list."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ota.agent import switch
from ota.agent.components import Components
from ota.agent.status_file import StatusFile
from ota.documents.manifest import FileEntry
from ota.errors import NoSpace, NotHeld, OtaError, Postponed, StoreError, TrialFailed, Untrusted, WrongBytes
from ota.store import garbage, journal, pause
from ota.store.history import HistoryEvent
from ota.store.journal import Journal, NextRelease, UpdateStage

#: stages before the switch, in order; a run of the same release continues after the last one reached
_ORDER = (UpdateStage.PLANNED, UpdateStage.INSTALLED, UpdateStage.READY, UpdateStage.TESTED)
#: stages whose repetition costs a download or a trial, so each failure waits longer
_COSTLY = _ORDER[:3]


class UpdateRecorder:
    """Records the progress of one run."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self.status = StatusFile(components.layout)

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._components.clock.now()

    def write_status(self, **members: object) -> None:
        """Write members of the status file."""
        self.status.write(self.now(), **members)

    def write_bundle(self, entry: Journal, reason: str = "") -> None:
        """Write the state of a bundle to the status file."""
        self.status.bundle(self.now(), entry, **({"reason": reason} if reason else {}))

    def record_event(self, event: str, bundle: str, release: int, variant: str = "", message: str = "") -> None:
        """Add an event to the history."""
        switch.record_event(
            self._components, HistoryEvent(self.now(), event, bundle, release, variant, message=message)
        )

    def read_pause(self) -> str:
        """Return why updates are paused, with the way out; "" = they are not. The status file shows the same."""
        found = pause.read(self._components.layout)
        text = f"updates are paused{f' ({found.why})' if found.why else ''}: 'edge-ota resume'" if found else ""
        if text != self.status.document.get("paused"):
            self.write_status(paused=text)
        return text

    def check_pause(self) -> None:
        """Stop an update before its next step if an operator has paused updates during the run.

        Raises:
            Postponed: with the way out.
        """
        if text := self.read_pause():
            raise Postponed(text)

    def write_stage(self, entry: Journal, following: NextRelease | None) -> Journal:
        """Write a journal in which the next release is at another stage."""
        entry = switch.write_stage(self._components, entry, following)
        self.write_bundle(entry)
        return entry

    def has_reached(self, entry: Journal, stage: UpdateStage) -> bool:
        """Return whether an earlier run brought the next release to a stage."""
        following = entry.next
        if following is None:
            return False
        return following.stage not in _ORDER or _ORDER.index(following.stage) >= _ORDER.index(stage)

    def record_stage(self, entry: Journal, stage: UpdateStage, tries: int | None = None) -> Journal:
        """Write that the next release has reached a stage. `tries`: the number that is left from here; None =
        unchanged.
        """
        following = _next(entry)
        return self.write_stage(
            entry, replace(following, stage=stage, tries=following.tries if tries is None else tries, reason="")
        )

    def use_try(self, entry: Journal) -> Journal:
        """Use up one try of a release, before a step that may end this process or the machine.

        Raises:
            TrialFailed: none is left.
        """
        following = _next(entry)
        if following.tries < 1:
            raise TrialFailed(
                f"{entry.bundle} {following.release} was started {self._components.settings.tries} times, "
                "and never finished: 'edge-ota retry' gives it another chance"
            )
        return self.write_stage(entry, replace(following, tries=following.tries - 1))

    @contextlib.contextmanager
    def spend_try(self, entry: Journal) -> Iterator[Journal]:
        """Use up one try of a release for a step, which returns it where the device has no space or no unit for it.

        A step that hangs, or whose process dies, may do so because of the release.

        Raises:
            TrialFailed: none is left.
        """
        entry = self.use_try(entry)
        try:
            yield entry
        except (NoSpace, NotHeld):
            following = _next(entry)
            self.write_stage(entry, replace(following, tries=following.tries + 1))
            raise

    def fetch(self, entry: Journal, release: int, files: Sequence[FileEntry]) -> None:
        """Fetch the files of a release that are missing. Collect garbage first if the disk has no space for them."""
        title, fetcher = f"{entry.bundle} {release}", self._components.fetcher
        try:
            missing = fetcher.missing(files)
        except NoSpace:
            self.collect()
            missing = fetcher.missing(files)
        if missing:
            self._components.tell(f"{title}: fetching {missing} bytes")
        self.write_status(state="downloading")

        def progress(done: int, total: int) -> None:
            self.check_pause()
            self._components.tell.progress(title, done, total)
            self.status.bundle(self.now(), entry, progress={"done_bytes": done, "total_bytes": total})

        fetcher.fetch(files, progress)
        self.status.count("bytes_total", missing)

    def collect(self, wanted: Iterable[tuple[str, int]] = ()) -> None:
        """Collect garbage. An error is shown, not raised: it must not end the run.

        Args:
            wanted: bundle and release of wishes and pins.
        """
        layout, repository = self._components.layout, self._components.settings.model_repository
        try:
            failures = garbage.collect(layout, repository, self.now(), wanted).failures
        except StoreError as error:
            failures = (error.message,)
        if failures:
            more = f" (and {len(failures) - 1} more: 'edge-ota gc')" if failures[1:] else ""
            self.show_leftover(StoreError(f"garbage collection: {failures[0]}{more}"))

    def show_leftover(self, error: StoreError) -> None:
        """Show that files remain which have no use. The run goes on: its updates have outcomes of their own."""
        self._components.tell(error.message)
        self.status.failed(self.now(), "collect", error)

    def record_failure(self, bundle: str, variant: str, error: OtaError) -> None:
        """Undo a release that failed permanently. For another failure, record why the release waits.

        Args:
            variant: what failed; "" = the release in all its variants.
        """
        entry = journal.read(self._components.layout, bundle)
        if entry is None or entry.next is None:
            return
        following = entry.next
        self.status.count(f"{following.stage.value.lower()}/{error.reason}")
        if not error.permanent:
            if following.stage in _COSTLY and not _is_cheap(error):
                switch.record_failure(self._components, bundle, following.release, variant, error)
            if following.stage is not UpdateStage.SWITCHING:
                self.write_stage(entry, replace(following, reason=error.reason))
            return
        was_switched = following.stage in journal.SWITCHED
        self.status.count("rollbacks", int(was_switched))
        why = f"release {following.release} failed here ({error.reason})"
        self.write_bundle(switch.undo(self._components, entry, error, variant), why)


def _is_cheap(error: OtaError) -> bool:
    """Return whether the next run detects an error without a transfer. Such an error may be fixed at any time."""
    return isinstance(error, (NoSpace, Untrusted)) and not isinstance(error, WrongBytes)


def _next(entry: Journal) -> NextRelease:
    assert entry.next is not None, "a release is on its way"
    return entry.next
