"""Tensor memory: the allocator against a naive one, slots, the budget, trimming, the seals."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_serve.aio import bulk_copy
from edge_serve.aio.offload import Threads
from edge_serve.errors import Unavailable
from edge_serve.workers.memory import arena as arena_module
from edge_serve.workers.memory.arena import Arena, Budget, Slot, trim_idle
from edge_serve.workers.memory.extents import Extents
from edge_serve.workers.memory.pages import PAGE, punch
from tests.stories import played

MIB = 1 << 20


async def ready(slot: Slot) -> None:
    """Wait until there is memory, or none will come."""
    done = asyncio.Event()
    slot.when_ready(done.set)
    await asyncio.wait_for(done.wait(), 20)


def memory_of(arena: Arena) -> int:
    """Bytes that the arena really has."""
    return os.fstat(arena.fd).st_blocks * 512


@pytest.fixture
def budget() -> Budget:
    return Budget(64 * MIB)


@pytest.fixture
def arena(budget: Budget) -> Iterator[Arena]:
    made = Arena("m", budget, 64 * MIB)
    yield made
    made.close()


class Naive:
    """One flag a page."""

    def __init__(self, pages: int) -> None:
        self.taken = [False] * pages

    def take(self, count: int) -> int | None:
        for start in range(len(self.taken) - count + 1):
            if not any(self.taken[start : start + count]):
                self.taken[start : start + count] = [True] * count
                return start
        return None

    def release(self, start: int, count: int) -> None:
        self.taken[start : start + count] = [False] * count


@pytest.mark.parametrize("seed", range(5))
def test_a_walk_agrees_with_the_naive_allocator(seed: int) -> None:
    choose = random.Random(seed)
    extents, naive = Extents(64), Naive(64)
    held: list[tuple[int, int]] = []
    for _ in range(600):
        if held and choose.random() < 0.5:
            start, count = held.pop(choose.randrange(len(held)))
            extents.release(start, count)
            naive.release(start, count)
        else:
            count = choose.randint(1, 20)
            found = extents.take(count)
            assert found == naive.take(count)
            if found is not None:
                held.append((found, count))
                if count > 2 and choose.random() < 0.3:  # a part of a gap, as trimming takes it
                    extents.release(found, count)
                    extents.take_at(found + 1, count - 2)
                    naive.release(found, count)
                    naive.taken[found + 1 : found + count - 1] = [True] * (count - 2)
                    held[-1] = (found + 1, count - 2)
        extents._check()
        assert extents.used == sum(naive.taken)


def test_check_notices_gaps_that_touch() -> None:
    extents = Extents(4)
    extents._starts, extents._counts = [0, 2], [2, 2]
    with pytest.raises(AssertionError):
        extents._check()


def test_a_slot_is_memory_of_the_arena(arena: Arena, budget: Budget) -> None:
    slot = arena.allocate(5000)
    assert (slot.offset, slot.capacity, len(slot.view), budget.used) == (0, 5000, 5000, 2 * PAGE)
    slot.view[:3] = b"abc"
    assert os.pread(arena.fd, 3, slot.offset) == b"abc"
    slot.release()
    slot.release()
    assert (budget.used, arena.used_bytes) == (0, 0)


def test_a_slot_that_skips_its_first_bytes_gives_back_all_pages(arena: Arena, budget: Budget) -> None:
    arena.allocate(1)
    slot = arena.allocate(PAGE)
    slot.skip(63)
    assert (slot.offset, len(slot.view)) == (PAGE + 63, PAGE - 63)
    slot.release()
    assert budget.used == PAGE
    assert arena.allocate(PAGE).offset == PAGE


@played
async def test_out_of_budget_says_how_much_there_is(arena: Arena, budget: Budget) -> None:
    held = arena.allocate(budget.limit - PAGE)
    with pytest.raises(Unavailable, match=f"{budget.limit - PAGE} of {budget.limit} bytes are in use"):
        arena.allocate(PAGE + 1)
    with pytest.raises(Unavailable):
        arena.allocate(budget.limit + 1)
    assert budget.refused == 1, "the other would never fit"
    await ready(held)
    held.release()
    arena.allocate(budget.limit).release()


@played
async def test_arenas_share_one_budget(arena: Arena, budget: Budget) -> None:
    other = Arena("n", budget, 64 * MIB)
    held = other.allocate(60 * MIB)
    with pytest.raises(Unavailable):
        arena.allocate(8 * MIB)
    await ready(held)
    held.release()
    other.close()


def test_a_full_arena_says_so_and_takes_nothing() -> None:
    budget = Budget(1 << 40)
    arena = Arena("m", budget, 4 * PAGE)
    slots = [arena.allocate(PAGE) for _ in range(4)]
    slots[0].release()
    slots[2].release()
    with pytest.raises(Unavailable, match=f"the largest gap has {PAGE}"):
        arena.allocate(2 * PAGE)
    with pytest.raises(Unavailable):
        arena.allocate(5 * PAGE)
    assert (budget.used, budget.refused) == (2 * PAGE, 1)
    arena.close()


def test_a_machine_without_memory_refuses(arena: Arena, budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(Unavailable, match="No space left on device"):
        arena.allocate(PAGE)
    assert (budget.used, arena.used_bytes) == (0, 0)


def test_memory_comes_before_the_first_write(arena: Arena) -> None:
    assert os.fstat(arena.fd).st_blocks == 0
    arena.allocate(3 * PAGE)
    assert os.fstat(arena.fd).st_blocks * 512 == 3 * PAGE


@played
async def test_a_large_slot_is_ready_later_and_a_warm_one_at_once(arena: Arena) -> None:
    slot = arena.allocate(16 * MIB)
    assert not slot.is_ready
    await ready(slot)
    assert memory_of(arena) == 16 * MIB
    slot.release()
    assert arena.allocate(16 * MIB).is_ready


def test_a_large_slot_without_memory_says_so_later(
    arena: Arena, budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def story() -> None:
        monkeypatch.setattr(os, "posix_fallocate", full)
        slot = arena.allocate(16 * MIB)
        await ready(slot)
        assert slot.error is not None
        assert "No space left on device" in slot.error.message
        slot.release()

    asyncio.run(story())
    assert (budget.used, arena.used_bytes) == (0, 0)


@pytest.mark.parametrize("size", [PAGE, 16 * MIB])
@played
async def test_pages_whose_memory_was_refused_are_reserved_again_and_returned(
    arena: Arena, budget: Budget, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    reserve = os.posix_fallocate

    def half(fd: int, offset: int, length: int) -> None:
        if offset >= 8 * MIB or size == PAGE:
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(fd, offset, length)

    async def refused() -> bool:
        try:
            slot = arena.allocate(size)
        except Unavailable:
            return True
        await ready(slot)
        slot.release()
        return slot.error is not None

    monkeypatch.setattr(os, "posix_fallocate", half)
    assert await refused()
    assert await refused()
    reached = memory_of(arena)
    assert reached == (0 if size == PAGE else 8 * MIB)
    assert await arena.trim() == size
    assert (memory_of(arena), budget.used, budget.warm) == (0, 0, set())
    assert await refused()
    monkeypatch.setattr(os, "posix_fallocate", reserve)
    slot = arena.allocate(size)
    await ready(slot)
    assert memory_of(arena) == size
    slot.release()


@pytest.mark.parametrize(("states", "first"), [("1041", 1), ("1401", 1), ("1114", 3), ("1140", 2), ("123", 3)])
def test_a_slot_reserves_from_its_first_page_without_memory_on(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, states: str, first: int
) -> None:
    reserved = []
    monkeypatch.setattr(os, "posix_fallocate", lambda fd, *where: reserved.append(where))
    arena._states[:] = bytes(map(int, states))

    async def story() -> None:
        arena.allocate(4 * PAGE).release()

    asyncio.run(story())
    assert reserved == [(first * PAGE, (4 - first) * PAGE)]


@played
async def test_pages_that_the_kernel_did_not_take_are_reserved_again_and_returned_later(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, runs: list[tuple[int, int]]) -> None:
        punch(fd, [(runs[0][0], runs[0][1] // 2)])
        raise OSError(errno.EIO, "Input/output error")

    arena.allocate(MIB).release()
    arena.age()
    arena.age()
    with monkeypatch.context() as patch:
        patch.setattr(arena_module, "punch", fail)
        with pytest.raises(OSError, match="Input/output error"):
            await arena.trim()
    assert memory_of(arena) == MIB // 2
    slot = arena.allocate(MIB // 4)
    assert memory_of(arena) == MIB // 4 * 3
    assert await arena.trim() == MIB // 4 * 3
    assert memory_of(arena) == MIB // 4
    slot.release()


@played
async def test_a_machine_without_threads_still_has_slots_and_gets_its_memory_back(
    arena: Arena, budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(bulk_copy, "_threads", Threads("test", 1))
    monkeypatch.setattr(threading.Thread, "start", fail)
    for _ in range(2 * budget.limit // (16 * MIB)):
        slot = arena.allocate(16 * MIB)
        assert slot.is_ready
        slot.release()
    arena.age()
    arena.age()
    assert await arena.trim() == 16 * MIB
    arena.close()
    assert (budget.used, arena._file) == (0, -1)


def test_acquired_pieces_keep_their_pages_beyond_the_slots(arena: Arena, budget: Budget) -> None:
    slots = [arena.allocate(PAGE) for _ in range(3)]
    pages = sum(slot.view.nbytes for slot in slots)
    first = arena.acquire([(slots[0].offset + 10, 5), (slots[1].offset, PAGE)])
    second = arena.acquire([(slots[1].offset + PAGE - 1, 1)])
    for slot in slots:
        slot.release()
    assert budget.used == pages - PAGE, "the third is not acquired"
    first.release()
    assert budget.used == PAGE, "the second page has another user"
    taken = [arena.allocate(PAGE).offset for _ in range(3)]
    assert slots[1].offset not in taken
    second.release()
    second.release()
    first.release()
    assert arena.allocate(PAGE).offset == slots[1].offset
    assert budget.used == 4 * PAGE
    assert not arena.acquired


def test_a_closed_arena_returns_its_memory_once_acquired_pieces_are_released(arena: Arena, budget: Budget) -> None:
    slot = arena.allocate(PAGE)
    acquired = arena.acquire([(slot.offset, 1)])
    slot.release()
    arena.close()
    assert (budget.used, arena._file >= 0) == (PAGE, True)
    acquired.release()
    assert (budget.used, arena._file) == (0, -1)


@played
async def test_a_slot_that_is_released_while_it_is_populated_is_free_after_that(arena: Arena, budget: Budget) -> None:
    called: list[bool] = []
    slot = arena.allocate(16 * MIB)
    slot.when_ready(lambda: called.append(True))
    slot.release()
    slot.release()
    assert budget.used == 16 * MIB, "the thread writes there"
    while budget.used:
        await asyncio.sleep(0.001)
    assert not called


@played
async def test_trim_returns_what_was_idle_for_two_periods(arena: Arena) -> None:
    slot = arena.allocate(MIB)
    kept = arena.allocate(PAGE)
    slot.release()
    arena.age()
    assert await arena.trim() == 0, "used in the period before"
    arena.age()
    assert await arena.trim() == MIB
    assert memory_of(arena) == PAGE
    again = arena.allocate(MIB)
    assert again.offset == slot.offset
    assert not any(again.view[:PAGE])
    assert kept.view is not None


@played
async def test_trim_leaves_what_was_used_in_between(arena: Arena) -> None:
    arena.allocate(MIB).release()
    arena.age()
    arena.allocate(MIB).release()
    arena.age()
    assert await arena.trim() == 0
    assert memory_of(arena) == MIB


@played
async def test_pages_that_a_thread_returns_are_not_assigned_until_it_is_done(arena: Arena, budget: Budget) -> None:
    slot = arena.allocate(16 * MIB)
    await ready(slot)
    slot.release()
    arena.age()
    arena.age()
    trimming = asyncio.ensure_future(arena.trim(4 * MIB))
    await asyncio.sleep(0)
    assert arena.used_bytes == 4 * MIB, "withdrawn"
    assert arena.allocate(PAGE).offset >= 4 * MIB
    assert await trimming == 16 * MIB - PAGE
    assert memory_of(arena) == PAGE
    assert arena.used_bytes == PAGE
    arena._extents._check()


def test_an_arena_without_memory_costs_nearly_none() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE

    budget, before = Budget(1 << 40), resident()
    arenas = [Arena(f"m{i}", budget) for i in range(50)]
    assert (resident() - before) / len(arenas) < 20_000
    for arena in arenas:
        arena.close()


@played
async def test_memory_of_any_size_is_returned_within_two_seconds() -> None:
    budget = Budget(1 << 30)
    arenas = [Arena(f"m{i}", budget) for i in range(2)]
    trimming = asyncio.ensure_future(trim_idle(budget))
    slots = [arena.allocate(200 * MIB) for arena in arenas]
    for slot in slots:
        await ready(slot)
        slot.release()
    began = time.monotonic()
    while any(map(memory_of, arenas)):
        await asyncio.sleep(0.01)
    assert time.monotonic() - began < 2
    assert not budget.warm
    trimming.cancel()
    for arena in arenas:
        arena.close()


def test_a_worker_cannot_change_the_size(arena: Arena) -> None:
    for size in (0, 128 * MIB):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.fd, size)


def test_a_name_may_be_long_and_in_any_script(budget: Budget) -> None:
    made = Arena("\u65e5" * 84 + "-1", budget, MIB)
    assert os.readlink(f"/proc/self/fd/{made.fd}").startswith("/memfd:edge-serve:\u65e5\u65e5")
    made.close()


def test_a_machine_without_address_space_refuses_and_keeps_no_descriptor(budget: Budget) -> None:
    gc.collect()  # what other tests left open
    before = set(os.listdir("/proc/self/fd"))

    with pytest.raises(Unavailable, match="no tensor memory for model 'm': "):
        Arena("m", budget, 1 << 60)

    assert set(os.listdir("/proc/self/fd")) <= before


def test_views_survive_close(budget: Budget) -> None:
    arena = Arena("m", budget, MIB)
    slot = arena.allocate(10)
    view = slot.view
    view[:] = b"0123456789"
    arena.close()
    arena.close()
    assert bytes(view) == b"0123456789"
    slot.release()
    assert budget.used == 0


def test_closing_gives_the_memory_back() -> None:
    gc.collect()  # what other tests left open
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        arena = Arena("closed", Budget(MIB), MIB)
        arena.allocate(MIB).release()
        arena.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert "edge-serve:closed" not in Path("/proc/self/maps").read_text()
