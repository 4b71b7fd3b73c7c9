"""Inflates the compressed messages of a call and prepares large ones: in order, and large ones in a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from edge_serve.aio.offload import offload
from edge_serve.aio.tasks import start_task
from edge_serve.errors import EdgeServeError, Internal
from edge_serve.messages.tensors import INLINE_BYTES
from edge_serve.protocol.grpc import wire as grpc_wire
from edge_serve.protocol.grpc.wire import MessageTooLarge
from edge_serve.protocol.inference.cost import SMALL_BYTES
from edge_serve.records import entity
from edge_serve.transport.grpc.deflater import SMALL
from edge_serve.transport.grpc.messages import THREAD, Message, claim_message

if TYPE_CHECKING:
    from edge_serve.transport.grpc.call import GrpcCall
    from edge_serve.transport.grpc.door_state import GrpcDoorState

#: messages of a call that wait for a thread, with which the call is paused
_MAX_STEPS = 32


@entity
class Inflater:
    """Inflates and prepares the messages of one call.

    Attributes:
        encoding: of compressed messages; "" = the call may have none.
    """

    call: GrpcCall
    shared: GrpcDoorState
    encoding: str
    #: steps that wait for a thread to inflate or prepare a message; None = no thread works for this call
    _steps: deque[Callable[[], None]] | None = None

    @property
    def busy(self) -> bool:
        """A thread works for this call."""
        return self._steps is not None

    def run(self, step: Callable[[], None]) -> None:
        """Run a step of the call after those that wait for a thread."""
        steps = self._steps
        if steps is None:
            self.call.guard(step)
            return
        steps.append(step)
        if len(steps) >= _MAX_STEPS:
            self.call.pause(THREAD)

    def inflate(self, message: Message) -> None:
        """Inflate a message, and pass it to `GrpcCall.take`."""
        self.run(partial(self._inflate, message))

    def prepare(self, message: Message, prepare: Callable[[], Awaitable[None]]) -> None:
        """Await `prepare`, and pass the message to `GrpcCall.hand_over`."""
        self.run(partial(self._prepare, message, prepare))

    def _inflate(self, message: Message) -> None:
        call, data, encoding = self.call, message.data, self.encoding
        if not (call.closed or call.finished or encoding):
            call.fail(Internal("a compressed message, but no grpc-encoding says how"))
        if call.closed or call.finished:
            message.release()
            return
        if len(data) <= SMALL:
            try:
                inflated = grpc_wire.inflate(data, encoding, min(SMALL_BYTES, call.max_message))
                small = len(inflated) < INLINE_BYTES
                made = Message(inflated) if small else claim_message(inflated, call.memory, call.fail)
            except MessageTooLarge:
                pass
            except EdgeServeError as error:
                message.release()
                call.fail(error)
                return
            else:
                message.release()
                call.take(made, 0)
                return
        self._steps = self._steps or deque()
        start_task(self._inflate_in_thread(message), "inflate")

    async def _inflate_in_thread(self, compressed: Message) -> None:
        call = self.call
        message: Message | None = None
        try:
            async with self.shared.inflating:  # one at a time, because their inflated sizes are unknown
                data = await offload(grpc_wire.inflate, compressed.data, self.encoding, call.max_message)
                compressed.release()
                if not call.closed and not call.finished:
                    message = claim_message(data, call.memory, call.fail)
        except EdgeServeError as error:
            call.fail(error)
        except Exception:
            call.fail_by_us()
        finally:
            compressed.release()
        self._resume(None if message is None else partial(call.take, message, 0))

    def _prepare(self, message: Message, prepare: Callable[[], Awaitable[None]]) -> None:
        if self.call.closed or self.call.finished:
            message.release()
            return
        self._steps = self._steps or deque()
        start_task(self._prepare_in_thread(message, prepare), "prepare a large message")

    async def _prepare_in_thread(self, message: Message, prepare: Callable[[], Awaitable[None]]) -> None:
        try:
            await prepare()
        except Exception:
            message.release()
            self.call.fail_by_us()
            self._resume(None)
        else:
            self._resume(partial(self.call.hand_over, message))

    def _resume(self, then: Callable[[], None] | None) -> None:
        """Continue after the work of a thread: run `then`, and the steps that waited."""
        steps, self._steps = self._steps or deque(), None
        if then is not None:
            steps.appendleft(then)
        while steps:
            if self._steps is not None:
                self._steps.extend(steps)
                return
            self.call.guard(steps.popleft())
        self.call.resume(THREAD)
