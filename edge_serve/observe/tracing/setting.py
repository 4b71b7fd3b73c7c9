"""One trace setting in force: its values, which of them were asked for, and how much of it is used up.

Rules: triton-inference-server/server src/tracer.cc. A change makes a new setting with fresh counters; what is left of
`count` is carried over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from edge_serve.errors import InvalidArgument
from edge_serve.messages.settings import TraceChanges, TraceSettings

_FIELDS = ("level", "rate", "count", "log_frequency")


@dataclass(slots=True)
class TraceSetting:
    """The trace settings of the server or of one model.

    Attributes:
        values: `count` goes down with each trace.
        specified: names of the fields that were asked for here; the others follow the setting above.
        seen: requests since it came into force.
        open: traces that were begun under it and are not complete.
    """

    values: TraceSettings
    specified: frozenset[str] = frozenset()
    seen: int = 0
    open: int = 0

    def changed(self, above: TraceSettings, changes: TraceChanges) -> TraceSetting:
        """The setting that `changes` make of this one, under the values of the setting above.

        Raises:
            InvalidArgument: it would trace, and cannot.
        """
        asked: dict[str, Any] = {field: getattr(self.values, field) for field in self.specified - changes.cleared}
        new = {field: getattr(changes, field) for field in _FIELDS if getattr(changes, field) is not None}
        asked.update(new)
        values = replace(above, **asked)
        reason = why_not(values)
        if values.level and (reason or values.count == 0):  # of a count that is used up Triton gives no reason either
            raise InvalidArgument(f"Attempting to set invalid trace setting :{reason}")
        return TraceSetting(values, frozenset(asked))

    def take(self) -> bool:
        """Another request is here: trace it?"""
        values = self.values
        if why_not(values) or values.count == 0:
            return False
        self.seen += 1
        if self.seen % values.rate:
            return False
        if values.count > 0:
            self.values = replace(values, count=values.count - 1)
        self.open += 1
        return True


def why_not(values: TraceSettings) -> str:
    """Why nothing is traced under these values; "" when something is."""
    if not values.level:
        return "tracing is disabled"
    if values.rate == 0:
        return "sample rate must be non-zero"
    if not values.file:
        return "trace file name is not given"
    return ""
