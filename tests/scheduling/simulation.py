"""Makers of entries, the dynamic batcher's rules written the slow and plain way, and a world that compares the two."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from edge_serve.errors import Unavailable
from edge_serve.messages.infer import InferRequest
from edge_serve.scheduling.core import Decision, DynamicBatching, Entry, QueuePolicy, Refuse, Run, Scheduler, Wait
from edge_serve.scheduling.dynamic import DynamicScheduler

US = 1000
MS = 1000 * US


def entry(
    arrival_ns: int = 0,
    *,
    rows: int = 1,
    key: Hashable = None,
    id: str = "",
    priority: int = 0,
    timeout_us: int = 0,
    deadline_ns: int = 0,
) -> Entry:
    """An entry of a made-up request."""
    request = InferRequest("m", id=id, priority=priority, timeout_us=timeout_us, deadline_ns=deadline_ns)
    return Entry(request, rows, key, arrival_ns)


def settle(scheduler: Scheduler, now_ns: int) -> tuple[list[Run], list[Refuse], int | None]:
    """Everything the scheduler wants now, and until when it then waits."""
    runs: list[Run] = []
    refused: list[Refuse] = []
    while True:
        decision: Decision = scheduler.next(now_ns)
        match decision:
            case Run():
                runs.append(decision)
            case Refuse():
                refused.append(decision)
            case Wait(until_ns):
                return runs, refused, until_ns


def ids(runs: list[Run]) -> list[list[str]]:
    """The request ids of each run."""
    return [[one.request.id for one in run.entries] for run in runs]


@dataclass(eq=False)
class Waiting:
    """An entry as the reference sees it. `moved` is its number among the delayed ones, 0 = not delayed."""

    entry: Entry
    number: int
    level: int
    policy: QueuePolicy
    timeout_ns: int
    moved: int = 0

    @property
    def rows(self) -> int:
        return max(1, self.entry.rows)


class Reference:
    """The batches that a dynamic batcher may answer with, worked out anew from the whole list at each question."""

    def __init__(self, batching: DynamicBatching) -> None:
        self.batching = batching
        self.max_rows = max(1, batching.max_batch_size)
        self.preferred = set(batching.preferred_batch_sizes) or {self.max_rows}
        self.waiting: list[Waiting] = []
        self._numbers = 0
        self._moves = 0

    def add(self, entry: Entry, now_ns: int) -> bool:
        """False when the level is full."""
        batching, level = self.batching, entry.request.priority
        if not 1 <= level <= batching.priority_levels:
            level = batching.default_priority_level if batching.priority_levels else 0
        policy = batching.policies.get(level, batching.default_policy)
        if not batching.priority_levels:
            policy = batching.default_policy
        if policy.max_queue_size and sum(w.level == level for w in self.waiting) >= policy.max_queue_size:
            return False
        timeout_us = policy.default_timeout_us
        if timeout_us and policy.allow_timeout_override and entry.request.timeout_us:
            timeout_us = min(timeout_us, entry.request.timeout_us)
        self._numbers += 1
        ends = now_ns + timeout_us * 1000 if timeout_us else 0
        self.waiting.append(Waiting(entry, self._numbers, level, policy, ends))
        return True

    def remove(self, entry: Entry) -> bool:
        before = len(self.waiting)
        self.waiting = [w for w in self.waiting if w.entry is not entry]
        return len(self.waiting) < before

    def in_order(self) -> list[Waiting]:
        return sorted(self.waiting, key=lambda w: (w.level, w.moved, w.number))

    def clocks(self) -> list[tuple[int, int, Waiting, bool]]:
        """(when, entry number, entry, whether it is its deadline), the first to ring first."""
        found = []
        for w in self.waiting:
            deadline_ns = w.entry.request.deadline_ns
            if deadline_ns:
                found.append((deadline_ns, w.number, w, True))
            if w.timeout_ns and w.timeout_ns != deadline_ns:
                found.append((w.timeout_ns, w.number, w, False))
        return sorted(found, key=lambda clock: clock[:2])

    def refuse(self, now_ns: int) -> tuple[Entry, str] | None:
        """The next entry whose time is over, and a word of the text."""
        for at_ns, _, w, is_deadline in self.clocks():
            if at_ns > now_ns:
                return None
            if is_deadline or not w.policy.delay_on_timeout:
                self.waiting.remove(w)
                return w.entry, "deadline" if is_deadline else "timeout"
            self._moves += 1
            w.moved, w.timeout_ns = self._moves, 0
        return None

    def batch(self, now_ns: int) -> list[Entry]:
        """Return the batch for an idle instance; empty = wait."""
        order = self.in_order()
        fits = 0
        while fits < len(order) and (
            fits == 0
            or (
                sum(w.rows for w in order[: fits + 1]) <= self.max_rows
                and order[fits].entry.shape_key == order[0].entry.shape_key
            )
        ):
            fits += 1
        if not fits:
            return []
        sizes = {count: sum(w.rows for w in order[:count]) for count in range(1, len(order) + 1)}
        reached = [count for count in range(1, fits + 1) if sizes[count] in self.preferred]
        passed = [count for count in range(1, fits + 1) if sizes.get(count + 1, 0) > max(self.preferred)]
        best = max(reached) if reached else min(passed, default=0)
        delay_ns = self.batching.max_queue_delay_us * 1000
        late = delay_ns > 0 and now_ns >= self.due_ns(order[:fits])
        if best and not late:
            count = best
        elif fits < len(order) or sizes[fits] >= max(self.preferred) or late or not delay_ns:
            count = fits
        else:
            return []
        return [w.entry for w in order[:count]]

    def due_ns(self, batch: list[Waiting]) -> int:
        return min(w.entry.arrival_ns for w in batch) + self.batching.max_queue_delay_us * 1000

    def wait_until(self, idle: bool) -> int | None:
        """When something happens by itself. Only asked when nothing is to be done now."""
        times = [at_ns for at_ns, _, _, _ in self.clocks()[:1]]
        if idle and self.waiting:
            times.append(self.due_ns(self.waiting))
        return min(times, default=None)


class Asked(NamedTuple):
    """A request of a client."""

    rows: int = 1
    key: str | None = None
    priority: int = 0
    timeout_us: int = 0
    deadline_us: int = 0


class World:
    """A DynamicScheduler and a Reference side by side; each answer of the one is held against the other."""

    def __init__(self, batching: DynamicBatching, instances: int, passive: Collection[int] = ()) -> None:
        self.now = 1_000_000
        self.instances = range(instances)
        self.passive = set(passive)
        self.scheduler = DynamicScheduler(batching, instances, passive)
        self.reference = Reference(batching)
        self.idle = set(self.instances) - self.passive
        self.busy: set[int] = set()
        self.gone: set[int] = set()
        self.answers: dict[Entry, int] = {}
        self.stopped = False

    def settle(self) -> None:
        """Ask until Wait, as the driver does."""
        while True:
            decision = self.scheduler.next(self.now)
            refused = self.reference.refuse(self.now)
            batch = self.reference.batch(self.now) if self.idle and refused is None else []
            match decision:
                case Refuse(one, error):
                    assert refused is not None
                    assert one is refused[0]
                    assert isinstance(error, Unavailable)
                    assert refused[1] in error.message
                    self.answers[one] += 1
                case Run(instance, entries):
                    assert refused is None
                    assert entries == batch
                    self.idle.remove(instance)
                    self.busy.add(instance)
                    self.ran(entries)
                case Wait(until_ns):
                    assert refused is None
                    assert not batch
                    assert until_ns == self.reference.wait_until(bool(self.idle))
                    assert until_ns is None or until_ns > self.now
                    return self.check()

    def ran(self, entries: list[Entry]) -> None:
        """Check the properties of every batch, with any rules."""
        assert sum(max(1, one.rows) for one in entries) <= self.reference.max_rows
        assert len({one.shape_key for one in entries}) == 1
        assert all(one.request.deadline_ns == 0 or one.request.deadline_ns > self.now for one in entries)
        for one in entries:
            assert self.reference.remove(one)
            self.answers[one] += 1

    def add(self, asked: Asked) -> None:
        one = entry(
            self.now,
            rows=min(asked.rows, self.reference.max_rows),
            key=asked.key,
            priority=asked.priority,
            timeout_us=asked.timeout_us,
            deadline_ns=self.now + asked.deadline_us * US if asked.deadline_us else 0,
        )
        self.answers[one] = 0
        try:
            self.scheduler.add(one, self.now)
            refusal = ""
        except Unavailable as error:
            self.answers[one] += 1
            refusal = error.message
        if self.stopped:
            assert "Server is stopping" in refusal
        else:
            assert self.reference.add(one, self.now) == (not refusal)
            assert not refusal or "Exceeds maximum queue size" in refusal

    def pass_time(self, us: int) -> None:
        self.now += us * US

    def sleep(self) -> None:
        """Until the moment that the scheduler asked to be woken at."""
        self.now = self.reference.wait_until(bool(self.idle)) or self.now

    def finish(self, instance: int) -> None:
        self.busy.remove(instance)
        self.idle.add(instance)
        self.scheduler.done(instance)

    def lose(self, instance: int, late_reply: bool) -> None:
        self.scheduler.lost(instance)
        if late_reply:
            self.scheduler.done(instance)
        self.idle.discard(instance)
        self.busy.discard(instance)
        self.gone.add(instance)

    def come_back(self, instance: int) -> None:
        self.gone.discard(instance)
        if instance not in self.passive | self.busy:
            self.idle.add(instance)
        self.scheduler.back(instance)

    def cancel(self, one: Entry) -> None:
        cancelled = self.scheduler.cancel(one)
        assert cancelled == self.reference.remove(one)
        self.answers[one] += cancelled

    def stop(self) -> None:
        self.stopped = True
        self.scheduler.stop()

    def drain(self) -> None:
        drained = self.scheduler.drain()
        assert drained == [waiting.entry for waiting in self.reference.in_order()]
        self.reference.waiting.clear()
        for one in drained:
            self.answers[one] += 1

    def check(self) -> None:
        """Each entry is waiting or was answered once."""
        self.scheduler._check()
        waiting = {waiting.entry for waiting in self.reference.waiting}
        assert self.scheduler.pending() == len(waiting)
        assert all(count == (one not in waiting) for one, count in self.answers.items())

    def end(self) -> None:
        """Let all instances work on, and check that each request is answered."""
        for instance in sorted(self.gone):
            self.come_back(instance)
        while self.idle | self.busy and self.reference.waiting:
            self.settle()
            for instance in sorted(self.busy):
                self.finish(instance)
            self.pass_time(1000)
        assert not (self.idle | self.busy) or set(self.answers.values()) <= {1}
