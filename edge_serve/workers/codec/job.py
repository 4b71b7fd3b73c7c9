"""What a codec process is asked to do, and what becomes of the memory that the job is about.

A job owns its memory until `done` is told: then it belongs to the request or the reply, or is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edge_serve.errors import Cancelled, EdgeServeError, Unavailable, Unparsable
from edge_serve.messages.infer import InferRequest, Lease
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import Buffer
from edge_serve.workers.codec.messages import pack_job, unpack_request
from edge_serve.workers.memory.arena import Arena
from edge_serve.workers.wire.frames import FrameError, FrameKind, error_of


@dataclass(frozen=True, slots=True)
class Refused:
    """There is no request, or no reply.

    Attributes:
        before: it was refused before the request itself was looked at (it cannot be inflated, or its length is wrong).
    """

    error: EdgeServeError
    before: bool = False


@dataclass(frozen=True, slots=True)
class Encoded:
    """The buffers of a reply.

    Attributes:
        length: of the JSON part, if binary data follows it.
        lease: what the buffers are views of; the receiver releases it when the last byte is sent.
    """

    buffers: list[Buffer]
    length: int | None
    lease: Lease


@dataclass(slots=True)
class Body:
    """The body of an inference request, not yet decoded.

    Attributes:
        arena: of the model; the request's tensors will lie there. None: in an arena of the codec's own.
        lease: the memory in `arena` that `data` is a view of; None in ordinary memory.
        length: the text of `Inference-Header-Content-Length`.
        generate: it is the flat JSON object of `generate`.
    """

    signature: Signature
    version: str
    arena: Arena | None
    data: Buffer
    lease: Lease | None
    length: str | None
    compressed: bool
    max_input_size: int
    generate: bool = False


class LeasePair:
    """Two pieces of memory that are given back together."""

    __slots__ = ("_leases", "arena", "offset", "view")

    def __init__(self, first: Lease, second: Lease) -> None:
        self.view, self.offset, self.arena = first.view, first.offset, first.arena
        self._leases = (first, second)

    def release(self) -> None:
        """Give both back."""
        for lease in self._leases:
            lease.release()


class CodecJob:
    """Something to be done by a codec process.

    Args:
        arena: where memory is given when the process asks for some.
        lease: memory that the process reads; the job's until it has succeeded.
        done: is told what came of it, exactly once.

    Attributes:
        doing: for error texts.
        granted: the memory that the process asked for.
        on_cancel: set by whoever has the job in a queue.
    """

    doing: str

    def __init__(self, arena: Arena, lease: Lease | None, done: Callable[[Any], None]) -> None:
        self.arena = arena
        self.lease = lease
        self.granted: Lease | None = None
        self.on_cancel: Callable[[], None] = _nothing
        self._cancelled = False
        self._done = done

    def parts(self, number: int) -> list[Buffer]:
        """The question, as frame `number`.

        Raises:
            EdgeServeError: it cannot be asked.
        """
        raise NotImplementedError

    def result(self, answer: dict[str, Any]) -> Any:
        """What `done` is given; `lease` and `granted` are then its memory's receiver's.

        Raises:
            FrameError: the answer is not one.
        """
        raise NotImplementedError

    def cancel(self) -> None:
        """Nobody wants the result any more. `done` is still called once, when the memory is free."""
        self._cancelled = True
        self.on_cancel()

    def outcome(self, answer: dict[str, Any]) -> Any:
        """What `done` is to be told when the process has answered this.

        Raises:
            FrameError: it is no answer.
        """
        error = answer.get("error")
        if self._cancelled:
            return Refused(Cancelled(""))
        if isinstance(error, dict):
            found = error_of(error)
            if error.get("unparsable") is True:
                found = Unparsable(found.message)
            return Refused(found, answer.get("before") is True)
        if self.arena.fd < 0:
            return Refused(Unavailable("the model was unloaded"))
        return self.result(answer)

    def close(self, outcome: Any) -> None:
        """Tell it. The process does not touch the job's memory any more."""
        if isinstance(outcome, Refused):
            for lease in (self.lease, self.granted):
                if lease is not None:
                    lease.release()
        self.lease = self.granted = None
        self._done(outcome)

    def fail(self, error: EdgeServeError) -> None:
        """It came to nothing."""
        self.close(Refused(error))

    def look(self, offset: int, size: int) -> memoryview:
        """Memory that belongs to this job.

        Raises:
            FrameError: other memory.
        """
        for lease in (self.lease, self.granted):
            if lease is not None and lease.arena is self.arena:
                start = offset - lease.offset
                if start >= 0 and size >= 0 and start + size <= len(lease.view):
                    return lease.view[start : start + size]
        raise FrameError(f"{size} bytes at {offset} do not belong to the job")


class DecodeJob(CodecJob):
    """A body that becomes a request."""

    doing = "read the body of this request"

    def __init__(
        self, body: Body, signature: bytes, arena: Arena, done: Callable[[InferRequest | Refused], None]
    ) -> None:
        super().__init__(arena, body.lease, done)
        self._body = body
        self._signature = signature
        self._in_arena = body.lease is not None and body.lease.arena is arena

    def parts(self, number: int) -> list[Buffer]:
        body, lease = self._body, self.lease
        value = {
            "version": body.version,
            "at": [lease.offset, len(body.data)] if lease is not None and self._in_arena else None,
            "length": body.length,
            "compressed": body.compressed,
            "max_input_size": body.max_input_size,
            "generate": body.generate,
        }
        loose = [] if self._in_arena else [body.data]
        body.data = b""  # the queue of the socket holds it as long as it must
        return pack_job(FrameKind.DECODE, number, self._signature, value, loose)

    def result(self, answer: dict[str, Any]) -> InferRequest:
        body = self._body
        request = unpack_request(_member(answer, "request"), body.signature, body.version, self.look)
        if self.granted is None:
            request.lease = self.lease
        else:  # everything was moved
            request.lease = self.granted
            if self.lease is not None:
                self.lease.release()
        return request


class EncodeJob(CodecJob):
    """A response that becomes the body of a reply. It owns the response's lease."""

    doing = "write the reply"

    def __init__(
        self,
        arena: Arena,
        value: tuple[dict[str, Any], list[Buffer]],
        lease: Lease | None,
        done: Callable[[Encoded | Refused], None],
    ) -> None:
        super().__init__(arena, lease, done)
        self._value = value

    def parts(self, number: int) -> list[Buffer]:
        value, loose = self._value
        self._value = ({}, [])
        return pack_job(FrameKind.ENCODE, number, b"", value, loose)

    def result(self, answer: dict[str, Any]) -> Encoded:
        try:
            pieces = [(int(offset), int(size)) for offset, size in answer["pieces"]]
            length = answer["length"]
        except (KeyError, TypeError, ValueError) as error:
            raise FrameError(f"no reply: {error}") from error
        buffers: list[Buffer] = [self.look(offset, size) for offset, size in pieces]
        if self.granted is None:
            raise FrameError("a reply without any text")
        if self.lease is None:
            return Encoded(buffers, length, self.granted)
        granted, lease = self.granted, self.lease
        if all(granted.offset <= offset < granted.offset + len(granted.view) for offset, _ in pieces):
            lease.release()
            return Encoded(buffers, length, granted)
        return Encoded(buffers, length, LeasePair(lease, granted))


def _member(answer: dict[str, Any], name: str) -> dict[str, Any]:
    value = answer.get(name)
    if not isinstance(value, dict):
        raise FrameError(f"an answer without '{name}'")
    return value


def _nothing() -> None:
    """For `on_cancel`: nobody has it in a queue."""
