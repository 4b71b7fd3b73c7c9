"""Isolated callbacks: a callback of another part of the program that raises is logged, and its caller goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")

log = logging.getLogger(__name__)


def notify(callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call `callback(*args)`. Log an exception that it raises, with its traceback, and return as usual."""
    try:
        callback(*args, **kwargs)
    except Exception:
        log_failure(callback)


def log_failure(callback: Callable[..., object]) -> None:
    """Log the exception that is being handled, which `callback` has raised."""
    log.exception("callback %s failed", getattr(callback, "__qualname__", repr(callback)))
