"""Decides whether a model fits into the machine's memory, and knows the memory that each model took before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path

from edge_serve.aio.tasks import wait_first
from edge_serve.devices.host_memory import read_memory
from edge_serve.errors import Unavailable
from edge_serve.messages.log_fields import model_fields
from edge_serve.records import frozen

_MIB = 1 << 20


class Way(Enum):
    """How to load a model."""

    BESIDE = auto()
    """Beside the versions that serve, which then drain."""
    INSTEAD = auto()
    """After unloading the versions that serve, because both do not fit."""
    LATER = auto()
    """After other loads: the memory promised to them is all that is missing."""


@frozen
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


def decide(
    name: str,
    figures: MemoryFigures,
    misfit: str = "does not fit into memory",
    advice: str = "",
    *,
    nested: bool = False,
) -> Way:
    """Decide how to load the model.

    Args:
        misfit: the start of the message, which names the memory; advice: its end.
        nested: as in `LoadBatch`, or a nested load waits for it. Such a load never waits for promises: one of them is
            to the load that waits for it.

    Raises:
        Unavailable: the model does not fit; the text has the figures.
    """
    way = _way(figures)
    if not nested and figures.promised and way is not _way(replace(figures, promised=0)):
        return Way.LATER
    if way is not None:
        return way
    source = "measured when it was loaded before" if figures.measured else "estimated from its files"
    facts = [f"{_mib(figures.available)} are available", f"{_mib(figures.promised)} are promised to loads under way"]
    if figures.reserve:
        facts.append(f"{_mib(figures.reserve)} are kept in reserve (--memory-reserve-bytes)")
    held = f", {_mib(figures.replaced)} come back from the version that serves" if figures.replaced else ""
    raise Unavailable(
        f"model '{name}' {misfit}: it needs {_mib(figures.needed)} ({source}), "
        f"{', '.join(facts[:-1])} and {facts[-1]}{held}. Unload another model first{advice}"
    )


def _way(figures: MemoryFigures) -> Way | None:
    left = figures.available - figures.promised - figures.reserve
    if figures.needed <= left:
        return Way.BESIDE
    return Way.INSTEAD if figures.replaced and figures.needed <= left + figures.replaced else None


def _mib(nbytes: int) -> str:
    return f"{nbytes / _MIB:.0f} MiB"


log = logging.getLogger(__name__)

#: a worker process before it has loaded anything
WORKER_BYTES = 40 << 20
#: a model without its files in a worker that runs already
SHARING_BYTES = 4 << 20


class Memory:
    """Accounts for memory, and decides whether loads fit.

    Args:
        reserve: bytes that must stay available; 0 = a twentieth of the total.
        root: the root of the file system; another one in tests.
    """

    def __init__(self, reserve: int, root: Path = Path("/")) -> None:
        self._reserve = reserve
        self._root = root
        self._measured: dict[str, int] = {}
        self.promised = 0
        self._promise_ended = asyncio.Event()  #: set when a promise ends, then replaced

    @asynccontextmanager
    async def admit(
        self, name: str, files: int, replaced: int, *, joins: bool, awaited: asyncio.Event
    ) -> AsyncIterator[Way]:
        """Promise memory to one load while the context lasts.

        Waits while only promises to other loads are in the way, and `awaited` is not set: the memory that they really
        take is known when they end.

        Args:
            files, replaced, joins: as in `figures`.
            awaited: set while a nested load waits for this one, or is this one (`decide`).

        Raises:
            Unavailable: the model does not fit, with the figures.
        """
        way, needed = self._decide(name, files, replaced, joins, awaited.is_set())
        if way is Way.LATER:
            log.info("model %s waits for memory that is promised to loads under way", name, extra=model_fields(name))
        while way is Way.LATER:
            await wait_first(self._promise_ended, awaited)
            way, needed = self._decide(name, files, replaced, joins, awaited.is_set())
        self.promised += needed
        try:
            yield way
        finally:
            self.promised -= needed
            self._promise_ended.set()
            self._promise_ended = asyncio.Event()

    def _decide(self, name: str, files: int, replaced: int, joins: bool, nested: bool) -> tuple[Way, int]:
        figures = self.figures(name, files, replaced, joins=joins)
        return (decide(name, figures, nested=nested), figures.needed) if figures is not None else (Way.BESIDE, 0)

    def figures(self, name: str, files: int, replaced: int, *, joins: bool = False) -> MemoryFigures | None:
        """Return the figures of a load; None when the machine does not say how much memory it has.

        Args:
            files: bytes of the model's files.
            replaced: bytes that are free once the versions that serve are unloaded.
            joins: the model is loaded into a worker that already runs.
        """
        total, available = self.read()
        if not total:
            return None
        measured = self._measured.get(name, 0)
        estimated = files + (SHARING_BYTES if joins else WORKER_BYTES)
        return MemoryFigures(
            max(measured, estimated),
            measured >= estimated,
            available,
            self.promised,
            self._reserve or total // 20,
            replaced,
        )

    def measured(self, name: str, nbytes: int) -> None:
        """Record the memory that a model takes now that it is loaded."""
        self._measured[name] = nbytes

    def read(self) -> tuple[int, int]:
        """Return (total, available) bytes, of the machine or of the tightest control group; (0, 0) when unknown."""
        return read_memory(self._root)
