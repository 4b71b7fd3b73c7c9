"""The history: the last events of releases on this device, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ota import files
from ota.layout import StateLayout
from ota.strict_json import find_object, to_canonical_json

#: events that are kept
MOST = 500
_MOST_BYTES = 2 * 1024 * 1024
_MOST_MESSAGE = 1000


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """An event of a release.

    Attributes:
        event: installed, built, tested, switching, switched, refused, good, bad, failed, rolled_back, withdrawn,
            healed, repaired, collected, paused, resumed, retried.
        reason: the word of an error; message: its text.
    """

    time: float
    event: str
    bundle: str = ""
    release: int = 0
    variant: str = ""
    reason: str = ""
    message: str = ""


def append(layout: StateLayout, event: HistoryEvent) -> None:
    """Add an event durably, in place of the oldest ones if they are too many or too long.

    The small file is replaced as a whole, so it is never half written.
    """
    found = {name: getattr(event, name) for name in HistoryEvent.__slots__}
    found["message"] = " ".join(event.message.split())[:_MOST_MESSAGE]
    line = to_canonical_json({name: value for name, value in found.items() if value})
    lines = _lines(layout)[-(MOST - 1) :]
    while lines and sum(map(len, lines)) + len(line) > _MOST_BYTES:
        del lines[0]
    files.write_durably(layout.history, b"".join([*lines, line]), 0o640)


def read(layout: StateLayout) -> list[Mapping[str, Any]]:
    """Return the events, the oldest first. Lines that cannot be parsed are skipped."""
    return [json.loads(line) for line in _lines(layout)]


def _lines(layout: StateLayout) -> list[bytes]:
    data = (files.read(layout.history) or b"")[-_MOST_BYTES:]  # older versions wrote longer files
    return [line + b"\n" for line in data.split(b"\n") if find_object(line) is not None]
