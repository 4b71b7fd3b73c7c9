"""Whether a model may be loaded: does it fit into the memory that is left? Pure; figures are arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from edge_serve.errors import Unavailable

_MIB = 1 << 20


class Way(Enum):
    """How a model is brought in."""

    BESIDE = auto()
    """Beside what serves, which then drains."""
    INSTEAD = auto()
    """After what serves has gone, because both do not fit."""
    LATER = auto()
    """After other loads: the memory promised to them is all that is missing."""


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Bytes.

    Attributes:
        needed: by what is to be loaded.
        measured: `needed` was measured when the model was loaded before; else it is estimated from its files.
        available: on the machine, or in the container.
        promised: to loads that are under way.
        reserve: what must stay available.
        replaced: what comes back when the versions that serve go first.
    """

    needed: int
    measured: bool
    available: int
    promised: int
    reserve: int
    replaced: int = 0


def decide(name: str, figures: MemoryFigures) -> Way:
    """How to load the model.

    Raises:
        Unavailable: it does not fit, with the figures.
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
