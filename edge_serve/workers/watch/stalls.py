"""For how long things that should move have not moved. Pure; markers cost those who move nothing."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Stalls(Generic[Key]):
    """Compares what it is shown with what it was shown before.

    A marker is any value that changes when its owner has moved: the number of the batch that runs, say. A thing is as
    old as the look that first saw its marker, so looks must come often beside the limits that ages are held against.
    """

    def __init__(self) -> None:
        self._seen: dict[Key, tuple[object, int]] = {}

    def look(self, now_ns: int, markers: Mapping[Key, object]) -> dict[Key, float]:
        """Seconds for which each marker has been the same; things that are not in `markers` are forgotten."""
        self._seen = {key: self._since(key, marker, now_ns) for key, marker in markers.items()}
        return {key: (now_ns - since) / 1e9 for key, (_, since) in self._seen.items()}

    def _since(self, key: Key, marker: object, now_ns: int) -> tuple[object, int]:
        known = self._seen.get(key)
        return known if known is not None and known[0] == marker else (marker, now_ns)
