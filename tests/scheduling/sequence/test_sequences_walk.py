"""Random starts, ends, cancellations, timeouts, outages and deaths of workers: no state crosses ids, every request is
answered once, every slot comes back."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START, InferRequest
from edge_serve.scheduling.core import Entry, Refuse, Run, SequenceBatching
from edge_serve.scheduling.sequence.direct import DirectSequences
from edge_serve.scheduling.sequence.oldest import OldestSequences
from edge_serve.scheduling.sequence.sequence import ends
from tests.examples import seeds
from tests.footprint import footprint
from tests.scheduling.simulation import MS, US

Scheduler = DirectSequences | OldestSequences

ANY_STEP = -1

CONFIGS = {
    "direct": SequenceBatching(4, 20_000),
    "direct, delay": SequenceBatching(3, 20_000, minimum_slot_utilization=0.7, max_queue_delay_us=500),
    "direct, no batches": SequenceBatching(1, 20_000),
    "oldest": SequenceBatching(2, 20_000, oldest=True),
    "oldest, many": SequenceBatching(
        4, 20_000, oldest=True, max_candidate_sequences=6, preferred_batch_sizes=(2,), max_queue_delay_us=300
    ),
    "direct, iterative": SequenceBatching(3, 20_000, iterative=True),
    "oldest, iterative": SequenceBatching(2, 20_000, oldest=True, iterative=True),
}


class World:
    """Clients with ids, instances with memory per slot, and a record of what became of every request."""

    def __init__(self, batching: SequenceBatching, instances: int, seed: int) -> None:
        self.random = Random(seed)
        make = OldestSequences if batching.oldest else DirectSequences
        self.scheduler: Scheduler = make(batching, instances)
        self.batching = batching
        self.now = MS
        self.answers: Counter[Entry] = Counter()
        self.waiting: list[Entry] = []
        self.running: dict[int, Run] = {}
        self.lost: set[int] = set()
        self.instances = set(range(instances))
        #: retiring instance -> the ids that had a slot in it
        self.retiring: dict[int, set[object]] = {}
        self.next_number = instances
        #: (instance, slot) -> (id, which use of it, steps that ran)
        self.memory: dict[tuple[int, int], tuple[object, int, int]] = {}
        self.uses: Counter[int | str] = Counter()
        self.steps: Counter[int | str] = Counter()
        self.where: dict[Entry, tuple[int | str, int, int]] = {}
        #: requests of iterative models that ran, and wait for their next run
        self.again: set[Entry] = set()

    def send(self, id: int | str, flags: int) -> None:
        """Send a request of sequence `id`; 0 = the scheduler of an iterative model gives it an ID."""
        if flags & SEQUENCE_START:
            self.begin(id)
        chance = self.random.random()
        request = InferRequest("m", correlation_id=id, flags=flags)
        request.deadline_ns = self.now + self.random.randrange(1, 5) * MS if chance < 0.1 else 0
        request.timeout_us = self.random.randrange(500, 8000) if chance > 0.8 else 0
        entry = Entry(request, 1, self.random.choice((None, None, None, "wide")), self.now)
        self.where[entry] = (id, self.uses[id], self.steps[id])
        self.steps[id] += 1
        try:
            self.scheduler.add(entry, self.now)
        except EdgeServeError:
            self.answer(entry)
            return
        self.waiting.append(entry)
        if not id:
            self.begin(request.correlation_id)
            self.where[entry] = (request.correlation_id, self.uses[request.correlation_id], 0)

    def begin(self, id: int | str) -> None:
        self.uses[id] += 1
        self.steps[id] = 0

    def answer(self, entry: Entry) -> None:
        self.answers[entry] += 1

    def pump(self) -> None:
        while True:
            match self.scheduler.next(self.now):
                case Run() as run:
                    self.start(run)
                case Refuse(entry, _):
                    self.waiting.remove(entry)
                    self.answer(entry)
                case _:
                    return

    def start(self, run: Run) -> None:
        assert run.instance not in self.running
        assert run.instance not in self.lost
        assert run.instance in self.instances or run.instance in self.retiring
        assert len(run.entries) <= max(1, self.batching.max_batch_size)
        assert len({entry.shape_key for entry in run.entries}) == 1
        assert len(set(run.slots)) == len(run.entries)
        if run.rows:
            assert list(run.slots) == sorted(run.slots)
            assert run.slots[-1] < run.rows <= max(1, self.batching.max_batch_size)
        self.running[run.instance] = run
        for entry, slot in zip(run.entries, run.slots, strict=True):
            self.waiting.remove(entry)
            id, use, step = self.where[entry]
            assert run.instance in self.instances or id in self.retiring[run.instance]
            assert entry.request.deadline_ns == 0 or entry.request.deadline_ns > self.now
            if entry.request.flags & SEQUENCE_START:
                assert step == 0
            else:
                assert not self.batching.iterative or entry in self.again, "it would get the state of another request"
                self.again.discard(entry)
                kept = self.memory.get((run.instance, slot))
                assert kept in ((id, use, step), (id, use, ANY_STEP)), "it would get another's state"
            self.memory[run.instance, slot] = (id, use, step + 1)

    def finish(self, instance: int) -> None:
        run = self.running.pop(instance)
        again = [entry for entry in run.entries if self.batching.iterative and self.random.random() < 0.4]
        for entry in again:
            self.scheduler.reschedule(entry)
            entry.arrival_ns = self.now
            id, use, step = self.where[entry]
            self.where[entry] = id, use, step + 1
            self.waiting.append(entry)
        self.again.update(again)
        if not self.batching.iterative and self.random.random() < 0.05:
            self.undo(run)
        self.scheduler.done(instance)
        for entry in run.entries:
            if entry not in again:
                self.answer(entry)

    def undo(self, run: Run) -> None:
        """The batch was never sent: the slot of a sequence that starts has the state of another one."""
        for entry, slot in zip(run.entries, run.slots, strict=True):
            if entry.request.flags & SEQUENCE_START:
                del self.memory[run.instance, slot]
            elif entry.request.flags & SEQUENCE_END:  # requests behind it were refused
                self.memory[run.instance, slot] = (*self.where[entry][:2], ANY_STEP)
            self.scheduler.undo(entry)

    def lose(self, instance: int) -> None:
        run = self.running.pop(instance, None)
        self.scheduler.lost(instance)
        self.lost.add(instance)
        for entry in run.entries if run else ():
            self.answer(entry)
        for key in [key for key in self.memory if key[0] == instance]:
            del self.memory[key]

    def back(self, instance: int) -> None:
        self.lost.discard(instance)
        self.scheduler.back(instance)

    def add_instance(self) -> None:
        self.scheduler.add_instance(self.next_number)
        self.instances.add(self.next_number)
        self.next_number += 1

    def retire(self) -> None:
        instance = self.random.choice(sorted(self.instances))
        self.instances.remove(instance)
        self.retiring[instance] = {one.id for where, _, one in self.scheduler.slots if where == instance}
        self.scheduler.retire_instance(instance)

    def see_who_is_gone(self) -> None:
        for instance in [one for one in self.retiring if not self.scheduler.has_instance(one)]:
            assert instance not in self.running
            del self.retiring[instance]
            self.lost.discard(instance)

    def cancel(self, entry: Entry) -> None:
        if self.scheduler.cancel(entry):
            self.waiting.remove(entry)
            self.answer(entry)

    def ends_behind_running(self) -> list[Entry]:
        running = {entry.request.correlation_id for run in self.running.values() for entry in run.entries}
        return [one for one in self.waiting if ends(one) and one.request.correlation_id in running]

    def drain(self) -> None:
        for entry in self.scheduler.drain():
            self.waiting.remove(entry)
            self.answer(entry)
        assert not self.waiting

    def step(self) -> None:
        random = self.random
        what = ("send", "finish", "time", "cancel", "cancel end", "drain", "lose", "back", "add", "retire")
        match random.choices(what, (10, 8, 4, 0.5, 0.3, 0.1, 0.15, 1, 0.3, 0.3))[0]:
            case "send" if self.batching.iterative:
                id = random.choice((0, 1, 2, 3, 4, 5, 6, 7, "1", "seven"))
                self.send(id, SEQUENCE_START * (random.random() < 0.8))
            case "send":
                id = random.choice((1, 2, 3, 4, 5, 6, 7, "1", "seven"))
                fresh = id not in self.uses or random.random() < 0.25
                flags = SEQUENCE_START * fresh | SEQUENCE_END * (random.random() < 0.25)
                self.send(id, flags)
            case "finish" if self.running:
                self.finish(random.choice(list(self.running)))
            case "time":
                self.now += random.choice((US, 300 * US, MS, 30 * MS))
            case "cancel" if self.waiting:
                self.cancel(random.choice(self.waiting))
            case "cancel end" if found := self.ends_behind_running():
                self.cancel(random.choice(found))
            case "drain":
                self.drain()
            case "lose":
                self.lose(random.choice(sorted({*self.instances, *self.retiring})))
            case "back" if self.lost:
                self.back(random.choice(list(self.lost)))
            case "add" if len(self.instances) < 5:
                self.add_instance()
            case "retire" if len(self.instances) > 1:
                self.retire()

    def settle(self) -> None:
        """Everything that was begun comes to its end."""
        for instance in list(self.lost):
            self.back(instance)
        for _ in range(10_000):
            self.pump()
            if not self.running and not self.waiting:
                return
            for instance in list(self.running):
                self.finish(instance)
            self.now += MS
        raise AssertionError(f"{len(self.waiting)} requests are never run")


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("instances", [1, 3])
@seeds(2, 4)
def test_state_never_crosses_ids_and_each_request_is_answered_once(config: str, instances: int, seed: int) -> None:
    world = World(CONFIGS[config], instances, seed)
    for _ in range(600):
        world.step()
        world.scheduler._check()
        world.pump()
        world.scheduler._check()
        world.see_who_is_gone()
        assert world.scheduler.pending() == len(world.waiting)

    world.settle()

    assert set(world.where) == set(world.answers)
    assert set(world.answers.values()) == {1}
    world.now += 1000 * MS
    world.scheduler.next(world.now)
    world.scheduler._check()
    assert not list(world.scheduler.slots), "a slot leaked"
    assert all(world.scheduler.has_instance(one) for one in world.instances)
    assert not any(world.scheduler.has_instance(one) for one in world.retiring), "an instance never ends"
    assert footprint(world.scheduler) < footprint(World(CONFIGS[config], instances, seed).scheduler) + 200


def test_drained_requests_are_all_that_waited() -> None:
    world = World(CONFIGS["oldest"], 1, 5)
    for _ in range(300):
        world.step()
        world.pump()
    world.lose(0)

    drained = world.scheduler.drain()

    assert set(drained) == set(world.waiting)
    assert world.scheduler.pending() == 0
    world.scheduler._check()
