"""Backend packs: directories below `--backend-directory` that hold a backend, and perhaps its own interpreter.

The front end finds the pack of a model and starts the worker with its interpreter. The worker imports the backend from
the pack (`loader`). Both have this module, which uses the standard library only. docs/packs.md is the user's page.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_serve.errors import EdgeServeError, Unavailable
from edge_serve.records import frozen

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

#: number of the names and functions of edge-serve that packs use. Add 1 if a pack of the version before would not work:
#: it is then refused, and has to be installed again (tests/packs/test_interface.py)
INTERFACE = 1
#: of the entry points of installed packages
GROUP = "edge_serve.backends"
#: written last by the installer of a pack
MANIFEST = "pack.json"
#: the virtual environment of a pack; or an archive of one, under the name that Triton gives it (core
#: src/python_backend utilities, SetPythonBasedBackendExecutionEnvironment)
ENVIRONMENT, ARCHIVE = "venv", "pb_exec_env_model.py.tar.gz"
_PYTHON_BASED = "model.py"
#: file of a backend -> whether it is one of Triton's python-based backends
_FILES = {"backend.py": False, _PYTHON_BASED: True}
#: backend of config.pbtxt -> packs that may serve its models, the first that is there
_SERVED_BY = {"tensorflow": ("tensorflow", "openvino")}
#: the packs that `edge-serve pack` installs, and those that serve `runtime: "model.py"`, too
PACKS = ("fil", "openvino", "pytorch")
_WITH_RUNTIME = ("pytorch",)
#: their files, beside the package in a checkout; an installed package has none
SOURCES = Path(__file__).resolve().parents[2] / "packs"

#: of a backend, and so of a pack
NAME = re.compile(r"[A-Za-z0-9_-]+\Z")
#: files of edge_serve/backends that are no backends
OTHERS = frozenset(
    {"base", "binding_plan", "file_kinds", "host", "loader", "packs", "parameters", "privacy", "python_path"}
)


@frozen
class Pack:
    """A backend that was found in the backend directory.

    Attributes:
        name: of its directory, which is the name of the backend.
        is_python_based: Triton's `model.py` serves, not our `backend.py`.
        environment: its virtual environment, or an archive of one; None = the server's interpreter runs it.
        state: differs after the pack was replaced.
    """

    name: str
    directory: Path
    is_python_based: bool = False
    environment: Path | None = None
    state: str = ""

    def as_python_based(self) -> Pack | None:
        """Return the pack with its `model.py`, which may lie beside a `backend.py`, as Triton's backend for PyTorch has
        both; None = it has none."""
        return replace(self, is_python_based=True) if (self.directory / _PYTHON_BASED).is_file() else None

    def as_json(self) -> dict[str, Any]:
        """Return it as it travels to a worker, which needs no more than this."""
        return {"name": self.name, "directory": str(self.directory), "is_python_based": self.is_python_based}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Pack:
        """Return a pack that came from the front end."""
        return Pack(value["name"], Path(value["directory"]), value["is_python_based"])


def find_pack(root: Path | None, backend: str) -> Pack | None:
    """Return the pack of a backend, None where there is none. Reads the file system, so it may block.

    Args:
        root: `--backend-directory`; None = there is none.

    Raises:
        Unavailable: the pack cannot be used on this machine.
    """
    if root is None or not NAME.match(backend) or is_built_in(backend):
        return None
    for name in _SERVED_BY.get(backend, (backend,)):
        directory = root / name
        try:
            # resolved: the link that a package switches must not lead a running worker to files of two versions
            if directory.is_dir() and (pack := _read(name, directory.resolve())) is not None:
                return pack
        except OSError as error:
            place = error.filename or directory
            raise Unavailable(
                f"pack '{name}' cannot be read: '{place}': {error.strerror}; give the server's user the right to read "
                f"it: chmod -R o+rX {shlex.quote(str(directory.absolute()))}"
            ) from error
    return None


def _read(name: str, directory: Path) -> Pack | None:
    """Return the pack in a directory; None: the directory holds something else, such as a backend of Triton in C++,
    which may have a `model.py`, too."""
    file = next((file for file in _FILES if (directory / file).is_file()), "")
    environment = next((path for kind in (ENVIRONMENT, ARCHIVE) if (path := directory / kind).exists()), None)
    manifest = directory / MANIFEST
    has_manifest = manifest.is_file()
    if (environment == directory / ENVIRONMENT and not has_manifest) or (has_manifest and not file):
        missing = (file and MANIFEST) or "backend.py"
        raise Unavailable(
            f"pack '{name}' in '{directory}' is half installed, it has no {missing}: {install_command(name)} (or, for "
            f"one that was made by hand, write {{}} into {MANIFEST})"
        )
    if not file or (not has_manifest and any(directory.glob("libtriton_*.so"))):
        return None
    if has_manifest:
        _check_manifest(name, _manifest(name, manifest))
    stat = (manifest if has_manifest else directory / file).stat()
    return Pack(name, directory, _FILES[file], environment, f"{stat.st_ino}-{stat.st_mtime_ns}")


def _check_manifest(name: str, manifest: Mapping[str, Any]) -> None:
    """Raises Unavailable: the pack is for another processor, or another edge-serve."""
    machines, own = manifest.get("architectures", []), platform.machine()
    if machines and own not in machines:
        raise Unavailable(
            f"pack '{name}' is for {', '.join(map(str, machines))}, and this machine is {own}: {install_command(name)}"
        )
    # the installer wrote no number at first; one that was made by hand has none
    interface = manifest.get("interface", 1 if "requirements_sha256" in manifest else INTERFACE)
    if interface != INTERFACE:
        raise Unavailable(
            f"pack '{name}' is for another edge-serve (interface {interface}, expected {INTERFACE}); install the one "
            f"of this version: {install_command(name)}"
        )


def _manifest(name: str, path: Path) -> dict[str, Any]:
    """Return the content of a pack.json. Raises Unavailable."""
    try:
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict) or not isinstance(value.get("architectures", []), list):
            raise ValueError("expected an object with a list of architectures")
    except ValueError as error:
        raise Unavailable(f"pack '{name}': '{path}' cannot be read: {error}: {install_command(name)}") from error
    return value


def is_built_in(backend: str) -> bool:
    """Return whether a backend is part of edge-serve."""
    return built_in_module(backend) != ""


def built_in_module(backend: str) -> str:
    """Return the module of a backend that is part of edge-serve; "" = there is none. Imports no library."""
    path = f"{__package__}.{backend}"
    if not backend.isidentifier() or backend in OTHERS or (found := importlib.util.find_spec(path)) is None:
        return ""
    if found.submodule_search_locations is None:
        return path
    path += ".backend"
    return path if importlib.util.find_spec(path) is not None else ""  # else a folder that other backends use


def install_command(name: str) -> str:
    """Return what installs a pack, or installs it anew."""
    if name not in PACKS:
        return "install it again"
    return f"edge-serve pack install {name}" + ("" if (SOURCES / name).is_dir() else f" --from CHECKOUT/packs/{name}")


def installed_backends() -> EntryPoints:
    """Return the backends that installed packages have."""
    from importlib import metadata  # a tenth of a worker's imports, and few workers need it

    return metadata.entry_points(group=GROUP)


def notes_on_backends(backends: Iterable[str], directory: str) -> list[str]:
    """Return a line for the log about each backend of `--backend-config` that is not there.

    Reads the file system, so it may block.

    Args:
        directory: `--backend-directory`; "" = there is none. It may be missing: the settings of the Debian package name
            one that only the first 'edge-serve pack install' makes.
    """
    notes, root = [], Path(directory).absolute() if directory else None
    for name in dict.fromkeys(filter(None, backends)):
        if not (is_built_in(name) or _has_pack(root, name) or installed_backends().select(name=name)):
            place = f"'{root}'" if root is not None else "a backend directory"
            notes.append(
                f"--backend-config={name},... has no effect: no backend '{name}' is installed or in {place} (only a "
                "backend.py of a model could read it)"
            )
    return notes


def _has_pack(root: Path | None, backend: str) -> bool:
    try:
        return find_pack(root, backend) is not None
    except EdgeServeError:  # a model says why it cannot be used
        return True


class Packs:
    """The packs of a server.

    Args:
        root: `--backend-directory`; None: no model may have a backend from a pack.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root

    def find(self, backend: str, model: str, runtime: str = "") -> Pack | None:
        """Return the pack that has the backend of a model; None = the backend is elsewhere. May block.

        Args:
            runtime: of its configuration.

        Raises:
            Unavailable: the pack cannot be used on this machine.
        """
        try:
            pack = find_pack(self.root, backend)
            if runtime != _PYTHON_BASED:
                return pack
            found = pack and pack.as_python_based()
            if pack is not None and found is None and backend in _WITH_RUNTIME:
                raise Unavailable(f"its pack is older and has no {_PYTHON_BASED}: {install_command(backend)}")
            return found
        except EdgeServeError as error:
            raise Unavailable(f"backend '{backend}' of model '{model}' is not available: {error.message}") from error
