"""Work on many bytes: in a thread if there is one, and on the loop otherwise."""

from __future__ import annotations

import asyncio
import threading
import weakref

import pytest

from edge_serve.aio import bulk_copy
from edge_serve.aio.bulk_copy import MOST_AT_ONCE, release_later, work
from edge_serve.aio.offload import Threads
from tests.stories import played

LARGE = MOST_AT_ONCE + 1


class Large:
    """Something whose last reference counts."""


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    """The pool, without a thread yet."""
    made = Threads("test", 1)
    monkeypatch.setattr(bulk_copy, "_threads", made)
    return made


@pytest.fixture
def no_threads(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that starts no thread."""

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)


@pytest.mark.parametrize(("nbytes", "in_thread"), [(MOST_AT_ONCE, False), (LARGE, True)])
@played
async def test_the_loop_does_short_jobs_itself(threads: Threads, nbytes: int, in_thread: bool) -> None:
    where: list[int] = []
    outcome: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    work(nbytes, lambda: where.append(threading.get_ident()), outcome.set_result)
    assert outcome.done() is not in_thread
    assert await outcome is None
    assert (where != [threading.get_ident()]) is in_thread


@pytest.mark.usefixtures("no_threads")
@played
async def test_the_loop_does_every_job_of_a_machine_without_threads() -> None:
    outcomes: list[Exception | None] = []
    work(LARGE, lambda: None, outcomes.append)
    work(LARGE, lambda: 1 // 0, outcomes.append)
    assert outcomes[0] is None
    assert isinstance(outcomes[1], ZeroDivisionError)


@pytest.mark.usefixtures("no_threads")
@played
async def test_a_machine_without_threads_keeps_no_reference() -> None:
    large = Large()
    there = weakref.ref(large)
    release_later(large)
    del large
    assert there() is None
