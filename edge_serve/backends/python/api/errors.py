"""Errors that Python models see and make, and the texts of their failures.

Class names, codes and texts are those of triton-inference-server/python_backend src/pb_stub.cc and src/pb_error.cc.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from types import FrameType

from edge_serve.backends.python.api.advice import advice_on
from edge_serve.errors import BY_TRITON_CODE, EdgeServeError, triton_code, with_advice

#: The module that Triton's classes say they come from; it shows in `type(x)` and in error texts.
MODULE = "c_python_backend_utils"

#: files of frames that lead to no line of a model: the server's own, and those that any import passes through
_HIDDEN = (f"{Path(__file__).parents[3]}/", "<frozen importlib.")
#: calls that are listed at each end of a longer way to the place of an error, and characters of an exception's own text
_MOST_CALLS, _MOST_TEXT = 20, 16384
_RESUMED = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR

_NO_TERMINAL = (
    "the model reached a breakpoint(), and a worker has no terminal: remove it, or debug with edge_serve.testing "
    "(docs/testing_a_model.md)"
)


class NativeEnum(IntEnum):
    """An enumeration of the native module: `str()` of a member is `Enum.MEMBER`."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class ErrorCode(NativeEnum):
    """TRITONSERVER_Error_Code."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class TritonModelException(Exception):
    """The exception class that `pb_utils` raises."""


class Refusal(TritonModelException):
    """A failure found by the backend itself: its text goes out without the place in the code."""


class TritonError:
    """The error of a response: a text and a code."""

    __slots__ = ("__weakref__", "_code", "_message")

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = ErrorCode

    def __init__(self, message: str, code: int = ErrorCode.INTERNAL) -> None:
        """Raises TypeError unless `message` is a string and `code` one of the codes."""
        message = as_text("TritonError(message=...)", message)
        try:
            self._code = ErrorCode(code)
        except ValueError as error:
            raise TypeError(
                f"TritonError(message, code): code must be one of TritonError.INTERNAL, ..: {code!r}"
            ) from error
        self._message = message

    def message(self) -> str:
        """Return the text of the error."""
        return self._message

    def code(self) -> ErrorCode:
        """Return the code of the error."""
        return self._code

    def as_reply_error(self) -> EdgeServeError:
        """Return the error as one of the server."""
        return BY_TRITON_CODE[self._code](self._message)

    @classmethod
    def of(cls, error: EdgeServeError) -> TritonError:
        """Return an error of the server as models see it."""
        return cls(error.message, triton_code(error))


TritonError.__module__ = TritonModelException.__module__ = MODULE
ErrorCode.__module__ = MODULE
ErrorCode.__name__, ErrorCode.__qualname__ = "__ErrorCode", "TritonError.__ErrorCode"


def describe(error: BaseException, caller: FrameType | None) -> str:
    """Return `Type: text`, the calls that led there, innermost first, up to but without `caller`, and advice.

    The frames are followed through their callers, as pybind11 does, so an import error shows the file that imports.
    Those of Python's import system are left out.
    """
    if isinstance(error, Refusal):
        return str(error)
    text = f"{type(error).__name__}: {_text_of(error)}"
    if len(text) > _MOST_TEXT:
        text = f"{text[:_MOST_TEXT]} ... ({len(text):,} characters)"
    if type(error).__name__ == "BdbQuit":
        text += _NO_TERMINAL
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    frame = trace.tb_frame if trace is not None else None
    line = trace.tb_lineno if trace is not None else 0
    lines: list[str] = []
    while frame is not None and frame is not caller:
        # In Triton what pb_utils does is native code, and has no frames.
        if not frame.f_code.co_filename.startswith(_HIDDEN):
            lines.append(f"  {frame.f_code.co_filename}({line}): {frame.f_code.co_name}\n")
        # A coroutine or generator that has ended has no caller any more; Python 3.13 still tells the one it had.
        frame = None if frame.f_code.co_flags & _RESUMED else frame.f_back
        line = frame.f_lineno if frame is not None else 0
    if len(lines) > 2 * _MOST_CALLS:  # endless recursion
        lines[_MOST_CALLS:-_MOST_CALLS] = [f"  ... {len(lines) - 2 * _MOST_CALLS} more calls\n"]
    advice = advice_on(error, text, in_call=not lines)
    return with_advice(f"{text}\n\nAt:\n{''.join(lines)}" if lines else text, advice)


def _text_of(error: BaseException) -> str:
    """Return the exception's own text. One whose text cannot be made gets that of Python's `traceback`."""
    try:
        return str(error)
    except BaseException:  # users' code
        return "<exception str() failed>"


def as_flag(name: str, value: object) -> bool:
    """Return an argument that is true or false; None and numbers will do.

    Raises:
        TypeError: the argument is of another type, such as text.
    """
    if value is None or hasattr(type(value), "__bool__"):
        return bool(value)
    raise TypeError(f"{name} must be bool, found {value!r}")


def as_text(name: str, value: str | bytes) -> str:
    """Return an argument that is text; as in Triton, an element of a string tensor will do.

    Raises:
        TypeError: it is neither text nor bytes of UTF-8.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray)):
        with suppress(UnicodeDecodeError):
            return value.decode()
    raise TypeError(f"{name} must be str, found {value!r}")
