"""The parts of a request head that the v2 protocol uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from edge_serve.errors import EdgeServeError, InvalidArgument
from edge_serve.protocol.http1.head import RequestHead
from edge_serve.protocol.inference import compression
from edge_serve.protocol.v2.infer import MAX_INPUT_SIZE
from edge_serve.protocol.v2.infer_header import read_forwarded
from edge_serve.records import frozen, slotted
from edge_serve.transport.door.access import AccessGate
from edge_serve.transport.http.replies import MethodNotAllowed
from edge_serve.transport.v2.routes import Operation, PathNotFound, Restricted, Route, RouteGroup, match

JSON = "application/json"
PLAIN = "text/plain"

#: operations whose errors Triton sends before it has set a content type
_PLAIN_ERRORS = frozenset(
    (
        Operation.INFER, Operation.MODEL_READY, Operation.SERVER_LIVE, Operation.SERVER_READY,
        Operation.PAGE, Operation.ROOT,  # with --allow-ui=false they do not exist
    )
)  # fmt: skip


@frozen
class V2Settings:
    """Settings of the v2 protocol over HTTP.

    Attributes:
        max_input_size: --http-max-input-size.
        header_forward_pattern: --http-header-forward-pattern; None = none.
        restricted: --http-restricted-api, group -> (header, value).
        ui: --allow-ui.
        health_json: --http-health-json.
    """

    max_input_size: int = MAX_INPUT_SIZE
    header_forward_pattern: re.Pattern[str] | None = None
    restricted: Mapping[RouteGroup, tuple[str, str]] = field(default_factory=dict)
    ui: bool = False
    health_json: bool = False


@slotted
class V2Request:
    """The parts of a request head that the v2 protocol uses.

    Attributes:
        error_type: the content type of errors before the operation starts.
        refusal: the error to answer, if the head alone decides the answer.
        refusal_type: the content type of `refusal`.
        denied: the access policy refused the request.
        length_text: `Inference-Header-Content-Length` of an infer request.
        compressed: the body has to be decompressed.
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


class HeadReader:
    """Reads heads for clients with equal access.

    Args:
        gate: access checks of the clients; None = none.
    """

    def __init__(self, settings: V2Settings, gate: AccessGate | None = None) -> None:
        self._gate = gate
        self._restricted = settings.restricted
        self._pattern = settings.header_forward_pattern

    def read(self, head: RequestHead) -> V2Request:
        """Read a head; its errors are in `refusal`."""
        try:
            route = match(head.method, head.path)
        except InvalidArgument as error:
            return V2Request(_NOWHERE, refusal=error)
        if route is None:
            return V2Request(_NOWHERE, refusal=PathNotFound())
        operation, gate = route.operation, self._gate
        request = V2Request(route, PLAIN if operation in _PLAIN_ERRORS else JSON)
        restriction = self._restricted.get(operation.group)
        if restriction is not None and head.get(restriction[0].lower()) != restriction[1]:
            request.refusal = Restricted(restriction[0])
        elif refusal := None if gate is None else gate.check(operation.role(head.method), head.get):
            request.refusal, request.refusal_type, request.denied = refusal, JSON, True
        elif not route.allowed:
            request.refusal, request.refusal_type = MethodNotAllowed(operation.methods), request.error_type
        elif operation is Operation.INFER:
            self._read_infer(head, request)
        return request

    def _read_infer(self, head: RequestHead, request: V2Request) -> None:
        try:
            request.compressed = compression.is_compressed(head.get("content-encoding") or "")
            request.length_text = head.get("inference-header-content-length")
            request.accept = compression.choose(head.get("accept-encoding") or "identity")
            request.timeout_ns = _parse_timeout_ns(head.get("timeout-ms"))
        except EdgeServeError as error:
            request.refusal = error
            return
        if self._pattern is not None:
            try:
                headers = [(name, _decode_utf8(value)) for name, value in head.headers]
                request.forwarded = read_forwarded(headers, self._pattern)
            except EdgeServeError as error:
                request.refusal, request.refusal_type = error, JSON


def _decode_utf8(value: str) -> str:
    """Decode a header's bytes as UTF-8, as Triton does for a Python model; a head has them as latin-1."""
    return value if value.isascii() else value.encode("latin-1").decode("utf-8", "replace")


_MAX_TIMEOUT_MS = 2**53


def _parse_timeout_ns(text: str | None) -> int:
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > 16 or int(text) > _MAX_TIMEOUT_MS:
        raise InvalidArgument(f"Unable to parse timeout-ms, expected a number of milliseconds, got: {text}")
    return int(text) * 1_000_000
