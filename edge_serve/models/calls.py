"""Models that call models (business logic scripting): a call from a worker runs like a client's request.

Rules and texts: triton-inference-server/python_backend src/request_executor.cc and src/model_loader.cc. What is refused
before the called model has accepted it is an INTERNAL error with the words of `request_executor.cc` before it; what it
answers itself comes unchanged. A call takes its place in the called model's queue, behind what is there: a model that
calls itself, or calls in a circle, waits for another instance; a call for which all that could answer it would wait is
refused (`waits`).
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from edge_serve.errors import Cancelled, EdgeServeError, Internal, InvalidArgument, NotFound, Unavailable
from edge_serve.messages.infer import InferRequest, InferResponse, Lease, RequestedOutput
from edge_serve.models.caching import running
from edge_serve.models.driver import Driver, Job
from edge_serve.models.ensemble_flight import Lookup
from edge_serve.models.rate_limit import LimitedModel
from edge_serve.models.served import Served
from edge_serve.models.waits import Place, Waits
from edge_serve.protocol.validate import validate
from edge_serve.tensors import Tensor
from edge_serve.workers.beside import copy, work
from edge_serve.workers.desk import Answer, Asked
from edge_serve.workers.layout import INLINE, padded

_CIRCLE = (
    "every instance of '{name}' waits for the instance that makes this call, so it would never be answered. Models "
    "that call themselves or each other need an instance for each level (instance_group)"
)

Done = Callable[["EdgeServeError | None"], None]


class Repository(Protocol):
    """The operations on models that models may ask for (`service.Service`)."""

    def load_model(self, name: str, parameters: Mapping[str, Any], done: Done) -> object: ...

    def begin_unload(self, name: str, unload_dependents: bool, done: Done) -> object: ...

    def model_ready(self, name: str, version: str) -> bool: ...


class Calls:
    """Runs what models ask for. `infer` and `control` are `workers.desk.Hooks`.

    Args:
        lookup: the version that a call means; raises an EdgeServeError when it does not serve.
    """

    def __init__(self, lookup: Lookup, repository: Repository) -> None:
        self._lookup = lookup
        self._repository = repository
        self._waits = Waits()
        self._loop = asyncio.get_running_loop()

    def infer(self, asked: Asked) -> None:
        """Run a call; never raises."""
        caller = _driver_of(asked)
        if isinstance(caller, Driver):
            caller.run_one_by_one()
        try:
            served = self._target(asked)
            request = _request(asked, served)
            moved = self._moved(asked, served, request)
        except EdgeServeError as error:
            _release(asked)
            asked.refuse(_in_call(asked, error))
            return
        served.hold()
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
            served.let_go()

        work(self._loop, nbytes, job, prepared)

    def _target(self, asked: Asked) -> Served:
        call = asked.call
        version = "" if call.model_version == -1 else str(call.model_version)
        try:
            served = self._lookup(call.model_name, version, call.correlation_id, call.flags)
        except EdgeServeError:
            text = f"Failed for execute the inference request. Model '{call.model_name}' is not ready."
            raise Internal(text) from None
        if served.signature.decoupled and not call.decoupled:
            raise Internal(
                f"Model {call.model_name} is using the decoupled. The current BLS request call doesn't support models "
                "using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
                "'async_exec' calls for decoupled models.'"
            )
        return served

    def _moved(self, asked: Asked, served: Served, request: InferRequest) -> list[tuple[memoryview, Any]]:
        """What is to be copied into the called model's arena, where `request` looks for it; it is not there yet.

        Raises:
            Unavailable: there is no memory.
        """
        arena = served.arena
        request.lease = asked.lease
        if arena is None or arena is asked.arena:  # an ensemble, whose members take copies; or the model itself
            if arena is None:
                request.inputs = [replace(tensor, offset=-1) for tensor in request.inputs]
            return []
        size = sum(padded(len(tensor.data)) for tensor in request.inputs)
        if size <= INLINE and all(tensor.offset < 0 for tensor in request.inputs):
            return []
        request.lease = slot = arena.allocate(size)
        moves, placed, start = [], [], 0
        view = slot.view
        for tensor in request.inputs:
            target = view[start : start + len(tensor.data)]
            moves.append((target, tensor.data))
            placed.append(Tensor(tensor.name, tensor.datatype, tensor.shape, target, slot.offset + start))
            start += padded(len(tensor.data))
        request.inputs = placed
        return moves

    def _submit(self, asked: Asked, served: Served, request: InferRequest) -> None:
        """Queue a request whose inputs are where the called model reads them."""
        accepted = final = circle = False

        def on_response(response: InferResponse) -> None:
            nonlocal final
            if circle:
                response.error = Internal(_CIRCLE.format(name=served.name))
            if response.error is not None and (circle or (not accepted and served.opened is not None)):
                response.error = _in_call(asked, response.error)
            final = response.final
            if final:
                self._waits.end(place, waits_for)
            asked.answer(response)

        def waits_for() -> list[Place] | None:
            job = running(ticket)
            if asked.deaf or not isinstance(job, Job):
                return None
            return [(job.driver, instance) for instance in job.driver.places(job)]

        place = _driver_of(asked), asked.instance
        ticket = served.submit(request, on_response)
        accepted = True
        asked.on_cancel = ticket.cancel
        if asked.call.blocking and asked.instance >= 0 and not final and not self._waits.begin(place, waits_for):
            circle = True
        if asked.cancelled or circle:
            ticket.cancel()

    # ---- the repository -----------------------------------------------------------------------------------------

    def control(self, question: Mapping[str, Any], answer: Answer) -> None:
        """Load or unload a model, or tell whether it is ready. An unload is answered once it has begun: the model that
        asks may be what it waits for."""
        try:
            self._control(question, answer)
        except EdgeServeError as error:
            answer(error)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            answer(InvalidArgument(f"a model asked what cannot be answered: {type(error).__name__}: {error}"))

    def _control(self, question: Mapping[str, Any], answer: Answer) -> None:
        def done(error: EdgeServeError | None) -> None:
            answer(error if error is not None else {})

        name = str(question["model_name"])
        match question["do"]:
            case "load_model":
                parameters = {str(path): b64decode(data) for path, data in question["files"].items()}
                config = {"config": question["config"]} if question["config"] else {}
                self._repository.load_model(name, {**config, **parameters}, done)
            case "unload_model":
                self._repository.begin_unload(name, bool(question["unload_dependents"]), done)
            case "is_model_ready":
                answer({"ready": self._is_ready(name, str(question["version"]))})
            case unknown:
                raise InvalidArgument(f"models may not ask for '{unknown}'")

    def _is_ready(self, name: str, version: str) -> bool:
        try:
            return self._repository.model_ready(name, version)
        except (NotFound, Unavailable):
            return False


def _driver_of(asked: Asked) -> object:
    """Who drives the calling model; the rate limiter may stand between it and its workers."""
    return asked.caller.driver if isinstance(asked.caller, LimitedModel) else asked.caller


def _request(asked: Asked, served: Served) -> InferRequest:
    call = asked.call
    return InferRequest(
        call.model_name, served.version, call.id, list(call.inputs),
        [RequestedOutput(name, binary=True) for name in call.requested_outputs], dict(call.parameters),
        call.correlation_id, call.flags, 0, call.timeout_us,
    )  # fmt: skip


def _preparation(
    request: InferRequest, served: Served, moves: list[tuple[memoryview, Any]]
) -> tuple[Callable[[], object], int]:
    """What is to be done before the request can be queued, and how many bytes that touches."""

    def prepare() -> None:
        copy(moves)  # first: what was checked must not change any more
        validate(request, served.signature)

    strings = sum(len(tensor.data) * 16 for tensor in request.inputs if not tensor.datatype.size)
    return prepare, strings + sum(len(source) for _, source in moves)


def _refuse(asked: Asked, request: InferRequest, error: Exception) -> None:
    if request.lease is not None:
        request.lease.release()
    known = error if isinstance(error, EdgeServeError) else Internal(f"{type(error).__name__}: {error}")
    asked.refuse(_in_call(asked, known))


def _in_call(asked: Asked, error: EdgeServeError) -> EdgeServeError:
    """Why a call was not accepted, in Triton's words."""
    return Internal(f"Model {asked.call.model_name} - Error when running inference: {error.message}")


def _release(asked: Asked) -> None:
    lease: Lease | None = asked.lease
    if lease is not None:
        lease.release()
