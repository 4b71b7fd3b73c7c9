"""Decides whether a model fits into the memory that is left. Pure; figures are arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from edge_serve.errors import Unavailable

_MIB = 1 << 20


class Way(Enum):
    """How to load a model."""

    BESIDE = auto()
    """Beside the versions that serve, which then drain."""
    INSTEAD = auto()
    """After unloading the versions that serve, because both do not fit."""
    LATER = auto()
    """After other loads: the memory promised to them is all that is missing."""


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """The figures for a decision, in bytes.

    Attributes:
        needed: by the version to load.
        measured: whether `needed` was measured when the model was loaded before; else it is estimated from its files.
        available: on the machine, or in the container.
        promised: to loads that are under way.
        reserve: must stay available.
        replaced: is free once the versions that serve are unloaded.
    """

    needed: int
    measured: bool
    available: int
    promised: int
    reserve: int
    replaced: int = 0


def decide(name: str, figures: MemoryFigures) -> Way:
    """Decide how to load the model.

    Raises:
        Unavailable: the model does not fit; the text has the figures.
    """
    way = _way(figures)
    if figures.promised and way is not _way(replace(figures, promised=0)):
        return Way.LATER
    if way is not None:
        return way
    source = "measured when it was loaded before" if figures.measured else "estimated from its files"
    held = f", {_mib(figures.replaced)} come back from the version that serves" if figures.replaced else ""
    raise Unavailable(
        f"model '{name}' does not fit into memory: it needs {_mib(figures.needed)} ({source}), "
        f"{_mib(figures.available)} are available, {_mib(figures.promised)} are promised to loads under way and "
        f"{_mib(figures.reserve)} are kept in reserve (--memory-reserve-bytes){held}. Unload another model first"
    )


def _way(figures: MemoryFigures) -> Way | None:
    left = figures.available - figures.promised - figures.reserve
    if figures.needed <= left:
        return Way.BESIDE
    return Way.INSTEAD if figures.replaced and figures.needed <= left + figures.replaced else None


def _mib(nbytes: int) -> str:
    return f"{nbytes / _MIB:.0f} MiB"
