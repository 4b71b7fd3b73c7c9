"""What a request head says about a v2 request, worked out once per head.

Heads with equal bytes are one object (protocol/http1), so a client that repeats itself costs a dictionary look-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edge_serve.errors import EdgeServeError, InvalidArgument
from edge_serve.protocol.http1.head import RequestHead
from edge_serve.protocol.inference import compression
from edge_serve.protocol.v2 import forwarding
from edge_serve.protocol.v2.infer import MAX_INPUT_SIZE
from edge_serve.protocol.v2.routes import (
    MethodNotAllowed,
    Operation,
    PathNotFound,
    Restricted,
    Route,
    RouteGroup,
    match,
)
from edge_serve.transport.door.access import AccessGate, role_of_operation

JSON = "application/json"
PLAIN = "text/plain"

#: operations whose errors Triton sends before it has set a content type
_PLAIN_ERRORS = frozenset(
    (
        Operation.INFER, Operation.MODEL_READY, Operation.SERVER_LIVE, Operation.SERVER_READY,
        Operation.PAGE, Operation.ROOT,  # which may not be there
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class V2Settings:
    """What this door needs to know of the settings.

    Attributes:
        max_input_size: --http-max-input-size.
        header_forward_pattern: --http-header-forward-pattern; "" = none.
        restricted: --http-restricted-api, group -> (header, value).
        ui: --allow-ui.
        health_json: --http-health-json.
    """

    max_input_size: int = MAX_INPUT_SIZE
    header_forward_pattern: str = ""
    restricted: Mapping[RouteGroup, tuple[str, str]] = field(default_factory=dict)
    ui: bool = False
    health_json: bool = False


@dataclass(slots=True)
class V2Request:
    """A request head, understood.

    Attributes:
        refusal: the answer, when the head alone decides it; `refusal_type` is its content type.
        denied: this client may not do this.
        error_type: the content type of errors on the way to the operation.
        length_text: `Inference-Header-Content-Length` of an infer request.
        compressed: the body has to be inflated.
        accept: the encoding of the reply.
        timeout_ns: from `timeout-ms`; 0 = none.
        forwarded: headers that become parameters.
    """

    route: Route
    error_type: str = JSON
    refusal: EdgeServeError | None = None
    refusal_type: str = PLAIN
    denied: bool = False
    length_text: str | None = None
    compressed: bool = False
    accept: str = "identity"
    timeout_ns: int = 0
    forwarded: dict[str, str] | None = None


_NOWHERE = Route(Operation.SERVER_METADATA, allowed=False)


class V2HeadReader:
    """Reads heads, and remembers those that come again.

    Args:
        gate: stands between these clients and the operations.
        remembered: how many heads.
    """

    _MAX_REMEMBERED_SIZE = 2048

    def __init__(self, settings: V2Settings, gate: AccessGate | None = None, remembered: int = 512) -> None:
        self._gate = gate
        self._most = remembered
        self._restricted = settings.restricted
        self._pattern = forwarding.compile_pattern(settings.header_forward_pattern)
        self._known: dict[RequestHead, V2Request] = {}

    def read(self, head: RequestHead) -> V2Request:
        """What the head says; what is wrong with it is in `refusal`."""
        request = self._known.get(head)
        if request is None:
            request = self._read(head)
            if sum(len(name) + len(value) for name, value in head.headers) <= self._MAX_REMEMBERED_SIZE:
                if len(self._known) >= self._most:
                    self._known.clear()
                self._known[head] = request
        return request

    def forget(self) -> None:
        """What the gate has said may be otherwise now."""
        self._known.clear()

    def _read(self, head: RequestHead) -> V2Request:
        try:
            route = match(head.method, head.path)
        except InvalidArgument as error:
            return V2Request(_NOWHERE, refusal=error)
        if route is None:
            return V2Request(_NOWHERE, refusal=PathNotFound())
        operation = route.operation
        request = V2Request(route, PLAIN if operation in _PLAIN_ERRORS else JSON)
        restriction = self._restricted.get(operation.group)
        if restriction is not None and head.get(restriction[0].lower()) != restriction[1]:
            request.refusal = Restricted(restriction[0])
        elif self._gate is not None and (refusal := self._refusal(operation, head)) is not None:
            request.refusal, request.refusal_type, request.denied = refusal, JSON, True
        elif not route.allowed:
            request.refusal, request.refusal_type = MethodNotAllowed(operation.methods), request.error_type
        elif operation is Operation.INFER:
            self._read_infer(head, request)
        return request

    def _refusal(self, operation: Operation, head: RequestHead) -> EdgeServeError | None:
        assert self._gate is not None, "the caller has looked"
        return self._gate.refusal(role_of_operation(operation, head.method), head.get)

    def _read_infer(self, head: RequestHead, request: V2Request) -> None:
        try:
            request.compressed = compression.is_compressed(head.get("content-encoding") or "")
            request.length_text = head.get("inference-header-content-length")
            request.accept = compression.choose(head.get("accept-encoding") or "identity")
            request.timeout_ns = _timeout_ns(head.get("timeout-ms"))
        except EdgeServeError as error:
            request.refusal = error
            return
        if self._pattern is not None:
            try:
                request.forwarded = forwarding.forwarded(head.headers, self._pattern)
            except EdgeServeError as error:
                request.refusal, request.refusal_type = error, JSON


_MAX_TIMEOUT_MS = 2**53


def _timeout_ns(text: str | None) -> int:
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > 16 or int(text) > _MAX_TIMEOUT_MS:
        raise InvalidArgument(f"Unable to parse timeout-ms, expected a number of milliseconds, got: {text}")
    return int(text) * 1_000_000
