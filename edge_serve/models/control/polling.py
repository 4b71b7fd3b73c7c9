"""Compares scans of the model repositories: which models to load, which to unload, and when to scan again.

A change counts once it has stayed the same for a while, so that a half-copied model is not loaded. A complete directory
that was renamed into place counts at once, and so does a removal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from edge_serve.models.repository.repository import Snapshot


@dataclass(frozen=True, slots=True)
class Changes:
    """The decision after a scan.

    Attributes:
        again: when to scan again for a change that is too recent to count, seconds; None = there is none.
    """

    load: tuple[str, ...] = ()
    unload: tuple[str, ...] = ()
    again: float | None = None


class Watch:
    """Compares each scan with the state in which each model was last loaded.

    Args:
        began: the repositories' models when the server starts to load them.
    """

    def __init__(self, began: Mapping[str, Snapshot]) -> None:
        #: model -> its snapshot at the last load or attempt
        self._acted = dict(began)
        #: model -> its snapshot at the last scan, and since when it is the same
        self._changing: dict[str, tuple[Snapshot, float]] = {}

    def look(
        self, found: Mapping[str, Snapshot], now: float, settle: float, unreadable: Collection[str] = ()
    ) -> Changes:
        """Compare a scan (`found`, taken at `now`). Changes count once they are `settle` seconds old.

        Models that are `unreadable` now stay as they are.
        """
        load = []
        self._changing = {
            name: self._seen(name, model, now) for name, model in found.items() if model != self._acted.get(name)
        }
        for name, (model, since) in list(self._changing.items()):
            if now - since >= settle or came_at_once(self._acted.get(name), model):
                del self._changing[name]
                self._acted[name] = model
                load.append(name)
        unload = [name for name in self._acted if name not in found and name not in unreadable]
        for name in unload:
            del self._acted[name]
        again = min((since for _, since in self._changing.values()), default=None)
        return Changes(tuple(sorted(load)), tuple(sorted(unload)), None if again is None else again + settle)

    def take(self, found: Mapping[str, Snapshot], names: Collection[str]) -> Changes:
        """Count every change of `names` as complete, however recent it is."""
        load = [name for name in names if name in found and found[name] != self._acted.get(name)]
        unload = [name for name in names if name not in found and name in self._acted]
        for name in load:
            self._acted[name] = found[name]
            self._changing.pop(name, None)
        for name in unload:
            del self._acted[name]
        return Changes(tuple(load), tuple(unload))

    def _seen(self, name: str, model: Snapshot, now: float) -> tuple[Snapshot, float]:
        last = self._changing.get(name)
        return last if last is not None and last[0] == model else (model, now)


def came_at_once(before: Snapshot | None, now: Snapshot) -> bool:
    """Return whether no part of the change can be half done: whole directories renamed into place, whole versions
    removed."""
    if before is None or before.directory != now.directory:
        return "" in now.whole or before is not None
    if "" in now.whole:
        return True
    names = before.parts.keys() | now.parts.keys()
    changed = [name for name in names if before.parts.get(name) != now.parts.get(name)]
    return all(name in now.whole or (name not in now.parts and name.isdigit()) for name in changed)
