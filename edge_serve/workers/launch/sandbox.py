"""Decides which files are closed to a worker, and starts its interpreter in a Landlock domain (`landlock`).

A worker runs users' code as the server's user. It keeps the access to files that this user has, except to what belongs
to the server (keys, state, sockets, unpacked environments), to other models, and to control groups.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edge_serve.aio.within import within
from edge_serve.config.settings.server import ServerConfig
from edge_serve.errors import InvalidArgument
from edge_serve.records import frozen
from edge_serve.workers.launch import landlock
from edge_serve.workers.launch.interpreter import Interpreter, environment_cache

log = logging.getLogger(__name__)

#: where programs make new files, which cannot be told from ours: nothing below is protected
_SCRATCH = ("/tmp", "/var/tmp", "/dev/shm")
#: a process that may write there can move, freeze, and kill processes
_CONTROL_GROUPS = "/sys/fs/cgroup"
_PR_SET_DUMPABLE = 4
_LIBRARIES = "LD_LIBRARY_PATH"
#: how long a file may take to say its mode, at the start of the server
_ACCESS_SECONDS = 10.0


@frozen
class Sandbox:
    """The files that a worker must not reach.

    Attributes:
        repositories: a worker sees the models that it is for, and what is no model.
        closed: files and directories of the server's own.
        state: directories whose files are the server's, and whose directories are not.
        cache: where environments are unpacked: a worker can read the one that it runs with.
        engines: the cache of engines: the worker of one model can read the engine of this model, and one of several
            models can read all.
    """

    repositories: tuple[Path, ...] = ()
    closed: tuple[Path, ...] = ()
    state: tuple[Path, ...] = ()
    cache: Path | None = None
    engines: Path | None = None

    @staticmethod
    def of(config: ServerConfig, environ: Mapping[str, str]) -> Sandbox | None:
        """Return what a server with these settings has to protect, or None where it protects nothing.

        Raises:
            InvalidArgument: a file lies on a file system that does not answer.
        """
        if not config.worker_sandbox:
            return None
        closed = [config.http_server_key, config.grpc_server_key, config.admin_socket]
        closed.append(environ.get("CREDENTIALS_DIRECTORY", ""))
        # hashes of tokens are no secret, but a file of our own user could get new ones
        closed += [path for path in (config.token_file, config.certificate_role_file) if path and _is_writable(path)]
        state = config.state_directory or environ.get("STATE_DIRECTORY", "").partition(":")[0]
        return Sandbox(
            tuple(map(Path, config.model_repository)),
            tuple(Path(path) for path in closed if path),
            (Path(state),) if state else (),
            environment_cache(config.execution_env_directory, environ),
        )

    def confine(self, interpreter: Interpreter, own: Sequence[Path] | None, root: Path | None = None) -> Interpreter:
        """Return the interpreter, started in a domain that closes what is protected.

        Args:
            own: files and directories of the one model that it is for; None: of several, which may be any.
            root: the environment that it belongs to.
        """
        readable = [Path(_CONTROL_GROUPS)]
        protected = [place.resolve() for place in (*self.repositories, *self._caches())]
        if root is not None and any(root.is_relative_to(place) for place in protected):
            readable.append(root)
        closed = [*self.closed, *self._caches()]
        if self.engines is not None:  # a plan is code: only the process that builds writes one
            closed.append(self.engines)
            readable += [self.engines] if own is None else [path for path in own if self.engines in path.parents]
        rules: dict[str, object] = {
            "closed": _texts(closed),
            "readable": _texts(readable),
            "open": _scratch(),
            "own": _texts([path for path in own or () if path not in readable]),
            "listed": _texts(self.state),
            "repositories": _texts(self.repositories if own is not None else ()),
        }
        if interpreter.command[0] == sys.executable:
            return replace(interpreter, command=(*interpreter.command, landlock.__name__, json.dumps(rules)))
        # an interpreter of others runs their code from its first moment on, so ours confines it
        variables, ours = dict(interpreter.variables), os.environ.get(_LIBRARIES)
        if variables.get(_LIBRARIES) != ours:
            rules["variables"] = {_LIBRARIES: variables.pop(_LIBRARIES)}
            variables |= {_LIBRARIES: ours} if ours is not None else {}
        start = (sys.executable, "-I", "-S", landlock.__file__, json.dumps(rules))
        return Interpreter((*start, *interpreter.command), variables, interpreter.command[0])

    def log_gaps(self) -> None:
        """Log what cannot be protected on this machine. Reads the file system, so it may block."""
        abi = landlock.version()
        if abi < landlock.OLDEST:
            log.warning("models can read the server's keys and other models' files: this kernel has no Landlock "
                        "(version %d, %d is needed)", abi, landlock.OLDEST)  # fmt: skip
        for place in map(os.path.realpath, self.closed):
            scratch = next((one for one in _scratch() if place.startswith(f"{one}/")), None)
            if scratch is not None and os.path.isfile(place):
                log.warning("models can read %s, because it lies below %s: put it elsewhere", place, scratch)

    def _caches(self) -> tuple[Path, ...]:
        return () if self.cache is None else (self.cache,)


def _is_writable(path: str) -> bool:
    try:
        return within(_ACCESS_SECONDS, os.access, path, os.W_OK)
    except TimeoutError as error:
        advice = "see to the file system that it lies on"
        raise InvalidArgument(f"cannot read '{path}': {error.strerror}; {advice}") from error


def make_undumpable() -> None:
    """Make this process undumpable: other processes of its user cannot read its memory, files and environment."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _scratch() -> list[str]:
    """Return the directories that stay open whole."""
    places = {
        os.path.realpath(place) for place in (*_SCRATCH, os.environ.get("TMPDIR") or "/tmp", os.path.expanduser("~"))
    }
    return sorted(places - {"/"})


def _texts(paths: Sequence[Path]) -> list[str]:
    return [os.path.abspath(path) for path in paths]
