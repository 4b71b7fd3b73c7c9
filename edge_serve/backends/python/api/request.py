"""`InferenceRequest`: a request that came in, or one that a model makes to call another model.

Contract and texts: triton-inference-server/python_backend src/infer_request.cc and src/pb_stub.cc.
"""

from __future__ import annotations

import json
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, SupportsIndex

from edge_serve.backends import host
from edge_serve.backends.base import BackendRequest
from edge_serve.backends.python.api.calls import ResponseIterator, ask, ask_async
from edge_serve.backends.python.api.errors import MODULE, NativeEnum, TritonModelException, as_flag, as_text
from edge_serve.backends.python.api.response import InferenceResponse, check_parameters
from edge_serve.backends.python.api.sender import InferenceResponseSender
from edge_serve.backends.python.api.tensor import Tensor
from edge_serve.messages.infer import Parameter

if TYPE_CHECKING:
    import asyncio

REQUEST_RELEASE_ALL = 1
REQUEST_RELEASE_RESCHEDULE = 2


class MemoryType(NativeEnum):
    """Where a model would like the outputs of a call."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class PreferredMemory:
    """A wish for the memory of a call's outputs. `_gpu` is -1 for memory of the host."""

    __slots__ = ("__weakref__", "_gpu")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: SupportsIndex = 0) -> None:
        """Raises TypeError unless the type is TRITONSERVER_MEMORY_CPU or _GPU, and the device a number of 64 bits."""
        if not isinstance(preferred_memory_type, MemoryType):
            raise TypeError("PreferredMemory(preferred_memory_type): pb_utils.TRITONSERVER_MEMORY_CPU or _GPU")
        device = _signed("preferred_device_id", preferred_device_id)
        is_gpu = preferred_memory_type is MemoryType.TRITONSERVER_MEMORY_GPU and 0 <= device < 1 << 31
        self._gpu = device if is_gpu else -1


class InferenceTrace:
    """The trace that a request belongs to; `number` is `BackendRequest.number`."""

    __slots__ = ("__weakref__", "_context", "_number")

    def __init__(self, context: str = "", number: int = -1) -> None:
        self._context = context
        self._number = number

    def get_context(self) -> str | None:
        """Return the OpenTelemetry context, or None."""
        return self._context or None


_NO_TRACE = InferenceTrace()


def _never() -> bool:
    return False


def _check_types(inputs: Sequence[Tensor]) -> None:
    if not all(isinstance(tensor, Tensor) for tensor in inputs):
        raise TypeError("InferenceRequest(inputs=...) must be a list of pb_utils.Tensor")


def _check_type(name: str, value: object, kind: type[object]) -> None:
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"InferenceRequest({name}=...) must be {kind.__name__}, found {type(value).__name__}")


def _output_names(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise TypeError(
            f"InferenceRequest(requested_output_names=...) must be a list of names, found a str: write [{names!r}]"
        )
    return [as_text("requested_output_names", name) for name in names]


def _whole(name: str, value: SupportsIndex) -> int:
    """Return an argument that is a whole number, of NumPy too.

    Raises:
        TypeError: the number is of another type.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"InferenceRequest({name}=...) must be int, found {type(value).__name__}") from None


def _signed(name: str, value: SupportsIndex) -> int:
    """Return a whole number of 64 bits.

    Raises:
        TypeError: the number is of another type, or does not fit.
    """
    number = _whole(name, value)
    if not -(1 << 63) <= number < 1 << 63:
        raise TypeError(f"InferenceRequest({name}=...) must be a whole number of 64 bits, found {value!r}")
    return number


def _within(name: str, value: SupportsIndex, bits: int) -> int:
    """Return a whole number from 0 that has at most `bits` bits.

    Raises:
        TypeError: the number is of another type, or does not fit.
    """
    number = _whole(name, value)
    if not 0 <= number < 1 << bits:
        raise TypeError(f"InferenceRequest({name}=...) must be a whole number from 0 to 2**{bits} - 1, found {value!r}")
    return number


def _unanswerable(wire: BackendRequest) -> InferenceResponseSender:
    """Return a sender that refuses to send: the model made the request itself."""
    return InferenceResponseSender(None, (), _never, several=False)


class InferenceRequest:
    """A request."""

    __slots__ = (
        "__weakref__", "_inputs", "_make_sender", "_model_name", "_model_version", "_preferred_memory",
        "_release_flags", "_sender", "_trace", "_wire",
    )  # fmt: skip

    _wire: BackendRequest
    #: None until the model asks for them
    _inputs: list[Tensor] | None
    #: None until it is asked for: a request that is answered by the list that `execute` returns needs none
    _sender: InferenceResponseSender | None
    _make_sender: Callable[[BackendRequest], InferenceResponseSender]

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Iterable[Tensor] | None = None,
        requested_output_names: Iterable[str] | None = None,
        model_name: str | None = None,
        model_version: SupportsIndex = -1,
        flags: SupportsIndex = 0,
        timeout: SupportsIndex = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace = _NO_TRACE,
        parameters: dict[str, Parameter] | None = None,
    ) -> None:
        """Make a request to another model, for `exec` and `async_exec`.

        Raises:
            TypeError: no inputs, output names or model name; a number that does not fit; memory or a trace of another
                type.
            TritonModelException: an empty input, output name, or a value of the wrong type.
        """
        if inputs is None or requested_output_names is None or model_name is None:
            raise TypeError("InferenceRequest() needs inputs, requested_output_names and model_name")
        model_name, request_id = as_text("model_name", model_name), as_text("request_id", request_id)
        names, inputs = _output_names(requested_output_names), list(inputs)
        about = f"for request with id '{request_id}' and model name '{model_name}' should not be empty."
        if any(tensor is None for tensor in inputs):
            raise TritonModelException(f"Input tensor {about}")
        _check_types(inputs)
        if not all(names):
            raise TritonModelException(f"Requested output name {about}")
        if correlation_id is None:
            raise TypeError("correlation_id must be an integer or a string, found None")
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        _within("correlation_id", correlation_id if isinstance(correlation_id, int) else 0, 64)
        _check_type("preferred_memory", preferred_memory, PreferredMemory)
        _check_type("trace", trace, InferenceTrace)
        flags, timeout = _within("flags", flags, 32), _within("timeout", timeout, 64)
        parameters = {} if parameters is None else check_parameters(parameters)
        self._wire = BackendRequest(request_id, [], names, parameters, correlation_id, flags, 0, timeout, _never)
        self._inputs = inputs
        self._model_name = model_name
        self._model_version = _signed("model_version", model_version)
        self._preferred_memory = preferred_memory
        self._trace = trace
        self._make_sender = _unanswerable
        self._sender = None
        self._release_flags = REQUEST_RELEASE_ALL

    @classmethod
    def received(
        cls,
        wire: BackendRequest,
        model_name: str,
        model_version: int,
        make_sender: Callable[[BackendRequest], InferenceResponseSender],
    ) -> InferenceRequest:
        """Return a request of a client; its tensors and sender are made when the model asks for them."""
        self = cls.__new__(cls)
        self._wire = wire
        self._inputs = self._sender = self._preferred_memory = None
        self._model_name = model_name
        self._model_version = model_version
        self._trace = _NO_TRACE
        self._make_sender = make_sender
        self._release_flags = REQUEST_RELEASE_ALL
        return self

    def inputs(self) -> list[Tensor]:
        """Return a new list of the inputs: in the order of the client, then those that the server added (controls,
        states)."""
        if self._inputs is None:
            self._inputs = [Tensor.received(tensor) for tensor in self._wire.inputs]
        return list(self._inputs)

    def request_id(self) -> str:
        """Return the client's ID for the request."""
        return self._wire.id

    def correlation_id(self) -> int | str:
        """Return the sequence that the request belongs to; 0 = none."""
        self._wire.personal = True
        return self._wire.correlation_id

    def requested_output_names(self) -> set[str]:
        """Return the names of the outputs that the client wants."""
        return set(self._wire.requested_outputs)

    def model_name(self) -> str:
        """Return the name of the model that is asked."""
        return self._model_name

    def model_version(self) -> int:
        """Return the model version that is asked for; -1 for the highest."""
        return self._model_version

    def flags(self) -> int:
        """Return the sequence flags."""
        self._wire.personal = True
        return self._wire.flags

    def set_flags(self, flags: SupportsIndex) -> None:
        """Set the sequence flags. Raises TypeError when they do not fit."""
        self._wire.flags = _within("flags", flags, 32)

    def timeout(self) -> int:
        """Return the request's timeout in microseconds; 0 = none."""
        return self._wire.timeout_us

    def preferred_memory(self) -> PreferredMemory:
        """Return where the outputs of this call should lie."""
        return self._preferred_memory or PreferredMemory(MemoryType.TRITONSERVER_MEMORY_CPU)

    def parameters(self) -> str:
        """Return the parameters as a JSON object."""
        self._wire.personal = True
        return json.dumps(self._wire.parameters, separators=(",", ":"), ensure_ascii=False)

    def trace(self) -> InferenceTrace:
        """Return the trace that the request belongs to."""
        return InferenceTrace("", self._wire.number) if self._trace is _NO_TRACE else self._trace

    def is_cancelled(self) -> bool:
        """Return whether the client has disconnected or cancelled."""
        return self._wire.is_cancelled()

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the sender of responses, always the same object."""
        if self._sender is None:
            with host.lock:  # several threads may ask for it; a forked child gets a new lock
                if self._sender is None:
                    self._sender = self._make_sender(self._wire)
        return self._sender

    def set_release_flags(self, flags: SupportsIndex) -> None:
        """Set release flags; TRITONSERVER_REQUEST_RELEASE_RESCHEDULE puts the request back into the queue.

        Raises:
            TypeError: the flags are no number, or do not fit into 32 bits.
        """
        self._release_flags = _within("release_flags", flags, 32)

    def exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:
        """Call the model and wait. An error of the called model, or of the call, comes as a response.

        Args:
            decoupled: give an iterator over any number of responses, once the first is there.

        Raises:
            TypeError: `decoupled` is no Boolean.
            TritonModelException: not during `execute`, or no server runs in this process.
        """
        decoupled = as_flag("exec(decoupled=...)", decoupled)
        call = self._call(decoupled)
        # `execute` runs in the main thread: nothing else does until it returns
        call.blocking = not decoupled and threading.current_thread() is threading.main_thread()
        return ask(call, self._gpu())

    def async_exec(self, decoupled: bool = False) -> asyncio.Future[InferenceResponse | ResponseIterator]:
        """Call the model as `exec` does, to be awaited; its cancellation cancels the call."""
        return ask_async(self._call(as_flag("async_exec(decoupled=...)", decoupled)), self._gpu())

    def _gpu(self) -> int:
        return -1 if self._preferred_memory is None else self._preferred_memory._gpu

    def _call(self, decoupled: bool) -> host.ModelCall:
        if type(host.current()) is host.Alone:
            raise TritonModelException(f"model '{self._model_name}' cannot be called: {host.NO_SERVER}")
        if not _calls_allowed:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        trace = self._trace._number if isinstance(self._trace, InferenceTrace) else -1
        return host.ModelCall(
            self._model_name, self._model_version, [tensor.as_host_wire() for tensor in self.inputs()],
            self._wire.requested_outputs, self._wire.id, self._wire.correlation_id, self._wire.flags,
            self._wire.timeout_us, self._wire.parameters, decoupled, trace=trace,
        )  # fmt: skip


#: calls to other models are for `execute` only: before and after, the caller may hold up its own load
_calls_allowed = False


def allow_calls(allowed: bool) -> None:
    """Allow or refuse calls of models: the instance allows them after `initialize`, until `finalize`."""
    global _calls_allowed
    _calls_allowed = allowed


InferenceRequest.__module__ = InferenceTrace.__module__ = MemoryType.__module__ = PreferredMemory.__module__ = MODULE
