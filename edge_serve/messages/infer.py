"""One inference: the request as decoded, and the response before it is encoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Protocol

from edge_serve.errors import EdgeServeError
from edge_serve.messages.shared_memory import Place
from edge_serve.messages.signature import Signature
from edge_serve.messages.statistics import ComputeTimes
from edge_serve.messages.tensors import InferTensor
from edge_serve.records import slotted

Parameter = str | int | bool | float

SEQUENCE_START = 1
SEQUENCE_END = 2

#: see `InferRequest.sequence_slot`
NULL_SEQUENCE_SLOT = -2


class Lease(Protocol):
    """A piece of memory that its owner must release: a slot of a tensor arena (workers/memory/arena.py)."""

    @property
    def view(self) -> memoryview:
        """The bytes, writable."""

    @property
    def offset(self) -> int:
        """Where `view` starts in the arena."""

    @property
    def arena(self) -> object:
        """The arena itself: offsets mean something only to a model that has this one."""

    def release(self) -> None:
        """Give it back; the view must not be used any more. A second call does nothing."""


class Room(Lease, Protocol):
    """A lease whose memory may come later."""

    def skip(self, count: int) -> None:
        """Start the view so many bytes later, less than a page, so that tensors in it are aligned."""

    @property
    def is_ready(self) -> bool:
        """The memory is there, or `error` says that it will not come. Until then nothing may be written to it."""

    @property
    def error(self) -> EdgeServeError | None:
        """Why there is no memory."""

    def when_ready(self, done: Callable[[], None]) -> None:
        """Call `done` when it is ready, at once if it is; not at all once it was released."""


@slotted
class RequestedOutput:
    """An entry of `outputs`.

    Attributes:
        binary: leave as binary tensor data rather than JSON.
        classification: number of top classes to return in place of the tensor; 0 = off.
        place: the client's memory that it is written to rather than into the reply.
    """

    name: str
    binary: bool = False
    classification: int = 0
    place: Place | None = None


@slotted
class InferRequest:
    """A decoded request.

    Attributes:
        model_version: as in the URL; "" means the highest ready one.
        outputs: empty means all outputs of the model.
        parameters: custom parameters and forwarded headers, for the backend.
        flags: SEQUENCE_START | SEQUENCE_END.
        timeout_us: Triton's `timeout` parameter, microseconds; 0 = none.
        deadline_ns: from the `timeout-ms` header, on the monotonic clock; 0 = none.
        binary_default: `binary_data_output`, for outputs when none are listed.
        lease: the arena slot that the tensors are views of, released when the backend is done with them.
        rows: its batch size (1 when the model has no batch dimension), set by protocol/inference/validate.py.
        validated: the signature it was checked against; None = not yet.
        sequence_slot: the slot of its sequence in the instance, set when it runs; -1 = it is part of no sequence, and
            keeps no state; NULL_SEQUENCE_SLOT = it only fills a row, and its outputs are not sent.
        compute: of the ensemble request that this one is a part of, which adds its times there; None = of no ensemble.
        shared: an input (`tensors.Shared`) or an output lies in a client's shared memory.
        paused: the client reads slowly, so the sender of a decoupled model's responses is to wait. `Ticket.set_paused`
            sets it. It remains while the request is queued, is given to another version by a swap, or is executed anew.
    """

    model_name: str
    model_version: str = ""
    id: str = ""
    inputs: list[InferTensor] = field(default_factory=list)
    outputs: list[RequestedOutput] = field(default_factory=list)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    correlation_id: int | str = 0
    flags: int = 0
    priority: int = 0
    timeout_us: int = 0
    deadline_ns: int = 0
    binary_default: bool = False
    lease: Lease | None = None
    rows: int = 1
    validated: Signature | None = None
    sequence_slot: int = -1
    compute: ComputeTimes | None = None
    shared: bool = False
    paused: bool = False


def copy_request(one: InferRequest, request_id: str, inputs: list[InferTensor]) -> InferRequest:
    """Return a copy with another ID and other inputs, and without a deadline and a lease. Both share `outputs`.

    `dataclasses.replace` would take 3 us.
    """
    return InferRequest(
        one.model_name,
        one.model_version,
        request_id,
        inputs,
        one.outputs,
        one.parameters.copy(),
        one.correlation_id,
        one.flags,
        one.priority,
        one.timeout_us,
        0,
        one.binary_default,
        None,
        one.rows,
        one.validated,
    )


@slotted
class InferResponse:
    """A response, or one of several from a decoupled model.

    Attributes:
        error: set instead of `outputs` when the request failed.
        final: no further response follows for this request.
        null: it is no response, only the news that none follows: `final` is set and everything else empty.
        lease: the arena slot that the outputs are views of, released after the kernel has taken the last byte.
        personal: it may depend on the request's parameters or sequence, not on its inputs alone; said of models with a
            response cache only.
    """

    model_name: str
    model_version: str
    id: str = ""
    outputs: list[InferTensor] = field(default_factory=list)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    error: EdgeServeError | None = None
    final: bool = True
    lease: Lease | None = None
    null: bool = False
    personal: bool = False
