"""One request on its way through an ensemble: its tensors so far, and who owns their memory.

Rules and texts: triton-inference-server/core src/ensemble_scheduler/ensemble_scheduler.cc.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from edge_serve.clock import Clock
from edge_serve.errors import Cancelled, EdgeServeError, InvalidArgument, Unavailable
from edge_serve.messages.infer import (
    SEQUENCE_END,
    SEQUENCE_START,
    InferRequest,
    InferResponse,
    Lease,
    Parameter,
    RequestedOutput,
)
from edge_serve.messages.signature import Signature
from edge_serve.messages.statistics import ComputeTimes, ModelStatistics
from edge_serve.models import statistics as record
from edge_serve.models.driver import OnResponse, Ticket
from edge_serve.models.ensemble_shared import share
from edge_serve.models.served import Served
from edge_serve.protocol.validate import validate
from edge_serve.scheduling.core import label
from edge_serve.scheduling.ensemble import Call, Deadlock, EnsemblePlan, Failed, Finished, Next
from edge_serve.tensors import Handle, Shape, Tensor


class Lookup(Protocol):
    """Finds the version that is meant by a name, a version ("" = any) and, of sequences, an id and flags."""

    def __call__(self, name: str, version: str, correlation_id: int | str = 0, flags: int = 0) -> Served: ...


DEADLOCK = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"


@dataclass(frozen=True, slots=True)
class Ensemble:
    """What all requests of one ensemble share.

    Attributes:
        lookup: the version that a step means; raises an EdgeServeError when it does not serve.
        wanted: what each step asks its model for.
        landed: called after each answer.
    """

    plan: EnsemblePlan
    signature: Signature
    statistics: ModelStatistics
    lookup: Lookup
    clock: Clock
    wanted: list[list[RequestedOutput]]
    landed: Callable[[], None]


class Flight:
    """One request. `on_response` is called exactly once."""

    __slots__ = (
        "_answered",
        "_compute",
        "_ensemble",
        "_leases",
        "_marks",
        "_on_response",
        "_request",
        "_rows",
        "_run",
        "_start_ns",
        "_tensors",
        "_tickets",
    )

    def __init__(self, ensemble: Ensemble, request: InferRequest, on_response: OnResponse) -> None:
        self._ensemble = ensemble
        self._request = request
        self._on_response = on_response
        self._answered = False
        self._start_ns = ensemble.clock.now_ns()
        self._compute = ComputeTimes()
        self._tensors = {tensor.name: tensor for tensor in request.inputs}
        self._run = ensemble.plan.run(self._tensors.keys(), [output.name for output in request.outputs])
        #: step -> the memory of its outputs
        self._leases: dict[int, Lease] = {}
        #: step that runs -> its request; None while it is being handed over
        self._tickets: dict[int, Ticket | None] = {}
        #: step -> rows of its request, 0 when its model has no batch dimension
        self._rows: dict[int, int] = {}
        #: step -> correlation id and flags that its outputs carry on
        self._marks: dict[int, tuple[int | str, int]] = {}

    def start(self) -> None:
        """Run the first steps."""
        self._proceed(self._run.start())

    def cancel(self) -> None:
        """The client has gone: drop what is queued, tell what runs, and run nothing more."""
        if not self._answered:
            self._stop(self._run.stop(Cancelled("")))

    def hold(self, held: bool) -> bool:
        """See `driver.Ticket`: one answer needs no waiting."""
        return False

    # ---- acting on decisions ------------------------------------------------------------------------------------

    def _proceed(self, decision: Next) -> None:
        match decision:
            case Call(steps, spent):
                for step in spent:
                    self._release(step)
                for step in steps:
                    self._call(step)
            case Finished():
                self._answer()
            case Failed(error):
                self.refuse(error)
            case Deadlock():
                self.refuse(InvalidArgument(label(self._request) + DEADLOCK))

    def _stop(self, decision: Next) -> None:
        """An error is on record: the answer waits for the steps that run, because they still read the tensors."""
        for ticket in list(self._tickets.values()):
            if ticket is not None:
                ticket.cancel()
        if not self._answered:
            self._proceed(decision)

    def _call(self, index: int) -> None:
        if self._run.failing:  # by a step beside this one
            self._proceed(self._run.fail(Cancelled("")))
            return
        step = self._ensemble.plan.steps[index]
        try:
            sequence = self._request.correlation_id
            served = self._ensemble.lookup(step.model, step.version, sequence, self._request.flags)
            if served.signature.decoupled:  # reloaded since: the ensemble has not followed yet
                raise Unavailable(
                    f"model '{step.model}' has become decoupled, and the ensemble is not loaded again yet"
                )
            request = self._member_request(index, served)
            if self._request.shared:
                share(request, self._request, step)
            validate(request, served.signature)
        except EdgeServeError as error:
            self._fail(error)
            return
        self._rows[index] = request.rows if served.signature.max_batch_size else 0
        self._tickets[index] = None
        ticket = served.submit(request, partial(self._on_member, index))
        if index in self._tickets:
            self._tickets[index] = ticket
            if self._run.failing:
                ticket.cancel()

    def _fail(self, error: EdgeServeError) -> None:
        first = not self._run.failing
        decision = self._run.fail(error)
        if first:
            self._stop(decision)
        else:
            self._proceed(decision)

    def _on_member(self, index: int, response: InferResponse) -> None:
        del self._tickets[index]
        if response.lease is not None:
            self._leases[index] = response.lease
        if response.error is not None:
            self._release(index)
            self._fail(response.error)
            return
        names = self._ensemble.plan.steps[index].outputs
        for tensor in response.outputs:
            outer = names.get(tensor.name)
            if outer is not None:
                self._tensors[outer] = tensor if response.lease is None else Handle.of(tensor, response.lease.arena)
        if response.parameters:
            try:
                self._marks[index] = override(self._marks[index][0], response.parameters) or self._marks[index]
            except EdgeServeError as error:
                self._fail(error)
                return
        self._proceed(self._run.done(index))

    # ---- one member ---------------------------------------------------------------------------------------------

    def _member_request(self, index: int, served: Served) -> InferRequest:
        top, step = self._request, self._ensemble.plan.steps[index]
        writers = self._ensemble.plan.writers
        correlation_id, flags = top.correlation_id, top.flags
        inputs: list[Tensor] = []
        marked = False
        for name, outer in step.inputs.items():
            writer = writers.get(outer)
            if writer is not None and not marked:
                correlation_id, flags = self._marks[writer]
                marked = True
            tensor = self._tensors.get(outer)
            if tensor is not None:
                inputs.append(member_input(name, tensor, served.signature, self._rows_of(writer)))
        self._marks[index] = correlation_id, flags
        return InferRequest(
            step.model, served.version, top.id, inputs, list(self._ensemble.wanted[index]), top.parameters,
            correlation_id, flags, top.priority, top.timeout_us, top.deadline_ns, compute=self._compute,
        )  # fmt: skip

    def _rows_of(self, writer: int | None) -> int:
        if writer is not None:
            return self._rows[writer]
        return self._request.rows if self._ensemble.signature.max_batch_size else 0

    # ---- answering ----------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        request, ensemble = self._request, self._ensemble
        outputs = self._outputs()
        lease = self._kept([tensor.name for tensor in outputs])
        record_answer(ensemble, request, self._start_ns, self._compute)
        self._deliver(self._response(outputs, self._parameters(outputs), None, lease))

    def refuse(self, error: EdgeServeError) -> None:
        """Answer with an error, which gets the name of the ensemble in front."""
        self._kept([])
        named = record_refusal(self._ensemble, error, self._start_ns)
        self._deliver(self._response([], {}, named, None))

    def _response(
        self, outputs: list[Tensor], parameters: dict[str, Parameter], error: EdgeServeError | None, lease: Lease | None
    ) -> InferResponse:
        face = self._ensemble.signature
        return InferResponse(
            face.model_name, face.model_version, self._request.id, outputs, parameters, error, True, lease
        )

    def _deliver(self, response: InferResponse) -> None:
        self._answered = True
        self._on_response(response)
        self._ensemble.landed()

    def _outputs(self) -> list[Tensor]:
        """The tensors of the answer; one that its model left out is left out."""
        signature = self._ensemble.signature
        writers = self._ensemble.plan.writers
        batching = signature.max_batch_size > 0
        outputs = []
        for name, spec in reversed(signature.outputs.items()):  # as Triton's hash map mostly hands them out
            tensor = self._tensors.get(name)
            if tensor is not None and name in self._run.route.outputs:
                dims = spec.dims if spec.reshape is None else spec.reshape
                shape = fitted(tensor.shape, dims, batching, self._rows_of(writers.get(name)))
                outputs.append(Handle.renamed(tensor, name, shape))
        return outputs

    def _parameters(self, outputs: Sequence[Tensor]) -> dict[str, Parameter]:
        """What Triton adds to an answer unless all of its outputs are empty."""
        writers = self._ensemble.plan.writers
        for tensor in outputs:
            if tensor.name in writers and len(tensor.data):
                return mark_parameters(*self._marks[writers[tensor.name]])
        return {}

    # ---- memory -------------------------------------------------------------------------------------------------

    def _release(self, step: int) -> None:
        lease = self._leases.pop(step, None)
        if lease is not None:
            lease.release()

    def _kept(self, names: Sequence[str]) -> Lease | None:
        """The memory of these tensors as one lease; all other memory is given back."""
        writers = self._ensemble.plan.writers
        steps = {writers.get(name) for name in names}
        kept: list[Lease] = []
        owners: list[tuple[int | None, Lease]] = [*self._leases.items()]
        if self._request.lease is not None:
            owners.append((None, self._request.lease))
        for step, lease in owners:
            if step in steps:
                kept.append(lease)
            else:
                lease.release()
        self._leases.clear()
        if len(kept) < 2:
            return kept[0] if kept else None
        return Leases(kept)


class Leases:
    """Several pieces of memory, in different arenas, that are given back together."""

    __slots__ = ("_leases",)

    #: no arena holds all of it
    offset = -1
    arena: object = None
    view = memoryview(b"")

    def __init__(self, leases: Sequence[Lease]) -> None:
        self._leases = leases

    def release(self) -> None:
        """Give all of them back."""
        leases, self._leases = self._leases, ()
        for lease in leases:
            lease.release()


def record_answer(ensemble: Ensemble, request: InferRequest, start: int, compute: ComputeTimes) -> None:
    """Count a request that began at `start` and whose members took `compute` together."""
    input_end = start + compute.input_ns
    output_start = input_end + compute.infer_ns
    marks = (start, input_end, output_start, output_start + compute.output_ns)
    rows = max(1, request.rows)
    record.record_batch(ensemble.statistics, rows, *marks, int(time.time() * 1000))
    record.record_success(ensemble.statistics, rows, start, start, *marks, ensemble.clock.now_ns())
    if request.compute is not None:
        request.compute.add(*marks)


def record_refusal(ensemble: Ensemble, error: EdgeServeError, start: int) -> EdgeServeError:
    """Count a request that failed; the error with the name of the ensemble in front."""
    reason = record.CANCELED if isinstance(error, Cancelled) else record.OTHER
    ns = ensemble.clock.now_ns() - start
    # Triton counts a failed ensemble request twice: when it responds and when it releases it
    record.record_failure(ensemble.statistics, reason, ns)
    record.record_failure(ensemble.statistics, reason, ns)
    return type(error)(f"in ensemble '{ensemble.signature.model_name}', {error.message}")


def member_input(name: str, tensor: Tensor, signature: Signature, rows: int) -> Tensor:
    """An ensemble tensor as the input `name` of a member; `rows` as in `fitted`."""
    shape, spec = tensor.shape, signature.inputs.get(name)
    if spec is not None:
        shape = fitted(shape, spec.dims, signature.max_batch_size > 0, rows)
    return Handle.renamed(tensor, name, shape)


def mark_parameters(correlation_id: int | str, flags: int) -> dict[str, Parameter]:
    """What Triton tells of the sequence that an answer belongs to."""
    return {
        "sequence_id": correlation_id,
        "sequence_start": bool(flags & SEQUENCE_START),
        "sequence_end": bool(flags & SEQUENCE_END),
    }


def fitted(shape: Shape, dims: Shape, batching: bool, rows: int) -> Shape:
    """`shape` for a model whose configuration says `dims`, when only one side of the wire has a batch dimension.

    Args:
        batching: the reader has one.
        rows: the writer's batch size; 0 = it has no batch dimension.
    """
    if batching == (rows > 0):
        return shape
    if batching:
        return (1, *shape) if _follows(shape, dims) else shape
    return shape[1:] if rows == 1 and not _follows(shape, dims) else shape


def _follows(shape: Shape, dims: Shape) -> bool:
    return len(shape) == len(dims) and all(
        size == dim or -1 in (size, dim) for size, dim in zip(shape, dims, strict=True)
    )


def override(correlation_id: int | str, parameters: dict[str, Parameter]) -> tuple[int | str, int] | None:
    """The correlation id and flags that a member set in its response parameters; None when it set none of them.

    Raises:
        InvalidArgument: one of them has the wrong type.
    """
    found = False
    flags = 0
    if "sequence_id" in parameters:
        value = parameters["sequence_id"]
        if isinstance(value, (bool, float)):
            raise InvalidArgument(
                "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"
            )
        correlation_id, found = value, True
    for name, flag in (("sequence_start", SEQUENCE_START), ("sequence_end", SEQUENCE_END)):
        if name in parameters:
            if not isinstance(parameters[name], bool):
                raise InvalidArgument(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL")
            flags |= flag if parameters[name] else 0
            found = True
    return (correlation_id, flags) if found else None
