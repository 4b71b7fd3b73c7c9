"""Implicit state: what a model's sequences hand on from request to request, kept beside the instance that runs them.

Rules: triton-inference-server/core src/sequence_state.cc. A state goes in as `input_name` and comes back as
`output_name`; it starts as `initial_state` says, else as zeros, with 1 for variable dimensions. States are kept by
sequence slot: the scheduler assigns each sequence a slot of its own for its life, and its first request has START,
which removes the states that the slot has. So states never travel, and there are never more of them than slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from edge_serve.backends.base import BackendInstance, BackendRequest, ModelSpec, Reply, Timing
from edge_serve.errors import Internal, InvalidArgument
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START
from edge_serve.messages.tensors import BY_CONFIG_NAME, DataType, InferTensor, Shape, element_count, zero_data
from edge_serve.records import frozen

#: beside the version directories (core src/constants.h, kInitialStateFolder)
INITIAL_STATES = "initial_state"


@frozen
class ImplicitState:
    """One entry of `sequence_batching.state`.

    Attributes:
        first: its value when a sequence starts.
    """

    output_name: str
    first: InferTensor


def states_of(spec: ModelSpec) -> list[ImplicitState]:
    """Return the states that a completed configuration describes.

    Raises:
        InvalidArgument: an initial state's file is too short, or lies elsewhere.
        Internal: it cannot be read.
    """
    batch: Shape = (1,) if int(spec.config.get("max_batch_size", 0)) else ()
    return [
        ImplicitState(str(state["output_name"]), _first(state, batch, spec.model_directory))
        for state in (spec.config.get("sequence_batching") or {}).get("state", [])
    ]


def _first(state: dict[str, Any], batch: Shape, model_directory: Path) -> InferTensor:
    name, datatype = str(state["input_name"]), BY_CONFIG_NAME[state["data_type"]]
    initial: dict[str, Any] = next(iter(state.get("initial_state", [])), {})
    dims = tuple(int(dim) for dim in initial.get("dims") or state["dims"])
    shape = batch + tuple(1 if dim < 0 else dim for dim in dims)
    if not initial.get("data_file"):
        return _zeros(name, datatype, shape)
    data = _read(model_directory, str(initial["data_file"]))
    expected = element_count(shape) * datatype.size
    if len(data) < expected:
        raise InvalidArgument(
            f"initial_state setting expects {expected} bytes, but the data provided from {initial['data_file']} only "
            f"has {len(data)} bytes."
        )
    return InferTensor(name, datatype, shape, data[:expected] if datatype.size else data)


def _read(model_directory: Path, name: str) -> bytes:
    path = model_directory / INITIAL_STATES / name.lstrip("/")  # Triton joins them as text
    if not path.resolve().is_relative_to(model_directory.resolve()):
        raise InvalidArgument(f"initial state file '{name}' is outside the directory of the model")
    try:
        return path.read_bytes()
    except OSError as error:
        raise Internal(f"failed to open text file for read {INITIAL_STATES}/{name}: {error.strerror}") from error


def _zeros(name: str, datatype: DataType, shape: Shape) -> InferTensor:
    return InferTensor(name, datatype, shape, zero_data(datatype, shape))


class StatefulInstance:
    """Gives an instance's requests their states and keeps what comes back. It is a `BackendInstance` itself.

    Args:
        shown: outputs of the configuration; a state among them is part of the answer too.
    """

    def __init__(self, instance: BackendInstance, states: Sequence[ImplicitState], shown: Sequence[str]) -> None:
        self._instance = instance
        self._states = states
        self._shown = frozenset(shown)
        self._names = frozenset(state.output_name for state in states)
        #: sequence slot -> the latest states, by the output's name
        self._kept: dict[int, dict[str, InferTensor]] = {}

    def execute(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        """See `BackendInstance`."""
        dummy = self._dummy(batch)
        wanted = [request.requested_outputs for request in batch]
        for request in batch:
            if request.sequence_slot >= 0 and request.flags & SEQUENCE_START:
                self._kept.pop(request.sequence_slot, None)
            self._prepare(request, self._now(request.sequence_slot) if request.sequence_slot >= 0 else dummy)
        replies = self._instance.execute(batch, timing)
        if len(replies) == len(batch):
            for request, reply, names in zip(batch, replies, wanted, strict=True):
                self._take(request.sequence_slot, reply, names)
        for request, names in zip(batch, wanted, strict=True):
            request.requested_outputs = names
            if request.flags & SEQUENCE_END and request.send is None:
                self._kept.pop(request.sequence_slot, None)
        return replies

    def _now(self, slot: int) -> list[InferTensor]:
        kept = self._kept.get(slot, {})
        return [kept.get(state.output_name, state.first) for state in self._states]

    def _dummy(self, batch: Sequence[BackendRequest]) -> list[InferTensor]:
        """Return the states of null requests: zeros, in the shapes of the others. A warm-up gets first states."""
        for request in batch:
            if request.sequence_slot >= 0:
                like = self._now(-1 if request.flags & SEQUENCE_START else request.sequence_slot)
                return [_zeros(tensor.name, tensor.datatype, tensor.shape) for tensor in like]
        return [state.first for state in self._states]

    def _prepare(self, request: BackendRequest, states: Sequence[InferTensor]) -> None:
        given = {tensor.name for tensor in request.inputs}  # a warm-up may bring its own
        request.inputs = [*request.inputs, *(tensor for tensor in states if tensor.name not in given)]
        names = request.requested_outputs
        if request.send is not None:
            request.send = partial(self._send, request.send, request.sequence_slot, names)
        request.requested_outputs = [*names, *self._names.difference(names)]

    def _take(self, slot: int, reply: Reply, wanted: Sequence[str]) -> None:
        """Keep the states of a reply, and leave in it what the client asked for."""
        states = [tensor for tensor in reply.outputs if tensor.name in self._names]
        if not states:
            return
        shown = self._shown.intersection(wanted)
        reply.outputs = [tensor for tensor in reply.outputs if tensor.name not in self._names or tensor.name in shown]
        if slot < 0 or reply.error is not None:
            return
        kept = self._kept.setdefault(slot, {})
        inputs = {state.output_name: state.first.name for state in self._states}
        for tensor in states:  # copies: the model may write there again
            kept[tensor.name] = InferTensor(inputs[tensor.name], tensor.datatype, tensor.shape, bytes(tensor.data))

    def _send(
        self,
        send: Callable[[Reply | None, bool], None],
        slot: int,
        wanted: Sequence[str],
        reply: Reply | None,
        final: bool,
    ) -> None:
        """Send one of several replies, and keep the states that it brings."""
        if reply is not None:
            self._take(slot, reply, wanted)
        send(reply, final)

    def is_ready(self) -> bool:
        """See `BackendInstance`."""
        return self._instance.is_ready()

    def close(self) -> None:
        """See `BackendInstance`."""
        self._instance.close()


def with_states(instances: Sequence[BackendInstance], spec: ModelSpec) -> Sequence[BackendInstance]:
    """Return the instances, which keep states if the configuration has some.

    Raises:
        EdgeServeError: as `states_of`.
    """
    states = states_of(spec)
    if not states:
        return instances
    shown = [str(output["name"]) for output in spec.config.get("output", [])]
    return [StatefulInstance(instance, states, shown) for instance in instances]
