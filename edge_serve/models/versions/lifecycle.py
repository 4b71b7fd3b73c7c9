"""The lifecycle of a version as a table: state + event -> state. Any other combination is a bug."""

from __future__ import annotations

from enum import Enum


class VersionState(Enum):
    """A state of a version. The value is the text in the repository index."""

    LOADING = "LOADING"
    READY = "READY"
    DRAINING = "UNLOADING"
    GONE = "UNAVAILABLE"


class VersionEvent(Enum):
    """An event in the life of a version."""

    LOADED = "loaded"
    FAILED = "failed to load"
    RETIRED = "unloaded or replaced"
    DRAINED = "last answer given"
    RELOADED = "asked for again"


TRANSITIONS: dict[tuple[VersionState, VersionEvent], VersionState] = {
    (VersionState.LOADING, VersionEvent.LOADED): VersionState.READY,
    (VersionState.LOADING, VersionEvent.FAILED): VersionState.GONE,
    (VersionState.READY, VersionEvent.RETIRED): VersionState.DRAINING,
    (VersionState.DRAINING, VersionEvent.DRAINED): VersionState.GONE,
    (VersionState.GONE, VersionEvent.RELOADED): VersionState.LOADING,
    (VersionState.DRAINING, VersionEvent.RELOADED): VersionState.LOADING,  # the old one still drains, on its own
}


def after(state: VersionState, event: VersionEvent) -> VersionState:
    """Return the state that follows.

    Raises:
        ValueError: the event cannot happen in this state.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ValueError(f"a version that is {state.name} cannot be {event.value}") from None
