"""`InferenceResponseSender`: how a model answers a request after `execute`, or several times.

Contract and texts: triton-inference-server/python_backend src/response_sender.cc.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from edge_serve.backends.base import Reply
from edge_serve.backends.python.api.errors import MODULE, TritonModelException
from edge_serve.backends.python.api.response import InferenceResponse

RESPONSE_COMPLETE_FINAL = 1


class InferenceResponseSender:
    """The way back of one request, for one response or, from a decoupled model, any number.

    It may be kept and used by other threads after `execute` has returned. Dropping it without an answer ends the
    request, so that its client does not wait for ever.
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
        """Make a sender. `deliver(reply, final)` takes each answer; None = the model made the request itself."""
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
            TypeError: not a response, or flags that are no whole number.
            TritonModelException: against the protocol; the text says what.
        """
        if (response is not None and not isinstance(response, InferenceResponse)) or not hasattr(flags, "__index__"):
            raise TypeError(
                "send(): incompatible function arguments. The following argument types are supported:\n"
                f"    1. (self: {MODULE}.InferenceResponseSender, response: {MODULE}.InferenceResponse = None, "
                f"flags: int = 0) -> None\n\nInvoked with: {self!r}, {response!r}, {flags!r}"
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
        """Let the request run again, and send through `deliver` from now on. End the run if the sender was closed
        before."""
        with self._lock:
            self._deliver, self._cancelled, self._rescheduled = deliver, cancelled, False
            if self._closed:
                deliver(None, True)

    def is_cancelled(self) -> bool:
        """Return whether the client has disconnected or cancelled."""
        return self._cancelled()

    def __del__(self) -> None:
        # No lock: no other thread can hold it now.
        if not self._closed and not self._rescheduled and self._deliver is not None:
            self._closed = True
            self._deliver(None, True)


InferenceResponseSender.__module__ = MODULE
