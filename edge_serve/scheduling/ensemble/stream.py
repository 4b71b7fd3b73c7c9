"""The run of one request of an ensemble with decoupled members: one chain of steps for each response.

Rules: triton-inference-server/core src/ensemble_scheduler/ensemble_scheduler.cc. Each response of a decoupled step is
an iteration of all steps that follow it; an ordinary step passes its iteration on. A step reads the tensors of one
iteration, and an answer is made of those of one iteration. Unlike in Triton, an iteration that overtakes another keeps
its number, and answers leave in the order of their iterations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from edge_serve.scheduling.ensemble.plan import TensorRoute

#: a step, and which iteration of its inputs or outputs
Cell = tuple[int, int]


class StreamRun:
    """One request on its way through the plan.

    Args:
        decoupled: the steps whose models are decoupled.
    """

    def __init__(self, route: TensorRoute, given: Collection[str], decoupled: Collection[int]) -> None:
        self.route = route
        self.possible = route.ends and route.required.issubset(given)
        #: the number of calls that have not ended
        self.running = 0
        self._decoupled = frozenset(decoupled)
        self._iterations = dict.fromkeys(self._decoupled, 0)
        self._missing: dict[Cell, int] = {}
        #: iteration -> how many of the steps in the answer have written theirs
        self._written: dict[int, int] = {}
        self._next_answer = 0

    def start(self) -> Sequence[Cell]:
        """Return the calls to make first."""
        first = [(step, 0) for step, count in self.route.needs.items() if not count]
        self.running = len(first)
        return first

    def wrote(self, cell: Cell) -> tuple[Cell, Sequence[Cell]]:
        """Record a response of a call. Return the cell of its outputs, and the calls to make now."""
        step, iteration = cell
        if step in self._decoupled:
            iteration = self._iterations[step]
            self._iterations[step] += 1
        ready = []
        for reader in self.route.readers[step]:
            following = (reader, iteration)
            missing = self._missing.pop(following, self.route.needs[reader]) - 1
            if missing:
                self._missing[following] = missing
            else:
                ready.append(following)
        if step in self.route.kept:
            self._written[iteration] = self._written.get(iteration, 0) + 1
        self.running += len(ready)
        return (step, iteration), ready

    def ended(self) -> None:
        """Record that a call had its last response, or was not made after all."""
        self.running -= 1

    def answers(self) -> Iterator[int]:
        """Yield the iterations that are complete now, in order, each of them once."""
        while self._written.get(self._next_answer) == len(self.route.kept):
            del self._written[self._next_answer]
            self._next_answer += 1
            yield self._next_answer - 1
