"""One instance in the worker: receives a batch, calls the backend, replies. One thread each, blocking I/O."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import NoReturn

from edge_serve.backends.base import BackendInstance, BackendRequest, DeviceLost, Reply, Timing
from edge_serve.errors import EdgeServeError, Internal, Unavailable
from edge_serve.messages.tensors import INLINE_BYTES
from edge_serve.workers.child.batch import (
    TIMEOUT_EXPIRED,
    Answers,
    Batch,
    cancel_key,
    decode_execute,
    encode_partial,
    encode_reply,
    in_time,
    with_late,
)
from edge_serve.workers.child.cancellations import Cancellations
from edge_serve.workers.child.memory.arena_imports import ArenaImports
from edge_serve.workers.child.memory.input_arena import InputArena
from edge_serve.workers.child.memory.output_room import OutputRoom
from edge_serve.workers.child.memory.shared_request import SharedRequest
from edge_serve.workers.child.mismatch import Mismatches
from edge_serve.workers.child.paused_streams import PausedStreams
from edge_serve.workers.child.process import FrameSender
from edge_serve.workers.wire.frames import DEVICE_LOST, HEADER, HEADER_SIZE, NEED, FrameKind, frame
from edge_serve.workers.wire.layout import TensorLayout
from edge_serve.workers.wire.polling_wait import PollingWait

_RECEIVE_BYTES = 64 * 1024


class Receiver:
    """Cuts a blocking stream into frames, each in memory of its own that starts on 16 bytes.

    Models may keep arrays beyond their batch, so no frame's memory is used twice.
    """

    __slots__ = ("_buffer", "_have", "_socket", "_wait")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._have = 0
        self._wait = PollingWait()

    def receive(self, poll_us: int = 0) -> bytearray | None:
        """Return the next frame with its header; None at the end of the stream.

        Args:
            poll_us: the longest time to poll before sleeping, if the last wait was short.
        """
        if not poll_us or self._have:
            return self._receive()
        clock, most = time.monotonic_ns, poll_us * 1000
        began = clock()
        end = began + self._wait.poll_ns(most)
        while clock() < end and not self._has_data():
            pass
        received = self._receive()
        self._wait.note(clock() - began, most)
        return received

    def has_read_nothing(self, last: bytearray) -> bool:
        """Return whether an interrupted `receive` has taken nothing from the socket.

        Args:
            last: the frame before. Its header is in the buffer until the next one comes, which has another batch ID.
        """
        return not self._have and self._buffer[:HEADER_SIZE] == last[:HEADER_SIZE]

    def _has_data(self) -> bool:
        """Receive without sleeping; return whether data or the end of the stream has arrived."""
        try:
            self._have = self._socket.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def _receive(self) -> bytearray | None:
        buffer, have, recv_into = self._buffer, self._have, self._socket.recv_into
        while have < HEADER_SIZE:
            count = recv_into(buffer[have:])
            if not count:
                return None
            have += count
        total = HEADER_SIZE + HEADER.unpack_from(buffer)[0]
        if have >= total:
            made = bytearray(buffer[:total])
            if have > total:
                buffer[: have - total] = bytes(buffer[total:have])
            self._have = have - total
            return made
        made = bytearray(total)
        made[:have] = buffer[:have]
        rest = memoryview(made)[have:]
        self._have = 0
        while rest:
            count = recv_into(rest)
            if not count:
                return None
            rest = rest[count:]
        return made


class Instance:
    """One executor and its data channel.

    Args:
        name: of the instance, as error texts quote it.
        number: of the channel, as control frames name it.
        imports: memory of other models.
        mismatches: reports outputs that differ from the configuration; None = nothing does.
        inputs: the arena as inputs see it; None = as outputs do.
    """

    def __init__(
        self,
        name: str,
        number: int,
        sock: socket.socket,
        layout: TensorLayout,
        arena: memoryview,
        backend: BackendInstance,
        imports: ArenaImports | None = None,
        mismatches: Mismatches | None = None,
        inputs: memoryview | InputArena | None = None,
    ) -> None:
        self.name = name
        self.number = number
        self.backend = backend
        self._socket = sock
        self._layout = layout
        self._arena = arena
        self.inputs = arena if inputs is None else inputs
        #: lets the model keep inputs beyond their batch; None = it gets copies, or must not
        self._release_batch = inputs.release_batch if isinstance(inputs, InputArena) else None
        self._imports = imports
        self._mismatches = mismatches
        self._cancellations = Cancellations()
        #: why the process cannot go on; "" = it can
        self._lost = ""
        self._paused = PausedStreams()
        self._send = FrameSender(sock).send
        self._tokens = itertools.count(1)
        #: token -> gets the offset and the capacity of its slot, and the reason of a refusal
        self._asked: dict[int, SimpleQueue[tuple[int, int, str]]] = {}

    @property
    def seats(self) -> int:
        """Return the number of batches that the front end may send before the first is answered."""
        return 1

    def run(self) -> None:
        """Serve until the front end closes the channel."""
        receiver, last = Receiver(self._socket), bytearray(HEADER_SIZE)
        try:
            poll_us = 0
            while (received := self._receive(receiver, last, poll_us)) is not None:
                poll_us = self._serve(received)
                last = received
        except OSError as error:
            if not _is_of_channel(error):
                raise
        finally:
            self._close()

    def _receive(self, receiver: Receiver, last: bytearray, poll_us: int) -> bytearray | None:
        """Return the next batch; None = the front end has closed the channel.

        The model's handler of a signal may raise here. While no part of a batch was read, its exception is printed, as
        one in a batch is, and has no other effect.
        """
        while True:
            try:
                return receiver.receive(poll_us)
            except Exception as fault:
                if (isinstance(fault, OSError) and _is_of_channel(fault)) or not receiver.has_read_nothing(last):
                    raise
                traceback.print_exception(fault, file=sys.stderr)

    def _close(self) -> None:
        self._socket.close()

    def _serve(self, received: bytearray) -> int:
        """Answer a batch. Return the microseconds for which to poll for the next one."""
        clock = time.monotonic_ns
        start = clock()
        layout, marks = self._layout, self._cancellations.marks
        send = self._send_partial if layout.decoupled else None
        try:
            batch = decode_execute(layout, received, self.inputs, marks, send, self._imports)
        except Exception as fault:  # no memory, say
            self._refuse(received, fault)
            return 0
        if layout.decoupled:
            self._cancellations.open(batch.id, len(batch.requests))
        answers = Answers(layout, self._room(batch), len(batch.requests))
        if batch.each:
            replies, times = self._execute_each(batch, start, answers)
        else:
            timing = Timing()
            ready = clock()
            replies = self._execute(batch, timing, ready)
            times = (start, timing.input_end_ns or ready, timing.output_start_ns or clock())
            self._encode(answers, batch, replies)
        batch_id, poll_us = batch.id, batch.poll_us
        data = encode_reply(answers, batch_id, times, clock)
        if layout.decoupled:
            self._send(data)
            self._close_failed(batch, replies)
        else:
            if self._release_batch is not None:
                del batch, replies
                self._release_batch()
            self._send(data)
            self._cancellations.done(batch_id)
        if self._lost:
            exit_worker(self._lost)
        return poll_us

    def _refuse(self, received: bytearray, fault: Exception) -> None:
        """Answer a batch that cannot be read."""
        _, _, _, count, batch_id = HEADER.unpack_from(received)
        error = self._error_of(fault)
        now = time.monotonic_ns()
        room = OutputRoom(self._arena, 0, 0, self._need, batch_id)
        answers = Answers(self._layout, room, count)
        answers.add([Reply(error=error)] * count, [None] * count)
        self._send(encode_reply(answers, batch_id, (now, now, now), time.monotonic_ns))

    def _execute(self, batch: Batch, timing: Timing, now_ns: int) -> list[Reply]:
        requests, late = in_time(batch, now_ns)
        replies = self._call(requests, timing) if requests else []
        return with_late(replies, late, len(batch.requests)) if late else replies

    def _execute_each(self, batch: Batch, start_ns: int, answers: Answers) -> tuple[list[Reply], tuple[int, int, int]]:
        """Execute requests one by one, and answer each before the next one runs. The marks give inputs, compute, and
        outputs the time that they took in all.
        """
        clock = time.monotonic_ns
        replies: list[Reply] = []
        inputs = outputs = 0
        now = clock()
        for i, request in enumerate(batch.requests):
            timing = Timing()
            if batch.deadlines and 0 < batch.deadlines[i] <= now:
                one = [Reply(error=Unavailable(TIMEOUT_EXPIRED))]
            elif batch.shared is not None and i in batch.shared and batch.shared[i].error is not None:
                one = [Reply()]
            else:
                one = self._call((request,), timing)
            computed = timing.output_start_ns or clock()
            if timing.input_end_ns:
                inputs += timing.input_end_ns - now
            self._encode(answers, batch, one, i)
            replies += one
            now = clock()
            outputs += now - computed
        return replies, (start_ns, start_ns + inputs, now - outputs)

    def _call(self, requests: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        try:
            replies = self.backend.execute(requests, timing)
        except BaseException as fault:  # sys.exit in a model ends its batch, not its worker
            return self._failures(fault, len(requests))
        return self._counted(replies, len(requests))

    def _failures(self, fault: BaseException, count: int) -> list[Reply]:
        """Return the replies of a batch in which the backend raised."""
        if not isinstance(fault, EdgeServeError):
            traceback.print_exception(fault, file=sys.stderr)
        if isinstance(fault, DeviceLost):
            self._lost = fault.message
        error = self._error_of(fault)
        return [Reply(error=error) for _ in range(count)]

    def _counted(self, replies: list[Reply], count: int) -> list[Reply]:
        if len(replies) == count:
            return replies
        error = self._failed(f"found {len(replies)} replies, expected {count}")
        return [Reply(error=error) for _ in range(count)]

    def _failed(self, text: str) -> Internal:
        return Internal(f"Failed to process the request(s) for model '{self.name}', message: {text}")

    def _error_of(self, fault: BaseException) -> EdgeServeError:
        return fault if isinstance(fault, EdgeServeError) else self._failed(f"{type(fault).__name__}: {fault}")

    def _encode(self, answers: Answers, batch: Batch, replies: list[Reply], first: int = 0) -> None:
        """Encode replies, and write the outputs for clients' memory there. Their memory may then be written again.

        Args:
            replies: of the whole batch, or of requests that follow each other in it.
            first: the position of the first of them.
        """
        layout, requests, wanted, count = self._layout, batch.requests, batch.wanted, len(replies)
        if count < len(requests):
            requests, wanted = requests[first : first + count], wanted[first : first + count]
        if batch.shared is not None:
            self._write_shared(batch.shared, wanted, replies, first)
        if layout.cached:
            for request, reply in zip(requests, replies, strict=False):
                reply.personal = request.personal
        rows = [_rows(request) for request in requests] if layout.counts_rows else None
        try:
            answers.add(replies, wanted, self._mismatches, rows)
            return
        except Unavailable as full:
            replies = [_refuse_large(reply, full) for reply in replies]
        except Exception as fault:
            replies = self._failures(fault, count)
        answers.add(replies, wanted)

    def _write_shared(
        self,
        requests: Mapping[int, SharedRequest],
        wanted: Sequence[Sequence[str] | None],
        replies: list[Reply],
        first: int,
    ) -> None:
        """Write the outputs for clients' memory there. `requests` are by position in the batch."""
        for i, names in enumerate(wanted):
            if (shared := requests.get(first + i)) is not None:
                reply = replies[i] = shared.answer(replies[i], names)
                if isinstance(reply.error, DeviceLost):
                    self._lost = reply.error.message

    def _room(self, batch: Batch) -> OutputRoom:
        return OutputRoom(self._arena, batch.slot_offset, batch.slot_capacity, self._need, batch.id)

    def _send_partial(self, batch_id: int, index: int, reply: Reply | None, final: bool) -> None:
        key = cancel_key(batch_id, index)
        if self._paused.paused and not self._paused.wait(key, final):
            return
        room = OutputRoom(self._arena, 0, 0, self._need)
        try:
            data = encode_partial(self._layout, batch_id, index, reply, final, None, room, self._mismatches)
        except Exception as fault:  # the client hears of it; a last reply that got lost would leave it waiting
            data = encode_partial(self._layout, batch_id, index, self._failures(fault, 1)[0], final, None, room)
        self._send(data)
        if final:
            self._cancellations.close(key)

    def _need(self, batch_id: int, nbytes: int, unused: bool) -> tuple[int, int, int]:
        token = next(self._tokens)
        answer = self._asked[token] = SimpleQueue()
        self._send(frame(FrameKind.NEED_OUTPUT, batch_id, NEED.pack(nbytes, token, unused)))
        offset, capacity, reason = answer.get()
        del self._asked[token]
        if not capacity:
            raise Unavailable(reason)
        return token, offset, capacity

    def disconnect(self) -> None:
        """Close the channel in a forked child. The lock is replaced, because its owner was not copied by the fork."""
        self._send = FrameSender(self._socket).send
        self._paused = PausedStreams()
        self._socket.close()

    # ---- called by the control thread -----------------------------------------------------------------------------

    def grant_slot(self, token: int, offset: int, capacity: int, reason: str) -> None:
        """Take the front end's answer to NEED_OUTPUT; capacity 0 is a refusal."""
        answer = self._asked.get(token)
        if answer is not None:
            answer.put((offset, capacity, reason))

    def cancel(self, batch_id: int, index: int) -> None:
        """Note that the client of a request has disconnected."""
        self._cancellations.add(batch_id, index)

    def set_paused(self, batch_id: int, index: int, paused: bool) -> None:
        """Pause or resume the senders of a stream. The front end resumes each at its end."""
        if paused:
            self._paused.pause(cancel_key(batch_id, index))
        else:
            self._paused.resume(cancel_key(batch_id, index))

    def wake_senders(self) -> None:
        """Wake the senders of paused streams because the model is being closed. They find their requests cancelled."""
        self._cancellations.marks.update(self._paused.paused)
        self._paused.close()

    def _close_failed(self, batch: Batch, replies: list[Reply]) -> None:
        """Close requests that failed: the batch's own reply is their last one."""
        for i, reply in enumerate(replies):
            if reply.error is not None:
                self._cancellations.close(cancel_key(batch.id, i))


class IterativeInstance(Instance):
    """An `Instance` of a model that may run a request several times, each time in another batch."""

    def _encode(self, answers: Answers, batch: Batch, replies: list[Reply], first: int = 0) -> None:
        super()._encode(answers, batch, replies, first)
        for i, reply in enumerate(replies, first):
            if reply.rescheduled:
                self._cancellations.suspend(cancel_key(batch.id, i), batch.requests[i].is_cancelled)


def _is_of_channel(error: OSError) -> bool:
    """Return whether an error says that the front end is gone, or that this process is a forked child, which has closed
    the channel. The control channel, or the fork, ends the process."""
    return isinstance(error, ConnectionError) or error.errno == errno.EBADF


def _rows(request: BackendRequest) -> int:
    """Return the size of a request's batch dimension."""
    return request.inputs[0].shape[0] if request.inputs and request.inputs[0].shape else 0


def _refuse_large(reply: Reply, error: EdgeServeError) -> Reply:
    large = sum(len(tensor.data) for tensor in reply.outputs) > INLINE_BYTES
    return Reply(error=error) if large else reply


def exit_worker(reason: str) -> NoReturn:
    """End the process at once: the libraries of a lost device may hang or crash in an orderly end."""
    print(f"the worker ends because its device is lost: {reason}", file=sys.stderr, flush=True)
    os._exit(DEVICE_LOST)
