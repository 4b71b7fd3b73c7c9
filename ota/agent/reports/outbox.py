"""The outbox: reports that wait for delivery, and the counter and chain of all reports."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ota import files
from ota.documents.report import MOST_BYTES, MOST_CHAIN, MOST_FACTS, Link
from ota.errors import OtaError, StoreError
from ota.layout import StateLayout
from ota.strict_json import Members, parse, to_canonical_json

SCHEMA = 1
#: reports that wait; the oldest are discarded first
MOST_WAITING = 50
_STATE_FILE = "state.json"


@dataclass(frozen=True, slots=True)
class ReportState:
    """The state that the next report continues.

    Attributes:
        chain: counter and nonce of the last reports, the oldest first.
        url, fleet, ring, facts: as last known, for a run that could not ask.
    """

    counter: int = 0
    chain: tuple[Link, ...] = ()
    url: str = ""
    fleet: str = ""
    ring: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


def read_state(layout: StateLayout) -> ReportState:
    """Return the state. A lost or damaged state starts at 0, which a collector reports as a restored disk."""
    path = layout.outbox / _STATE_FILE
    try:
        data = files.read(path, MOST_BYTES)
        if data is None:
            return ReportState()
        members = Members(parse(data, str(path), MOST_BYTES), str(path), StoreError)
        if members.integer("schema") != SCHEMA:
            return ReportState()
        return ReportState(
            counter=members.integer("counter"),
            chain=tuple((int(counter), str(nonce)) for counter, nonce in members.array("chain", most=MOST_CHAIN)),
            url=members.text("url"),
            fleet=members.text("fleet"),
            ring=members.text("ring"),
            facts=members.texts("facts", most=MOST_FACTS),
        )
    except Exception:  # a damaged file can raise any error
        return ReportState()


def add(layout: StateLayout, state: ReportState, data: bytes) -> None:
    """Add a report to the outbox. Its counter is stored first, so that no counter is used twice.

    Raises:
        StoreError: the disk does not take it.
    """
    write_state(layout, state)
    files.write_durably(_path(layout, state.counter), data, 0o600)
    for old in waiting(layout)[:-MOST_WAITING]:
        remove(layout, old)


def write_state(layout: StateLayout, state: ReportState) -> None:
    """Replace the state, durably.

    Raises:
        StoreError: the disk does not take it.
    """
    files.make_directory(layout.outbox, 0o700)
    found = {name: getattr(state, name) for name in ReportState.__slots__}
    found |= {"schema": SCHEMA, "chain": [list(one) for one in state.chain], "facts": dict(state.facts)}
    files.write_durably(layout.outbox / _STATE_FILE, to_canonical_json(found), 0o600)


def waiting(layout: StateLayout) -> list[int]:
    """Return the counters of the waiting reports, the oldest first."""
    with contextlib.suppress(OSError):
        return sorted(int(one.stem) for one in layout.outbox.glob("*.json") if one.stem.isdecimal())
    return []


def deliver(layout: StateLayout, send: Callable[[int, bytes], None], *, every: bool) -> None:
    """Send the waiting reports, and remove those that were sent.

    Args:
        send: sends the report of a counter.
        every: send each; else the newest, which takes the place of the others where it goes.

    Raises:
        OtaError: one could not be sent. Those after it stay.
    """
    found = waiting(layout)
    for counter in found if every else found[-1:]:
        data = files.read(_path(layout, counter), 2 * MOST_BYTES)
        if data is not None:  # else another run has sent it
            send(counter, data)
        for old in [one for one in found if one <= counter]:
            remove(layout, old)


def clear(layout: StateLayout) -> None:
    """Remove all waiting reports."""
    for counter in waiting(layout):
        remove(layout, counter)


def remove(layout: StateLayout, counter: int) -> None:
    """Remove a report. Ignore errors of the disk."""
    with contextlib.suppress(OSError, OtaError):
        files.unlink(_path(layout, counter))


def _path(layout: StateLayout, counter: int) -> Path:
    return layout.outbox / f"{counter:012}.json"
