"""Command lines that run our Python code: with the server's own interpreter, or with that of an environment.

Light to import: the first workers are started before the server has NumPy (`first_workers`).
"""

from __future__ import annotations

import os
import site
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

import edge_serve
from edge_serve.backends.privacy import private
from edge_serve.errors import InvalidArgument, with_advice
from edge_serve.records import entity, frozen

#: variables of the server's own virtual environment, which would mislead another interpreter
_FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")
#: starts a module of this package without a place of its own on the module path
_LAUNCHER = Path(__file__).with_name("launcher.py")
#: when this program's own modules began to be imported
_STARTED_NS = time.time_ns()
#: the service manager's words to the front end alone (sd_notify(3), sd_listen_fds(3)); no child speaks in its name
OURS = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


@frozen
class Interpreter:
    """Command line and environment to run our Python code: arguments before a module's name, and variables.

    Attributes:
        program: the file that the command starts in its turn, looked for before each start; "" = none.
    """

    command: tuple[str, ...]
    variables: Mapping[str, str]
    program: str = ""


@entity
class Environment:
    """An interpreter that a worker runs with, until `release`: what was unpacked for it, and its pack, stay as long.

    Attributes:
        root: its directory; None: the server's own interpreter.
    """

    interpreter: Interpreter
    root: Path | None = None
    _locks: list[int] = field(default_factory=list)

    def release(self) -> None:
        """Release the files of the environment, once the worker has ended. A second call does nothing."""
        while self._locks:
            os.close(self._locks.pop())


def own_interpreter() -> Interpreter:
    """Return the server's own interpreter. It finds this package also if that is not installed.

    Nothing is imported from the working directory, where models may be able to write.
    """
    variables = _inherited(OURS)
    home = Path(edge_serve.__file__).resolve().parent.parent
    if home.name not in ("site-packages", "dist-packages"):
        known = variables.get("PYTHONPATH")
        variables["PYTHONPATH"] = f"{home}{os.pathsep}{known}" if known else str(home)
    user_site = () if site.ENABLE_USER_SITE else ("-s",)
    start = ("-P", "-m") if sys.version_info >= (3, 11) else (str(_LAUNCHER),)
    return Interpreter((sys.executable, *user_site, *start), variables)


def has_changed_code(package: Path = Path(edge_serve.__file__).parent, since_ns: int = _STARTED_NS) -> bool:
    """Return whether modules of this package came or changed since this program started, so that a new worker would not
    fit it: `git pull` or `pip install` during its run."""
    try:
        return any(
            os.lstat(os.path.join(folder, name)).st_ctime_ns > since_ns
            for folder, _, names in os.walk(package)
            for name in names
            if name.endswith(".py")
        )
    except OSError:  # it was removed after it was listed
        return True


def interpreter_of(root: Path, repair: str = "") -> Interpreter:
    """Return the interpreter of an environment, with none of the server's own packages and variables.

    Args:
        repair: what to do if there is none.

    Raises:
        InvalidArgument: there is none.
    """
    candidates = [root / "bin/python", root / "bin/python3"]
    python = next((path for path in candidates if path.is_file()), None)
    if python is None:
        text = (
            f"found no bin/python in '{root}', expected a virtual environment, a conda environment or an archive of one"
        )
        if link := next((path for path in candidates if path.is_symlink()), None):
            text = f"'{link}' is a link to '{os.readlink(link)}', which does not lead to a Python of this machine"
        raise InvalidArgument(with_advice(text, repair))
    variables = _inherited((*_FOREIGN, *OURS))
    variables |= {"PYTHONNOUSERSITE": "1", "PATH": f"{root / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    if (root / "conda-meta").is_dir():
        libraries = os.environ.get("LD_LIBRARY_PATH")
        variables["CONDA_PREFIX"] = str(root)
        variables["LD_LIBRARY_PATH"] = f"{root / 'lib'}{os.pathsep}{libraries}" if libraries else str(root / "lib")
    else:
        variables["VIRTUAL_ENV"] = str(root)
    return Interpreter((str(python), str(_LAUNCHER)), variables)


def _inherited(without: Sequence[str]) -> dict[str, str]:
    return private({name: value for name, value in os.environ.items() if name not in without})


def environment_cache(directory: str, environ: Mapping[str, str]) -> Path:
    """Return where archives of environments are unpacked: in `directory` (--execution-env-directory) if it is given,
    else in $CACHE_DIRECTORY (systemd's CacheDirectory=), or in the user's cache."""
    if directory:
        return Path(directory)
    given = environ.get("CACHE_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given, "environments")
    home = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home, "edge-serve", "environments")
