"""Calls from a model to other models: sends INFER frames, hands out the responses, and releases their memory.

Large inputs and outputs lie in the arena of the calling model. Inputs that are there already, and stay there until the
call is answered, are named by their place.
Any thread may call; responses come on the control thread.
"""

from __future__ import annotations

import itertools
import json
import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import numpy as np

from edge_serve.backends.base import Reply
from edge_serve.backends.host import Cancel, ModelCall, OnReply
from edge_serve.messages.tensors import INLINE_BYTES, Buffer
from edge_serve.records import slotted
from edge_serve.workers.child.memory.input_arena import InputArena
from edge_serve.workers.child.own_threads import OwnThread
from edge_serve.workers.wire.calls import (
    BLOCKING,
    CALL_HEAD,
    DECOUPLED,
    FINAL,
    RESPONSE_HEAD,
    WAITING,
    OutputSlot,
    describe_tensors,
    join_parts,
    read_tensors,
)
from edge_serve.workers.wire.frames import Frame, FrameKind, error_of, frame, parse_json
from edge_serve.workers.wire.layout import padded


def encode_call(number: int, call: ModelCall, places: Sequence[int], model: int, token: int) -> bytes:
    """Return an INFER frame.

    Args:
        places: where each input lies in the caller's arena; -1 = it travels in the frame.

    Raises:
        UnicodeEncodeError: an id, a name or a parameter is no text.
    """
    about = {
        "model": call.model_name,
        "version": int(call.model_version),
        "outputs": list(call.requested_outputs),
        "id": call.id,
        "correlation_id": call.correlation_id if isinstance(call.correlation_id, str) else int(call.correlation_id),
        "flags": int(call.flags),
        "timeout_us": int(call.timeout_us),
        "parameters": dict(call.parameters),
        "names": [tensor.name for tensor in call.inputs],
    }
    if call.trace >= 0:
        about["trace"] = call.trace
    text = json.dumps(about, ensure_ascii=False).encode()  # a model must not send what is no text
    block, data = describe_tensors(call.inputs, places)
    flags = (DECOUPLED if call.decoupled else 0) | (BLOCKING if call.blocking else 0)
    head = CALL_HEAD.pack(model, token, flags, len(text), len(block))
    return frame(FrameKind.INFER, number, join_parts(head, text, block, data), len(call.inputs))


def decode_response(received: Frame, arena: memoryview) -> tuple[Reply, bool]:
    """Return the response in an INFER_RESPONSE frame, and whether it is the last.

    Args:
        arena: in which the places of outputs count: that of `room_of`.
    """
    _, base, _, flags, text_size, block_size = RESPONSE_HEAD.unpack_from(received.payload)
    start = RESPONSE_HEAD.size + text_size
    about = parse_json(received.payload[RESPONSE_HEAD.size : start])
    final = flags & FINAL != 0
    if "code" in about:
        return Reply(error=error_of(about)), final
    outputs = read_tensors(received, about["names"], start, block_size, arena, base)
    return Reply(outputs, None, about["parameters"]), final


def room_of(received: Frame) -> OutputSlot:
    """Return the slot that the outputs of an INFER_RESPONSE frame lie in."""
    token, offset, nbytes, *_ = RESPONSE_HEAD.unpack_from(received.payload)
    return OutputSlot(token, offset, nbytes)


def encode_rest(waiting: Sequence[tuple[int, int]]) -> bytes:
    """Return an INFER_REST frame: calls that are waited for, and how many responses to each have arrived."""
    return frame(FrameKind.INFER_REST, 0, b"".join([WAITING.pack(number, seen) for number, seen in waiting]))


#: data shorter than this is not looked for in the arena
_SHORT = 1024


class CallerArena:
    """The arena of the model that calls.

    Args:
        number: of the model, as the front end opened it.
        inputs: the arena as its inputs see it.
    """

    def __init__(self, number: int, arena: memoryview, inputs: memoryview | InputArena) -> None:
        self.number = number
        self.arena = arena
        self._start = _address(arena)
        self._inputs = inputs if isinstance(inputs, InputArena) else None

    def place_of(self, data: Buffer, blocking: bool) -> int:
        """Return where `data` lies in the arena for as long as a call needs it; -1 = elsewhere.

        Args:
            blocking: `execute` does not return before the call is answered. Otherwise the request may be answered, and
                another one get its memory, before the front end has read the call.
        """
        address = _address(data)
        where = address - self._start
        if where >= 0 and where + len(data) <= len(self.arena):
            # outputs of a call stay while they are referred to; only of a decoupled model can it be an input, too
            return where if blocking or self._inputs is not None else -1
        return self._inputs.place_of(address, len(data)) if blocking and self._inputs is not None else -1


def _address(data: Buffer) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data)


@slotted
class _Open:
    """A call whose last response has not come; keeps its inputs alive. `seen` counts its responses."""

    on_reply: OnReply
    call: ModelCall
    seen: int = 0


class Calling:
    """The calls of this process.

    Args:
        send: sends a whole frame.
        memory: asks the front end for a slot in the arena of a model: (number, bytes) -> (token, offset).

    Attributes:
        home: set once a model that is alone in its process is open; without it all tensors travel in frames.
    """

    def __init__(self, send: Callable[[bytes], None], memory: Callable[[int, int], tuple[int, int]]) -> None:
        self.home: CallerArena | None = None
        self._send = send
        self._memory = memory
        self._numbers = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self._lock = threading.Lock()
        #: frames that finalizers have to send: they may run in a thread that is sending right now
        self._later: SimpleQueue[bytes] = SimpleQueue()
        self._sender: threading.Thread | None = None

    def start(self, call: ModelCall, on_reply: OnReply) -> Cancel:
        """Start a call; see `backends.host.Host.infer`.

        Raises:
            EdgeServeError: there is no memory for the inputs.
            UnicodeEncodeError: see `encode_call`.
        """
        home = self.home
        self._start_sender()
        number, inputs = next(self._numbers), call.inputs
        places, loose = self._places(call, home)
        if home is None or sum(len(inputs[index].data) for index in loose) <= INLINE_BYTES:
            data = encode_call(number, call, places, home.number if home else 0, 0)
        else:
            token, offset = self._memory(home.number, sum(padded(len(inputs[index].data)) for index in loose))
            try:
                for index in loose:
                    size = len(inputs[index].data)
                    home.arena[offset : offset + size] = inputs[index].data
                    places[index] = offset
                    offset += padded(size)
                data = encode_call(number, call, places, home.number, token)
            except BaseException:  # also of a signal handler of the model
                self._later.put(frame(FrameKind.INFER_FREE, token))
                raise
        self._open[number] = _Open(on_reply, call)
        self._send(data)
        return lambda: self._cancel(number)

    def _places(self, call: ModelCall, home: CallerArena | None) -> tuple[list[int], list[int]]:
        """Return where each input lies in the arena, -1 = elsewhere, and the positions of those that lie elsewhere."""
        inputs = call.inputs
        if home is None:
            return [-1] * len(inputs), []
        places = [home.place_of(tensor.data, call.blocking) if len(tensor.data) >= _SHORT else -1 for tensor in inputs]
        return places, [index for index, where in enumerate(places) if where < 0]

    def _cancel(self, number: int) -> None:
        if number in self._open:
            self._later.put(frame(FrameKind.INFER_CANCEL, number))

    def on_response(self, received: Frame) -> None:
        """Deliver the response in an INFER_RESPONSE frame (control thread)."""
        memory = self._outputs(received)
        reply, final = decode_response(received, memory)
        opened = self._open.get(received.id)
        if opened is not None:
            opened.on_reply(reply, final)
            opened.seen += 1  # only now: `rest` must not count what has not woken the model yet
            if final:
                del self._open[received.id]

    def rest(self, still: Callable[[], bool]) -> None:
        """Tell the front end the calls that the instance waits for, when it continues only with an answer to one.

        Args:
            still: nothing has woken the model yet; asked after the calls were counted.
        """
        waiting = [(number, one.seen) for number, one in list(self._open.items())]
        if waiting and still():
            self._send(encode_rest(waiting))

    def _outputs(self, received: Frame) -> memoryview:
        """Return the memory of the outputs, whose slot is released with the last view of it."""
        room = room_of(received)
        if self.home is None or not room.token:
            return memoryview(b"")
        owner = np.frombuffer(self.home.arena, np.uint8, room.nbytes, room.offset)
        release = weakref.finalize(owner, self._later.put, frame(FrameKind.INFER_FREE, room.token))
        release.atexit = False
        return owner.data

    def _start_sender(self) -> None:
        with self._lock:
            if self._sender is None:
                self._sender = OwnThread(self._send_later, "calls")
                self._sender.start()

    def _send_later(self) -> None:
        while True:
            self._send(self._later.get())
