"""The one error tree.

Each class knows its HTTP status, its gRPC status name and the words Triton prints before the text in a load failure
(`Status::AsString` in triton-inference-server/core src/status.cc). Replies are made from these in `transport/` only.
"""

from __future__ import annotations

from typing import ClassVar


class EdgeServeError(Exception):
    """Base of every error that becomes a reply.

    Args:
        message: what was found, what was expected and what to do next, for the client to read.
    """

    http_status: ClassVar[int] = 500
    grpc_code: ClassVar[str] = "INTERNAL"
    triton_name: ClassVar[str] = "Internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def as_triton(self) -> str:
        """`Invalid argument: text`, the form in which Triton quotes an error inside another."""
        return f"{self.triton_name}: {self.message}"


class Internal(EdgeServeError):
    """The server or the model failed."""


class Unparsable(Internal):
    """A request whose JSON is not the expected one: an error of the client, although Triton answers 500."""


class UnreadableEntry(Internal):
    """Content of a repository that the server cannot read, or does not read because of its kind or size."""


class Unknown(EdgeServeError):
    """An error of unknown cause."""

    http_status, grpc_code, triton_name = 400, "UNKNOWN", "Unknown"


class NotFound(EdgeServeError):
    """The object that was asked for does not exist."""

    http_status, grpc_code, triton_name = 404, "NOT_FOUND", "Not found"


class InvalidArgument(EdgeServeError):
    """The request, configuration or file says something it may not."""

    http_status, grpc_code, triton_name = 400, "INVALID_ARGUMENT", "Invalid argument"


class Unavailable(EdgeServeError):
    """Not now: starting, stopping, overloaded, or the worker is being restarted."""

    http_status, grpc_code, triton_name = 503, "UNAVAILABLE", "Unavailable"


class Unsupported(EdgeServeError):
    """Understood, and not offered here."""

    http_status, grpc_code, triton_name = 501, "UNIMPLEMENTED", "Unsupported"


class AlreadyExists(EdgeServeError):
    """The name is taken."""

    http_status, grpc_code, triton_name = 400, "ALREADY_EXISTS", "Already exists"


class Cancelled(EdgeServeError):
    """The client left, or asked to stop."""

    http_status, grpc_code, triton_name = 400, "CANCELLED", "Cancelled"


class Unauthenticated(EdgeServeError):
    """The client must say who it is (RFC 9110 15.5.2).

    Attributes:
        invalid: it did, and is not known.
    """

    http_status, grpc_code, triton_name = 401, "UNAUTHENTICATED", "Unauthenticated"

    def __init__(self, message: str, *, invalid: bool = False) -> None:
        super().__init__(message)
        self.invalid = invalid


class PermissionDenied(EdgeServeError):
    """This client may not do this, whatever its credentials (RFC 9110 15.5.4)."""

    http_status, grpc_code, triton_name = 403, "PERMISSION_DENIED", "Permission denied"


class Overloaded(Unavailable):
    """A limit of this server is reached; it may pass after `retry_after` seconds (RFC 9110 10.2.3)."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def with_advice(text: str, advice: str) -> str:
    """Return an error's text, Triton's own where it has one, with advice after it; "" = there is none."""
    if not advice:
        return text
    if not text.endswith((".", "\n")):
        return f"{text}; {advice}"
    first = advice.partition(" ")[0]  # the name of a file stays as it is
    sentence = advice[0].upper() + advice[1:] if first.isalpha() else advice
    return f"{text} {sentence}" if text.endswith(".") else text + sentence


#: Triton's numeric error codes (TRITONSERVER_Error_Code in core include/triton/core/tritonserver.h), as the Python
#: backend's `TritonError` and the worker channel carry them.
BY_TRITON_CODE: dict[int, type[EdgeServeError]] = {
    0: Unknown,
    1: Internal,
    2: NotFound,
    3: InvalidArgument,
    4: Unavailable,
    5: Unsupported,
    6: AlreadyExists,
    7: Cancelled,
}

TRITON_CODES: dict[type[EdgeServeError], int] = {cls: code for code, cls in BY_TRITON_CODE.items()}


def triton_code(error: EdgeServeError) -> int:
    """Triton's number for this error; a subclass counts as its nearest listed ancestor, else INTERNAL."""
    return next((TRITON_CODES[cls] for cls in type(error).__mro__ if cls in TRITON_CODES), 1)
