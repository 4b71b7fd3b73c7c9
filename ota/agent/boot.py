"""The boot step: runs before edge-serve starts, without a network, and never fails the boot.

Each start uses up one of the tries of a release in probation, but not the starts of a system that is itself tried. When
no try is left, the links go back to the previous release, so that edge-serve's safe mode does not have to leave the
model out. An interrupted switch is undone: the release that was GOOD serves until the agent runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from ota.agent import recovery
from ota.agent.status_file import StatusFile
from ota.agent.system.state import find_state, open_layout
from ota.errors import OtaError
from ota.settings import AgentSettings
from ota.store import bad, history, journal, links
from ota.store.bad import ANY_VARIANT, BadRelease
from ota.store.history import HistoryEvent
from ota.store.journal import Journal, NextRelease, UpdateStage
from ota.store.lock import acquire_lock

#: seconds to wait for another edge-ota, which repairs the links itself
_PATIENCE = 2.0

Say = Callable[[str], None]


class Boot:
    """One boot step."""

    def __init__(self, settings: AgentSettings, now: float, say: Say) -> None:
        self._layout, self._repository = open_layout(settings), settings.model_repository
        self._now, self._say, self._status = now, say, StatusFile(self._layout)
        system = find_state(settings.system_root)
        self._is_tried = system is not None and system.is_tried

    def run(self) -> None:
        """Make all links name releases that may serve. Errors are printed, never raised."""
        with self._said("nothing was checked"):
            if not self._layout.journal.is_dir() and not self._layout.releases.is_dir():
                return  # nothing was ever installed
            self._check_all()

    def _check_all(self) -> None:
        with acquire_lock(self._layout, "boot", _PATIENCE):
            self._status = StatusFile(self._layout)  # the agent may have written the file before it released the lock
            for bundle in journal.bundles(self._layout):
                with self._said(f"{bundle} is left as it is: edge-serve's safe mode decides"):
                    self._status.bundle(self._now, self._check(bundle))

    def _check(self, bundle: str) -> Journal:
        """Repair the journal and links of one bundle, and return its journal."""
        restored = recovery.restore(self._layout, self._repository, bundle)
        entry = restored.entry
        for text in restored.found:
            self._say(text)
            self._note(HistoryEvent(self._now, "healed", bundle, entry.serving(), message=text))
        following = entry.next
        if following is None:
            return entry
        if following.stage is UpdateStage.UNDOING:
            return recovery.end_undo(self._layout, entry)
        if following.stage not in journal.SWITCHED:
            return entry
        if following.tries <= 1 and not self._is_tried:
            return self._roll_back(entry, following)
        return self._use_up(entry, following)

    def _use_up(self, entry: Journal, following: NextRelease) -> Journal:
        left = following.tries - 1
        if self._is_tried:  # this start is one of the system's, and the old system may start the release well
            left = following.tries
        self._say(f"{entry.bundle}: {left} of the starts of release {following.release} are left")
        if following.stage is UpdateStage.PROBATION:
            entry = replace(entry, next=replace(following, tries=left))
            journal.write(self._layout, entry)
            return entry
        self._say(f"{entry.bundle}: the switch to release {following.release} was cut off: undone until the agent runs")
        # another trial would give the tries back to a release that ends the server or the machine when it is loaded
        return self._turn_back(entry, replace(following, stage=UpdateStage.TESTED, tries=left))

    def _roll_back(self, entry: Journal, following: NextRelease) -> Journal:
        text = "edge-serve started again and again while it was new"
        self._say(f"{entry.bundle}: back from release {following.release} to {entry.active or 'none'}: {text}")
        found = BadRelease(
            entry.bundle, following.release, ANY_VARIANT, "", "crash_loop", text, self._now, permanent=True
        )
        with self._said("the bad list lacks it"):
            bad.save(self._layout, bad.load(self._layout).add(found))
        self._note(
            HistoryEvent(self._now, "rolled_back", entry.bundle, following.release, reason="crash_loop", message=text)
        )
        self._status.count("probation/crash_loop")
        self._status.count("rollbacks")
        return self._turn_back(entry, None)

    def _turn_back(self, entry: Journal, following: NextRelease | None) -> Journal:
        """Make the links name the active release. If this is interrupted, UNDOING in the journal lets the next boot
        finish it.
        """
        entry = recovery.begin_undo(self._layout, entry)
        links.apply(self._layout, self._repository, entry.wanted_links())
        entry = replace(entry, next=following)
        journal.write(self._layout, entry)
        return entry

    def _note(self, event: HistoryEvent) -> None:
        with self._said("the history lacks an event"):
            history.append(self._layout, event)

    @contextlib.contextmanager
    def _said(self, what: str) -> Iterator[None]:
        """Print an error instead of raising it."""
        try:
            yield
        except OtaError as error:
            self._say(f"{what}: {error.message}")
        except Exception as error:  # a fault of edge-ota must not stop the boot
            self._say(f"{what}: {type(error).__name__}: {error}")
