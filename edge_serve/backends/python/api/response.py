"""`InferenceResponse` and `InferenceResponseSender`: how a Python model answers.

Contract and texts: triton-inference-server/python_backend src/infer_response.cc and src/response_sender.cc.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Sequence

from edge_serve.backends.base import Reply
from edge_serve.backends.python.api.errors import MODULE, TritonError, TritonModelException
from edge_serve.backends.python.api.tensor import Tensor
from edge_serve.messages.infer import Parameter

RESPONSE_COMPLETE_FINAL = 1


class InferenceResponse:
    """Output tensors, or an error."""

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, Parameter] | None = None,
    ) -> None:
        """Raises TypeError for values of other types, TritonModelException for an empty tensor or odd parameters."""
        try:
            self._tensors = list(output_tensors)
        except TypeError:
            raise _no_list(output_tensors) from None
        for tensor in self._tensors:
            if type(tensor) is not Tensor:
                _refuse_tensor(tensor)
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"InferenceResponse(error=...) must be a TritonError, found {type(error).__name__}")
        self._error = error
        self._parameters = None if parameters is None else check_parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        """The outputs."""
        return self._tensors

    def has_error(self) -> bool:
        """Whether it is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error, or None."""
        return self._error

    def parameters(self) -> str:
        """The parameters as a JSON object."""
        return json.dumps(self._parameters or {})

    def as_reply(self, wanted: Collection[str]) -> Reply:
        """The same for the channel, without the outputs that are not `wanted`."""
        if self._error is not None:
            return Reply([], self._error.as_reply_error(), answered=True)
        outputs = [tensor.as_wire() for tensor in self._tensors if tensor._name in wanted]
        reply = Reply(outputs) if self._parameters is None else Reply(outputs, None, self._parameters)
        if len(outputs) != len(self._tensors):
            reply.dropped = [tensor._name for tensor in self._tensors if tensor._name not in wanted]
        return reply

    @classmethod
    def of(cls, reply: Reply) -> InferenceResponse:
        """Make the response that a called model sent."""
        if reply.error is not None:
            return cls(error=TritonError.of(reply.error))
        return cls([Tensor.received(output) for output in reply.outputs], parameters=reply.parameters or None)


def _refuse_tensor(tensor: object) -> None:
    if tensor is None:
        raise TritonModelException("Output tensor for inference response should not be empty.")
    if not isinstance(tensor, Tensor):
        raise _no_list(tensor)


def _no_list(found: object) -> TypeError:
    kind = type(found)
    text = f"InferenceResponse(output_tensors=...) must be a list of Tensor, found {kind.__name__}"
    if kind is Tensor:
        return TypeError(f"{text} without a list: write [tensor]")
    return TypeError(f"{text} of the module {kind.__module__}: write pb_utils.Tensor(NAME, array)")


def check_parameters(parameters: dict[str, Parameter]) -> dict[str, Parameter]:
    """The parameters as they are.

    Raises:
        TritonModelException: not a dict of strings to bool, int of 64 bits, str or float.
    """
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect parameters to be a dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str, float)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str/float, found type {type(value)}"
            )
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise TritonModelException(f"Expect integers of at most 64 bits as parameters values, found {value}")
    return parameters


class InferenceResponseSender:
    """The way back of one request, for one response or, from a decoupled model, any number.

    It may be kept and used by other threads after `execute` has returned. Dropping it without an answer ends the
    request, so that nobody waits for ever.
    """

    __slots__ = (
        "__weakref__", "_cancelled", "_closed", "_count", "_deliver", "_lock", "_rescheduled", "_several", "_wanted",
    )  # fmt: skip

    def __init__(
        self,
        deliver: Callable[[Reply | None, bool], None] | None,
        wanted: Collection[str],
        cancelled: Callable[[], bool],
        several: bool,
    ) -> None:
        """`deliver(reply, final)` takes each answer; without it the request is one that the model made itself."""
        self._deliver = deliver
        self._wanted = wanted
        self._cancelled = cancelled
        self._several = several
        self._closed = False
        self._count = 0
        self._rescheduled = False
        self._lock = threading.Lock()

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, say that none follows (TRITONSERVER_RESPONSE_COMPLETE_FINAL), or both.

        Raises:
            TypeError: not a response.
            TritonModelException: against the protocol; the text says what.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(
                "send(): incompatible function arguments. The following argument types are supported:\n"
                f"    1. (self: {MODULE}.InferenceResponseSender, response: {MODULE}.InferenceResponse = None, "
                f"flags: int = 0) -> None\n\nInvoked with: {self!r}, {response!r}"
            )
        if flags not in (0, RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if self._deliver is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        reply = None if response is None else response.as_reply(self._wanted)
        with self._lock:
            self._count_in(response is not None, flags == RESPONSE_COMPLETE_FINAL)
            self._deliver(reply, flags == RESPONSE_COMPLETE_FINAL)

    def _count_in(self, has_response: bool, final: bool) -> None:
        if not self._several:
            if has_response and self._count:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send more than one response."
                )
            if not has_response and final and not self._count:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
                )
        if self._closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        self._closed = final
        self._count += 1

    def take(self, response: InferenceResponse) -> Reply:
        """Count in a response that `execute` returned, and give it for the channel.

        Raises:
            TritonModelException: another response has been sent already.
        """
        with self._lock:
            self._count_in(True, True)
        return response.as_reply(self._wanted)

    def close(self) -> None:
        """Let nothing more be sent."""
        with self._lock:
            self._closed = True

    def fail(self, failure: Reply) -> None:
        """End it with an error, unless it has ended."""
        with self._lock:
            if not self._closed and self._deliver is not None:
                self._closed = True
                self._deliver(failure, True)

    def suspend(self) -> None:
        """Keep the request open without a sender, because it will run again."""
        self._rescheduled = True

    def resume(self, deliver: Callable[[Reply | None, bool], None], cancelled: Callable[[], bool]) -> None:
        """Let the request run again, with another way back."""
        with self._lock:
            self._deliver, self._cancelled, self._rescheduled = deliver, cancelled, False

    def is_cancelled(self) -> bool:
        """Whether the client has gone or cancelled."""
        return self._cancelled()

    def __del__(self) -> None:
        # No lock: nobody else can hold it now.
        if not self._closed and not self._rescheduled and self._deliver is not None:
            self._closed = True
            self._deliver(None, True)


InferenceResponse.__module__ = InferenceResponseSender.__module__ = MODULE
