"""A server inside a program, which `with` or `async with` starts."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from edge_serve import server
from edge_serve.config.settings.server import parse_argv
from edge_serve.config.settings.table import flag_of
from edge_serve.errors import AlreadyExists, Internal
from edge_serve.in_process.blocking import Session
from edge_serve.in_process.session import AsyncSession, stop_server

#: settings that differ from the defaults of the command line: the doors are closed
_DEFAULTS: dict[str, object] = {"allow_http": False, "allow_grpc": False, "allow_metrics": False}


class Server:
    """The settings of a server; each `with` or `async with` starts a new one, one at a time.

    All models of the repositories are loaded at the start, and others may be loaded and unloaded while it runs, unless
    `load_model` or `model_control_mode` say otherwise.

    Args:
        model_repository: one directory, or several.
        settings: those of the command line: `http_port=0` for `--http-port=0`, a list for options that may be repeated.

    Raises:
        InvalidArgument: a setting does not exist, or its value is invalid.
    """

    def __init__(
        self, model_repository: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], **settings: object
    ) -> None:
        roots = [model_repository] if isinstance(model_repository, (str, os.PathLike)) else list(model_repository)
        chosen: dict[str, object] = {**_DEFAULTS, "model_repository": [os.fspath(root) for root in roots], **settings}
        if "model_control_mode" not in settings:
            chosen["model_control_mode"] = "explicit"
            chosen.setdefault("load_model", "*")
        argv = [f"{flag_of(name)}={text}" for name, value in chosen.items() for text in _written(value)]
        self._config = parse_argv(argv, {})
        #: acquired while the server runs
        self._running = threading.Lock()
        self._async_session: AsyncSession
        self._session: Session

    if not TYPE_CHECKING:  # for which every attribute would exist

        def __getattr__(self, name: str) -> NoReturn:
            """Raises AttributeError: for a method of a session, with the way to get one."""
            advice = ""
            if hasattr(Session, name):
                advice = f": write `with Server(...) as server:`, and call server.{name} in that block"
            raise AttributeError(f"'Server' object has no attribute '{name}'{advice}")

    async def __aenter__(self) -> AsyncSession:
        """Start the server.

        Raises:
            AlreadyExists: it runs already.
            EdgeServeError: a model did not load (not with `exit_on_error=False`), or a repository cannot be read.
            OSError: a door cannot be opened.
        """
        self._acquire()
        try:
            self._async_session = await self._start()
        except BaseException:
            self._running.release()
            raise
        return self._async_session

    async def __aexit__(self, *exception: object) -> None:
        try:
            await self._async_session.close()
        finally:
            self._running.release()

    def __enter__(self) -> Session:
        """Start the server in a thread. Raises the errors of `__aenter__`."""
        self._acquire()
        try:
            self._session = Session(self._start)
        except BaseException:
            self._running.release()
            raise
        return self._session

    def __exit__(self, *exception: object) -> None:
        try:
            self._session.close()
        finally:
            self._running.release()

    def _acquire(self) -> None:
        if not self._running.acquire(blocking=False):
            raise AlreadyExists("this Server is running: make another Server to run two at the same time")

    async def _start(self) -> AsyncSession:
        running = server.ServerProcess(self._config)
        try:
            failures = await running.start()
            if failures and self._config.exit_on_error:
                raise Internal("; ".join(text.strip() for text in failures))
        except BaseException:
            await stop_server(running)
            raise
        return AsyncSession(running)


def _written(value: object) -> list[str]:
    """Return the values of a setting in the form of the command line."""
    if isinstance(value, (list, tuple)):
        return [text for one in value for text in _written(one)]
    return ["true" if value is True else "false" if value is False else str(value)]
