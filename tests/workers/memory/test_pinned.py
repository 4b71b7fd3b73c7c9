"""Pages that a worker has registered with a device: they stay, within the pool, until it has unregistered them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from edge_serve.errors import Unavailable
from edge_serve.workers.memory import arena as arena_module
from edge_serve.workers.memory.arena import Arena, Budget
from edge_serve.workers.memory.pages import PAGE
from edge_serve.workers.memory.pinned import PinnedPool
from tests.stories import played
from tests.workers.memory.test_arena import memory_of, ready

MIB = 1 << 20


@pytest.fixture
def budget() -> Budget:
    return Budget(64 * MIB, PinnedPool(8 * MIB))


@pytest.fixture
def arena(budget: Budget) -> Iterator[Arena]:
    made = Arena("m", budget, 64 * MIB)
    yield made
    made.close()


async def kept(arena: Arena, nbytes: int, holder: object = "a") -> int:
    """Return the bytes that are kept.

    Raises:
        Unavailable: they are not.
    """
    answer: asyncio.Future[int | Unavailable] = asyncio.get_running_loop().create_future()
    arena.pinned.acquire(holder, nbytes, answer.set_result)
    found = await asyncio.wait_for(answer, 20)
    if isinstance(found, Unavailable):
        raise found
    return found


async def used_once(arena: Arena, nbytes: int) -> None:
    slot = arena.allocate(nbytes)
    await ready(slot)
    slot.release()


async def trimmed(arena: Arena) -> int:
    for _ in range(2):
        arena.age()
    return await arena.trim()


@played
async def test_trim_leaves_the_pinned_pages_until_they_are_released(arena: Arena, budget: Budget) -> None:
    await used_once(arena, 4 * MIB)
    assert await kept(arena, MIB) == MIB

    assert await trimmed(arena) == 3 * MIB
    assert memory_of(arena) == MIB == budget.pinned.used
    arena.pinned.release("a")
    assert await trimmed(arena) == MIB
    assert memory_of(arena) == 0 == budget.pinned.used


@played
async def test_pinned_pages_have_memory_and_slots_use_it(arena: Arena) -> None:
    assert await kept(arena, MIB) == MIB
    assert memory_of(arena) == MIB
    slot = arena.allocate(MIB)
    assert slot.is_ready
    slot.release()


@played
async def test_pages_are_kept_only_when_no_thread_returns_them_any_more(arena: Arena) -> None:
    await used_once(arena, MIB)
    for _ in range(2):
        arena.age()
    runs = arena._withdraw(arena.size // PAGE)
    answers: list[object] = []
    arena.pinned.acquire("a", MIB, answers.append)
    await asyncio.sleep(0.01)
    assert answers == []

    arena._put_back(runs, asyncio.get_running_loop().create_future(), None)
    assert await kept(arena, MIB) == MIB
    assert answers == [MIB]


@played
async def test_pool_refuses_more_than_its_limit(arena: Arena, budget: Budget) -> None:
    await kept(arena, 6 * MIB)
    with pytest.raises(Unavailable, match=r"6291456 of 8388608 bytes .* raise --pinned-memory-pool-byte-size"):
        await kept(arena, 9 * MIB)
    assert arena.pinned.count * PAGE == budget.pinned.used == 6 * MIB


@played
async def test_pages_that_two_workers_have_count_once_and_stay_for_the_last(arena: Arena, budget: Budget) -> None:
    await kept(arena, 2 * MIB, "a")
    await kept(arena, MIB, "b")
    assert budget.pinned.used == 2 * MIB
    arena.pinned.release("a")
    assert budget.pinned.used == MIB
    arena.pinned.release("b")
    assert budget.pinned.used == 0


@played
async def test_pages_without_memory_are_not_kept(arena: Arena, budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arena_module, "reserve", no_memory)
    with pytest.raises(Unavailable, match=r"no memory for the pinned pages of model 'm': .*No space left"):
        await kept(arena, MIB)
    assert arena.pinned.count == budget.pinned.used == 0
