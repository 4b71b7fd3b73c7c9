"""One instance of a Python model: calls its methods, checks what they return, and tells failures in Triton's words.

Contract and texts: triton-inference-server/python_backend src/pb_stub.cc, ProcessRequests and ProcessReturnedResponses.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import json
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any
from weakref import WeakValueDictionary

from edge_serve.backends import host
from edge_serve.backends.base import BackendRequest, DeviceLost, InstanceSpec, ModelSpec, Reply, Timing
from edge_serve.backends.parameters import parameters_of
from edge_serve.backends.python.api.advice import clear_missing
from edge_serve.backends.python.api.errors import Refusal, TritonModelException, describe
from edge_serve.backends.python.api.request import REQUEST_RELEASE_RESCHEDULE, InferenceRequest, allow_calls
from edge_serve.backends.python.api.response import InferenceResponse
from edge_serve.backends.python.api.sender import InferenceResponseSender
from edge_serve.backends.python.events import EventLoop
from edge_serve.backends.python.model import find
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, Unsupported, with_advice
from edge_serve.messages.infer import SEQUENCE_START

_MAY_BE_ASYNC = ("execute", "is_ready")

#: limit for a model's own is_ready()
READY_SECONDS = 5.0

#: after which the wait for a response collects garbage
COLLECT_SECONDS = 1.0

#: parameter of a model: "yes" (default) copies inputs that lie on a GPU to the host
CPU_INPUTS = "FORCE_CPU_ONLY_INPUT_TENSORS"

_NO_ANSWER = (
    "the model returned None for a request and sent no response for it. A model that is not decoupled must answer "
    "every request, with a response in the list that execute returns or through the request's response sender."
)
#: Triton's words (core src/infer_request.cc)
_NOT_ITERATIVE = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
    "such a flag."
)


class _Answer:
    """The response that came through the sender of one request, perhaps after `execute` has returned.

    With its sender it outlives a run that reschedules the request: a model that keeps the sender or the request may
    answer before the next run.
    """

    __slots__ = ("_settled", "reply")

    def __init__(self) -> None:
        self.reply: Reply | None = None
        # Not an Event: a finalizer may deliver in the thread that is about to wait.
        self._settled: SimpleQueue[None] = SimpleQueue()

    def __call__(self, reply: Reply | None, final: bool) -> None:
        """Take a response with the values that it has now, or the end of the sender."""
        try:
            if reply is not None:
                self.reply = _copied(reply)
        finally:
            self._settled.put(None)

    def wait(self) -> Reply | None:
        """Wait for the response. Return None if the sender was discarded without one.

        A reference cycle may keep a discarded sender, as an exception does that its own frame has put into a list. So
        the wait collects garbage, ever less often: nothing else does while the instance waits.
        """
        seconds = COLLECT_SECONDS
        while True:
            try:
                self._settled.get(timeout=seconds)
                return self.reply
            except Empty:
                gc.collect()
                seconds *= 2


class PythonInstance:
    """One executor of a Python model.

    Attributes:
        model: the object of the model's class.
        takes_device_memory: inputs that lie on a GPU stay there (`FORCE_CPU_ONLY_INPUT_TENSORS` = `no`).
        writes_inputs: the model's code may.
    """

    writes_inputs = True

    def __init__(self, model_class: Callable[[], Any], spec: ModelSpec, instance: InstanceSpec) -> None:
        """Make the model and call its `initialize`.

        Raises:
            Internal: it raised, or the model has no method `execute` now.
            Unsupported: the parameter `FORCE_CPU_ONLY_INPUT_TENSORS` has another value.
        """
        self.takes_device_memory = not _forces_cpu_inputs(spec)
        self._name = instance.name
        self._model_name, self._model_version = spec.name, spec.version
        self._decoupled = bool(spec.config.get("model_transaction_policy", {}).get("decoupled", False))
        self._loop = EventLoop(instance.name)
        if any(map(inspect.iscoroutinefunction, (getattr(model_class, name, None) for name in _MAY_BE_ASYNC))):
            importlib.import_module("asyncio")  # now, and not while the first request waits
        self._asking: threading.Thread | None = None
        self._iterative = bool((spec.config.get("sequence_batching") or {}).get("iterative_sequence", False))
        #: correlation ID -> the sender, if the model has kept it, of a request that is to run again
        self._suspended: WeakValueDictionary[int | str, InferenceResponseSender] = WeakValueDictionary()
        try:
            self.model = model_class()
            if hasattr(self.model, "initialize"):
                self.model.initialize(_initialize_args(spec, instance))
            has_execute = callable(getattr(self.model, "execute", None))
        except BaseException as error:
            raise Internal(describe(error, sys._getframe())) from error
        if not has_execute:
            self.close()
            raise Internal(f"Python model {find(spec)} does not implement `execute` method.")
        allow_calls(True)

    # -- executing

    def execute(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        """Return one reply per request; those of a decoupled model, which uses `BackendRequest.send`, are empty.

        Raises:
            DeviceLost: a response that was sent could not be copied from its device.
        """
        clear_missing()
        if self._decoupled:
            return self._execute_decoupled(batch)
        # The requests are out of scope after _execute_ordinary, so a sender that the model did not keep has ended its
        # _Answer.
        replies = self._await_senders(self._execute_ordinary(batch, timing))
        for reply in replies:
            if isinstance(reply.error, DeviceLost):
                raise reply.error
        return replies

    def _await_senders(self, answers: Sequence[Reply | _Answer]) -> list[Reply]:
        """Wait for the responses that come through senders. The others are copied before that, because the model's
        threads may change its arrays meanwhile."""
        if _Answer not in map(type, answers):
            return answers  # type: ignore[return-value]  # all are replies
        kept = [_copied(one) if isinstance(one, Reply) else one for one in answers]
        return [one if isinstance(one, Reply) else one.wait() or self._failed(_NO_ANSWER) for one in kept]

    def _execute_ordinary(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply | _Answer]:
        """Execute a batch. Return a reply for each request, or where it will come."""
        requests = self._receive(batch)
        timing.input_end_ns = time.monotonic_ns()
        try:
            result = self.model.execute([*requests])  # a list of its own, which it may sort or empty
            if type(result) is not list and isinstance(result, Coroutine):
                result = self._loop.run(result, alone=True)
            timing.output_start_ns = time.monotonic_ns()
            return self._check(batch, requests, result)
        except BaseException as error:
            failure = self._failed(describe(error, sys._getframe()))
            return [self._close_sender(request) or failure for request in requests]

    def _check(
        self, batch: Sequence[BackendRequest], requests: Sequence[InferenceRequest], result: object
    ) -> list[Reply | _Answer]:
        """Check what the model has returned. Return as `_execute_ordinary`."""
        if result is None:
            result = [None] * len(requests)
        if not isinstance(result, list):
            raise Refusal(f"Expected a list in the execute return, found type '{type(result)}'.")
        if len(result) != len(requests):
            raise Refusal(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(result)}\n"
            )
        replies: list[Reply | _Answer] = []
        for wire, request, response in zip(batch, requests, result, strict=True):
            if request._release_flags == REQUEST_RELEASE_RESCHEDULE:
                replies.append(self._reschedule(request, response))
            elif response is None:
                sender = request.get_response_sender()  # perhaps before the thread that will answer asks for it
                replies.append(sender._deliver)  # type: ignore[arg-type]  # of _make_sender
            elif not isinstance(response, InferenceResponse):
                raise Refusal(
                    "Expected an 'InferenceResponse' object in the execute function return list, found type "
                    f"'{type(response)}'."
                )
            elif request._sender is None:
                replies.append(response.as_reply(wire.requested_outputs))
            else:
                replies.append(_take(request._sender, response))
        return replies

    def _reschedule(self, request: InferenceRequest, response: object) -> Reply:
        if response is not None:
            raise Refusal(
                "Expected a None object in the execute function return list for reschduled request, found type "
                f"'{type(response)}'."
            )
        if not self._iterative:
            return Reply([], InvalidArgument(_NOT_ITERATIVE))
        return _sent(request) or self._suspend(request)

    def _close_sender(self, request: InferenceRequest) -> Reply | None:
        """Close the sender of a request of a failed batch. Return its response; None = it has sent none."""
        if request._sender is not None:
            request._sender.close()
        return _sent(request)

    def _failed(self, text: str) -> Reply:
        message = f"Failed to process the request(s) for model '{self._name}', message: {text}"
        host.log("ERROR", message)
        return Reply([], Internal(message))

    def _make_sender(self, wire: BackendRequest) -> InferenceResponseSender:
        deliver = _stream(wire) if self._decoupled else _Answer()
        return InferenceResponseSender(deliver, wire.requested_outputs, wire.is_cancelled, self._decoupled)

    # -- executing a request several times

    def _receive(self, batch: Sequence[BackendRequest]) -> list[InferenceRequest]:
        """Return the requests of a batch as the model sees them. One that runs again has the sender that the model has
        kept."""
        name, version = self._model_name, self._model_version
        requests = [InferenceRequest.received(request, name, version, self._make_sender) for request in batch]
        if self._suspended:
            for request, wire in zip(requests, batch, strict=True):
                kept = self._suspended.pop(wire.correlation_id, None)
                if kept is not None and not wire.flags & SEQUENCE_START:
                    deliver = _stream(wire) if self._decoupled else kept._deliver
                    kept.resume(deliver, wire.is_cancelled)  # type: ignore[arg-type]  # of _make_sender
                    request._sender = kept
        return requests

    def _suspend(self, request: InferenceRequest) -> Reply:
        """Reschedule a request, and let its sender go on if the model has kept the sender or the request."""
        sender = request.get_response_sender()
        sender.suspend()
        self._suspended[request._wire.correlation_id] = sender
        return Reply(rescheduled=True)

    # -- decoupled

    def _execute_decoupled(self, batch: Sequence[BackendRequest]) -> list[Reply]:
        """Run the batch; what it failed with, and which requests are to run again."""
        requests = self._receive(batch)
        # Made now: a model that drops a request without asking for its sender ends it too.
        senders = [request.get_response_sender() for request in requests]
        try:
            result = self.model.execute([*requests])
            if isinstance(result, Coroutine):
                self._loop.start(self._watch(result, senders))
            elif result is not None:
                raise Refusal(
                    f"Python model '{self._name}' is using the decoupled mode and the execute function must "
                    "return None."
                )
        except BaseException as error:
            failure = self._fail_streams(error, senders, sys._getframe())
            return [failure for _ in batch]
        return [
            Reply() if request._release_flags != REQUEST_RELEASE_RESCHEDULE else self._reschedule_stream(request)
            for request in requests
        ]

    def _reschedule_stream(self, request: InferenceRequest) -> Reply:
        if self._iterative:
            return self._suspend(request)
        failure = Reply([], InvalidArgument(_NOT_ITERATIVE))
        request.get_response_sender().fail(failure)
        return failure

    async def _watch(self, coroutine: Any, senders: list[InferenceResponseSender]) -> None:
        try:
            await coroutine
        except BaseException as error:  # also CancelledError: a stream that was cut must not look complete
            self._fail_streams(error, senders, None)

    def _fail_streams(
        self, error: BaseException, senders: Sequence[InferenceResponseSender], caller: FrameType | None
    ) -> Reply:
        failure = self._failed(describe(error, caller))
        for sender in senders:
            sender.fail(failure)
        return failure

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the instance's event loop, and return its result or raise its exception."""
        return self._loop.run(coroutine)

    # -- the rest of its life

    def is_ready(self) -> bool:
        """Ask the model's own `is_ready`, for READY_SECONDS at most; True if it has none."""
        if not hasattr(self.model, "is_ready"):
            return True
        if self._asking is not None and self._asking.is_alive():
            host.log("ERROR", f"Model '{self._name}': Timed out waiting for in-flight is_ready() response")
            return False
        answer: list[bool] = []
        self._asking = threading.Thread(target=self._ask, args=(answer,), name=f"{self._name} is_ready", daemon=True)
        self._asking.start()
        self._asking.join(READY_SECONDS)
        if self._asking.is_alive():
            host.log("ERROR", f"Model '{self._name}': Timed out waiting for user-defined is_ready() response")
        return answer == [True]

    def _ask(self, answer: list[bool]) -> None:
        try:
            result = self.model.is_ready()
            if isinstance(result, Coroutine):
                result = self._loop.run(result)
            if not isinstance(result, bool):
                raise Refusal("is_ready() must return a boolean value")
            answer.append(result)
        except BaseException as error:
            host.log("ERROR", f"Model '{self._name}': is_ready() failed: {describe(error, sys._getframe())}")

    def close(self) -> None:
        """Call the model's `finalize`; what it raises is logged."""
        self._loop.close()
        allow_calls(False)
        try:
            if hasattr(self.model, "finalize"):
                self.model.finalize()
        except BaseException as error:
            host.log("ERROR", f"Model '{self._name}': finalize() failed: {describe(error, sys._getframe())}")
        del self.model


def _forces_cpu_inputs(spec: ModelSpec) -> bool:
    value = parameters_of(spec.config).get(CPU_INPUTS, "yes")
    if value not in ("yes", "no"):
        text = f"Incorrect value for {CPU_INPUTS}: {value}'"  # Triton's words (python_backend src/python_be.cc)
        raise Unsupported(with_advice(text, 'write "yes" or "no"'))
    return value == "yes"


def _initialize_args(spec: ModelSpec, instance: InstanceSpec) -> dict[str, str]:
    return {
        "model_config": json.dumps(spec.config, separators=(",", ":"), ensure_ascii=False),
        "model_instance_kind": instance.kind,
        "model_instance_name": instance.name,
        "model_instance_device_id": str(instance.device_id),
        "model_repository": str(spec.model_directory),
        "model_version": str(spec.version),
        "model_name": spec.name,
    }


def _sent(request: InferenceRequest) -> Reply | None:
    """Return the response that an ordinary model has sent for a request; None = it has sent none."""
    answer = None if request._sender is None else request._sender._deliver
    return answer.reply if isinstance(answer, _Answer) else None


def _copied(reply: Reply) -> Reply:
    """Return a response with copies of its outputs, or an error in its place. A model that has sent the response
    cannot send an error instead."""
    try:
        reply.copy_outputs()
    except EdgeServeError as error:
        return Reply([], error)
    except Exception as error:
        return Reply([], Internal(f"the outputs of a response cannot be copied: {type(error).__name__}: {error}"))
    return reply


def _take(sender: InferenceResponseSender, response: InferenceResponse) -> Reply:
    try:
        return sender.take(response)
    except TritonModelException as error:
        raise Refusal(str(error)) from error


def _stream(request: BackendRequest) -> Callable[[Reply | None, bool], None]:
    assert request.send is not None, "the worker reads the same configuration"
    return request.send
