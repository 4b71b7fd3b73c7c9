"""One request of an ensemble with decoupled members: any number of answers, one for each chain of steps.

scheduling/ensemble.py decides which step may run when. Texts: triton-inference-server/core
src/ensemble_scheduler/ensemble_scheduler.cc.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from edge_serve.aio.tasks import notify
from edge_serve.errors import Cancelled, EdgeServeError, InvalidArgument
from edge_serve.messages.infer import InferRequest, InferResponse, Lease
from edge_serve.messages.statistics import ComputeTimes
from edge_serve.messages.tensors import Handle, InferTensor
from edge_serve.messages.trace import Trace
from edge_serve.models.ensemble.flight import DEADLOCK, Ensemble, Leases, known, record_answer, record_refusal, submit
from edge_serve.models.ensemble.member import fitted, mark_parameters, member_input, override, share
from edge_serve.models.run.runner import OnResponse, Ticket
from edge_serve.models.run.shared_lease import shares
from edge_serve.models.versions.served import Served
from edge_serve.protocol.inference.validate import validate
from edge_serve.scheduling.core import label
from edge_serve.scheduling.ensemble import Cell, StreamRun


@dataclass(slots=True)
class _Outputs:
    """The outputs of one response of a step.

    Attributes:
        rows, mark: of the request that it answers.
        users: how many steps have yet to read it, and one for the answer that will contain it.
        leases: one for each of the users; empty when no output lies in a slot.
    """

    tensors: dict[str, InferTensor]
    rows: int
    mark: tuple[int | str, int]
    users: int
    leases: list[Lease]


@dataclass(slots=True)
class _Call:
    """A request to a member; `ticket` is None while it is being submitted."""

    rows: int
    mark: tuple[int | str, int]
    ticket: Ticket | None = None


class StreamFlight:
    """One request. `on_response` is called any number of times, the last with `final`.

    Args:
        decoupled: the steps whose models are decoupled.
        most_calls: `max_inflight_requests`: calls of one step at a time; 0 = any number.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        request: InferRequest,
        on_response: OnResponse,
        trace: Trace | None,
        decoupled: Collection[int],
        most_calls: int,
    ) -> None:
        self._ensemble = ensemble
        self._request = request
        self._on_response = on_response
        self._trace = trace
        self._most_calls = most_calls
        self._start_ns = ensemble.clock.now_ns()
        self._compute = ComputeTimes()
        self._error: EdgeServeError | None = None
        self._answered = False
        arena = request.lease.arena if request.lease is not None else None
        self._given = {tensor.name: Handle.of(tensor, arena) for tensor in request.inputs}
        route = ensemble.plan.route([output.name for output in request.outputs])
        self._run = StreamRun(route, self._given.keys(), decoupled)
        self._outputs: dict[Cell, _Outputs] = {}
        self._calls: dict[Cell, _Call] = {}
        self._running: dict[int, int] = {}
        self._held: dict[int, deque[Cell]] = {}
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
            self._stop(Cancelled(""))
            self._settle()

    def set_paused(self, paused: bool) -> bool:
        """Return False: the steps of an ensemble continue, however slowly the client reads."""
        return False

    # ---- members --------------------------------------------------------------------------------------------------

    def _call(self, cell: Cell) -> None:
        step = cell[0]
        if self._error is not None:
            self._run.ended()
        elif self._most_calls and self._running.get(step, 0) >= self._most_calls:
            self._held.setdefault(step, deque()).append(cell)
        else:
            self._running[step] = self._running.get(step, 0) + 1
            self._submit(cell)

    def _submit(self, cell: Cell) -> None:
        try:
            step = self._ensemble.plan.steps[cell[0]]
            served = self._ensemble.lookup(step.model, step.version, self._request.correlation_id, self._request.flags)
            request, mark = self._member_request(cell, served)
            if self._request.shared:
                share(request, self._request, step)
            validate(request, served.signature)
            call = self._calls[cell] = _Call(request.rows if served.signature.max_batch_size else 0, mark)
            call.ticket = submit(served, request, partial(self._on_member, cell), self._trace)
        except Exception as error:
            self._stop(known(error, self._ensemble.signature.model_name))
            self._calls.pop(cell, None)
            self._ended(cell)
            return
        if self._error is not None and cell in self._calls:
            call.ticket.cancel()

    def _member_request(self, cell: Cell, served: Served) -> tuple[InferRequest, tuple[int | str, int]]:
        """Return the request, and the correlation ID and flags that its outputs carry on."""
        top, (index, iteration) = self._request, cell
        step, writers = self._ensemble.plan.steps[index], self._ensemble.plan.writers
        mark: tuple[int | str, int] = (top.correlation_id, top.flags)
        inputs: list[InferTensor] = []
        for name, outer in step.inputs.items():
            writer = writers.get(outer)
            if writer is None:
                tensor, rows = self._given.get(outer), self._top_rows()
            else:
                source = self._outputs[writer, iteration]
                tensor, rows, mark = source.tensors.get(outer), source.rows, source.mark
            if tensor is not None:
                inputs.append(member_input(name, tensor, served.signature, rows))
        request = self._ensemble.request(index, served.version, top, mark, self._compute)
        request.inputs = inputs
        return request, mark

    def _top_rows(self) -> int:
        return self._request.rows if self._ensemble.signature.max_batch_size else 0

    def _on_member(self, cell: Cell, response: InferResponse) -> None:
        if response.error is not None:
            self._stop(response.error)
        if self._error is None and not response.null:
            self._take(cell, response)
        elif response.lease is not None:
            response.lease.release()
        if response.final:
            del self._calls[cell]
            self._ended(cell)
        self._settle()

    def _take(self, cell: Cell, response: InferResponse) -> None:
        """Store the outputs of a member, and run the steps that waited for them."""
        names = self._ensemble.plan.steps[cell[0]].outputs
        call, lease = self._calls[cell], response.lease
        mark = call.mark
        try:
            mark = override(mark[0], response.parameters) or mark
        except EdgeServeError as error:
            self._stop(error)
        written, ready = self._run.wrote(cell)
        users = len(self._run.route.readers[cell[0]]) + (cell[0] in self._run.route.kept)
        arena = lease.arena if lease is not None else None
        leases = [one for one in shares(lease, users) if one is not None]
        tensors = {names[t.name]: Handle.of(t, arena) for t in response.outputs if t.name in names}
        self._outputs[written] = _Outputs(tensors, call.rows, mark, users, leases)
        for following in ready:
            self._call(following)

    def _ended(self, cell: Cell) -> None:
        """End a call: release the outputs that it read, and start the next waiting call of its step."""
        step, iteration = cell
        self._run.ended()
        self._running[step] -= 1
        for source in self._run.route.sources[step]:
            lease = self._use((source, iteration))
            if lease is not None:
                lease.release()
        held = self._held.get(step)
        if held:
            self._call(held.popleft())

    def _stop(self, error: EdgeServeError) -> None:
        """Start no further calls. The first error is the answer, once no call reads the tensors any more."""
        if self._error is not None:
            return
        self._error = error
        for held in self._held.values():
            for _ in held:
                self._run.ended()
            held.clear()
        for call in list(self._calls.values()):
            if call.ticket is not None:
                call.ticket.cancel()

    def _use(self, cell: Cell) -> Lease | None:
        """Count one user of these outputs less. Return its share of their memory, which the caller releases."""
        outputs = self._outputs[cell]
        outputs.users -= 1
        if not outputs.users:
            del self._outputs[cell]
        return outputs.leases.pop() if outputs.leases else None

    # ---- answering ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Send the complete answers, except one that may be the last: it waits until that is known."""
        if self._answered:
            return
        if self._error is None:
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
        record_answer(self._ensemble, self._request, self._start_ns, self._compute)
        if last is None:
            last = self._empty()
            last.null = True
        last.final = True
        self._deliver(last)

    def refuse(self, error: EdgeServeError) -> None:
        """End with an error that names the ensemble."""
        ending = self._empty()
        ending.error = record_refusal(self._ensemble, error, self._start_ns)
        self._deliver(ending)

    def _deliver(self, response: InferResponse) -> None:
        self._answered = True
        for outputs in self._outputs.values():
            for lease in outputs.leases:
                lease.release()
        self._outputs.clear()
        if self._request.lease is not None:
            self._request.lease.release()
        notify(self._on_response, response)
        self._ensemble.landed()

    def _empty(self) -> InferResponse:
        face = self._ensemble.signature
        return InferResponse(face.model_name, face.model_version, self._request.id)

    def _response(self, iteration: int) -> InferResponse:
        plan, signature = self._ensemble.plan, self._ensemble.signature
        response = self._empty()
        response.final = False
        for name, spec in reversed(signature.outputs.items()):  # as Triton's hash map mostly hands them out
            if name not in self._run.route.outputs:
                continue
            writer = plan.writers.get(name)
            outputs = self._outputs[writer, iteration] if writer is not None else None
            tensor = self._copied(name) if outputs is None else outputs.tensors.get(name)
            if tensor is None:
                continue
            dims = spec.dims if spec.reshape is None else spec.reshape
            rows = self._top_rows() if outputs is None else outputs.rows
            shape = fitted(tensor.shape, dims, signature.max_batch_size > 0, rows)
            response.outputs.append(Handle.renamed(tensor, name, shape))
            if outputs is not None and len(tensor.data) and not response.parameters:
                response.parameters = mark_parameters(*outputs.mark)
        leases = [self._use((step, iteration)) for step in self._run.route.kept]
        if any(leases):
            response.lease = Leases([lease for lease in leases if lease is not None])
        return response

    def _copied(self, name: str) -> InferTensor | None:
        """Copy an input that is an output too: the client's memory is released before the last answer."""
        tensor = self._given.get(name)
        return None if tensor is None else InferTensor(name, tensor.datatype, tensor.shape, bytes(tensor.data))
