"""Batches to one instance and their replies: the front end's end of a data channel. Callbacks on the event loop.

Nothing here waits: what the socket does not take is queued. Everything that comes from the worker is checked, and a
worker that breaks the protocol is reported as broken.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic_ns

from edge_serve.aio.pausable_deadline import PausableDeadline
from edge_serve.backends.base import Reply
from edge_serve.errors import EdgeServeError, Internal, Unavailable
from edge_serve.messages.infer import NULL_SEQUENCE_SLOT, InferRequest, Lease
from edge_serve.messages.tensors import INLINE_BYTES
from edge_serve.workers.front.frame_socket import FrameSocket
from edge_serve.workers.front.frames.batch import BatchReply, decode_answers, encode_execute, loose_bytes
from edge_serve.workers.front.link import Link
from edge_serve.workers.front.pending import Moves, PendingBatch, move_inputs, prepare, release_all
from edge_serve.workers.memory.arena import Slot
from edge_serve.workers.memory.arena_exports import ArenaExports
from edge_serve.workers.wire.frames import (
    CANCELLATION,
    FINAL,
    HEADER_SIZE,
    NEED,
    NULL,
    PARTIAL_HEAD,
    REPLY_HEAD,
    FrameError,
    FrameKind,
    frame,
    slot_frame,
)
from edge_serve.workers.wire.layout import padded

_REPLY = FrameKind.REPLY.value


class Channel:
    """The channel to instance `instance` of a model.

    Args:
        number: how control frames of this worker name the channel.
        send_control: sends a frame on the worker's control channel.
        broken: called with a reason when the worker breaks the protocol or overruns its time, so that it must be ended,
            and with the seconds in which it may end by itself.
        exports: lends the worker other models' arenas.
        seats: how many batches the instance takes at once; batches in excess wait in the socket.
        time: returns the time by which the time limits of batches run (`Process.time`); None = that of the loop.
    """

    __slots__ = (
        "_dead", "_frames", "_granted", "_link", "_loop", "_pending", "_send_control", "_time", "exports", "instance",
        "number", "on_abandoned", "partials", "paused", "seats",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        number: int,
        instance: int,
        link: Link,
        send_control: Callable[[bytes], None],
        broken: Callable[[str, float], None],
        exports: ArenaExports,
        seats: int = 1,
        time: Callable[[], float] | None = None,
    ) -> None:
        self._loop = loop
        self.number = number
        self.instance = instance
        self.exports = exports
        self.seats = seats
        self._time = time
        self._link = link
        self._send_control = send_control
        self._frames = FrameSocket(loop, sock, "channel", f"model '{link.name}'", self._on_frame, broken)
        #: gets the ID of a batch that runs when the client of its last request disconnects
        self.on_abandoned: Callable[[int], None] | None = None
        self._pending: dict[int, PendingBatch] = {}
        self._granted: dict[int, Slot] = {}
        self._dead = False
        #: responses of a decoupled model so far
        self.partials = 0
        #: batch -> its paused streams, by position; perhaps of a batch that is still to be sent
        self.paused: dict[int, set[int]] = {}

    # ---- to the worker --------------------------------------------------------------------------------------------

    def execute(self, batch_id: int, requests: Sequence[InferRequest], each: bool = False) -> None:
        """Send a batch (or requests to execute one by one); never blocks, never raises for what the requests hold."""
        link = self._link
        poll = link.poll_policy.worker_us(id(self), len(requests))
        pending = self._pending[batch_id] = PendingBatch(len(requests), 0, None, monotonic_ns(), each=each)
        link.poll_policy.out += 1
        moves: Moves = []
        try:
            for request in requests:
                if request.shared or (len(request.inputs) > 0 and loose_bytes(request.inputs) > INLINE_BYTES):
                    requests, moves = self._place(requests, pending)
                    break
            # replies of a decoupled model and sequences in place have their request's place in the frame
            if pending.refused and (link.layout.decoupled or link.layout.in_place):
                full = next(iter(pending.refused.values()))
                pending.refused = dict.fromkeys(range(pending.count), full)
                raise full
            if link.large:
                self._expect_outputs(requests, pending)
        except Exception as error:  # whatever it is: the requests of a batch that is not sent must be answered
            self._loop.call_soon(self._refuse, batch_id, f"cannot be sent: {type(error).__name__}: {error}")
            return
        if moves or (pending.slot is not None and not pending.slot.is_ready):
            pending.preparing = True
            prepare(pending, moves, partial(self._prepared, batch_id, requests, pending, poll))
        else:
            self._encode(batch_id, requests, pending, poll)

    def _prepared(
        self, batch_id: int, requests: Sequence[InferRequest], pending: PendingBatch, poll: int, error: Exception | None
    ) -> None:
        """Send a batch whose memory is ready, with its inputs in it; or refuse it, with `error`."""
        pending.preparing = False
        if self._pending.get(batch_id) is not pending:  # the channel was closed meanwhile
            release_all(pending)
        elif error is not None:
            if isinstance(error, EdgeServeError):
                pending.refused = dict.fromkeys(range(pending.count), error)
            self._loop.call_soon(self._refuse, batch_id, f"cannot be sent: {error}")
        else:
            self._encode(batch_id, requests, pending, poll)

    def _encode(self, batch_id: int, requests: Sequence[InferRequest], pending: PendingBatch, poll: int) -> None:
        link, each = self._link, pending.each
        try:
            place = (pending.slot.offset, pending.slot.capacity) if pending.slot else (0, 0)
            data = encode_execute(link.layout, batch_id, requests, *place, each, poll)
        except Exception as error:  # whatever it is: the requests of a batch that is not sent must be answered
            self._loop.call_soon(self._refuse, batch_id, f"cannot be sent: {type(error).__name__}: {error}")
            return
        if not requests:
            self._loop.call_soon(self._refuse, batch_id, "is empty")
            return
        if link.timeout:
            self._limit_oldest()
        if pending.copies and link.layout.decoupled:
            placed = partial(link.listener.on_placed, self.instance, batch_id)
            pending.copies = {index: slot for index, slot in pending.copies.items() if not placed(index, slot)}
        self._frames.send(data)

    def _place(self, requests: Sequence[InferRequest], pending: PendingBatch) -> tuple[Sequence[InferRequest], Moves]:
        """Lend large inputs that lie in other models' arenas, and find slots for those in ordinary memory."""
        # other requests may read a tensor that lies in the model's own arena, too
        own, exports = None if self._link.layout.writes else self._link.arena, self.exports
        requests = [
            replace(request, inputs=exports.export(request.inputs, own), outputs=exports.export_places(request.outputs))
            for request in requests
        ]
        return move_inputs(requests, pending, self._link.arena)

    def _expect_outputs(self, requests: Sequence[InferRequest], pending: PendingBatch) -> None:
        """Allocate a slot for outputs that will be large. Without memory the worker asks again, once it has them."""
        link, size = self._link, 0
        for request in requests:
            if request.sequence_slot == NULL_SEQUENCE_SLOT:  # it asks for no output
                continue
            rows = link.layout.rows(request)
            pending.rows += rows
            expected = link.row_bytes * rows
            if expected > INLINE_BYTES and not request.shared:
                size += expected
        if size:
            try:
                pending.slot = link.arena.allocate(size)
            except Unavailable:
                pending.slot = None

    def _refuse(self, batch_id: int, reason: str) -> None:
        """Answer a batch that was not sent. When the worker has died meanwhile, `on_lost` has answered it."""
        pending = self._pending.pop(batch_id, None)
        if pending is None:
            return
        self._link.poll_policy.out -= 1
        release_all(pending)
        if self._link.timeout:
            self._limit_oldest()
        error = Internal(f"the batch {reason}")
        replies = [Reply(error=(pending.refused or {}).get(i, error)) for i in range(pending.count)]
        reply = BatchReply(batch_id, 0, 0, 0, 0, replies, unsent=range(pending.count))
        self._link.listener.on_reply(self.instance, reply)

    def running(self) -> int:
        """Return the ID of the batch that the instance executes; 0 = none."""
        return next(iter(self._pending), 0)

    def running_since_ns(self) -> int | None:
        """Return the time at which the oldest batch without an answer was sent; None = there is none."""
        oldest = next(iter(self._pending.values()), None)
        return None if oldest is None else oldest.sent_ns

    def cancel(self, batch_id: int, index: int) -> None:
        """Notify the worker that a client has disconnected. For a batch that is done, a decoupled model may still have
        replies to send, and an iterative one response senders that it has kept."""
        pending = self._pending.get(batch_id)
        if pending is None:
            if not (self._link.layout.decoupled or self._link.layout.reruns):
                return
        elif self.on_abandoned is not None and pending.cancel(index):
            self.on_abandoned(batch_id)
        if pending is not None and pending.sent is not None:
            if index not in pending.sent:
                return
            index = pending.sent.index(index)
        self._send_control(frame(FrameKind.CANCEL, batch_id, CANCELLATION.pack(self.number, index)))

    def set_paused(self, batch_id: int, index: int, paused: bool) -> None:
        """Pause or resume the sender of a decoupled model's stream, and the time limit of its batch."""
        streams = self.paused.setdefault(batch_id, set())
        if paused:
            streams.add(index)
        else:
            streams.discard(index)  # it may have been paused in the process before this one
        if not streams:
            del self.paused[batch_id]
        pending = self._pending.get(batch_id)
        if pending is not None and pending.timer is not None:
            pending.timer.set_paused(batch_id in self.paused)
        kind = FrameKind.PAUSE if paused else FrameKind.RESUME
        self._send_control(frame(kind, batch_id, CANCELLATION.pack(self.number, index)))

    def _limit_oldest(self) -> None:
        """Start the time limit of the oldest batch, once the worker has it. A batch behind it does not run yet."""
        batch_id, oldest = next(iter(self._pending.items()), (0, None))
        if oldest is not None and oldest.timer is None and not oldest.preparing:
            oldest.timer = PausableDeadline(
                self._loop, self._link.timeout, self._on_overrun, paused=batch_id in self.paused, time=self._time
            )

    def _on_overrun(self) -> None:
        self.restart(f"a batch ran longer than the model's execution_timeout_ms ({self._link.timeout * 1000:g})")

    # ---- from the worker ------------------------------------------------------------------------------------------

    def _on_frame(self, kind: int, count: int, batch_id: int, received: bytes) -> None:
        if kind == _REPLY:
            self._on_reply(count, batch_id, received)
        elif kind == FrameKind.NEED_OUTPUT:
            self._on_need(batch_id, received)
        elif kind == FrameKind.PARTIAL:
            self._on_partial(batch_id, received)
        else:
            raise FrameError(f"found kind {kind} on a data channel")

    def _on_reply(self, count: int, batch_id: int, received: bytes) -> None:
        pending = self._pending.get(batch_id)
        if pending is None or pending.preparing:
            raise FrameError(f"found a reply to batch {batch_id}, which was not sent, or was answered before")
        if count != (expected := pending.count if pending.sent is None else len(pending.sent)):
            raise FrameError(f"found {count} replies to batch {batch_id}, expected {expected}")
        if len(received) < HEADER_SIZE + REPLY_HEAD.size:
            raise FrameError("a reply is cut off")
        start, ready, done, end, token, meta = REPLY_HEAD.unpack_from(received, HEADER_SIZE)
        if not pending.sent_ns <= start <= ready <= done <= end <= monotonic_ns():  # a backend may mark anything
            now = monotonic_ns()  # statistics must not run backwards, nor beyond what their fields can say
            start, ready, done, end = sorted(min(max(mark, pending.sent_ns), now) for mark in (start, ready, done, end))
        slot = pending.slot if not token else self._granted.get(token) if token in pending.tokens else None
        replies, in_slot = decode_answers(self._link.layout, received, HEADER_SIZE + REPLY_HEAD.size, meta, count, slot)
        del self._pending[batch_id]
        self._link.poll_policy.out -= 1
        left = self._link.timeout if pending.timer is None else pending.timer.left()
        if pending.timer is not None or pending.copies is not None:
            pending.release()
            if self._link.timeout:
                self._limit_oldest()
        lease = slot if in_slot else None
        if lease is not None and pending.rows:
            self._link.learn(sum(padded(len(one.data)) for reply in replies for one in reply.outputs), pending.rows)
        if pending.slot is not None and pending.slot is not lease:
            pending.slot.release()
        if pending.tokens:
            self._ungrant(pending.tokens, lease)
        if pending.refused:
            rest = iter(replies)
            refused = pending.refused
            replies = [Reply(error=refused[i]) if i in refused else next(rest) for i in range(pending.count)]
        unsent = pending.refused or ()
        self._link.listener.on_reply(
            self.instance,
            BatchReply(
                batch_id, start, ready, done, end, replies, lease, pending.each, self._dead, unsent, left, self._time
            ),
        )

    def _ungrant(self, tokens: Sequence[int], lease: Lease | None) -> None:
        """Release the slots that a batch has asked for and not used."""
        for token in tokens:
            slot = self._granted.pop(token, None)
            if slot is not None and slot is not lease:
                slot.release()

    def _on_need(self, batch_id: int, received: bytes) -> None:
        if len(received) != HEADER_SIZE + NEED.size:
            raise FrameError("a NEED_OUTPUT has another length")
        nbytes, token, unused = NEED.unpack_from(received, HEADER_SIZE)
        pending = self._pending.get(batch_id)
        if not token or token in self._granted or not (pending is not None or self._link.layout.decoupled):
            raise FrameError(f"found NEED_OUTPUT {token} of batch {batch_id}, expected none")
        if pending is not None:
            self._link.learn(nbytes, pending.rows)
            if unused and pending.slot is not None:
                pending.slot.release()
                pending.slot = None
        try:
            slot = self._link.arena.allocate(nbytes)
        except Unavailable as full:
            self._send_control(slot_frame(self.number, token, 0, 0, full.message))
            return
        self._granted[token] = slot
        if pending is not None:
            pending.tokens += (token,)
        slot.when_ready(lambda: self._grant(token, slot))

    def _grant(self, token: int, slot: Slot) -> None:
        if slot.error is None:
            self._send_control(slot_frame(self.number, token, slot.offset, slot.capacity))
            return
        del self._granted[token]
        slot.release()
        self._send_control(slot_frame(self.number, token, 0, 0, slot.error.message))

    def _on_partial(self, batch_id: int, received: bytes) -> None:
        if not self._link.layout.decoupled or len(received) < HEADER_SIZE + PARTIAL_HEAD.size:
            raise FrameError("found a partial reply, expected none")
        index, flags, token, meta = PARTIAL_HEAD.unpack_from(received, HEADER_SIZE)
        slot = self._granted.get(token)
        replies, in_slot = decode_answers(self._link.layout, received, HEADER_SIZE + PARTIAL_HEAD.size, meta, 1, slot)
        self._granted.pop(token, None)
        if slot is not None and not in_slot:
            slot.release()
        lease = slot if in_slot else None
        self.partials += 1
        reply = None if flags & NULL else replies[0]
        self._link.listener.on_partial(self.instance, batch_id, index, reply, flags & FINAL != 0, lease)

    # ---- the end --------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Deliver the replies that a dead worker has written."""
        self._dead = True
        self._frames.drain()

    def hang_up(self) -> None:
        """Tell the worker that no batch follows. Slots stay allocated until `close`."""
        self._frames.hang_up()

    def restart(self, reason: str) -> None:
        """Kill the worker, which is then started again."""
        self._frames.broken(reason, 0)

    def close(self) -> None:
        """Close the channel and release its slots. The worker must be idle or dead."""
        self._frames.close()
        for pending in self._pending.values():
            if not pending.preparing:  # a thread may write there: `_prepared` releases it
                release_all(pending)
        for slot in self._granted.values():
            slot.release()
        self._link.poll_policy.out -= len(self._pending)
        self._pending.clear()
        self._granted.clear()
