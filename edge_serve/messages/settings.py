"""The settings that clients may change while the server runs: of its log, and of its traces."""

from __future__ import annotations

from typing import Protocol

from edge_serve.records import frozen

#: values of `log_format`; Triton has the first two
LOG_FORMATS = ("default", "ISO8601", "json")


@frozen
class LogSettings:
    """GET /v2/logging.

    Attributes:
        file: "" = standard error.
        verbose_level: 0 = no verbose lines.
    """

    file: str = ""
    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0
    format: str = "default"


class ServerLog(Protocol):
    """The server's log."""

    def settings(self) -> LogSettings: ...

    def update(self, settings: LogSettings) -> None: ...


#: members of `trace_level`, which may also be OFF alone
TRACE_LEVELS = ("TIMESTAMPS", "TENSORS")


@frozen
class TraceSettings:
    """GET /v2/trace/setting.

    Attributes:
        level: some of TRACE_LEVELS; empty = no request is traced.
        rate: one request in this many is traced.
        count: traces still to be made; -1 = no end.
        log_frequency: traces a file, whose name then ends in a number; 0 = all in one.
    """

    level: tuple[str, ...] = ()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    file: str = ""


@frozen
class TraceChanges:
    """A change of the trace settings: None = as it is.

    Attributes:
        cleared: names of the fields that go back to what applies above: to a model the server's, to the server what it
            was started with.
    """

    level: tuple[str, ...] | None = None
    rate: int | None = None
    count: int | None = None
    log_frequency: int | None = None
    cleared: frozenset[str] = frozenset()
