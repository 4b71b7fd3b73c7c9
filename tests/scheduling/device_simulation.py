"""A simulated server with one device: when should a batch take the second seat (ADR 27)?

    python -m tests.scheduling.device_simulation

prints the table of the ADR. Clients send their next request when they have the answer. Time is an argument, and chance
is seeded: each run gives the same figures, on any machine. The scheduler is the real one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any

from edge_serve.messages.infer import InferRequest
from edge_serve.scheduling.core import DynamicBatching, Entry, Run, Wait
from edge_serve.scheduling.dynamic import DynamicScheduler
from edge_serve.scheduling.seats import EAGER_NS, MARGIN_NS, SecondSeats

US = 1000
#: measured with ONNX models on the CPU: what the front end computes for each request and reply, and the worker for each
#: batch; `HOP` is a frame from one process to the other
RECEIVE, REPLY, ANSWER, HOP, BEGIN, FINISH = 120 * US, 30 * US, 60 * US, 40 * US, 60 * US, 60 * US
#: the event loop counts in milliseconds
TIMER = 1000 * US
MAX_ROWS = 8
#: the rule of the server
CHOSEN = "0.5 ms before"


@dataclass(frozen=True)
class Load:
    """Clients, and a model that computes `fixed` + `row` for each row; nanoseconds.

    Attributes:
        copy: of the inputs of a row to the device.
        think: of a client, between an answer and its next request, give or take half.
    """

    clients: int
    fixed: int
    row: int
    copy: int = 50 * US
    think: int = 100 * US


class NoSmaller(SecondSeats):
    """The rule that needs no clock: a batch takes the second seat when it has as many rows as the one that runs."""

    scheduler: DynamicScheduler

    def soonest(self) -> tuple[int, int]:
        batches = self.instances[0].batches
        is_large = len(batches) == 1 and self.scheduler._queue.rows >= batches[0][0]
        return (0, 0) if is_large else (-1, 0)


def _seats(margin_ns: int) -> Callable[[DynamicScheduler], None]:
    def add(scheduler: DynamicScheduler) -> None:
        scheduler._seats = SecondSeats(margin_ns)
        scheduler.add_second_seat(0)

    return add


def _no_smaller(scheduler: DynamicScheduler) -> None:
    scheduler._seats = seats = NoSmaller()
    seats.scheduler = scheduler
    seats.add(0)


#: rule -> how a scheduler of one instance gets it
RULES: dict[str, Callable[[DynamicScheduler], object]] = {
    "one seat": lambda scheduler: None,
    "at once": _seats(EAGER_NS),
    "full only": _seats(-EAGER_NS),
    "no smaller": _no_smaller,
    "0 ms before": _seats(0),
    "0.25 ms before": _seats(250 * US),
    CHOSEN: _seats(MARGIN_NS),
    "1 ms before": _seats(1000 * US),
}


@dataclass
class Device:
    """When each part of the worker and of the device is free again. A batch passes them in this order."""

    begin: int = 0
    copy: int = 0
    compute: int = 0
    finish: int = 0
    #: computation of all batches so far
    taken: int = 0

    def run(self, now: int, load: Load, rows: int) -> tuple[int, int]:
        """Return when the inputs of a batch are on the device, and when its reply is written."""
        self.begin = max(now, self.begin) + BEGIN
        self.copy = max(self.begin, self.copy) + rows * load.copy
        taken = load.fixed + rows * load.row
        self.compute = max(self.copy, self.compute) + taken
        self.taken += taken
        self.finish = max(self.compute, self.finish) + FINISH
        return self.copy, self.finish

    def busy(self, now: int) -> int:
        """Return for how long the device has computed until now."""
        return self.taken - max(0, self.compute - now)


class Simulation:
    """One server under one load.

    Attributes:
        answers: when each request was answered.
        rows: of each batch.
    """

    def __init__(self, load: Load, rule: str) -> None:
        self.now = 0
        self.answers: list[int] = []
        self.rows: list[int] = []
        self.device = Device()
        self._load = load
        self._random = Random(27)
        self._scheduler = DynamicScheduler(DynamicBatching(MAX_ROWS), 1)
        RULES[rule](self._scheduler)
        self._events: list[tuple[int, int, Callable[..., None], Any]] = []
        self._number = 0
        #: what the front end has to do: how long it takes, and then what
        self._work: deque[tuple[int, Callable[..., None], Any]] = deque()
        self._works = False
        self._timer_at = 0
        for _ in range(load.clients):
            self._at(self._random.randrange(1000 * US), self._send, None)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        while self._events[0][0] < seconds * 1e9:
            self.now, _, act, value = heappop(self._events)
            act(value)

    def _at(self, when: int, act: Callable[..., None], value: Any) -> None:
        self._number += 1
        heappush(self._events, (when, self._number, act, value))

    # ---- clients and front end ------------------------------------------------------------------------------------

    def _send(self, _: object) -> None:
        self._do(RECEIVE, self._add, None)

    def _do(self, takes: int, act: Callable[..., None], value: Any) -> None:
        self._work.append((takes, act, value))
        self._next_work()

    def _next_work(self) -> None:
        if self._work and not self._works:
            self._works = True
            takes, act, value = self._work.popleft()
            self._at(self.now + takes, self._worked, (act, value))

    def _worked(self, done: tuple[Callable[..., None], Any]) -> None:
        self._works = False
        done[0](done[1])
        self._next_work()

    def _add(self, _: object) -> None:
        self._scheduler.add(Entry(InferRequest("m"), 1, None, self.now), self.now)
        self._pump()

    def _pump(self) -> None:
        while isinstance(decision := self._scheduler.next(self.now), Run):
            self.rows.append(len(decision.entries))
            self._at(self.now + HOP, self._execute, len(decision.entries))
        assert isinstance(decision, Wait)
        if decision.until_ns is not None and not self.now < self._timer_at <= decision.until_ns:
            self._timer_at = decision.until_ns
            self._at(decision.until_ns + self._random.randrange(TIMER), self._on_timer, None)

    def _on_timer(self, _: object) -> None:
        self._timer_at = 0
        self._pump()

    def _on_reply(self, reply: tuple[int, int, int]) -> None:
        rows, ready, end = reply
        self._scheduler.ran(0, ready, end)
        self._scheduler.done(0)
        self._pump()
        for _ in range(rows):
            self._do(ANSWER, self._answer, None)

    def _answer(self, _: object) -> None:
        self.answers.append(self.now)
        think = self._load.think
        self._at(self.now + self._random.randint(think // 2, think * 3 // 2), self._send, None)

    # ---- worker -----------------------------------------------------------------------------------------------------

    def _execute(self, rows: int) -> None:
        ready, end = self.device.run(self.now, self._load, rows)
        self._at(end + HOP, lambda reply: self._do(REPLY, self._on_reply, reply), (rows, ready, end))


def rate(load: Load, rule: str, seconds: float = 1.0) -> tuple[float, float, float]:
    """Return requests per second, rows of a batch, and the share of time in which the device computes, after a start of
    a fifth."""
    simulation = Simulation(load, rule)
    simulation.run(seconds / 5)
    answers, batches, busy = len(simulation.answers), len(simulation.rows), simulation.device.busy(simulation.now)
    simulation.run(seconds)
    span = seconds * 4 / 5
    rows = simulation.rows[batches:]
    computed = simulation.device.busy(simulation.now) - busy
    return (len(simulation.answers) - answers) / span, sum(rows) / len(rows), computed / (span * 1e9)


#: name -> computation for each batch and for each row
MODELS = {
    "0.3 + 0.05 ms": (300 * US, 50 * US),
    "0.5 + 0.2 ms": (500 * US, 200 * US),
    "2 + 0.5 ms": (2000 * US, 500 * US),
    "3 + 0.02 ms": (3000 * US, 20 * US),
    "5 + 1 ms": (5000 * US, 1000 * US),
}


def table(clients: tuple[int, ...] = (1, 8, 32)) -> str:
    """Return requests per second and the busy share of the device for each rule, as Markdown."""
    loads = {f"{name}, {count}": Load(count, *model) for name, model in MODELS.items() for count in clients}
    lines = [f"| model, clients | {' | '.join(RULES)} |", "|---|" + "--:|" * len(RULES)]
    for name, load in loads.items():
        cells = [f"{found:.0f} ({busy:.0%})" for found, _, busy in (rate(load, rule) for rule in RULES)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def worst(clients: tuple[int, ...] = (1, 2, 3, 5, 8, 12, 15, 17, 32)) -> str:
    """Return, for each rule, its mean and its worst rate beside the best rule's, over many loads."""
    ratios: dict[str, list[float]] = {rule: [] for rule in RULES}
    for model in MODELS.values():
        for count in clients:
            for copy, think in ((50 * US, 100 * US), (0, 100 * US), (50 * US, 2000 * US)):
                rates = {rule: rate(Load(count, *model, copy, think), rule)[0] for rule in RULES}
                best = max(rates.values())
                for rule, found in rates.items():
                    ratios[rule].append(found / best)
    return "\n".join(f"{rule}: mean {sum(all) / len(all):.3f}, worst {min(all):.2f}" for rule, all in ratios.items())


if __name__ == "__main__":
    print(table())
    print(worst())
