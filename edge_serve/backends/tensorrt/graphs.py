"""CUDA graphs: which ones an instance captures, and which one a batch runs with.

A graph replays one execution with fixed shapes. A batch runs with the graph of exactly its shapes, or it is padded to a
larger one whose `graph_lower_bound` it reaches. Follows tensorrt_backend src/instance_state.cc (InitializeGraphSpecs,
SetCudaGraphShape, FindClosestCudaGraph), texts included.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from edge_serve.backends.tensorrt.engine import EngineInfo, TensorInfo
from edge_serve.backends.tensorrt.profiles import Choice
from edge_serve.errors import InvalidArgument
from edge_serve.messages.tensors import Shape, shape_text
from edge_serve.records import frozen

Json = Mapping[str, Any]

#: batch sizes of graphs without a scheduler: they help small batches most
_DEFAULT_SIZES = (1, 2, 3, 4, 6, 8, 12, 16)


@frozen
class GraphSpec:
    """One `graph_spec`, or one of the sizes that Triton captures without any.

    Attributes:
        batch_size: 0 = the model does not batch.
        shapes: of the inputs, without the batch dimension; empty = the best ones of the profile.
        lower_batch_size, lower_shapes: the smallest batch that is padded to this graph.
        padded: it has a `graph_lower_bound`.
    """

    batch_size: int
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    lower_batch_size: int = 0
    lower_shapes: Mapping[str, Shape] = field(default_factory=dict)
    padded: bool = False


@frozen
class GraphShape:
    """A graph to capture: the shapes of all inputs, in the engine's order, and the smallest ones it is padded for."""

    shapes: tuple[Shape, ...]
    lower: tuple[Shape, ...]

    @property
    def elements(self) -> int:
        """Return the number of elements of all inputs."""
        return sum(math.prod(shape) for shape in self.shapes)

    def takes(self, shapes: Sequence[Shape]) -> bool:
        """Return whether a batch of these shapes can be padded to this graph, by further rows.

        Triton pads other dimensions too. The rows of the batch would lie in the wrong places there, and the outputs
        have the shape of the graph: answers would be wrong.
        """
        return all(
            bool(size) and size[1:] == high[1:] and low[0] <= size[0] <= high[0]
            for low, size, high in zip(self.lower, shapes, self.shapes, strict=True)
        )

    def padding(self, shapes: Sequence[Shape]) -> int:
        """Return how many rows the graph has more than a batch of these shapes, which it `takes`."""
        return 0 if tuple(shapes) == self.shapes else self.shapes[0][0] - shapes[0][0]


@frozen
class GraphPlan:
    """The graphs of one profile of an instance.

    Attributes:
        shapes: in the order in which a batch looks for one: those with fewer elements first.
        padded: batches are padded, because some spec has a lower bound; without one only equal shapes match.
        notes: why specs have no graph, for the log.
    """

    shapes: tuple[GraphShape, ...] = ()
    padded: bool = False
    notes: tuple[str, ...] = ()

    def find(self, shapes: Iterable[Sequence[int]]) -> GraphShape | None:
        """Return the graph for a batch; None = it runs without one.

        Args:
            shapes: of the batch's inputs, in the engine's order.
        """
        wanted = tuple(tuple(shape) for shape in shapes)
        exact = next((graph for graph in self.shapes if graph.shapes == wanted), None)
        if exact is not None or not self.padded:
            return exact
        return next((graph for graph in self.shapes if graph.takes(wanted)), None)


def wants_graphs(config: Json) -> bool:
    """Return whether graphs are to be captured."""
    return bool(_cuda(config).get("graphs"))


def graph_specs(config: Json) -> list[GraphSpec]:
    """Return the specs of the graphs that a model asks for, by its `graph_spec` or as Triton has them by default.

    Raises:
        InvalidArgument: a spec contradicts itself or `max_batch_size`.
    """
    largest = int(config.get("max_batch_size", 0))
    given = _cuda(config).get("graph_spec") or ()
    if not given:
        return [GraphSpec(size, lower_batch_size=size) for size in _default_sizes(config, largest)]
    specs = [_read(spec) for spec in given]
    for spec in specs:
        _check(spec, largest)
    return specs


def _cuda(config: Json) -> Json:
    return (config.get("optimization") or {}).get("cuda") or {}


def _default_sizes(config: Json, largest: int) -> list[int]:
    if not largest:
        return [0]
    sequence = config.get("sequence_batching") or {}
    scheduler = config.get("dynamic_batching")
    scheduler = sequence.get("oldest") if scheduler is None else scheduler
    if scheduler is None:
        sizes = {*_DEFAULT_SIZES, largest}
    else:
        sizes = {1, *(int(size) for size in scheduler.get("preferred_batch_size") or ()), largest}
    return sorted(size for size in sizes if 0 < size <= largest)


def _read(spec: Json) -> GraphSpec:
    batch_size, shapes = int(spec.get("batch_size", 0)), _shapes(spec)
    bound = spec.get("graph_lower_bound")
    if bound is None:
        return GraphSpec(batch_size, shapes, batch_size, shapes)
    return GraphSpec(batch_size, shapes, int(bound.get("batch_size", 0)), _shapes(bound), padded=True)


def _shapes(spec: Json) -> dict[str, Shape]:
    """Return the shapes of a spec by input; Triton's JSON has these numbers as strings."""
    return {
        name: tuple(int(dim) for dim in shape.get("dim") or ()) for name, shape in (spec.get("input") or {}).items()
    }


def _check(spec: GraphSpec, largest: int) -> None:
    if not largest:
        if spec.batch_size or spec.lower_batch_size:
            raise InvalidArgument("graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0")
    elif not (1 <= spec.batch_size <= largest and 1 <= spec.lower_batch_size <= largest):
        raise InvalidArgument(f"graph spec expects 'batch_size' to be >= 1 and <= {largest}")
    if spec.lower_batch_size > spec.batch_size:
        raise InvalidArgument("graph lower bound spec expects 'batch_size' to be <= graph spec 'batch_size'")
    for name, shape in spec.shapes.items():
        if name not in spec.lower_shapes:
            raise InvalidArgument(f"graph lower bound spec expects shape for input '{name}'")
        _check_bound(name, shape, spec.lower_shapes[name])


def _check_bound(name: str, shape: Shape, lower: Shape) -> None:
    if len(lower) != len(shape):
        raise InvalidArgument(
            f"graph lower bound spec expects to have '{len(shape)}' dimensions, got {len(lower)} for input '{name}'"
        )
    for low, high in zip(lower, shape, strict=True):
        if low < 0 or high < 0:
            raise InvalidArgument(f"graph spec expects input '{name}' to have dimension >= 0")
        if low > high:
            raise InvalidArgument(f"graph lower bound spec expects input '{name}' to have dimension <= {high}")


def plan_graphs(
    specs: Sequence[GraphSpec], engine: EngineInfo, choice: Choice, instance: str, whole: Collection[str] = ()
) -> GraphPlan:
    """Return the graphs that an instance captures for one of its profiles; none where a tensor is a shape tensor.

    Args:
        whole: inputs whose shape in a spec is complete: ragged ones and batch inputs.
    """
    if engine.has_shape_tensors:
        return GraphPlan(notes=(f"Detected shape tensor, CUDA graph is not captured for {instance}",))
    found: dict[tuple[Shape, ...], GraphShape] = {}
    notes = []
    for spec in specs:
        try:
            graph = _graph(spec, engine.inputs, choice, instance, whole)
        except InvalidArgument as error:
            notes.append(f"no CUDA graph of batch size {spec.batch_size} for {instance}: {error.message}")
        else:
            found.setdefault(graph.shapes, graph)
    graphs = sorted(found.values(), key=lambda graph: (graph.elements, graph.shapes))
    return GraphPlan(tuple(graphs), any(spec.padded for spec in specs), tuple(notes))


def _graph(
    spec: GraphSpec, inputs: Sequence[TensorInfo], choice: Choice, instance: str, whole: Collection[str]
) -> GraphShape:
    shapes, lower = [], []
    for tensor in inputs:
        high, low = _pair(spec, tensor, choice, instance, tensor.name in whole)
        span = choice.profile.shapes[tensor.name]
        if len(high) != len(span.max) or not all(
            least <= size <= most for least, size, most in zip(span.min, high, span.max, strict=True)
        ):
            raise InvalidArgument(
                f"its shape {shape_text(high)} of input '{tensor.name}' lies outside of profile {choice}, which takes "
                f"{span}"
            )
        shapes.append(high)
        lower.append(low)
    return GraphShape(tuple(shapes), tuple(lower))


def _pair(spec: GraphSpec, tensor: TensorInfo, choice: Choice, instance: str, whole: bool) -> tuple[Shape, Shape]:
    """Return the shape of an input in a graph, and the smallest one that is padded to it."""
    if not spec.shapes:
        best = choice.profile.shapes[tensor.name].opt
        high = (spec.batch_size, *best[1:]) if spec.batch_size and best else best
        low = (spec.lower_batch_size, *high[1:]) if spec.batch_size and best and spec.padded else high
        return high, low
    if tensor.name not in spec.shapes:
        raise InvalidArgument(f"trt failed to set input shape for unknown input '{tensor.name}' for {instance}")
    high, low = spec.shapes[tensor.name], spec.lower_shapes[tensor.name]
    if spec.batch_size and not whole:
        return (spec.batch_size, *high), (spec.lower_batch_size, *low)
    return high, low
