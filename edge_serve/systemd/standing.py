"""What the service manager is told of the models: one status line. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edge_serve.messages.line import shortened
from edge_serve.models.records import Standing

#: names in one group of a status line; more are counted
_MOST_NAMES = 4
#: in the order of a status line: what a technician looks for first
_TROUBLE = ("failed", "unready", "restarting", "loading", "unloading")


@dataclass(frozen=True, slots=True)
class Phase:
    """Where the server is in its life.

    Attributes:
        loaded: the models of the start are loaded, or failed to.
        safe: why the server runs without some or all of its models; "" = it does not.
        unreadable: why the model repositories cannot be read; "" = they can.
    """

    loaded: bool
    safe: str = ""
    unreadable: str = ""


def status_line(
    phase: Phase,
    standings: Sequence[Standing],
    lacking: Sequence[Standing] = (),
    unread: Mapping[str, str] | None = None,
) -> str:
    """`3 of 5 models ready, loading det; required seg: not in the repository`

    Args:
        lacking: required models that are not ready; told once the models of the start are loaded.
        unread: models of the repository that could not be read, and why.
    """
    counted = [one for one in standings if one.word != "unloaded"]
    ready = sum(one.word == "ready" for one in counted)
    head = f"{ready} of {_models(len(counted))} ready" if ready < len(counted) else f"{_models(ready)} ready"
    groups = [_group(word, [one.name for one in counted if one.word == word]) for word in _TROUBLE]
    if not phase.loaded and not counted:
        head = "looking for models"
    told = [one for one in lacking if phase.loaded and not phase.safe and one.reason]
    notes = [f"required {one.name}: {shortened(one.reason)}" for one in told]
    named = {one.name for one in told}
    notes += [f"{name}: {shortened(reason)}" for name, reason in (unread or {}).items() if name not in named]
    if len(notes) > _MOST_NAMES:
        notes[_MOST_NAMES:] = [f"and {len(notes) - _MOST_NAMES} more"]
    if phase.unreadable:
        notes.insert(0, shortened(phase.unreadable))
    text = "; ".join([", ".join([head, *filter(None, groups)]), *notes])
    return f"safe mode: {phase.safe}; {text}" if phase.safe else text


def _models(count: int) -> str:
    return "1 model" if count == 1 else f"{count} models"


def _group(word: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    shown = " ".join(names[:_MOST_NAMES])
    return f"{word} {shown}" + (f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else "")
