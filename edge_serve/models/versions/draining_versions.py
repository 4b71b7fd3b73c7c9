"""Tracks replaced versions with open sequences, and routes each sequence to the version that started it."""

from __future__ import annotations

from edge_serve.messages.infer import SEQUENCE_START
from edge_serve.models.versions.served import Served


class DrainingVersions:
    """Replaced versions whose open sequences may continue. False if there are none."""

    def __init__(self) -> None:
        self._versions: dict[str, list[Served]] = {}

    def __bool__(self) -> bool:
        return bool(self._versions)

    def add(self, served: Served) -> bool:
        """Add a version if it has open sequences. Return whether it has."""
        if not served.runner.open_sequences():
            return False
        known = self._versions.setdefault(served.identity, [])
        if served not in known:
            known.append(served)
        return True

    def remove(self, served: Served) -> None:
        """Remove a version; requests are no longer routed to it."""
        known = self._versions.get(served.identity, [])
        if served in known:
            known.remove(served)
        if not known:
            self._versions.pop(served.identity, None)

    def remove_all(self, name: str) -> None:
        """Remove all versions of a model that is unloaded. They drain without waiting for their open sequences."""
        for served in self._versions.pop(name, ()):
            served.runner.ignore_sequences()

    def of_version(self, name: str, version: str) -> Served | None:
        """Return the version of this number that was added last."""
        return next((one for one in reversed(self._versions.get(name, ())) if one.version == version), None)

    def find(self, name: str, version: str, correlation_id: int | str, flags: int, now: Served) -> Served | None:
        """Return the version that a request of a sequence belongs to, if it is not `now`, which starts new sequences.

        A START belongs to `now`, and ends an older sequence with its id.
        """
        draining = [one for one in self._versions.get(name, ()) if not version or one.version == version]
        if flags & SEQUENCE_START:
            for one in draining:
                if one is not now:
                    one.runner.end_sequence(correlation_id)
            return None
        if now.runner.has_sequence(correlation_id):
            return None
        others = (one for one in reversed(draining) if one is not now)
        return next((one for one in others if one.runner.has_sequence(correlation_id)), None)
