"""Runs calls from models to models (business logic scripting): a call from a worker runs like a client's request.

Rules and texts: triton-inference-server/python_backend src/request_executor.cc and src/model_loader.cc. A refusal
before the called model has accepted the call is an INTERNAL error with the words of `request_executor.cc` in front; an
error of the called model itself is passed on unchanged. A call takes its place at the end of the called model's queue,
so a model that calls itself, or calls in a cycle, waits for another instance. A call is refused if every instance that
could answer it would wait (`wait_for_graph`). While a model is swapped, and its old version is unloaded first, calls
that its requests lead to still go to the old version, which waits for their answers.
"""

from __future__ import annotations

import asyncio
import itertools
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from edge_serve.aio.bulk_copy import copy, work
from edge_serve.errors import Cancelled, EdgeServeError, Internal, InvalidArgument, NotFound, Unavailable
from edge_serve.messages.infer import InferRequest, InferResponse, RequestedOutput
from edge_serve.messages.tensors import INLINE_BYTES, InferTensor
from edge_serve.messages.trace import Trace
from edge_serve.models.ensemble.flight import Lookup, submit
from edge_serve.models.extras.wait_for_graph import Place, find_deadlock
from edge_serve.models.run.runner import ANSWERED, Ticket
from edge_serve.models.versions.served import Served
from edge_serve.protocol.inference.validate import validate
from edge_serve.workers.front.bls_broker import Answer, InboundCall
from edge_serve.workers.memory.arena import Slot
from edge_serve.workers.wire.layout import padded

#: how often to check a call of an ensemble: its next member may close a cycle
LOOK_SECONDS = 0.1

_DEADLOCK = (
    "every instance of {name} waits for the instance that makes this call, so it would never be answered. Models "
    "that call themselves or each other need an instance for each level (instance_group)"
)

Done = Callable[["EdgeServeError | None"], None]


class RepositoryControl(Protocol):
    """The operations on models that models may request (`service.Service`)."""

    def load_model(self, name: str, parameters: Mapping[str, Any], done: Done, *, nested: bool) -> object: ...

    def start_unload(self, name: str, unload_dependents: bool, done: Done) -> object: ...

    def model_ready(self, name: str, version: str) -> bool: ...


class ModelCalls:
    """Runs the requests of models. `infer`, `control` and `report_idle` are the hooks of `workers.front.bls_broker`.

    Args:
        lookup: finds the version to call; raises an EdgeServeError when it does not serve.
    """

    def __init__(self, lookup: Lookup, repository: RepositoryControl) -> None:
        self._lookup = lookup
        self._repository = repository
        #: calls that were submitted and are not answered
        self._accepted: dict[InboundCall, _Call] = {}
        #: waiting instance -> the calls that it waits for
        self._resting: dict[Place, list[InboundCall]] = {}
        self._loop = asyncio.get_running_loop()

    def infer(self, asked: InboundCall) -> None:
        """Run a call; never raises."""
        place = _place_of(asked)
        if place in self._resting and not self._resting[place][0].call.blocking:
            del self._resting[place]  # the instance continued without an answer
        if asked.caller is not None:
            asked.caller.run_one_by_one()
        try:
            served = self._target(asked)
            request = _request(asked, served)
            moved = self._move_inputs(asked, served, request)
        except EdgeServeError as error:
            _release(asked)
            asked.refuse(_in_call(asked, error))
            return
        served.acquire()
        job, nbytes = _preparation(request, served, moved)

        def prepared(error: Exception | None) -> None:
            if request.lease is not asked.lease:
                _release(asked)
            if error is None and asked.cancelled:
                error = Cancelled("")
            if error is None:
                self._submit(asked, served, request)
            else:
                _refuse(asked, request, error)
                self._on_answer(asked, final=True)
            served.release()

        slot = request.lease if isinstance(request.lease, Slot) and moved else None
        if slot is None:
            work(nbytes, job, prepared)
        else:
            slot.when_ready(lambda: prepared(slot.error) if slot.error is not None else work(nbytes, job, prepared))

    def _target(self, asked: InboundCall) -> Served:
        call = asked.call
        version = "" if call.model_version == -1 else str(call.model_version)
        try:
            served = self._lookup(call.model_name, version, call.correlation_id, call.flags)
        except EdgeServeError:
            text = f"Failed for execute the inference request. Model '{call.model_name}' is not ready."
            raise Internal(text) from None
        if served.before is not None and self._is_caused_by(served.name, asked):
            served = served.before  # it drains, and is closed once its requests are answered
        if served.signature.decoupled and not call.decoupled:
            raise Internal(
                f"Model {call.model_name} is using the decoupled. The current BLS request call doesn't support models "
                "using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
                "'async_exec' calls for decoupled models.'"
            )
        return served

    def _is_caused_by(self, name: str, asked: InboundCall) -> bool:
        """Return whether a model made a call, or has called a model that made it, directly or through others."""
        names, calls = {name}, self._accepted.values()
        while more := {called for call in calls if call.caller in names for called in call.called()} - names:
            names |= more
        return asked.caller is not None and asked.caller.name in names

    def _move_inputs(self, asked: InboundCall, served: Served, request: InferRequest) -> list[tuple[memoryview, Any]]:
        """Return the copies to make into the called model's arena. `request` refers to their targets already.

        Raises:
            Unavailable: there is no memory.
        """
        arena = served.arena
        request.lease = asked.lease
        if arena is None or arena is asked.arena:  # an ensemble, whose members copy; or the model itself
            if arena is None:
                request.inputs = [replace(tensor, offset=-1) for tensor in request.inputs]
            return []
        size = sum(padded(len(tensor.data)) for tensor in request.inputs)
        if size <= INLINE_BYTES and all(tensor.offset < 0 for tensor in request.inputs):
            return []
        request.lease = slot = arena.allocate(size)
        moves, placed, start = [], [], 0
        view = slot.view
        for tensor in request.inputs:
            target = view[start : start + len(tensor.data)]
            moves.append((target, tensor.data))
            placed.append(InferTensor(tensor.name, tensor.datatype, tensor.shape, target, slot.offset + start))
            start += padded(len(tensor.data))
        request.inputs = placed
        return moves

    def _submit(self, asked: InboundCall, served: Served, request: InferRequest) -> None:
        """Queue a request whose inputs are in memory that the called model reads."""
        call = self._accepted[asked] = _Call(asked, served, self._on_answer)
        call.start(request)
        if call.final:
            return
        place = _place_of(asked)
        if asked.call.blocking and asked.instance >= 0:
            if find_deadlock(place, call.waits_for(), self._waits_for):
                call.refuse_deadlock()
                return
            self._resting[place] = [asked]
            self._schedule_check(place)
        elif asked in self._resting.get(place, ()):  # its instance came to rest while it was prepared
            self._rest(place)

    def _on_answer(self, asked: InboundCall, final: bool) -> None:
        """Resume the instance that waits for this response."""
        place = _place_of(asked)
        if asked in self._resting.get(place, ()):
            del self._resting[place]
        if final:
            self._accepted.pop(asked, None)

    # ---- deadlocks ----------------------------------------------------------------------------------------------

    def report_idle(self, calls: Sequence[InboundCall]) -> None:
        """Note that an instance only waits for an answer to one of these calls, and resolve a deadlock that this
        closes.

        The call of the cycle that was made last is refused. Its caller continues, and may come to rest again.
        """
        place = _place_of(calls[0])
        if calls[0].instance >= 0 and all(_place_of(asked) == place for asked in calls):
            self._resting[place] = list(calls)
            self._rest(place)

    def _rest(self, place: Place) -> None:
        stuck = find_deadlock(place, self._waits_for(place), self._waits_for)
        calls = [self._accepted.get(asked) for one in stuck for asked in self._resting.get(one, ())]
        waiting = [call for call in calls if call is not None and call.is_queued]
        if waiting:
            max(waiting, key=lambda call: call.number).refuse_deadlock()
        self._schedule_check(place)

    def _schedule_check(self, place: Place) -> None:
        """Check again later if an ensemble was called: it does not notify when its request moves to the next member."""
        calls = self._resting.get(place, ())
        if any((call := self._accepted.get(asked)) is not None and call.is_of_ensemble for asked in calls):
            self._loop.call_later(LOOK_SECONDS, self._check_again, place, calls)

    def _check_again(self, place: Place, calls: Sequence[InboundCall]) -> None:
        if self._resting.get(place) is calls:
            self._rest(place)

    def _waits_for(self, place: Place) -> list[Place] | None:
        """Return the instances of which one must continue before this one does; None = it does not wait."""
        if place not in self._resting:
            return None
        found: list[Place] = []
        for asked in self._resting[place]:
            call = self._accepted.get(asked)
            places = call.waits_for() if call is not None else None
            if places is None:
                return None
            found += places
        return found

    # ---- the repository -----------------------------------------------------------------------------------------

    def control(self, question: Mapping[str, Any], answer: Answer, loading: bool) -> None:
        """Load or unload a model, or answer whether it is ready. An unload is answered once it has begun, because it
        may wait for the model that requests it.

        Args:
            loading: whether a load of the model that asks waits for the answer.
        """
        try:
            self._control(question, answer, loading)
        except EdgeServeError as error:
            answer(error)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            answer(InvalidArgument(f"a model asked what cannot be answered: {type(error).__name__}: {error}"))

    def _control(self, question: Mapping[str, Any], answer: Answer, loading: bool) -> None:
        def done(error: EdgeServeError | None) -> None:
            answer(error if error is not None else {})

        name = str(question["model_name"])
        match question["do"]:
            case "load_model":
                parameters = {str(path): b64decode(data) for path, data in question["files"].items()}
                config = {"config": question["config"]} if question["config"] else {}
                self._repository.load_model(name, {**config, **parameters}, done, nested=loading)
            case "unload_model":
                self._repository.start_unload(name, bool(question["unload_dependents"]), done)
            case "is_model_ready":
                answer({"ready": self._is_ready(name, str(question["version"]))})
            case unknown:
                raise InvalidArgument(f"models may not ask for '{unknown}'")

    def _is_ready(self, name: str, version: str) -> bool:
        try:
            return self._repository.model_ready(name, version)
        except (NotFound, Unavailable):
            return False


class _Call:
    """A call that was submitted to the called model.

    Args:
        on_answer: called with each response, and whether it is the last.

    Attributes:
        number: later calls have higher numbers.
        final: whether its last response has arrived.
    """

    _numbers = itertools.count(1)

    __slots__ = ("_accepted", "_asked", "_deadlocked", "_on_answer", "_served", "_ticket", "final", "number")

    def __init__(self, asked: InboundCall, served: Served, on_answer: Callable[[InboundCall, bool], None]) -> None:
        self.number = next(self._numbers)
        self.final = False
        self._asked = asked
        self._served = served
        self._on_answer = on_answer
        self._accepted = self._deadlocked = False
        self._ticket: Ticket = ANSWERED

    def start(self, request: InferRequest) -> None:
        """Queue the call."""
        trace = None if self._asked.call.trace < 0 else _trace_of(self._asked)
        ticket = self._ticket = submit(self._served, request, self._on_response, trace)
        self._accepted = True
        self._asked.on_cancel = ticket.cancel
        if self._asked.cancelled:
            ticket.cancel()

    def _on_response(self, response: InferResponse) -> None:
        if self._deadlocked:
            name = f"'{self._served.name}'"
            response.error = Internal(_DEADLOCK.format(name=f"a member of {name}" if self.is_of_ensemble else name))
        if response.error is not None and (
            self._deadlocked or (not self._accepted and self._served.opened is not None)
        ):
            response.error = _in_call(self._asked, response.error)
        self.final = response.final
        self._on_answer(self._asked, response.final)
        self._asked.answer(response)

    def waits_for(self) -> list[Place] | None:
        """Return the instances that may answer the call; None if others may, or its caller does not wait."""
        jobs = self._ticket.jobs()
        if self._asked.deaf or not jobs:
            return None
        return [(job.driver, instance) for job in jobs for instance in job.driver.places(job)]

    @property
    def caller(self) -> str:
        """The name of the model that made the call; "" = it is gone."""
        return self._asked.caller.name if self._asked.caller is not None else ""

    def called(self) -> set[str]:
        """Return the names of the models that the call waits for now."""
        return {job.driver.name for job in self._ticket.jobs()}

    @property
    def is_queued(self) -> bool:
        """Whether no instance executes it."""
        jobs = self._ticket.jobs()
        return bool(jobs) and not any(job.batch_id for job in jobs)

    @property
    def is_of_ensemble(self) -> bool:
        """Whether it calls an ensemble, and so moves from member to member."""
        return self._served.config.HasField("ensemble_scheduling")

    def refuse_deadlock(self) -> None:
        """Answer the call, which is queued, with the error that explains the deadlock."""
        self._deadlocked = True
        self._ticket.cancel()


def _place_of(asked: InboundCall) -> Place:
    return asked.caller, asked.instance


def _trace_of(asked: InboundCall) -> Trace | None:
    """Return the trace that the caller named, if that request is traced and its batch runs."""
    batch_id, position = asked.call.trace >> 16, asked.call.trace & 0xFFFF
    request = asked.caller.running(batch_id, position) if asked.caller is not None else None
    return request.compute.trace if request is not None and request.compute is not None else None


def _request(asked: InboundCall, served: Served) -> InferRequest:
    call = asked.call
    return InferRequest(
        call.model_name, served.version, call.id, list(call.inputs),
        [RequestedOutput(name, binary=True) for name in call.requested_outputs], dict(call.parameters),
        call.correlation_id, call.flags, 0, call.timeout_us,
    )  # fmt: skip


def _preparation(
    request: InferRequest, served: Served, moves: list[tuple[memoryview, Any]]
) -> tuple[Callable[[], object], int]:
    """Return the work to do before the request can be queued, and how many bytes it touches."""

    def prepare() -> None:
        copy(moves)  # first, because validated data must not change any more
        validate(request, served.signature)

    strings = sum(len(tensor.data) * 16 for tensor in request.inputs if not tensor.datatype.size)
    return prepare, strings + sum(len(source) for _, source in moves)


def _refuse(asked: InboundCall, request: InferRequest, error: Exception) -> None:
    if request.lease is not None:
        request.lease.release()
    known = error if isinstance(error, EdgeServeError) else Internal(f"{type(error).__name__}: {error}")
    asked.refuse(_in_call(asked, known))


def _in_call(asked: InboundCall, error: EdgeServeError) -> EdgeServeError:
    """Return the error for a call that was not accepted, in Triton's words."""
    return Internal(f"Model {asked.call.model_name} - Error when running inference: {error.message}")


def _release(asked: InboundCall) -> None:
    if asked.lease is not None:
        asked.lease.release()
