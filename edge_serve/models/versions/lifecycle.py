"""The life of a served version as a table: state + event -> state. Anything not listed is a mistake of ours."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where a version stands. The value is what the repository index shows."""

    LOADING = "LOADING"
    READY = "READY"
    DRAINING = "UNLOADING"
    GONE = "UNAVAILABLE"


class Event(Enum):
    """What happens to a version."""

    LOADED = "loaded"
    FAILED = "failed to load"
    RETIRED = "unloaded or replaced"
    DRAINED = "last answer given"
    RELOADED = "asked for again"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.LOADING, Event.LOADED): State.READY,
    (State.LOADING, Event.FAILED): State.GONE,
    (State.READY, Event.RETIRED): State.DRAINING,
    (State.DRAINING, Event.DRAINED): State.GONE,
    (State.GONE, Event.RELOADED): State.LOADING,
    (State.DRAINING, Event.RELOADED): State.LOADING,  # the old one still drains, on its own
}


def after(state: State, event: Event) -> State:
    """The state that follows.

    Raises:
        ValueError: the event cannot happen in this state.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ValueError(f"a version that is {state.name} cannot be {event.value}") from None
