"""The rollout document of this device's fleet, never older than a few minutes.

A run may last for hours, and the publisher may deny or halt a release meanwhile. So each step that changes the device
reads the document again, right before it acts.
"""

from __future__ import annotations

from ota.agent import desired
from ota.agent.components import Components
from ota.agent.recorder import UpdateRecorder
from ota.documents.rollout import Rollout
from ota.errors import OtaError

#: after so long the metadata is refreshed again
FRESH_SECONDS = 300.0


class CurrentRollout:
    """The rollout document of one run."""

    def __init__(self, components: Components, recorder: UpdateRecorder) -> None:
        self._components, self._recorder = components, recorder
        self._found: Rollout | OtaError | None = None
        self._until = 0.0

    def read(self) -> Rollout:
        """Return the document. Refresh the metadata first if the last refresh ended more than FRESH_SECONDS ago.

        Raises:
            OtaError: the metadata could not be refreshed. The same error is raised again until the next try.
        """
        if self._found is None or self._components.clock.monotonic() >= self._until:
            try:
                self._found = self._refresh()
            except OtaError as error:
                self._found = error
            self._until = self._components.clock.monotonic() + FRESH_SECONDS
        if isinstance(self._found, OtaError):
            raise self._found
        return self._found

    def _refresh(self) -> Rollout:
        """Fetch and verify the metadata, and record that in the status file."""
        self._recorder.write_status(state="checking", last_check=self._recorder.now())
        try:
            self._components.trust.refresh()
            rollout = desired.wanted(self._components)
        except OtaError as error:
            self._recorder.status.failed(self._recorder.now(), "refresh", error)
            raise
        trust = self._components.trust
        # a later refresh leaves the errors of this run
        fresh: dict[str, object] = {"error": None} if self._found is None else {}
        self._recorder.write_status(
            last_success=self._recorder.now(),
            metadata_expires=trust.expires(),
            clock_unset=trust.clock_unset(),
            **fresh,
        )
        return rollout
