"""One request of an ensemble: the tensors so far, and the leases of their memory.

A decoupled ensemble gives any number of answers, one for each chain of steps. scheduling/ensemble.py decides which step
may run when. Texts: triton-inference-server/core src/ensemble_scheduler/ensemble_scheduler.cc.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Protocol

from edge_serve.aio.tasks import notify
from edge_serve.clock import Clock
from edge_serve.errors import Cancelled, EdgeServeError, Internal, InvalidArgument, Unavailable
from edge_serve.messages.infer import InferRequest, InferResponse, Lease, RequestedOutput
from edge_serve.messages.signature import Signature
from edge_serve.messages.statistics import ComputeTimes, ModelStatistics
from edge_serve.messages.tensors import Handle, InferTensor
from edge_serve.messages.trace import Trace
from edge_serve.models.ensemble.member import Member, StepOutputs, fitted, mark_parameters, override, share
from edge_serve.models.run import statistics as record
from edge_serve.models.run.driver import Job
from edge_serve.models.run.runner import OnResponse, Ticket
from edge_serve.models.run.shared_lease import Leases, SharedLease, shares
from edge_serve.models.versions.served import Served
from edge_serve.scheduling.core import label
from edge_serve.scheduling.ensemble import Cell, EnsemblePlan, EnsembleRun

log = logging.getLogger(__name__)


class Lookup(Protocol):
    """Finds a version by the name of the model, a version ("" = any) and, for sequences, a correlation ID and flags."""

    def __call__(self, name: str, version: str, correlation_id: int | str = 0, flags: int = 0) -> Served: ...


DEADLOCK = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"


class Ensemble:
    """The data that all requests of one ensemble share.

    Args:
        lookup: finds the version that a step calls; raises an EdgeServeError when it does not serve.
        most_calls: `max_inflight_requests` of a decoupled ensemble: calls of one step at a time; 0 = any number.

    Attributes:
        landed: called after the last answer to each request, once it is counted; set by the runner.
        decoupled: the steps whose models are decoupled; none if the ensemble itself is not.
        marked_by: the step whose outputs name the sequence of each step's requests; None = the client names it.
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
        most_calls: int = 0,
    ) -> None:
        self.plan = plan
        self.signature = signature
        self.statistics = statistics
        self.lookup = lookup
        self.clock = clock
        self.landed: Callable[[], None]
        self.most_calls = most_calls
        steps = plan.steps if signature.decoupled else ()
        self.decoupled = frozenset(
            i for i, step in enumerate(steps) if lookup(step.model, step.version).signature.decoupled
        )
        self.marked_by = [
            next((plan.writers[tensor] for tensor in step.inputs.values() if tensor in plan.writers), None)
            for step in plan.steps
        ]
        self.wanted = [[RequestedOutput(name, binary=True) for name in step.outputs] for step in plan.steps]
        self.members: list[Member | None] = [None] * len(plan.steps)
        self.outputs = [
            (name, spec.dims if spec.reshape is None else spec.reshape, plan.writers.get(name))
            for name, spec in reversed(signature.outputs.items())  # as Triton's hash map mostly hands them out
        ]

    def member(self, index: int, served: Served) -> Member:
        """Return the member of step `index`, for this version.

        Raises:
            Unavailable: the version was reloaded since and has become decoupled.
        """
        member = self.members[index]
        if member is None or member.signature is not served.signature:
            step = self.plan.steps[index]
            if served.signature.decoupled and index not in self.decoupled:
                raise Unavailable(
                    f"model '{step.model}' has become decoupled, and the ensemble is not loaded again yet"
                )
            member = self.members[index] = Member(step, served.signature, self.plan.writers)
        return member


class Flight:
    """One request. `on_response` is called once, or any number of times if the ensemble is decoupled, the last with
    `final`."""

    __slots__ = (
        "_answered",
        "_cancelled",
        "_compute",
        "_ensemble",
        "_error",
        "_fails_last",
        "_given",
        "_held",
        "_last",
        "_lease",
        "_lent",
        "_on_response",
        "_outputs",
        "_request",
        "_run",
        "_running",
        "_start_ns",
        "_tickets",
        "_trace",
    )

    def __init__(self, ensemble: Ensemble, request: InferRequest, on_response: OnResponse, trace: Trace | None) -> None:
        self._ensemble = ensemble
        self._trace = trace
        self._request = request
        self._on_response = on_response
        self._answered = False
        self._cancelled = False
        self._start_ns = ensemble.clock.now_ns()
        self._compute = ComputeTimes()
        self._error: EdgeServeError | None = None
        #: whether the latest event of a step is the first error
        self._fails_last = True
        #: the client's memory; None = it belongs to the answer
        self._lease = request.lease
        #: calls of decoupled steps whose models may still read their inputs, and have not reported all compute times
        self._lent = 0
        rows = request.rows if ensemble.signature.max_batch_size else 0
        tensors = {tensor.name: tensor for tensor in request.inputs}
        self._given = StepOutputs(tensors, rows, (request.correlation_id, request.flags))
        route = ensemble.plan.route([output.name for output in request.outputs])
        self._run = EnsembleRun(route, tensors.keys(), ensemble.decoupled)
        self._outputs: dict[Cell, StepOutputs] = {}
        #: running call -> its request; None while it is being submitted
        self._tickets: dict[Cell, Ticket | None] = {}
        #: step -> its running calls, and the calls that wait for them; both only with `most_calls`
        self._running: dict[int, int] = {}
        self._held: dict[int, deque[Cell]] = {}
        #: an answer that may be the last one
        self._last: InferResponse | None = None

    def start(self) -> None:
        """Run the first steps."""
        if not self._run.possible:
            self.refuse(InvalidArgument(label(self._request) + DEADLOCK))
            return
        for cell in self._run.start():
            self._call(cell)
        self._settle()

    def cancel(self) -> None:
        """Cancel the steps that are queued or run, and start no further ones: the client has disconnected."""
        if not self._answered:
            self._cancelled = self._error is None
            self._stop(Cancelled(""))
            self._settle()

    def set_paused(self, paused: bool) -> bool:
        """Return False: the steps of an ensemble continue, however slowly the client reads."""
        return False

    def jobs(self) -> Sequence[Job]:
        """Return the requests of members that this request waits for; none if one is not known, or if the ensemble is
        decoupled."""
        tickets = () if self._ensemble.signature.decoupled else self._tickets.values()
        found = [ticket.jobs() for ticket in tickets if ticket is not None]
        return list(chain.from_iterable(found)) if all(found) else ()

    # ---- members --------------------------------------------------------------------------------------------------

    def _call(self, cell: Cell) -> None:
        step, most = cell[0], self._ensemble.most_calls
        if self._error is not None:
            self._run.ended()
            return
        if most:
            running = self._running.get(step, 0)
            if running >= most:
                self._held.setdefault(step, deque()).append(cell)
                return
            self._running[step] = running + 1
        self._submit(cell)

    def _submit(self, cell: Cell) -> None:
        top, ensemble, (index, iteration) = self._request, self._ensemble, cell
        step = ensemble.plan.steps[index]
        lent: Leases | None = None
        try:
            sources: dict[int | None, StepOutputs] = {None: self._given}
            for source in self._run.route.sources[index]:
                sources[source] = self._outputs[source, iteration]
            mark = sources[ensemble.marked_by[index]].mark
            served = ensemble.lookup(step.model, step.version, *mark)
            member = ensemble.member(index, served)
            request = InferRequest(
                step.model, served.version, top.id, [], ensemble.wanted[index], top.parameters, mark[0], mark[1],
                top.priority, top.timeout_us, top.deadline_ns, compute=self._compute,
            )  # fmt: skip
            member.fill(request, sources)
            if top.shared:
                share(request, top, step)
            if index in ensemble.decoupled:
                lent = request.lease = self._lend(cell)
            self._tickets[cell] = None
            rows = request.rows if member.batching else 0
            ticket = submit(served, request, partial(self._on_member, cell, rows, mark), self._trace)
        except Exception as error:
            self._tickets.pop(cell, None)
            self._stop(known(error, ensemble.signature.model_name))
            if lent is None:
                self._release_sources(cell)
            else:
                lent.release()
            self._ended(index)
            return
        if cell in self._tickets:
            self._tickets[cell] = ticket
            if self._error is not None:
                ticket.cancel()

    def _on_member(self, cell: Cell, rows: int, mark: tuple[int | str, int], response: InferResponse) -> None:
        self._fails_last = False
        if response.final:
            del self._tickets[cell]
            if cell[0] not in self._ensemble.decoupled:
                self._release_sources(cell)
        if response.error is not None:
            self._stop(response.error)
        if self._error is None and not response.null:
            self._take(cell, rows, mark, response)
        elif response.lease is not None:
            response.lease.release()
        if response.final:
            self._ended(cell[0])
        self._settle()

    def _take(self, cell: Cell, rows: int, mark: tuple[int | str, int], response: InferResponse) -> None:
        """Store the outputs of a member, and run the steps that waited for them."""
        step, lease, route = cell[0], response.lease, self._run.route
        names = self._ensemble.plan.steps[step].outputs
        if response.parameters:
            try:
                mark = override(mark[0], response.parameters) or mark
            except EdgeServeError as error:
                self._stop(error)
        written, ready = self._run.wrote(cell)
        users = len(route.readers[step]) + (step in route.kept)
        tensors = {
            names[tensor.name]: tensor if lease is None else Handle.of(tensor, lease.arena)
            for tensor in response.outputs
            if tensor.name in names
        }
        self._outputs[written] = StepOutputs(tensors, rows, mark, shares(lease, users))
        for following in ready:
            self._call(following)

    def _ended(self, step: int) -> None:
        """End a call, and start the next waiting call of its step."""
        self._run.ended()
        if self._ensemble.most_calls:
            self._running[step] -= 1
            if held := self._held.get(step):
                self._call(held.popleft())

    def _stop(self, error: EdgeServeError) -> None:
        """Start no further calls. The first error is the answer, once no call reads the tensors any more."""
        if self._error is not None:
            return
        self._error = error
        self._fails_last = True
        for held in self._held.values():
            for _ in held:
                self._run.ended()
            held.clear()
        for ticket in list(self._tickets.values()):
            if ticket is not None:
                ticket.cancel()

    # ---- memory ---------------------------------------------------------------------------------------------------

    def _use(self, cell: Cell) -> Lease | None:
        """Count one user of these outputs less. Return its share of their memory, which the caller releases."""
        outputs = self._outputs[cell]
        lease = outputs.leases.pop()
        if not outputs.leases:
            del self._outputs[cell]
        return lease

    def _release_sources(self, cell: Cell) -> None:
        """Release the outputs that a call has read."""
        for source in self._run.route.sources[cell[0]]:
            lease = self._use((source, cell[1]))
            if lease is not None:
                lease.release()

    def _lend(self, cell: Cell) -> Leases:
        """Return the leases of all memory that a call of a decoupled step reads. Its runner releases them, because the
        model may read on after its last response."""
        leases = [self._use((source, cell[1])) for source in self._run.route.sources[cell[0]]]
        if self._lease is not None:
            self._lease = shared = SharedLease.of(self._lease)
            leases.append(shared.share())
        self._lent += 1
        return Leases([lease for lease in leases if lease is not None], self._returned)

    def _returned(self) -> None:
        """Take note that the call of a decoupled step is over, and its compute times are known. The last such call
        counts a request that was answered before."""
        self._lent -= 1
        if self._answered and self._error is None and not self._lent:
            self._count()
            self._ensemble.landed()

    # ---- answering ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Send the complete answers, except one that may be the last: it waits until that is known."""
        if self._answered:
            return
        if self._error is None and self._ensemble.signature.decoupled:
            for iteration in self._run.answers():
                if self._last is not None:
                    notify(self._on_response, self._last)
                self._last = self._response(iteration)
        if self._run.running == 0:
            self._finish()
        elif self._last is not None and self._error is None:
            last, self._last = self._last, None
            notify(self._on_response, last)

    def _finish(self) -> None:
        last, self._last = self._last, None
        if self._error is not None:
            if last is not None:
                notify(self._on_response, last)
            self.refuse(self._error)
            return
        if not self._ensemble.signature.decoupled:
            last = self._response(0)
        elif last is None:
            last = self._empty()
            last.null = True
        last.final = True
        if self._lent:  # counted by the last of these calls
            self._deliver(last)
            return
        self._count()
        self._deliver(last)
        self._ensemble.landed()

    def _count(self) -> None:
        """Record a request that was answered without an error."""
        record_answer(self._ensemble, self._request, self._start_ns, self._compute)

    def refuse(self, error: EdgeServeError) -> None:
        """End with an error that names the ensemble."""
        ending = self._empty()
        reason = record.CANCELED if self._cancelled else record.OTHER
        # Triton counts a failed request when it releases it, and before if the error is what ends the last step
        times = 2 if self._fails_last else 1
        ending.error = record_refusal(self._ensemble, error, reason, times, self._start_ns)
        self._deliver(ending)
        self._ensemble.landed()

    def _deliver(self, response: InferResponse) -> None:
        self._answered = True
        for outputs in self._outputs.values():
            for lease in outputs.leases:
                if lease is not None:
                    lease.release()
        self._outputs.clear()
        if self._lease is not None:
            self._lease.release()
        notify(self._on_response, response)

    def _empty(self) -> InferResponse:
        face = self._ensemble.signature
        return InferResponse(face.model_name, face.model_version, self._request.id)

    def _response(self, iteration: int) -> InferResponse:
        """Return the answer of an iteration, without tensors that a model left out."""
        signature, route = self._ensemble.signature, self._run.route
        response = self._empty()
        response.final = False
        leases = []
        for name, dims, writer in self._ensemble.outputs:
            if name not in route.outputs:
                continue
            outputs = self._given if writer is None else self._outputs[writer, iteration]
            tensor = outputs.tensors.get(name)
            if tensor is None:
                continue
            shape = fitted(tensor.shape, dims, signature.max_batch_size > 0, outputs.rows)
            if writer is None and signature.decoupled:  # the client's memory is released before the last answer
                tensor = InferTensor(name, tensor.datatype, shape, bytes(tensor.data))
            elif writer is None:
                leases.append(self._lease)
                self._lease = None
            elif len(tensor.data) and not response.parameters:
                response.parameters = mark_parameters(*outputs.mark)
            response.outputs.append(Handle.renamed(tensor, name, shape))
        leases += [self._use((step, iteration)) for step in route.kept]
        kept = [lease for lease in leases if lease is not None]
        response.lease = Leases(kept) if len(kept) > 1 else kept[0] if kept else None
        return response


def submit(served: Served, request: InferRequest, on_response: OnResponse, trace: Trace | None) -> Ticket:
    """Submit the request of a step, or of a call, which is a part of a traced request if there is a `trace`."""
    return served.submit(request, on_response) if trace is None else served.submit_part(request, on_response, trace)


def known(error: Exception, ensemble: str) -> EdgeServeError:
    """Return the error that the client receives. An unexpected one is logged."""
    if isinstance(error, EdgeServeError):
        return error
    log.error("a step of ensemble %s failed unexpectedly", ensemble, exc_info=error)
    return Internal(f"a step failed unexpectedly, see the server's log: {type(error).__name__}")


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


def record_refusal(ensemble: Ensemble, error: EdgeServeError, reason: str, times: int, start: int) -> EdgeServeError:
    """Count a failed request `times`. Return the error with the name of the ensemble in front."""
    ns = ensemble.clock.now_ns() - start
    for _ in range(times):
        record.record_failure(ensemble.statistics, reason, ns)
    return type(error)(f"in ensemble '{ensemble.signature.model_name}', {error.message}")
