"""Runs the calls that the models of one worker make to other models, on the event loop.

A call comes in as an INFER frame, is run (`InboundCall`), and each response goes back in a frame of the
control channel: small tensors in the frame, large ones in a slot of the caller's arena, which the
caller releases. When the caller dies or is closed, its calls are cancelled and its slots are free.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import field
from typing import Any

from edge_serve.aio.bulk_copy import copy, work
from edge_serve.aio.tasks import notify
from edge_serve.backends.host import ModelCall
from edge_serve.errors import Cancelled, EdgeServeError, Internal, Unavailable, Unsupported
from edge_serve.messages.infer import InferResponse, Lease
from edge_serve.messages.tensors import INLINE_BYTES
from edge_serve.records import entity, slotted
from edge_serve.workers.front.channel import Channel
from edge_serve.workers.front.frames.calls import decode_call, decode_rest, encode_response
from edge_serve.workers.front.link import ModelListener
from edge_serve.workers.memory.arena import Arena
from edge_serve.workers.memory.pinned import PinnedPages
from edge_serve.workers.wire.calls import OutputSlot
from edge_serve.workers.wire.frames import Frame, FrameError, FrameKind, failed_frame, json_frame
from edge_serve.workers.wire.layout import padded

_NO_BYTES = memoryview(b"")
_CLOSED = "the model that called has been closed"


#: takes a JSON object, or why there is none
Answer = Callable[["dict[str, Any] | EdgeServeError"], None]


@slotted
class Hooks:
    """Callbacks for messages from models other than replies.

    Attributes:
        metric: takes an update of a model's own metrics, and the worker that sends it.
        gone: takes a worker that will not be restarted.
        control: takes the question of a CALL (load, unload, is it ready), a callback for the answer, and whether a
            load of the model that asks waits for it.
        infer: runs a call to another model.
        report_idle: takes the calls that an instance waits for when it does nothing else.
        gpu_trouble: takes GPUs by id; returns why the driver does not find them any more, "" = it does.
    """

    metric: Callable[[dict[str, Any], object], None] = lambda update, worker: None
    gone: Callable[[object], None] = lambda worker: None
    control: Callable[[dict[str, Any], Answer, bool], None] | None = None
    infer: Callable[[InboundCall], None] | None = None
    report_idle: Callable[[Sequence[InboundCall]], None] = lambda calls: None
    gpu_trouble: Callable[[Collection[int]], Awaitable[str]] | None = None


@slotted
class Caller:
    """An opened model that may call others.

    Args:
        channels: of its instances in this worker.
    """

    arena: Arena
    listener: ModelListener
    channels: Sequence[Channel]

    def running(self) -> tuple[int, int]:
        """Return the only instance in this process and its running batch; -1 and 0 if there are several or none."""
        if len(self.channels) != 1:
            return -1, 0
        (channel,) = self.channels
        return channel.instance, channel.running()


class InboundCall:
    """One call, until its last response.

    Attributes:
        call: what is asked; its tensors are views of the caller's arena or of the frame.
        caller: the listener of the calling model that knows its requests.
        instance: which of its instances calls; -1 = one of several.
        arena: of the calling model; None when its tensors travel in frames.
        lease: the pieces of `arena` that hold inputs; the runner of the call releases it.
        on_cancel: set by the runner of the call; the last response is still due.
        cancelled: the caller does not want the remaining responses.
        deaf: the caller is gone, and responses are discarded.
        answers: how many responses have been given so far; sent: how many of them the caller has got or will get now.
    """

    def __init__(self, broker: BlsBroker, number: int, call: ModelCall, model: int, caller: Caller | None) -> None:
        self.call = call
        self.model = model
        self.caller = caller.listener.driver if caller is not None else None
        self.arena = caller.arena if caller is not None else None
        self.instance, self.batch = caller.running() if caller is not None else (-1, 0)
        self.lease: Lease | None = None
        self.on_cancel: Callable[[], None] = _nothing
        self.cancelled = False
        self.deaf = False
        self.answers = self.sent = 0
        self._broker = broker
        self._number = number
        self._copying = False
        self._waiting: deque[InferResponse] = deque()

    def answer(self, response: InferResponse) -> None:
        """Send a response; its lease is released here."""
        self.answers += 1
        if self._copying:  # they keep their order
            self._waiting.append(response)
        else:
            self._answer(response)

    def refuse(self, error: EdgeServeError) -> None:
        """Answer the call with this error, its only response."""
        self.answer(InferResponse(self.call.model_name, "", self.call.id, error=error))

    def cancel(self) -> None:
        """Cancel the call: the caller wants no more responses. The last one still arrives."""
        if not self.cancelled:
            self.cancelled = True
            notify(self.on_cancel)

    def hang_up(self) -> None:
        """Answer that the caller is closed, and discard further responses. The caller is being closed, or is dead."""
        self.cancel()
        if not self.deaf:
            gone = InferResponse("", "", error=Cancelled(_CLOSED))
            self._broker.send(encode_response(self._number, gone, [], OutputSlot()))
            self.deaf = True

    def _answer(self, response: InferResponse) -> None:
        outputs, arena, lease = response.outputs, self.arena, response.lease
        if self.deaf or arena is None or sum(len(tensor.data) for tensor in outputs) <= INLINE_BYTES:
            self._send(response, [-1] * len(outputs), OutputSlot(), lease)
        elif lease is not None and lease.arena is arena and all(tensor.offset >= 0 for tensor in outputs):
            room = self._broker.add_slot(lease, self.model)  # the model has called itself
            self._send(response, [tensor.offset for tensor in outputs], room, None)
        else:
            self._answer_large(response, arena)

    def _answer_large(self, response: InferResponse, arena: Arena) -> None:
        sizes = [padded(len(tensor.data)) for tensor in response.outputs]
        try:
            slot = arena.allocate(sum(sizes))
        except Unavailable as full:
            refused = InferResponse(response.model_name, response.model_version, error=full, final=response.final)
            self._send(refused, [], OutputSlot(), response.lease)
            return
        places = list(itertools.accumulate(sizes[:-1], initial=slot.offset))
        moves = [
            (arena.view[where : where + len(tensor.data)], tensor.data)
            for where, tensor in zip(places, response.outputs, strict=True)
        ]

        def ready() -> None:
            if slot.error is not None:
                copied(slot.error)
            else:
                work(slot.capacity, lambda: copy(moves), copied)

        def copied(error: Exception | None) -> None:
            self._copying = False
            if error is not None or self.deaf:
                slot.release()
                refused = InferResponse(response.model_name, "", error=Internal(str(error)), final=response.final)
                self._send(refused, [], OutputSlot(), response.lease)
            else:
                self._send(response, places, self._broker.add_slot(slot, self.model), response.lease)
            while self._waiting and not self._copying:
                self._answer(self._waiting.popleft())

        self._copying = True
        slot.when_ready(ready)

    def _send(self, response: InferResponse, places: list[int], room: OutputSlot, lease: Lease | None) -> None:
        if not self.deaf:
            self._broker.send(encode_response(self._number, response, places, room))
            self.sent += 1
        if lease is not None:
            lease.release()
        if response.final:
            self._broker.closed(self._number)


@entity
class BlsBroker:
    """The calls of one worker process.

    Args:
        send: sends a control frame to it.
        caller_of: the opened model with this number.
        turning: names of the models that are being opened or closed there, now.
        awaited: those of `turning` that a load waits for. No load waits for a model that is closed, or that is opened
            again after a crash.
    """

    send: Callable[[bytes], None]
    caller_of: Callable[[int], Caller | None]
    hooks: Hooks
    turning: Collection[str]
    awaited: Collection[str]
    _asked: dict[int, InboundCall] = field(default_factory=dict)
    #: token -> slot in the worker's hands, and the number of its model
    _kept: dict[int, tuple[Lease, int]] = field(default_factory=dict)
    #: by the number of the model
    _pinned: dict[int, PinnedPages] = field(default_factory=dict)
    _tokens: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def on_frame(self, received: Frame) -> bool:
        """Take a frame; False when it is about no call.

        Raises:
            FrameError: the worker broke the protocol.
        """
        if received.kind == FrameKind.INFER:
            self._on_infer(received)
        elif received.kind == FrameKind.INFER_CANCEL:
            asked = self._asked.get(received.id)
            if asked is not None:
                asked.cancel()
        elif received.kind == FrameKind.INFER_FREE:
            kept = self._kept.pop(received.id, None)
            if kept is not None:
                kept[0].release()
        elif received.kind == FrameKind.INFER_REST:
            self._on_rest(received)
        elif received.kind == FrameKind.CALL:
            self._on_call(received)
        else:
            return False
        return True

    def _on_call(self, received: Frame) -> None:
        question, control = received.json(), self.hooks.control
        name = question.get("model_name")
        if name is not None and type(name) is not str:
            raise FrameError(f"found a {type(name).__name__} for the name of a model")

        def answer(result: dict[str, Any] | EdgeServeError) -> None:
            if isinstance(result, EdgeServeError):
                self.send(failed_frame(received.id, result))
            else:
                self.send(json_frame(FrameKind.CALL_RESULT, received.id, result))

        if question.get("do") == "memory":
            self._memory(question, answer)
        elif question.get("do") == "pin":
            self._pin(question, answer)
        elif name in self.turning and question.get("do") != "is_model_ready":  # it would wait for itself
            answer(Unavailable(f"model '{name}' cannot be loaded or unloaded by itself while it loads or unloads"))
        elif control is None:
            answer(Unsupported(f"models may not ask for '{question.get('do')}' here"))
        else:
            control(question, answer, bool(self.awaited))

    def _memory(self, question: dict[str, Any], answer: Answer) -> None:
        """Answer with a slot in a model's arena for the inputs of a call."""
        model, nbytes = question.get("model"), question.get("nbytes")
        if type(model) is not int or type(nbytes) is not int or nbytes <= 0:
            raise FrameError("found a question for memory with a wrong model or size")
        caller = self.caller_of(model)
        if caller is None:  # it is being closed
            answer(Cancelled(_CLOSED))
            return
        try:
            slot = caller.arena.allocate(nbytes)
        except EdgeServeError as full:
            answer(full)
            return
        room = self.add_slot(slot, model)

        def ready() -> None:
            if slot.error is None:
                answer({"token": room.token, "offset": room.offset})
            else:
                self._kept.pop(room.token)[0].release()
                answer(slot.error)

        slot.when_ready(ready)

    def _pin(self, question: dict[str, Any], answer: Answer) -> None:
        """Keep the pages at the low end of a model's arena, which the worker then registers with its device."""
        model, nbytes = question.get("model"), question.get("nbytes")
        if type(model) is not int or type(nbytes) is not int or nbytes <= 0:
            raise FrameError("found a question for pinned pages without a model or a number of bytes")
        caller = self.caller_of(model)
        if caller is None:  # it is being closed
            answer(Unavailable(f"model {model} is not open"))
            return
        pinned = self._pinned[model] = caller.arena.pinned
        pinned.acquire((self, model), nbytes, lambda kept: answer({"nbytes": kept} if isinstance(kept, int) else kept))

    def _on_infer(self, received: Frame) -> None:
        callers: list[Caller] = []

        def arena_of(model: int) -> memoryview | None:
            caller = self.caller_of(model)
            if caller is None:
                return None if model else _NO_BYTES
            callers.append(caller)
            return caller.arena.view

        question = decode_call(received, arena_of)
        if received.id in self._asked:
            raise FrameError(f"found call {received.id} twice")
        asked = InboundCall(self, received.id, question.call, question.model, callers[0] if callers else None)
        pieces = [(tensor.offset, len(tensor.data)) for tensor in question.call.inputs if tensor.offset >= 0]
        if pieces:  # their slots may be released before the call is answered: when the caller dies, say
            asked.lease = callers[0].arena.acquire(pieces)
        if question.token:
            kept = self._kept.pop(question.token, None)
            if kept is not None:
                kept[0].release()
            elif callers:  # a model that was closed has lost its slots
                raise FrameError(f"found slot {question.token}, which was not given")
        self._asked[received.id] = asked
        if question.model and not callers:  # a thread of a model that is being closed
            self._refuse(asked, Cancelled(_CLOSED))
        elif self.hooks.infer is None:
            self._refuse(asked, Unsupported("models may not call other models here"))
        else:
            self.hooks.infer(asked)

    def _refuse(self, asked: InboundCall, error: EdgeServeError) -> None:
        if asked.lease is not None:
            asked.lease.release()
        asked.refuse(error)

    def _on_rest(self, received: Frame) -> None:
        """Report an idle instance, unless an answer that will wake it is on its way."""
        waiting = [(self._asked.get(number), seen) for number, seen in decode_rest(received)]
        calls = [asked for asked, seen in waiting if asked is not None and asked.sent == asked.answers == seen]
        if len(calls) == len(waiting):
            self.hooks.report_idle(calls)

    def add_slot(self, lease: Lease, model: int) -> OutputSlot:
        """Keep `lease` until the worker releases it. Return the slot, as a frame names it."""
        token = next(self._tokens)
        self._kept[token] = lease, model
        return OutputSlot(token, lease.offset, len(lease.view))

    def callers(self) -> set[int]:
        """Return the numbers of the models that wait for others now."""
        return {asked.model for asked in self._asked.values()}

    def closed(self, number: int) -> None:
        """Remove a call that has its last response."""
        self._asked.pop(number, None)

    def abandoned(self, batch: int) -> None:
        """Cancel the calls that were made for this batch, because all its requests are cancelled."""
        for asked in list(self._asked.values()):
            if asked.batch == batch:
                asked.cancel()

    def hang_up(self, model: int | None = None) -> None:
        """Cancel what a model asked, or what all did, and answer nothing more: it is being closed, or dead."""
        for asked in list(self._asked.values()):
            if model is None or asked.model == model:
                asked.hang_up()

    def release_slots(self, model: int | None = None) -> None:
        """Release the slots of a model, or of all, which cannot touch its memory any more."""
        for token, (lease, owner) in list(self._kept.items()):
            if model is None or owner == model:
                del self._kept[token]
                lease.release()
        for number in list(self._pinned) if model is None else {model} & self._pinned.keys():
            self._pinned.pop(number).release((self, number))


def _nothing() -> None:
    """Do nothing: the call has not started yet."""
