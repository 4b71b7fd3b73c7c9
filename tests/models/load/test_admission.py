"""Whether models fit."""

from __future__ import annotations

import pytest

from edge_serve.errors import Unavailable
from edge_serve.models.load.admission import MemoryFigures, Way, decide

MIB = 1 << 20


def figures(needed: int, available: int, promised: int = 0, reserve: int = 0, replaced: int = 0) -> MemoryFigures:
    return MemoryFigures(needed * MIB, False, available * MIB, promised * MIB, reserve * MIB, replaced * MIB)


@pytest.mark.parametrize(
    ("known", "way"),
    [
        (figures(100, 100), Way.BESIDE),
        (figures(100, 200, promised=50, reserve=50), Way.BESIDE),
        (figures(100, 200, replaced=100), Way.BESIDE),
        (figures(100, 99, replaced=1), Way.INSTEAD),
        (figures(100, 60, promised=20, reserve=20, replaced=80), Way.INSTEAD),
    ],
)
def test_beside_if_it_fits_else_instead(known: MemoryFigures, way: Way) -> None:
    assert decide("m", known) is way


@pytest.mark.parametrize("known", [figures(100, 99), figures(100, 60, 20, 60, 79), figures(100, 10, reserve=50)])
def test_what_does_not_fit_is_refused(known: MemoryFigures) -> None:
    with pytest.raises(Unavailable, match="'m' does not fit into memory: it needs 100 MiB"):
        decide("m", known)


@pytest.mark.parametrize(
    "known",
    [
        figures(100, 100, promised=1),
        figures(100, 120, promised=20, reserve=20),
        figures(100, 60, 20, 20, 79),
        figures(100, 100, promised=50, replaced=50),  # loading it instead would cost its clients a wait
    ],
)
def test_only_promises_are_in_the_way(known: MemoryFigures) -> None:
    assert decide("m", known) is Way.LATER


def test_the_figures_are_told() -> None:
    known = MemoryFigures(300 * MIB, True, 200 * MIB, 10 * MIB, 20 * MIB, 30 * MIB)
    with pytest.raises(Unavailable) as refused:
        decide("m", known)
    assert refused.value.message == (
        "model 'm' does not fit into memory: it needs 300 MiB (measured when it was loaded before), 200 MiB are "
        "available, 10 MiB are promised to loads under way and 20 MiB are kept in reserve (--memory-reserve-bytes), "
        "30 MiB come back from the version that serves. Unload another model first"
    )
