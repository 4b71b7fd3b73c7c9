"""The schedule of an ensemble: which steps a request needs, and which of them may run now.

Rules: triton-inference-server/core src/ensemble_scheduler/ensemble_scheduler.cc. A step runs once all ensemble tensors
that it reads are settled: given by the client, written by another step, or known to be absent (an optional input that
was not given, an output that its model left out). Unlike in Triton, a request for some of the outputs is not a
deadlock: only the steps that lead to them run.

With decoupled members there is one chain of steps for each response. Each response of a decoupled step is
an iteration of all steps that follow it; an ordinary step passes its iteration on. A step reads the tensors of one
iteration, and an answer is made of those of one iteration. Unlike in Triton, an iteration that overtakes another keeps
its number, and answers leave in the order of their iterations.

The plan handles names and numbers of steps; the tensors themselves are in models/ensemble/flight.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from edge_serve.aio.memo import Memo
from edge_serve.config.checks.ensemble import member_key
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.records import frozen

#: routes kept for each ensemble; clients choose the outputs, so there is a limit
_MAX_ROUTES = 64


@frozen
class EnsembleStep:
    """A call of one model of the ensemble.

    Attributes:
        model: with its namespace, where models have one.
        version: "" = the highest one that is ready.
        inputs: of the model -> ensemble tensor; outputs: likewise.
    """

    model: str
    version: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@frozen
class TensorRoute:
    """The part of a plan that leads to certain outputs.

    Attributes:
        outputs: ensemble tensors of the answer.
        sources: step -> the steps whose outputs it reads, and so waits for; readers: the reverse.
        kept: steps whose outputs are in the answer.
        required: inputs without which the answer cannot be made.
        ends: False when steps wait for each other, or for a tensor that no step writes.
    """

    outputs: tuple[str, ...]
    sources: Mapping[int, tuple[int, ...]]
    readers: Mapping[int, tuple[int, ...]]
    kept: frozenset[int]
    required: frozenset[str]
    ends: bool


#: a step, and which iteration of its inputs or outputs
Cell = tuple[int, int]


class EnsemblePlan:
    """The steps of an ensemble.

    Args:
        inputs: of the ensemble -> whether it is optional.
        outputs: of the ensemble, all of which are answered unless a request lists some.
    """

    def __init__(self, steps: Sequence[EnsembleStep], inputs: Mapping[str, bool], outputs: Sequence[str]) -> None:
        self.steps = tuple(steps)
        self._inputs = dict(inputs)
        self._outputs = tuple(outputs)
        #: ensemble tensor -> the step that writes it; an input comes from the client even if a step writes it too
        self.writers = {
            tensor: index
            for index, step in enumerate(self.steps)
            for tensor in step.outputs.values()
            if tensor not in self._inputs
        }
        self._all = self._route(self._outputs)
        self._routes: Memo[tuple[str, ...], TensorRoute] = Memo(_MAX_ROUTES)

    def route(self, wanted: Iterable[str] = ()) -> TensorRoute:
        """Return the route to some outputs; to all when none are listed."""
        key = tuple(wanted)
        if not key:
            return self._all
        route = self._routes.get(key)
        if route is None:
            route = self._routes.add(key, self._route(key))
        return route

    def _route(self, wanted: Sequence[str]) -> TensorRoute:
        writers = self.writers
        kept = {writers[tensor] for tensor in wanted if tensor in writers}
        sources = self._sources(kept)
        readers: dict[int, list[int]] = {step: [] for step in sources}
        for step, others in sources.items():
            for other in others:
                readers[other].append(step)
        read = {tensor for step in sources for tensor in self.steps[step].inputs.values()}
        read.update(wanted)
        return TensorRoute(
            outputs=tuple(dict.fromkeys(wanted)),
            sources=sources,
            readers={step: tuple(others) for step, others in readers.items()},
            kept=frozenset(kept),
            required=frozenset(tensor for tensor in read if not self._inputs.get(tensor, True)),
            ends=_ends(sources) and all(tensor in writers or tensor in self._inputs for tensor in read),
        )

    def _sources(self, last: Collection[int]) -> dict[int, tuple[int, ...]]:
        """Return every step that leads to the `last` ones, in the order of the configuration, and the steps it waits
        for."""
        writers = self.writers
        found: dict[int, tuple[int, ...]] = {}
        left = list(last)
        while left:
            step = left.pop()
            if step in found:
                continue
            others = dict.fromkeys(writers[tensor] for tensor in self.steps[step].inputs.values() if tensor in writers)
            found[step] = tuple(others)
            left += others
        return dict(sorted(found.items()))


def _ends(sources: Mapping[int, tuple[int, ...]]) -> bool:
    """Return whether all steps run when each waits for its sources."""
    done: set[int] = set()
    while more := {step for step, others in sources.items() if step not in done and done.issuperset(others)}:
        done |= more
    return len(done) == len(sources)


class EnsembleRun:
    """One request on its way through the plan.

    Args:
        decoupled: the steps whose models are decoupled.

    Attributes:
        possible: the outputs can be made from the given inputs; if not, no step may run.
        running: the number of calls that have not ended.
    """

    __slots__ = ("_iterations", "_missing", "_next_answer", "_written", "possible", "route", "running")

    def __init__(self, route: TensorRoute, given: Collection[str], decoupled: Collection[int]) -> None:
        self.route = route
        self.possible = route.ends and route.required.issubset(given)
        self.running = 0
        #: decoupled step -> the number of its responses
        self._iterations = dict.fromkeys(decoupled, 0)
        self._missing: dict[Cell, int] = {}
        #: iteration -> how many of the steps in the answer have written theirs
        self._written: dict[int, int] = {}
        self._next_answer = 0

    def start(self) -> Sequence[Cell]:
        """Return the calls to make first."""
        first = [(step, 0) for step, sources in self.route.sources.items() if not sources]
        self.running = len(first)
        return first

    def wrote(self, cell: Cell) -> tuple[Cell, Sequence[Cell]]:
        """Record a response of a call. Return the cell of its outputs, and the calls to make now."""
        step, iteration = cell
        if step in self._iterations:
            iteration = self._iterations[step]
            self._iterations[step] += 1
        ready = []
        for reader in self.route.readers[step]:
            following = (reader, iteration)
            missing = self._missing.pop(following, len(self.route.sources[reader])) - 1
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


def ensemble_plan(config: pb.ModelConfig) -> EnsemblePlan:
    """Make the plan of an ensemble's checked configuration."""
    steps = [
        EnsembleStep(
            member_key(step),
            str(step.model_version) if step.model_version >= 0 else "",
            dict(sorted(step.input_map.items())),
            dict(sorted(step.output_map.items())),
        )
        for step in config.ensemble_scheduling.step
    ]
    inputs = {tensor.name: tensor.optional for tensor in config.input}
    return EnsemblePlan(steps, inputs, [tensor.name for tensor in config.output])
