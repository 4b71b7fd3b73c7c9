"""Jobs of codec processes: the frame that starts each, the outcome of its answer, and the memory that it uses.

A job owns its memory until `done` is called. Then the memory belongs to the request or the reply, or was released.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge_serve.aio.tasks import notify
from edge_serve.errors import Cancelled, EdgeServeError, Unavailable, Unparsable
from edge_serve.messages.infer import InferRequest, Lease
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import Buffer
from edge_serve.records import frozen, slotted
from edge_serve.workers.codec.messages import pack_job, pack_signature, unpack_request
from edge_serve.workers.memory.arena import Arena
from edge_serve.workers.wire.frames import FrameError, FrameKind, error_of


@frozen
class Refused:
    """The error of a job that gave no request, or no reply.

    Attributes:
        before: the body cannot be inflated, or its length is wrong, so that the request itself was not read.
    """

    error: EdgeServeError
    before: bool = False


@frozen
class Encoded:
    """The buffers of a reply.

    Attributes:
        length: of the JSON part, if binary data follows it.
        lease: of the memory behind the buffers; the receiver releases it when the last byte is sent.
    """

    buffers: list[Buffer]
    length: int | None
    lease: Lease


@slotted
class Body:
    """The body of an inference request, not yet decoded.

    Attributes:
        arena: of the model, for the request's tensors. None = they lie in the codec's own arena.
        lease: of the memory in `arena` behind `data`; None = `data` is in ordinary memory.
        length: the text of `Inference-Header-Content-Length`.
        generate: the body is the flat JSON object of `generate`.
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
    """Two leases that are released together."""

    __slots__ = ("_leases", "arena", "offset", "view")

    def __init__(self, first: Lease, second: Lease) -> None:
        self.view, self.offset, self.arena = first.view, first.offset, first.arena
        self._leases = (first, second)

    def release(self) -> None:
        """Release both."""
        for lease in self._leases:
            lease.release()


class CodecJob:
    """A job of a codec process.

    Args:
        lease: of memory that the process reads; the job owns it until it succeeds.
        done: called exactly once, with the outcome.

    Attributes:
        doing: for error texts.
        arena: where the process gets memory; set when the job is queued.
        granted: the memory that the process asked for.
        on_cancel: set when the job is queued.
    """

    doing: str
    arena: Arena
    on_cancel: Callable[[], None]

    def __init__(self, lease: Lease | None, done: Callable[[Any], None]) -> None:
        self.lease = lease
        self.granted: Lease | None = None
        self._cancelled = False
        self._done = done

    def parts(self, number: int) -> list[Buffer]:
        """Return the buffers of the frame `number` that starts the job.

        Raises:
            EdgeServeError: the job does not fit into a frame.
        """
        raise NotImplementedError

    def result(self, answer: dict[str, Any]) -> Any:
        """Return the value for `done`, which takes over `lease` and `granted`.

        Raises:
            FrameError: the answer is malformed.
        """
        raise NotImplementedError

    def cancel(self) -> None:
        """Discard the result. `done` is still called, when no process uses the job's memory."""
        self._cancelled = True
        self.on_cancel()

    def outcome(self, answer: dict[str, Any]) -> Any:
        """Return the value for `done` when the process has sent `answer`.

        Raises:
            FrameError: the answer is malformed.
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
        """Call `done`, and log an error of it. The process must not use the job's memory any more."""
        if isinstance(outcome, Refused):
            for lease in (self.lease, self.granted):
                if lease is not None:
                    lease.release()
        self.lease = self.granted = None
        notify(self._done, outcome)

    def fail(self, error: EdgeServeError) -> None:
        """End the job with an error."""
        self.close(Refused(error))

    def view(self, offset: int, size: int) -> memoryview:
        """Return a piece of the job's memory.

        Raises:
            FrameError: the piece is not the job's.
        """
        for lease in (self.lease, self.granted):
            if lease is not None and lease.arena is self.arena:
                start = offset - lease.offset
                if start >= 0 and size >= 0 and start + size <= len(lease.view):
                    return lease.view[start : start + size]
        raise FrameError(f"{size} bytes at {offset} do not belong to the job")


class DecodeJob(CodecJob):
    """Reads a body."""

    doing = "read the body of this request"

    def __init__(self, body: Body, done: Callable[[InferRequest | Refused], None]) -> None:
        super().__init__(body.lease, done)
        self._body = body

    def parts(self, number: int) -> list[Buffer]:
        """See `CodecJob.parts`."""
        body, lease = self._body, self.lease
        in_arena = lease is not None and lease.arena is self.arena
        value = {
            "version": body.version,
            "at": [lease.offset, len(body.data)] if lease is not None and in_arena else None,
            "length": body.length,
            "compressed": body.compressed,
            "max_input_size": body.max_input_size,
            "generate": body.generate,
        }
        loose = [] if in_arena else [body.data]
        body.data = b""  # the queue of the socket refers to it as long as it must
        return pack_job(FrameKind.DECODE, number, pack_signature(body.signature), value, loose)

    def result(self, answer: dict[str, Any]) -> InferRequest:
        body = self._body
        request = unpack_request(_member(answer, "request"), body.signature, body.version, self.view)
        if self.granted is None:
            request.lease = self.lease
        else:  # everything was moved
            request.lease = self.granted
            if self.lease is not None:
                self.lease.release()
        return request


class EncodeJob(CodecJob):
    """Writes the body of a reply. Owns the response's lease."""

    doing = "wrote the reply"

    def __init__(
        self,
        value: tuple[dict[str, Any], list[Buffer]],
        lease: Lease | None,
        done: Callable[[Encoded | Refused], None],
    ) -> None:
        super().__init__(lease, done)
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
        buffers: list[Buffer] = [self.view(offset, size) for offset, size in pieces]
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
