"""Tensor memory: the allocator against a naive one, slots, the budget, trimming, the seals."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_serve.errors import Unavailable
from edge_serve.workers.arena import PAGE, Arena, Budget, Extents

MIB = 1 << 20


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

    def give(self, start: int, count: int) -> None:
        self.taken[start : start + count] = [False] * count


@pytest.mark.parametrize("seed", range(5))
def test_a_walk_agrees_with_the_naive_allocator(seed: int) -> None:
    choose = random.Random(seed)
    extents, naive = Extents(64), Naive(64)
    held: list[tuple[int, int]] = []
    for _ in range(600):
        if held and choose.random() < 0.5:
            start, count = held.pop(choose.randrange(len(held)))
            extents.give(start, count)
            naive.give(start, count)
        else:
            count = choose.randint(1, 20)
            found = extents.take(count)
            assert found == naive.take(count)
            if found is not None:
                held.append((found, count))
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


def test_out_of_budget_says_how_much_there_is(arena: Arena, budget: Budget) -> None:
    held = arena.allocate(budget.limit - PAGE)
    with pytest.raises(Unavailable, match=f"{budget.limit - PAGE} of {budget.limit} bytes are in use"):
        arena.allocate(PAGE + 1)
    held.release()
    arena.allocate(budget.limit).release()


def test_arenas_share_one_budget(arena: Arena, budget: Budget) -> None:
    other = Arena("n", budget, 64 * MIB)
    held = other.allocate(60 * MIB)
    with pytest.raises(Unavailable):
        arena.allocate(8 * MIB)
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
    assert budget.used == 2 * PAGE
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


def test_trim_returns_what_was_idle_for_a_whole_period(arena: Arena) -> None:
    slot = arena.allocate(MIB)
    kept = arena.allocate(PAGE)
    slot.release()
    assert arena.trim() == 0, "used since the last trim"
    assert arena.trim() == MIB
    assert os.fstat(arena.fd).st_blocks * 512 == PAGE
    again = arena.allocate(MIB)
    assert again.offset == slot.offset
    assert not any(again.view[:PAGE])
    assert kept.view is not None


def test_trim_leaves_what_was_used_in_between(arena: Arena) -> None:
    arena.allocate(MIB).release()
    arena.trim()
    arena.allocate(MIB).release()
    assert arena.trim() == 0
    assert os.fstat(arena.fd).st_blocks * 512 == MIB


def test_trim_goes_on_where_it_stopped(arena: Arena) -> None:
    arena.allocate(MIB).release()
    arena.trim()
    assert [arena.trim(MIB // 2), arena.trim(MIB // 2), arena.trim(MIB // 2)] == [MIB // 2, MIB // 2, 0]


def test_a_worker_cannot_change_the_size(arena: Arena) -> None:
    for size in (0, 128 * MIB):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.fd, size)


def test_a_name_may_be_long_and_in_any_script(budget: Budget) -> None:
    made = Arena("\u65e5" * 84 + "-1", budget, MIB)
    assert os.readlink(f"/proc/self/fd/{made.fd}").startswith("/memfd:edge-serve:\u65e5\u65e5")
    made.close()


def test_a_machine_without_address_space_refuses_and_keeps_no_descriptor(budget: Budget) -> None:
    before = os.listdir("/proc/self/fd")

    with pytest.raises(Unavailable, match="no tensor memory for model 'm': "):
        Arena("m", budget, 1 << 60)

    assert os.listdir("/proc/self/fd") == before


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
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        arena = Arena("m", Budget(MIB), MIB)
        arena.allocate(MIB).release()
        arena.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert "edge-serve:m" not in Path("/proc/self/maps").read_text()
