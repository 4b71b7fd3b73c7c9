"""`pb_utils.Logger`: a model's lines in the server's log."""

from __future__ import annotations

from edge_serve.backends import host
from edge_serve.backends.python.api.errors import MODULE, NativeEnum, as_text


class _LogLevel(NativeEnum):
    """Levels of the server's log."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


class Logger:
    """Lines for the server's log; verbose ones appear with `--log-verbose`."""

    LogLevel = _LogLevel
    INFO, WARNING, ERROR, VERBOSE = _LogLevel

    @staticmethod
    def log(message: str, level: _LogLevel = _LogLevel.INFO) -> None:
        """Log a line. Raises TypeError unless the arguments are a string and a level."""
        if not isinstance(level, _LogLevel):
            raise TypeError(f"Logger.log(message, level): level must be one of Logger.INFO, ..: {level!r}")
        _write("log", level, message)

    @staticmethod
    def log_info(message: str) -> None:
        """Log a line of level INFO."""
        _write("log_info", _LogLevel.INFO, message)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log a line of level WARNING."""
        _write("log_warn", _LogLevel.WARNING, message)

    @staticmethod
    def log_error(message: str) -> None:
        """Log a line of level ERROR."""
        _write("log_error", _LogLevel.ERROR, message)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log a line of level VERBOSE."""
        _write("log_verbose", _LogLevel.VERBOSE, message)


def _write(function: str, level: _LogLevel, message: str) -> None:
    host.log(level.name, as_text(f"Logger.{function}(message=...)", message))


_LogLevel.__module__ = Logger.__module__ = MODULE
_LogLevel.__name__, _LogLevel.__qualname__ = "LogLevel", "Logger.LogLevel"
