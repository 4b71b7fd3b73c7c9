"""The interpreters of Python models and of backend packs, as a command to start a worker.

A pack has its environment in its directory (`backends.packs`). A Python model names one by the parameter
EXECUTION_ENV_PATH of config.pbtxt, whose value is a directory (a virtual environment, or a conda environment) or an
archive of one made by conda-pack; `$$TRITON_MODEL_DIRECTORY` in it stands for the model's directory (python_backend
README.md, "Creating Custom Execution Environments"). Before a worker is started with an interpreter, that is asked for
its version and for NumPy, which is all that the worker's side needs. Archives are unpacked by a process of its own
(`unpack`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from edge_serve.aio.offload import offload
from edge_serve.backends.base import ModelSpec
from edge_serve.backends.packs import Pack, install_command
from edge_serve.backends.parameters import parameters_of
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, Unavailable, with_advice
from edge_serve.files import lock_shared
from edge_serve.workers.launch.interpreter import (
    Environment,
    Interpreter,
    environment_cache,
    interpreter_of,
    own_interpreter,
)
from edge_serve.workers.launch.sandbox import Sandbox

PARAMETER = "EXECUTION_ENV_PATH"
MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
#: of the interpreter; this package's own syntax needs it
OLDEST = (3, 10)
#: how long the files of an environment may take to be looked up, seconds: they may lie on a share that does not answer
LOOK_UP_SECONDS = 10.0
#: how long to try to lock a pack, seconds: `pack install` locks one that was made by hand for a moment to check it
LOCK_SECONDS = 0.3
#: how long an interpreter may take to say what it is, seconds; NumPy from a cold flash disk takes some
PROBE_SECONDS = 60.0
#: how long an archive may take to be unpacked, seconds
UNPACK_SECONDS = 600.0
_ADVICE_ON_UNPACKING = (
    "name a directory of a faster disk with --execution-env-directory, or the directory of the environment in place of "
    "the archive; another server may be unpacking into the same directory"
)
_BEING_REPLACED = "it is being replaced or removed at this moment: load the model again"

#: (inode, modification time ns) of the parts of an environment when it was checked
State = tuple[tuple[int, int], ...]
T = TypeVar("T")

#: runs in any Python, and imports nothing from the working directory; its last line is for us
_PROBE = """
import sys
del sys.path[0]
import json
try:
    import numpy
    found = [numpy.__version__, ""]
except Exception as error:
    found = ["", "%s: %s" % (type(error).__name__, error)]
print(json.dumps([list(sys.version_info[:2])] + found))
"""


def path_of(spec: ModelSpec) -> Path | None:
    """Return the environment that the model's configuration names; None if it names none."""
    text = parameters_of(spec.config).get(PARAMETER) if spec.is_python else ""
    return Path(text.replace(MODEL_DIRECTORY, str(spec.model_directory))) if text else None


def _find_directory(path: Path, spec: ModelSpec) -> Path | None:
    """Return the directory of an environment; None = the path is that of an archive. May block.

    Raises:
        InvalidArgument: the configuration names it, and it is not there.
    """
    if path == path_of(spec) and not path.exists():
        text = f"'{path}' does not exist; expected a directory or an archive of an environment"
        raise InvalidArgument(with_advice(text, _advice_on_missing(path, spec.model_directory)))
    return path.resolve() if path.is_dir() else None


def _is_unpacked(archive: Path, cache: Path) -> bool:
    """Return whether `unpack` needs no time for an archive. May block."""
    from edge_serve.workers.launch import unpack  # few models need it

    return unpack.find_unpacked(archive, cache) is not None


def _lock_pack(pack: Pack) -> list[int]:
    """Return the lock that keeps the files of a pack; none on a file system without locks. May block.

    Raises:
        Unavailable: a command deletes them.
    """
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return [lock_shared(pack.directory)]
        except BlockingIOError as error:
            if time.monotonic() >= end:
                raise Unavailable(_BEING_REPLACED) from error
            time.sleep(0.01)
        except FileNotFoundError as error:
            raise Unavailable(_BEING_REPLACED) from error
        except OSError:
            return []


def _repair(spec: ModelSpec, path: Path) -> str:
    """Return what to do about a broken environment of a pack; "" = the model names the environment."""
    is_own = spec.pack is not None and path == spec.pack.environment
    return install_command(spec.pack.name) if spec.pack is not None and is_own else ""


def _advice_on_missing(path: Path, model_directory: Path) -> str:
    variable = MODEL_DIRECTORY.strip("$")
    if variable in str(path):
        return f"write {MODEL_DIRECTORY} with two dollar signs, in a shell's here-document after <<'END' in quotes"
    if not path.is_absolute() and (model_directory / path).exists():
        return f"for the one in the model's directory write {MODEL_DIRECTORY}/{path}"
    return "put it there, or remove the parameter: the model then runs with the Python of the server"


def _interpreter_in(root: Path, repair: str) -> tuple[Interpreter, State]:
    """Return the interpreter of an environment, and its state. May block. Raises InvalidArgument: there is none."""
    interpreter = interpreter_of(root, repair)
    parts = [Path(interpreter.command[0]), *sorted(root.glob("lib/python*/site-packages"))]
    return interpreter, tuple((found.st_ino, found.st_mtime_ns) for found in map(Path.stat, parts))


def _release(locks: Sequence[int]) -> None:
    for lock in locks:
        os.close(lock)


async def _within_limit(
    path: Path,
    function: Callable[..., T],
    *arguments: Any,
    discard: Callable[[T], None] = lambda result: None,
) -> T:
    """Call a function that reads `path`, in a thread. `discard` gets a result that comes too late.

    Raises:
        InvalidArgument: the file system does not answer.
    """
    job = asyncio.ensure_future(offload(function, *arguments))

    def on_late(done: asyncio.Future[T]) -> None:
        if not done.cancelled() and done.exception() is None:
            discard(done.result())

    try:
        return await asyncio.wait_for(asyncio.shield(job), LOOK_UP_SECONDS)
    except (asyncio.TimeoutError, asyncio.CancelledError) as error:
        job.add_done_callback(on_late)
        if isinstance(error, asyncio.CancelledError):
            raise
        text = f"'{path}' does not answer within {LOOK_UP_SECONDS:g} s; see to the file system that it lies on"
        raise InvalidArgument(text) from None


class Environments:
    """Finds the environments that models ask for.

    Args:
        cache: where archives are unpacked; made when the first one is.
        sandbox: keeps the code of environments, and of workers, from the server's files; None = nothing does.
    """

    def __init__(self, cache: Path | None = None, sandbox: Sandbox | None = None) -> None:
        self._cache = cache or environment_cache("", os.environ)
        self.sandbox = sandbox
        #: acquired to unpack an archive: the time limit of a process counts while it waits for another one
        self._unpacking = asyncio.Lock()
        self._checked: dict[Path, State] = {}

    async def take(self, spec: ModelSpec) -> Environment:
        """Return the environment for one worker of a model.

        Raises:
            InvalidArgument: there is no such environment, or it cannot run a worker.
        """
        locks, subject, pack = list[int](), f"{PARAMETER} of model '{spec.name}'", spec.pack
        try:
            path = path_of(spec)
            if pack is not None:
                if path is None:
                    subject, path = f"pack '{pack.name}' of model '{spec.name}'", pack.environment
                locks = await _within_limit(pack.directory, _lock_pack, pack, discard=_release)
            if path is None:
                return Environment(own_interpreter(), None, locks)
            root = await _within_limit(path, _find_directory, path, spec) or await self._unpack(path, locks)
            return Environment(await self._checked_interpreter(root, _repair(spec, path)), root, locks)
        except BaseException as error:
            _release(locks)
            if isinstance(error, EdgeServeError):
                raise InvalidArgument(f"{subject}: {error.message}") from error
            if isinstance(error, OSError):  # the server's user may not look there, say
                raise InvalidArgument(f"{subject}: '{error.filename}' cannot be read: {error.strerror}") from error
            raise

    async def _unpack(self, archive: Path, locks: list[int]) -> Path:
        """Return the directory of an archive. Add a descriptor to `locks` that keeps it until it is closed."""
        own = own_interpreter()
        command = [*own.command, "edge_serve.workers.launch.unpack", str(archive), str(self._cache)]
        late = f"unpacking '{archive}' took longer than {UNPACK_SECONDS:g} s: {_ADVICE_ON_UNPACKING}"
        for _ in range(3):  # another server may remove it in the moment before it is locked
            try:
                is_known = await _within_limit(archive, _is_unpacked, archive, self._cache)
            except InvalidArgument:  # another archive that is being unpacked keeps the disk busy
                is_known = False
            async with contextlib.nullcontext() if is_known else self._unpacking:
                text, status = await _output(command, own.variables, UNPACK_SECONDS, late)
            try:
                answer = json.loads(text.splitlines()[-1])
            except (ValueError, IndexError):
                raise Internal(f"unpacking '{archive}' ended with status {status}: {text[-500:]}") from None
            if "error" in answer:
                raise InvalidArgument(answer["error"])
            root = Path(answer["directory"])
            with contextlib.suppress(OSError):
                locks.append(lock_shared(root, os.O_DIRECTORY))
                return root
        raise Internal(f"'{archive}' is removed from {self._cache} again and again while it is unpacked")

    async def _checked_interpreter(self, root: Path, repair: str) -> Interpreter:
        """Return the interpreter of an environment, which can run a worker. It is checked once, until a package there
        is added or removed.

        Args:
            repair: what to do if it cannot; "" = what a virtual environment needs in general.

        Raises:
            InvalidArgument: it cannot.
        """
        interpreter, state = await _within_limit(root, _interpreter_in, root, repair)
        if self._checked.get(root) != state:
            await self._check(root, interpreter, repair)
            self._checked[root] = state
        return interpreter

    async def _check(self, root: Path, interpreter: Interpreter, repair: str) -> None:
        """Check that a worker can run with an interpreter.

        Raises:
            InvalidArgument: it cannot.
        """
        python = interpreter.command[0]
        probe = Interpreter((python,), interpreter.variables)
        if self.sandbox is not None:  # it runs their code, for no model
            probe = self.sandbox.confine(probe, [], root)
        late = f"'{python}' took longer than {PROBE_SECONDS:g} s to import NumPy"
        text, status = await _output([*probe.command, "-c", _PROBE], probe.variables, PROBE_SECONDS, late)
        try:
            version, numpy, reason = json.loads(text.splitlines()[-1])
        except (ValueError, IndexError):
            text = f"'{python}' does not run (status {status}): {text.strip()[-500:]}"
            raise InvalidArgument(with_advice(text, repair)) from None
        if tuple(version) < OLDEST:
            text = f"'{root}' has Python {version[0]}.{version[1]}, expected {OLDEST[0]}.{OLDEST[1]} or newer"
            advice = "make the environment anew with such a Python (as with python3.11 -m venv)"
            raise InvalidArgument(f"{text}: {repair or advice}")
        if not numpy:
            text = (
                f"'{root}' has no NumPy that can be imported ({reason}), which every worker with an interpreter needs"
            )
            advice = f"install it there, as with '{python} -m pip install numpy', and pack an archive anew"
            raise InvalidArgument(f"{text}: {repair or advice}")


async def _output(command: Sequence[str], variables: Mapping[str, str], seconds: float, late: str) -> tuple[str, int]:
    """Return the output of a command, and its exit status.

    Raises:
        InvalidArgument: it cannot be started, or takes longer than `seconds`, which `late` says.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command, env=variables, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
    except OSError as error:
        raise InvalidArgument(f"'{command[0]}' cannot be started: {error.strerror}") from error
    try:
        output, _ = await asyncio.wait_for(process.communicate(), seconds)
    except asyncio.TimeoutError:
        raise InvalidArgument(late) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return output.decode(errors="replace"), process.returncode
