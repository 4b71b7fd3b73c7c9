"""What the service manager is told of the models: one status line, and whether the service counts as started. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from edge_serve.models.records import Standing

#: names in one group of a status line; more are counted
_MOST_NAMES = 4
#: in the order of a status line: what a technician looks for first
_TROUBLE = ("failed", "restarting", "loading", "unloading")


@dataclass(frozen=True, slots=True)
class Phase:
    """Where the server is in its life.

    Attributes:
        loaded: the models of the start are loaded, or failed to.
        ready: what `/v2/health/ready` answers.
        safe: why the server runs without some or all of its models; "" = it does not.
    """

    loaded: bool
    ready: bool
    safe: str = ""


def has_started(phase: Phase, required: Collection[str]) -> bool:
    """READY=1 may be sent: the required models are ready. Where none is named, a model that fails is no reason to start
    the whole service again and again, and neither is safe mode, which is there to be looked at."""
    return phase.loaded and (phase.ready or not required or bool(phase.safe))


def status_line(phase: Phase, standings: Sequence[Standing]) -> str:
    """`3 of 5 models ready, loading det`"""
    counted = [one for one in standings if one.word != "unloaded"]
    ready = sum(one.word == "ready" for one in counted)
    head = f"{ready} of {_models(len(counted))} ready" if ready < len(counted) else f"{_models(ready)} ready"
    groups = [_group(word, [one.name for one in counted if one.word == word]) for word in _TROUBLE]
    if not phase.loaded and not counted:
        head = "looking for models"
    text = ", ".join([head, *filter(None, groups)])
    return f"safe mode: {phase.safe}; {text}" if phase.safe else text


def _models(count: int) -> str:
    return "1 model" if count == 1 else f"{count} models"


def _group(word: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    shown = " ".join(names[:_MOST_NAMES])
    return f"{word} {shown}" + (f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else "")
