"""Cuts the bytes of a gRPC stream into messages.

A small message that arrives in one piece is a slice of the received bytes. A large message is received straight into
the memory in which it will be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from edge_serve.errors import EdgeServeError, Internal
from edge_serve.messages.infer import InferRequest, Lease, Room
from edge_serve.messages.tensors import INLINE_BYTES, Buffer
from edge_serve.protocol.grpc import wire as grpc_wire
from edge_serve.protocol.grpc.infer import PEEKED
from edge_serve.protocol.grpc.wire import PREFIX
from edge_serve.protocol.http1.body import LARGE, pages
from edge_serve.protocol.http2.stream import INITIAL_WINDOW, MAX_PADDING
from edge_serve.records import entity, slotted
from edge_serve.transport.door.body_memory import BodyMemory, Claim, ClaimedLease, ClaimOnly

if TYPE_CHECKING:
    from edge_serve.transport.grpc.call import GrpcCall

#: first size of a message's ordinary memory, which grows by doubling: a declared length alone costs nothing
_FIRST_STEP = 16 * 1024
#: bytes received in one call, so that a fast sender does not block the loop
_AT_ONCE = 512 * 1024
#: bytes that waited and are cut into messages together
_PIECE = 64 * 1024
PREFIX_SIZE = PREFIX.size
#: reasons for `GrpcCall.pause`: the conversation has enough messages to answer, or a thread enough to work on
UNANSWERED, THREAD = 1, 2


@slotted
class Message:
    """A complete message.

    Attributes:
        lease: of the message's memory, or only of its claim when `data` is ordinary memory. The receiver of the message
            releases it.
        offset: where `data` starts in the lease's arena; -1 = it is ordinary memory.
        decoded: the request, and whether it wants an empty final response; or the error of decoding. None = it is not
            decoded yet.
    """

    data: Buffer
    lease: Lease | None = None
    offset: int = -1
    decoded: tuple[InferRequest, bool] | EdgeServeError | None = None

    def release(self) -> None:
        """Release the message's memory."""
        if self.lease is not None:
            self.lease.release()


@entity
class MessageReader:
    """Assembles messages that do not arrive in one piece, or that are large.

    Args:
        call: receives the messages.
        max_message: bytes of the longest message that is accepted.

    Attributes:
        filled: bytes of the arriving message so far.
    """

    _call: GrpcCall
    _max_message: int
    #: the arriving message: its length (-1 = none), its flag, its prefix so far, its memory
    _length: int = -1
    _flag: int = 0
    _prefix: bytes = b""
    _store: bytearray | memoryview | None = None
    _placed: Room | None = None
    filled: int = 0
    #: the claim on memory for the arriving message; a complete message takes it over
    _claim: Claim | None = None
    #: the beginning for `find_place`, kept while the claim waits for memory
    _beginning: bytes = b""
    #: bytes that cannot be read yet: the message before them waits for memory, the call takes no message now, or the
    #: connection's turn is over. The stream's window limits them.
    _later: bytearray | None = None
    #: steps of the call that follow when they are read
    _steps: tuple[Callable[[], None], ...] = ()

    def place(self, size: int) -> memoryview | None:
        """Return memory for at most `size` next bytes; None = pass them to `read`."""
        store = self._store
        if store is None:
            return None
        if type(store) is bytearray and self.filled == len(store):
            self._grow(store)
        return memoryview(store)[self.filled : min(self._length, self.filled + min(size, _AT_ONCE))] or None

    def on_placed(self, size: int) -> None:
        """Handle `size` bytes that were received into the memory of `place`."""
        self.filled += size
        if self.filled == self._length and not self._lacks_memory:
            self._complete()

    @property
    def midway(self) -> bool:
        """A message is incomplete, or bytes are not read yet."""
        return self._length >= 0 or self._later is not None or bool(self._prefix)

    def discard(self) -> None:
        """Discard the arriving message, and release its memory."""
        self._later, self._steps = None, ()
        placed, self._placed, self._store = self._placed, None, None
        if placed is not None:
            placed.release()
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release()

    def defer(self, step: Callable[[], None]) -> bool:
        """Return whether messages have arrived that are not handled yet. `step` is then called after them."""
        if self._later is None and not self._is_whole:
            return False
        self._steps += (step,)
        return True

    @property
    def _is_whole(self) -> bool:
        """The arriving message has all its bytes, so it waits for memory only."""
        return self._store is not None and self.filled == self._length

    @property
    def waits(self) -> bool:
        """The client has sent what the server does not read yet."""
        return self._later is not None or self._lacks_memory

    @property
    def _lacks_memory(self) -> bool:
        """The arriving message waits for memory."""
        placed = self._placed
        return (self._claim is not None and not self._claim.granted) or (placed is not None and not placed.is_ready)

    def overdue(self, now_ns: int, rate: int, wait: float) -> EdgeServeError | None:
        """See `Claim.check_time`."""
        if self._claim is None or self._store is None:
            return None
        return self._claim.check_time(self.filled, now_ns, rate, wait)

    def read(self, data: bytes, start: int, stop: int) -> None:
        """Read bytes of messages: `data[start:stop]`. Those that cannot be read now are read by `read_on`."""
        if self._later is not None:
            self._later += data[start:stop]
            return
        start = self._cut(data, start, stop)
        if start < stop:
            self._later = bytearray(data[start:stop])
            self._postpone()

    def read_on(self) -> None:
        """Read bytes that waited, as far as possible now, and then call the steps that waited for them."""
        later = self._later
        while later:
            piece = bytes(later[:_PIECE])
            read = self._cut(piece, 0, len(piece))
            del later[:read]
            if read < len(piece):
                self._postpone()
                return
        self._later = None
        steps, self._steps = self._steps, ()
        for step in steps:
            step()
        self._call.reopen()

    def _postpone(self) -> None:
        """Continue in the next turn of the event loop, unless the bytes wait for something else."""
        if not (self._call.paused or self._is_whole):
            self._call.read_later()

    def _cut(self, data: bytes, start: int, stop: int) -> int:
        """Cut bytes into messages as far as possible now, and return the position after them."""
        call = self._call
        table = call.table
        while not call.closed and not call.finished:
            if self._length < 0:
                if start == stop or call.paused or table.turn <= 0:
                    return start
                missing = PREFIX_SIZE - len(self._prefix)
                self._prefix += data[start : min(stop, start + missing)]
                start = min(stop, start + missing)
                if len(self._prefix) < PREFIX_SIZE:
                    return start
                self._announce(*PREFIX.unpack(self._prefix))
                self._prefix = b""
            elif self._store is None:
                here = stop - start
                if here >= self._length and self._length < INLINE_BYTES:
                    end = start + self._length
                    self._length = -1
                    call.take(Message(data[start:end]), self._flag)
                    start = end
                elif here:
                    self._begin(data[start : min(stop, start + PEEKED)], here)
                else:
                    return start
            elif start == stop or self._is_whole:
                return start
            else:
                start = self._fill(data, start, stop)
        return stop

    def _announce(self, flag: int, length: int) -> None:
        self._flag, self._length = flag, length
        if length > self._max_message:
            self._call.fail(grpc_wire.too_large(length, self._max_message))
        elif flag > 1:
            self._call.fail(Internal(f"a message with the flag {flag}, expected 0 or 1"))

    def _begin(self, beginning: bytes, here: int) -> None:
        """Acquire memory for a message that arrives in several pieces."""
        length = self._length
        self.filled = 0
        if length >= INLINE_BYTES:
            try:
                self._claim_for(length)
                if self._lacks_memory:
                    self._beginning = beginning
                elif not self._flag:
                    self._find(beginning)
            except EdgeServeError as error:
                self._call.fail(error)
                return
        if self._store is None:
            large = length > LARGE
            try:
                self._store = memoryview(pages(length)) if large else bytearray(min(length, max(_FIRST_STEP, here)))
            except (OSError, MemoryError):  # the machine's memory is less than the budget
                self._call.fail(self._call.memory.refuse())
                return
        if not self._lacks_memory:
            self._widen(length - here)

    def _claim_for(self, length: int) -> None:
        if length > INITIAL_WINDOW:
            self._claim = self._call.memory.claim(length, self._on_granted, INITIAL_WINDOW)
        else:  # the stream's window lets all of it arrive, so it cannot wait
            self._claim = self._call.memory.claim_growing(self._call.fail)
            self._claim.grow(length, 1)

    def _find(self, beginning: bytes) -> None:
        """Find a place, and use it if its memory is ready; otherwise `_on_ready` uses it later."""
        self._placed = placed = self._call.find_place(beginning, self._length)
        if placed is not None and not placed.is_ready:
            placed.when_ready(self._on_ready)
        elif placed is not None:
            self._store = placed.view[: self._length]

    def _on_granted(self) -> None:
        """Continue in the next turn of the event loop: the caller is another connection that releases its claim."""
        self._call.run_later(self._on_admitted)

    def _on_admitted(self) -> None:
        """Handle the granted claim: find a place, and continue there."""
        early = self._store
        if self._call.closed or early is None:
            return
        try:
            if not self._flag:
                self._find(self._beginning)
        except EdgeServeError as error:
            self._call.fail(error)
            return
        self._beginning = b""
        if not self._lacks_memory:
            self._continue(early)

    def _on_ready(self) -> None:
        """Handle that the memory of the place is ready, or has failed."""
        placed, early = self._placed, self._store
        if self._call.closed or placed is None or early is None:
            return
        if placed.error is not None:
            self._call.fail(placed.error)
            return
        self._store = placed.view[: self._length]
        self._continue(early)

    def _continue(self, early: bytearray | memoryview) -> None:
        """Copy the bytes received so far to the place, and let the client send the rest."""
        if self._store is not None and self._store is not early:
            self._store[: self.filled] = early[: self.filled]
        if self.filled == self._length:
            self._complete()
            self.read_on()
        else:
            self._widen(self._length - self.filled)

    def _widen(self, missing: int) -> None:
        """Let the client send the rest of the message, and the padding of a frame, which is returned afterwards."""
        self._call.widen(missing + MAX_PADDING)

    def _fill(self, data: bytes, start: int, stop: int) -> int:
        """Copy bytes into the message's memory, and return the position after them."""
        store = self._store
        assert store is not None, "the caller has looked"
        if type(store) is bytearray and self.filled == len(store):
            self._grow(store)
        size = min(stop - start, len(store) - self.filled)
        store[self.filled : self.filled + size] = memoryview(data)[start : start + size]
        self.on_placed(size)
        return start + size

    def _grow(self, store: bytearray) -> None:
        store += bytes(min(len(store), self._length - len(store)))

    def _complete(self) -> None:
        store, self._store = self._store, None
        placed, self._placed = self._placed, None
        claim, self._claim = self._claim, None
        self._length = -1
        assert store is not None, "something was put there"
        assert placed is None or claim is not None, "every message that is placed has one"
        message = Message(store, offset=-1 if placed is None else placed.offset)
        if claim is not None:
            claim.settle()
            message.lease = ClaimOnly(claim) if placed is None else ClaimedLease(placed, claim)
        self._call.take(message, self._flag)


def claim_message(data: bytes, memory: BodyMemory, on_fault: Callable[[EdgeServeError], None]) -> Message:
    """Return a message of inflated bytes, with a claim on memory for them.

    Raises:
        EdgeServeError: the memory budget is used up.
    """
    claim = memory.claim_growing(on_fault)
    try:
        claim.grow(len(data), 1)
    except EdgeServeError:
        claim.release()
        raise
    claim.settle()
    return Message(data, ClaimOnly(claim))
