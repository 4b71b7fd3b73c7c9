"""The order in which bodies get memory."""

from __future__ import annotations

import random

import pytest

from edge_serve.errors import Overloaded
from edge_serve.protocol.http1.errors import ContentTooLarge, RequestTimeout
from edge_serve.transport.door.body_memory import STEP, BodyMemory, Claim, ClaimedLease, ReaderPace
from tests.leases import Slot


class Asker:
    """A claimant that records its notifications."""

    def __init__(self, memory: BodyMemory) -> None:
        self.memory = memory
        self.woken: list[str] = []
        self.evicted: list[Overloaded] = []

    def claim(self, size: int, name: str = "") -> Claim:
        return self.memory.claim(size, lambda: self.woken.append(name))

    def growing(self) -> Claim:
        return self.memory.claim_growing(self.evicted.append)


def test_oldest_first_and_whole() -> None:
    memory = BodyMemory(100)
    asker = Asker(memory)
    first, second = asker.claim(60), asker.claim(40)
    large, small = asker.claim(70, "large"), asker.claim(10, "small")
    assert (first.granted, second.granted, large.granted, small.granted) == (True, True, False, False)
    assert memory.is_short(0)
    second.release()
    assert asker.woken == []  # 40 would be enough for the small one, which is younger
    first.release()
    assert asker.woken == ["large", "small"]
    assert memory.used == 80
    large.release()
    small.release()
    assert (memory.used, memory.waiting, memory.is_short(0)) == (0, 0, False)


def test_one_that_leaves_makes_room_in_the_queue() -> None:
    memory = BodyMemory(100)
    asker = Asker(memory)
    asker.claim(50)
    large, small = asker.claim(80, "large"), asker.claim(50, "small")
    large.release()
    large.release()
    assert asker.woken == ["small"]
    assert small.granted
    assert memory.used == 100


def test_bodies_that_never_fit_are_refused() -> None:
    memory = BodyMemory(100)
    with pytest.raises(ContentTooLarge, match="101 bytes is larger than the 100 bytes"):
        memory.claim(101, lambda: None)
    with pytest.raises(ContentTooLarge):
        Asker(memory).growing().grow(101)
    assert memory.refused["too_large"] == 2


def test_chunked_bodies_grow_by_steps_and_the_youngest_is_evicted() -> None:
    memory = BodyMemory(4 * STEP)
    asker, other = Asker(memory), Asker(memory)
    old, young = asker.growing(), other.growing()
    assert old.grow(1) == STEP
    assert old.grow(STEP + 1) == 2 * STEP
    assert young.grow(2 * STEP) == 2 * STEP
    with pytest.raises(Overloaded):
        young.grow(3 * STEP)
    assert old.grow(3 * STEP) == 3 * STEP  # the other one had to go
    assert len(other.evicted) == 1
    assert other.evicted[0].retry_after > 0
    assert memory.used == 3 * STEP
    young.release()
    old.release()
    assert memory.used == 0
    assert memory.refused["evicted"] == 2


def test_a_complete_body_is_not_refused_any_more() -> None:
    memory = BodyMemory(2 * STEP)
    asker, other = Asker(memory), Asker(memory)
    old, young = asker.growing(), other.growing()
    young.grow(1)
    young.settle()
    old.grow(1)
    with pytest.raises(Overloaded):
        old.grow(STEP + 1)
    assert other.evicted == []
    assert memory.used == 2 * STEP


def test_the_memory_of_an_evicted_body_is_for_the_one_that_grows() -> None:
    memory = BodyMemory(100 * STEP)
    asker = Asker(memory)
    old, young = asker.growing(), memory.claim_growing(lambda error: young.release())
    assert (old.grow(40 * STEP), young.grow(40 * STEP)) == (40 * STEP, 40 * STEP)
    large, small = asker.claim(50 * STEP, "large"), asker.claim(30 * STEP, "small")
    assert old.grow(70 * STEP) == 70 * STEP
    assert (memory.used, asker.woken, young.size) == (70 * STEP, [], 0)
    large.release()
    assert asker.woken == ["small"]
    assert small.granted


def test_every_evicted_body_is_notified(caplog: pytest.LogCaptureFixture) -> None:
    memory = BodyMemory(10 * STEP)
    others = Asker(memory)

    def fail(error: Overloaded) -> None:
        raise ValueError("a fault of a connection")

    old, other, failing = memory.claim_growing(fail), others.growing(), memory.claim_growing(fail)
    assert [claim.grow(3 * STEP) for claim in (old, other, failing)] == [3 * STEP] * 3
    assert old.grow(8 * STEP) == 8 * STEP

    assert (memory.used, len(others.evicted)) == (8 * STEP, 1)
    assert "a fault of a connection" in caplog.text


def test_no_body_is_evicted_in_vain() -> None:
    memory = BodyMemory(100 * STEP)
    asker, others = Asker(memory), Asker(memory)
    asker.claim(60 * STEP)
    old, young = asker.growing(), [others.growing() for _ in range(3)]
    old.grow(30 * STEP)
    for one in young:
        one.grow(STEP)
    with pytest.raises(Overloaded):
        old.grow(41 * STEP)
    assert (memory.used, others.evicted, memory.refused["evicted"]) == (93 * STEP, [], 1)
    assert old.grow(38 * STEP) == 38 * STEP
    assert (memory.used, len(others.evicted)) == (100 * STEP, 1)


def test_a_refused_body_makes_slow_ones_give_way() -> None:
    """Bodies of unknown length do not wait, so no other sign tells that they lack memory."""
    memory, second, rate = BodyMemory(2 * STEP), 10**9, 1000
    asker = Asker(memory)
    slow, fast, chunked = asker.claim(STEP), asker.claim(STEP // 2), asker.growing()
    assert slow.check_time(0, 0, rate, 60) is None
    assert slow.check_time(1, 9 * second, rate, 60) is None
    with pytest.raises(Overloaded):
        chunked.grow(1)
    chunked.release()
    for claim in (slow, fast):
        assert claim.check_time(2, 10 * second, rate, 60) is None
    assert isinstance(slow.check_time(3, 16 * second, rate, 60), RequestTimeout)
    assert fast.check_time(6 * rate + 2, 16 * second, rate, 60) is None
    assert slow.check_time(3, 31 * second, rate, 60) is None, "the others may have found room"


def test_a_lack_of_tensor_memory_makes_slow_ones_give_way() -> None:
    """A slow body may have the tensor memory that others are refused for, while the budget of bodies has room."""
    lacks, second = [0], 10**9
    memory = BodyMemory(2 * STEP, lambda: lacks[0])
    slow = Asker(memory).claim(STEP)
    assert slow.check_time(0, 0, 1000, 60) is None
    assert slow.check_time(0, 9 * second, 1000, 60) is None
    lacks[0] += 1
    assert slow.check_time(0, 10 * second, 1000, 60) is None
    assert isinstance(slow.check_time(1, 15 * second, 1000, 60), RequestTimeout)


def test_a_reader_is_measured_while_others_lack_memory() -> None:
    lacks, second = [0], 10**9
    memory = BodyMemory(2 * STEP, lambda: lacks[0])
    pace = ReaderPace(memory, 1000, 60.0)
    assert not pace.is_slow(0, 0, leased=True)
    assert not pace.is_slow(0, 100 * second, leased=True), "no other needs the memory"
    for now in range(100, 280):
        lacks[0] += 1
        taken = 60_000 if 160 <= now < 220 else 0 if now < 160 else 119_999
        assert pace.is_slow(taken, now * second, leased=True) is (now == 220)
        assert not ReaderPace(memory, 0, 60.0).is_slow(0, now * second, leased=True)
    assert memory.refused["slow"] == 1
    assert not pace.is_slow(119_999, 280 * second, leased=False), "it waits for nothing"


def test_a_lease_gives_its_claim_back_once() -> None:
    memory = BodyMemory(100)
    claim = Asker(memory).claim(60)
    slot = Slot(60)
    lease = ClaimedLease(slot, claim)
    assert lease.view is not None
    lease.release()
    lease.release()
    assert memory.used == 0
    assert slot.released == 2


def test_a_walk_keeps_its_books() -> None:
    """Whatever comes and goes: never more than the limit, nothing waits that could be, nothing is left."""
    generator = random.Random(4)
    memory = BodyMemory(10 * STEP)
    living: list[Claim] = []
    growing: set[Claim] = set()

    def begin() -> Claim:
        claim = memory.claim_growing(lambda error: leave(claim))
        growing.add(claim)
        return claim

    def leave(claim: Claim) -> None:
        living.remove(claim)
        growing.discard(claim)
        claim.release()

    for _ in range(5000):
        kind = generator.randrange(4)
        if kind == 0:
            living.append(memory.claim(generator.randrange(1, 6 * STEP), lambda: None))
        elif kind == 1:
            living.append(begin())
        elif living:
            claim = generator.choice(living)
            if kind == 2:
                leave(claim)
            elif claim in growing:
                try:
                    total = min(claim.size + generator.randrange(1, 3 * STEP), memory.limit)
                    assert total <= claim.grow(total) < total + STEP
                except Overloaded:
                    leave(claim)
        assert memory.used == sum(claim.size for claim in living if claim.granted)
        assert memory.used <= memory.limit
        first = next((claim for claim in living if not claim.granted), None)
        assert first is None or memory.used + first.size > memory.limit
    for claim in list(living):
        claim.release()
    assert memory.used == memory.waiting == 0
