"""The runner of a version with `response_cache { enable: true }`: looks a request up before its runner executes it.

Rules: triton-inference-server/core src/dynamic_batch_scheduler.cc (CacheLookUp, DelegateResponse) and
src/infer_stats.cc. It stands before a driver or an ensemble, so requests of models without a cache do not pass it.

Where Triton's cache answers wrongly, this one does not: shapes and types of inputs count as well as their bytes, and
so does their order, which a Python model sees. A client gets the outputs that it requested, the parameters of a
request count if the model read them, a version that is loaded again starts with an empty cache, and errors are not
stored (Triton 2.51 answers a repeated error with 200 and no outputs).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterator, Sequence
from hashlib import blake2b
from itertools import count
from struct import Struct

from edge_serve.clock import Clock
from edge_serve.errors import Cancelled, Unavailable
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.log_fields import model_fields
from edge_serve.messages.signature import Signature
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.messages.tensors import InferTensor
from edge_serve.models.extras.response_cache import CachedResponse, Key, ResponseCache
from edge_serve.models.run import statistics as record
from edge_serve.models.run.driver import Job, Order
from edge_serve.models.run.runner import ANSWERED, OnResponse, Submitter, Ticket
from edge_serve.scheduling.ordering import ResponseOrder

log = logging.getLogger(__name__)

#: requests with more bytes of inputs are not looked up: reading these takes the event loop 2 to 5 ms
MOST_INPUT_BYTES = 4 * 1024 * 1024
#: larger responses are not stored: copying these takes the event loop 2 to 5 ms
MOST_ANSWER_BYTES = 16 * 1024 * 1024

#: backends that mark the responses of models that read more than their inputs, or that never pass more to a model
MARKS_PERSONAL = frozenset({"onnxruntime", "onnxruntime_onnx", "python"})
#: responses that are removed in one turn of the event loop: more take it over 5 ms
_REMOVED_AT_ONCE = 1000

_SIZES = Struct("<QQQQ")
_owners = count(1)


class CachedRunner(Submitter):
    """A response cache before a runner: looks requests up, and submits those that it does not find.

    Args:
        personal: every response may depend on the request's parameters and its sequence, because other backends than
            these, and members of ensembles, do not report whether the model read them.
        keep_parameters: store the parameters of responses. Those of an ensemble are about the sequence of the one
            request (Triton leaves them out on a hit).
        ordered: deliver responses in the order of their requests (`preserve_ordering`).
    """

    def __init__(
        self,
        runner: Submitter,
        signature: Signature,
        statistics: ModelStatistics,
        cache: ResponseCache,
        clock: Clock,
        *,
        personal: bool,
        keep_parameters: bool = True,
        ordered: bool = False,
    ) -> None:
        self._runner = runner
        self._signature = signature
        self._statistics = statistics
        self._cache = cache
        self._clock = clock
        self._always_personal = personal
        self._seen_personal = personal
        self._keep_parameters = keep_parameters
        self._order: Order | None = ResponseOrder() if ordered else None
        self._owner = next(_owners)
        self._logged_large = False
        self._most_bytes = min(cache.size, MOST_ANSWER_BYTES)

    def submit(self, request: InferRequest, rows: int, shape_key: Hashable, on_response: OnResponse) -> Ticket:
        """Answer a request from the cache, or run it. `on_response` is called exactly once."""
        if self._order is not None:
            on_response = _in_turn(self._order, on_response)
        if request.shared or sum(len(tensor.data) for tensor in request.inputs) > MOST_INPUT_BYTES:
            return self._runner.submit(request, rows, shape_key, on_response)
        start = self._clock.now_ns()
        look = _Look(request, self._signature)
        answer = self._cache.find(look.keys(self._owner, self._always_personal, self._seen_personal))
        now = self._clock.now_ns()
        self._cache.lookup_ns += now - start
        if answer is None:
            miss = _Miss(self, look, now - start, on_response)
            miss.ticket = self._runner.submit(request, rows, shape_key, miss.on_response)
            return miss
        if request.lease is not None:
            request.lease.release()
        record.record_cache_hit(self._statistics, now - start, now)
        on_response(self._response(request, look, answer))
        return ANSWERED

    def close(self) -> None:
        """Remove the version's responses from the cache, some in each turn of the event loop."""
        if self._cache.remove_owner(self._owner, _REMOVED_AT_ONCE):
            asyncio.get_running_loop().call_soon(self.close)

    def _response(self, request: InferRequest, look: _Look, answer: CachedResponse) -> InferResponse:
        """Return a response of its own for each request, because the receiver may change it."""
        outputs = [
            InferTensor(one.name, one.datatype, one.shape, one.data)
            for one in answer.outputs
            if look.outputs is None or one.name in look.outputs
        ]
        face = self._signature
        return InferResponse(
            face.model_name, face.model_version, request.id, outputs, dict(answer.parameters), personal=answer.personal
        )

    def store(self, look: _Look, lookup_ns: int, response: InferResponse) -> None:
        """Store the response of a request that was not found, and count the miss."""
        start = self._clock.now_ns()
        personal = self._always_personal or response.personal
        self._seen_personal |= personal
        if response.error is None:
            key = Key(self._owner, look.digest(personal), look.outputs)
            if key in self._cache:  # an equal request ran beside this one: Triton counts neither hit nor miss
                return
            parameters = response.parameters if self._keep_parameters else {}
            answer = CachedResponse.copied(response.outputs, parameters, personal, self._most_bytes)
            if answer is not None:
                self._cache.put(key, answer)
            else:
                self._log_large()
        elif isinstance(response.error, (Cancelled, Unavailable)):  # it was not executed
            return
        now = self._clock.now_ns()
        self._cache.insertion_ns += now - start
        record.record_cache_miss(self._statistics, lookup_ns + now - start, now)

    def _log_large(self) -> None:
        if not self._logged_large:
            self._logged_large = True
            log.warning(
                "an answer of model '%s' takes more than %d bytes, the most that the response cache keeps of one "
                "(--cache-config=local,size=%d); it is not kept, and neither are others like it",
                self._signature.model_name, self._most_bytes, self._cache.size,
                extra=model_fields(self._signature.model_name),
            )  # fmt: skip


def _in_turn(order: Order, on_response: OnResponse) -> OnResponse:
    """Return a callback that delivers after the responses of earlier requests."""
    place = order.enter()

    def deliver(response: InferResponse) -> None:
        for waiting, ready in order.ready(place, (on_response, response)):
            waiting(ready)

    return deliver


class _Look:
    """The parts of a request that decide whether a cached response fits."""

    __slots__ = ("_digest", "_request", "outputs")

    def __init__(self, request: InferRequest, signature: Signature) -> None:
        wanted = frozenset(output.name for output in request.outputs)
        self.outputs = wanted if wanted and wanted != signature.outputs.keys() else None
        self._request = request
        self._digest = blake2b(digest_size=32)
        for tensor in request.inputs:
            name, shape = tensor.name.encode(), repr(tensor.shape).encode()
            sizes = _SIZES.pack(len(name), len(shape), tensor.datatype.value, len(tensor.data))
            self._digest.update(b"".join((sizes, name, shape)))
            self._digest.update(tensor.data)

    def digest(self, personal: bool) -> bytes:
        """Return the digest of the inputs; a personal one also covers parameters and sequence."""
        if not personal:
            return self._digest.digest()
        digest, request = self._digest.copy(), self._request
        marks = (request.correlation_id, request.flags, sorted(request.parameters.items()))
        digest.update(b"personal" + repr(marks).encode())
        return digest.digest()

    def keys(self, owner: int, always_personal: bool, seen_personal: bool) -> Iterator[Key]:
        """Yield the keys of cached responses that fit. One with all outputs also answers a request for some of them."""
        kinds = ([] if always_personal else [False]) + ([True] if seen_personal else [])
        for personal in kinds:
            digest = self.digest(personal)
            yield Key(owner, digest, self.outputs)
            if self.outputs is not None:
                yield Key(owner, digest, None)


class _Miss:
    """The handle of a request that was not found, and runs."""

    __slots__ = ("_cancelled", "_look", "_lookup_ns", "_on_response", "_runner", "ticket")

    def __init__(self, runner: CachedRunner, look: _Look, lookup_ns: int, on_response: OnResponse) -> None:
        self._runner = runner
        self._look = look
        self._lookup_ns = lookup_ns
        self._on_response = on_response
        self._cancelled = False
        self.ticket: Ticket = ANSWERED

    def cancel(self) -> None:
        """Cancel the request. Its response is not stored, because a model may cut it short for a client that
        disconnected."""
        self._cancelled = True
        self.ticket.cancel()

    def set_paused(self, paused: bool) -> bool:
        """Pause or resume the stream; see `Ticket`."""
        return self.ticket.set_paused(paused)

    def jobs(self) -> Sequence[Job]:
        """Return those of the request that runs; see `Ticket`."""
        return self.ticket.jobs()

    def on_response(self, response: InferResponse) -> None:
        """Store the runner's response, then deliver it."""
        if not self._cancelled:
            self._runner.store(self._look, self._lookup_ns, response)
        self._on_response(response)
