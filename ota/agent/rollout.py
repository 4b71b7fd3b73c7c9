"""The rollout document of this device's fleet, never older than a few minutes.

A run may last for hours, and the publisher may deny or halt a release meanwhile. So each step that changes the device
reads the document again, right before it acts.
"""

from __future__ import annotations

from ota.agent import desired
from ota.agent.components import Components
from ota.agent.recorder import UpdateRecorder
from ota.documents.rollout import Rollout
from ota.errors import NoSpace, OtaError, Postponed

#: after so long the metadata is refreshed again
FRESH_SECONDS = 300.0
#: a refresh that failed is repeated after so many times its duration, if that is longer, and at the latest after so
#: many seconds: a silent mirror takes minutes, in which no probation is judged
_FAILED_DURATIONS, _LONGEST_WAIT = 30.0, 1800.0


class CurrentRollout:
    """The rollout document of one run."""

    def __init__(self, components: Components, recorder: UpdateRecorder) -> None:
        self._components, self._recorder = components, recorder
        self._found: Rollout | OtaError | None = None
        self._until = 0.0
        #: the last error in the status file if a refresh may replace it: one of an earlier run, or of a refresh
        self._old_error = recorder.status.document.get("error")

    def read(self) -> Rollout:
        """Return the document. Refresh the metadata first if the last refresh ended more than FRESH_SECONDS ago, or, if
        it failed slowly, longer ago.

        Raises:
            OtaError: the metadata could not be refreshed. The same error is raised again until the next try.
        """
        began = self._components.clock.monotonic()
        if self._found is None or began >= self._until:
            wait = FRESH_SECONDS
            try:
                self._found = self._refresh_with_room()
            except OtaError as error:
                self._found = error
                took = self._components.clock.monotonic() - began
                wait = max(wait, min(_FAILED_DURATIONS * took, _LONGEST_WAIT))
            self._until = self._components.clock.monotonic() + wait
        if isinstance(self._found, OtaError):
            raise self._found
        return self._found

    def read_before_switch(self, release: int) -> Rollout:
        """Return the document right before a switch to a release, or to a version of the system.

        Raises:
            Postponed: the metadata could not be refreshed.
        """
        try:
            return self.read()
        except OtaError as error:
            raise Postponed(f"{release} is ready, and waits for fresh metadata: {error.message}") from error

    def _refresh_with_room(self) -> Rollout:
        """Refresh the document. Collect garbage and refresh again if the disk is too full for fresh metadata."""
        try:
            return self.refresh()
        except NoSpace:
            self._recorder.collect()
            return self.refresh()

    def refresh(self) -> Rollout:
        """Fetch and verify the metadata, and record that in the status file. Return the document.

        Raises:
            OtaError: the metadata could not be refreshed.
        """
        self._recorder.write_status(state="checking", last_check=self._recorder.now())
        try:
            self._components.trust.refresh()
            rollout = desired.wanted(self._components)
        except OtaError as error:
            self._record_failure(error)
            raise
        trust = self._components.trust
        fresh: dict[str, object] = {}
        if self._may_replace_error():
            fresh["error"] = self._old_error = None
        self._recorder.write_status(
            last_success=self._recorder.now(),
            metadata_expires=trust.expires(),
            clock_unset=trust.clock_unset(),
            **fresh,
        )
        return rollout

    def _may_replace_error(self) -> bool:
        """Return whether no other step of this run has failed since."""
        return self._recorder.status.document.get("error") is self._old_error

    def _record_failure(self, error: OtaError) -> None:
        status = self._recorder.status
        if self._may_replace_error():
            status.failed(self._recorder.now(), "refresh", error)
            self._old_error = status.document["error"]
        else:
            status.count(f"refresh/{error.reason}")
