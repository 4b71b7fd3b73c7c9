"""One request of an ensemble: the tensors so far, and the leases of their memory.

Rules and texts: triton-inference-server/core src/ensemble_scheduler/ensemble_scheduler.cc.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from edge_serve.aio.tasks import notify
from edge_serve.clock import Clock
from edge_serve.errors import Cancelled, EdgeServeError, Internal, InvalidArgument, Unavailable
from edge_serve.messages.infer import InferRequest, InferResponse, Lease, Parameter, RequestedOutput
from edge_serve.messages.signature import Signature
from edge_serve.messages.statistics import ComputeTimes, ModelStatistics
from edge_serve.messages.tensors import Handle, InferTensor
from edge_serve.messages.trace import Trace
from edge_serve.models.ensemble.member import Member, fitted, mark_parameters, override, share
from edge_serve.models.run import statistics as record
from edge_serve.models.run.runner import OnResponse, Ticket
from edge_serve.models.versions.served import Served
from edge_serve.scheduling.core import label
from edge_serve.scheduling.ensemble import Deadlock, EnsemblePlan, Failed, Finished, Next, StepsToRun

log = logging.getLogger(__name__)


class Lookup(Protocol):
    """Finds a version by the name of the model, a version ("" = any) and, for sequences, a correlation ID and flags."""

    def __call__(self, name: str, version: str, correlation_id: int | str = 0, flags: int = 0) -> Served: ...


DEADLOCK = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"


class Ensemble:
    """The data that all requests of one ensemble share.

    Args:
        lookup: finds the version that a step calls; raises an EdgeServeError when it does not serve.
        landed: called after each answer.

    Attributes:
        wanted: the outputs that each step requests.
        members: the member of each step, from its first call on.
        outputs: (name, shape as the members have it, the step that writes it; None = the client), in Triton's order.
    """

    def __init__(
        self,
        plan: EnsemblePlan,
        signature: Signature,
        statistics: ModelStatistics,
        lookup: Lookup,
        clock: Clock,
        landed: Callable[[], None],
    ) -> None:
        self.plan = plan
        self.signature = signature
        self.statistics = statistics
        self.lookup = lookup
        self.clock = clock
        self.landed = landed
        self.wanted = [[RequestedOutput(name, binary=True) for name in step.outputs] for step in plan.steps]
        self.members: list[Member | None] = [None] * len(plan.steps)
        self.outputs = [
            (name, spec.dims if spec.reshape is None else spec.reshape, plan.writers.get(name))
            for name, spec in reversed(signature.outputs.items())  # as Triton's hash map mostly hands them out
        ]

    def request(
        self, index: int, version: str, top: InferRequest, mark: tuple[int | str, int], compute: ComputeTimes
    ) -> InferRequest:
        """Return the request of a step, without inputs, for a request of the ensemble.

        Args:
            mark: correlation ID and flags.
        """
        return InferRequest(
            self.plan.steps[index].model, version, top.id, [], self.wanted[index], top.parameters, mark[0], mark[1],
            top.priority, top.timeout_us, top.deadline_ns, compute=compute,
        )  # fmt: skip

    def member(self, index: int, served: Served) -> Member:
        """Return the member of step `index`, for this version.

        Raises:
            Unavailable: the version was reloaded since and has become decoupled.
        """
        member = self.members[index]
        if member is None or member.signature is not served.signature:
            step = self.plan.steps[index]
            if served.signature.decoupled:
                raise Unavailable(
                    f"model '{step.model}' has become decoupled, and the ensemble is not loaded again yet"
                )
            member = self.members[index] = Member(step, served.signature, self.plan.writers)
        return member


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
        "_trace",
    )

    def __init__(self, ensemble: Ensemble, request: InferRequest, on_response: OnResponse, trace: Trace | None) -> None:
        self._ensemble = ensemble
        self._trace = trace
        self._request = request
        self._on_response = on_response
        self._answered = False
        self._start_ns = ensemble.clock.now_ns()
        self._compute = ComputeTimes()
        self._tensors = {tensor.name: tensor for tensor in request.inputs}
        self._run = ensemble.plan.run(self._tensors.keys(), [output.name for output in request.outputs])
        #: step -> the memory of its outputs
        self._leases: dict[int, Lease] = {}
        #: running step -> its request; None while it is being submitted
        self._tickets: dict[int, Ticket | None] = {}
        #: step (None: the client) -> rows of its request, 0 if its model has no batch dimension
        self._rows: dict[int | None, int] = {None: request.rows if ensemble.signature.max_batch_size else 0}
        #: likewise -> correlation id and flags that its outputs carry on
        self._marks: dict[int | None, tuple[int | str, int]] = {None: (request.correlation_id, request.flags)}

    def start(self) -> None:
        """Run the first steps."""
        self._proceed(self._run.start())

    def cancel(self) -> None:
        """Cancel the steps that are queued or run, and start no further ones: the client has disconnected."""
        if not self._answered:
            self._stop(self._run.stop(Cancelled("")))

    def set_paused(self, paused: bool) -> bool:
        """Return False: a single response cannot be paused."""
        return False

    def running(self) -> list[Ticket]:
        """Return the requests of members that this request waits for."""
        return [ticket for ticket in self._tickets.values() if ticket is not None]

    # ---- acting on decisions ------------------------------------------------------------------------------------

    def _proceed(self, decision: Next) -> None:
        match decision:
            case StepsToRun(steps, spent):
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
        """Cancel the running steps after an error. The answer waits for them, because they still read the tensors."""
        for ticket in list(self._tickets.values()):
            if ticket is not None:
                ticket.cancel()
        if not self._answered:
            self._proceed(decision)

    def _call(self, index: int) -> None:
        if self._run.failing:  # by a step beside this one
            self._proceed(self._run.fail(Cancelled("")))
            return
        top, ensemble = self._request, self._ensemble
        step = ensemble.plan.steps[index]
        try:
            served = ensemble.lookup(step.model, step.version, top.correlation_id, top.flags)
            member = ensemble.member(index, served)
            self._marks[index] = mark = self._marks[member.marked_by]
            request = ensemble.request(index, served.version, top, mark, self._compute)
            member.fill(request, self._tensors, self._rows)
            if top.shared:
                share(request, top, step)
            self._rows[index] = request.rows if member.batching else 0
            self._tickets[index] = None
            ticket = submit(served, request, partial(self._on_member, index), self._trace)
        except Exception as error:
            self._tickets.pop(index, None)
            self._fail(known(error, ensemble.signature.model_name))
            return
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

    # ---- answering ----------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        request, ensemble = self._request, self._ensemble
        outputs = self._outputs()
        lease = self._kept([tensor.name for tensor in outputs])
        record_answer(ensemble, request, self._start_ns, self._compute)
        self._deliver(self._response(outputs, self._parameters(outputs), None, lease))

    def refuse(self, error: EdgeServeError) -> None:
        """Answer with an error that names the ensemble."""
        self._kept([])
        named = record_refusal(self._ensemble, error, self._start_ns)
        self._deliver(self._response([], {}, named, None))

    def _response(
        self,
        outputs: list[InferTensor],
        parameters: dict[str, Parameter],
        error: EdgeServeError | None,
        lease: Lease | None,
    ) -> InferResponse:
        face = self._ensemble.signature
        return InferResponse(
            face.model_name, face.model_version, self._request.id, outputs, parameters, error, True, lease
        )

    def _deliver(self, response: InferResponse) -> None:
        self._answered = True
        notify(self._on_response, response)
        self._ensemble.landed()

    def _outputs(self) -> list[InferTensor]:
        """Return the tensors of the answer, without those that a model left out."""
        batching = self._ensemble.signature.max_batch_size > 0
        wanted, outputs = self._run.route.outputs, []
        for name, dims, writer in self._ensemble.outputs:
            tensor = self._tensors.get(name)
            if tensor is not None and name in wanted:
                outputs.append(Handle.renamed(tensor, name, fitted(tensor.shape, dims, batching, self._rows[writer])))
        return outputs

    def _parameters(self, outputs: Sequence[InferTensor]) -> dict[str, Parameter]:
        """Return the parameters that Triton adds to an answer, unless all outputs are empty."""
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
        """Return the memory of these tensors as one lease, and release all other memory."""
        if not self._leases and self._request.lease is None:
            return None
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


def submit(served: Served, request: InferRequest, on_response: OnResponse, trace: Trace | None) -> Ticket:
    """Submit the request of a step, or of a call, which is a part of a traced request if there is a `trace`."""
    return served.submit(request, on_response) if trace is None else served.submit_part(request, on_response, trace)


def known(error: Exception, ensemble: str) -> EdgeServeError:
    """Return the error that the client receives. An unexpected one is logged."""
    if isinstance(error, EdgeServeError):
        return error
    log.error("a step of ensemble %s failed unexpectedly", ensemble, exc_info=error)
    return Internal(f"a step failed unexpectedly, see the server's log: {type(error).__name__}")


class Leases:
    """Several leases, in different arenas, that are released together."""

    __slots__ = ("_leases",)

    #: no arena holds all of it
    offset = -1
    arena: object = None
    view = memoryview(b"")

    def __init__(self, leases: Sequence[Lease]) -> None:
        self._leases = leases

    def release(self) -> None:
        """Release all of them."""
        leases, self._leases = self._leases, ()
        for lease in leases:
            lease.release()


def record_answer(ensemble: Ensemble, request: InferRequest, start: int, compute: ComputeTimes) -> None:
    """Count a request that arrived at `start` and whose members computed for `compute` together."""
    input_end = start + compute.input_ns
    output_start = input_end + compute.infer_ns
    marks = (start, input_end, output_start, output_start + compute.output_ns)
    rows = max(1, request.rows)
    record.record_batch(ensemble.statistics, rows, marks, int(time.time() * 1000))
    record.record_success(ensemble.statistics, rows, (start,), marks, ensemble.clock.now_ns())
    if request.compute is not None:
        request.compute.add(*marks)


def record_refusal(ensemble: Ensemble, error: EdgeServeError, start: int) -> EdgeServeError:
    """Count a failed request. Return the error with the name of the ensemble in front."""
    reason = record.CANCELED if isinstance(error, Cancelled) else record.OTHER
    ns = ensemble.clock.now_ns() - start
    # Triton counts a failed ensemble request twice: when it responds and when it releases it
    record.record_failure(ensemble.statistics, reason, ns)
    record.record_failure(ensemble.statistics, reason, ns)
    return type(error)(f"in ensemble '{ensemble.signature.model_name}', {error.message}")
