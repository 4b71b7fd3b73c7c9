"""Makes the directory of a pack from its files, an interpreter, and wheels that are pinned by hash; removes it again.

Everything is made in a version of its own (`versions`), `pack.json` last. So a server never finds half a pack.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import signal
import stat
import subprocess
from pathlib import Path

from edge_serve import __version__
from edge_serve.backends.packs import (
    ENVIRONMENT,
    INTERFACE,
    MANIFEST,
    NAME,
    PACKS,
    SOURCES,
    find_pack,
    install_command,
    is_built_in,
)
from edge_serve.errors import InvalidArgument, NotFound, Unavailable
from edge_serve.pack.step import run
from edge_serve.pack.versions import is_version_link, locked_if_made_by_hand, new_version, switch, take_away, versions
from edge_serve.records import frozen
from edge_serve.workers.launch.interpreter import interpreter_of

#: files of a source that a worker does not need: in every directory, and of the pack as a whole
_COMPILED = shutil.ignore_patterns("__pycache__", "*.pyc")
_OF_THE_SOURCE = shutil.ignore_patterns(
    "requirements.txt", "requirements-*.txt", "requirements*.in", MANIFEST, ENVIRONMENT
)
#: in the names of files of requirements: the libraries for NVIDIA GPUs
GPU = "cuda13"
_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


@frozen
class PackWish:
    """A pack that is to be installed.

    Attributes:
        source: the directory with the pack's `backend.py` or `model.py`, and its requirements.
        python: the interpreter of the pack.
        wheels: directory of wheels that pip takes in place of a package index; None = it asks the index.
        gpu: with the libraries for NVIDIA GPUs.
    """

    name: str
    source: Path
    python: str
    wheels: Path | None = None
    gpu: bool = False


def source_of(name: str, given: Path | None) -> Path:
    """Return the directory with the files of a pack.

    Raises:
        NotFound: there is none.
    """
    source = given or SOURCES / name
    if any((source / file).is_file() for file in ("backend.py", "model.py")):
        return source
    if given is not None:
        raise NotFound(f"'{given}' has no backend.py and no model.py: name the directory of a pack with --from")
    if name not in PACKS:
        known = f"the packs of edge-serve are {', '.join(PACKS)}"
        raise NotFound(f"found no files for pack '{name}': {known}; name a directory with --from DIR")
    checkout = Path.cwd() / "packs" / name  # named, not taken: its code would run, and the command may be root's
    if checkout.is_dir():
        command = shlex.join(["edge-serve", "pack", "install", name, "--from", str(checkout)])
    else:
        command = install_command(name)
    raise NotFound(f"this edge-serve was installed without the files of its packs, which a checkout has: {command}")


def install(wish: PackWish, root: Path) -> Path:
    """Install a pack, in place of an older one. Return its directory.

    Raises:
        InvalidArgument: it cannot be made for this interpreter, or in this place.
        Unavailable: its library does not work on this machine, or a server uses one that was made by hand.
        Internal: pip or venv failed; their output has been printed.
        OSError: the directory cannot be written.
    """
    _check_place(wish.name, root)
    if root.resolve().is_relative_to(wish.source.resolve()):
        raise InvalidArgument(
            f"'{root}' is inside '{wish.source}', whose files would be copied there again and again: name another "
            "directory with --backend-directory"
        )
    root.mkdir(parents=True, exist_ok=True)
    with locked_if_made_by_hand(root / wish.name):  # now, and not after minutes of work
        pass
    with new_version(wish.name, root) as fresh:
        _copy_files(wish.source, fresh)
        version = python_version(wish.python)
        lock = find_lock(wish.source, version, platform.machine(), wish.gpu)
        if lock is not None:
            _make_environment(fresh / ENVIRONMENT, wish, lock)
            _probe(fresh)
        _finish(fresh, wish.name, version, lock)
        switch(fresh, root / wish.name)
    return root / wish.name


def _copy_files(source: Path, place: Path) -> None:
    """Copy the files of a source. The service's user can read the copies, whatever the modes in a checkout."""

    def ignore(folder: str, names: list[str]) -> set[str]:
        left_out = _COMPILED(folder, names)
        return left_out | _OF_THE_SOURCE(folder, names) if folder == str(source) else left_out

    try:
        shutil.copytree(source, place, ignore=ignore, dirs_exist_ok=True)
    except shutil.Error as error:  # its text is a list of tuples
        reason = error.args[0][0][2]
        raise InvalidArgument(f"the files of '{source}' cannot be copied: {reason}") from error
    for path in (place, *place.rglob("*")):
        path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)


def remove(name: str, root: Path) -> None:
    """Remove a pack; `sweep` removes its files, and those that an installation left behind.

    Raises:
        NotFound: there is neither a pack nor such files.
        Unavailable: a server uses one that was made by hand.
        OSError: it cannot be removed.
    """
    place = root / name
    known = NAME.match(name)
    if known and (is_version_link(place) or _is_pack(name, root)):
        take_away(place)
    elif not (known and versions(name, root)):
        raise NotFound(f"there is no pack '{name}' in '{root}': edge-serve pack list shows what is there")


def _check_place(name: str, root: Path) -> None:
    """Check that the server finds a pack of this name, and that it replaces nothing but a pack.

    Raises:
        InvalidArgument: with the reason.
    """
    if not NAME.match(name):
        raise InvalidArgument(f"'{name}' cannot be the name of a pack: use letters, digits, '-', and '_' only")
    if is_built_in(name):
        raise InvalidArgument(f"no pack can have the name '{name}': edge-serve has a backend of this name itself")
    place = root / name
    if place.exists() and not is_version_link(place) and not _is_pack(name, root):
        raise InvalidArgument(
            f"'{place}' is no pack of edge-serve, and installing would delete it: move it away, or name another "
            "directory with --backend-directory"
        )


def _is_pack(name: str, root: Path) -> bool:
    """Return whether there is a pack, whole or not. Another thing is a backend of Triton in C++, say."""
    try:
        found = find_pack(root, name)
    except Unavailable:
        return True
    return found is not None and found.name == name


def python_version(python: str) -> str:
    """Raises InvalidArgument: the interpreter does not run."""
    try:
        return subprocess.run([python, "-I", "-c", _VERSION], check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise InvalidArgument(f"--python {python} does not run: {error}") from error


def find_lock(source: Path, version: str, machine: str, gpu: bool = False) -> Path | None:
    """Return the file of requirements for a Python and a processor; None = the pack needs no environment.

    Args:
        gpu: the one with libraries for NVIDIA GPUs.

    Raises:
        InvalidArgument: there are files, and none is for this Python and processor; or none for GPUs.
    """
    if gpu:
        return _find_gpu_lock(source, version)
    kinds = [f"{version}-{machine}", version, machine]
    files = [source / name for name in (*(f"requirements-{kind}.txt" for kind in kinds), "requirements.txt")]
    found = next((path for path in files if path.is_file()), None)
    kinds = [path.stem.removeprefix("requirements-") for path in source.glob("requirements-*.txt")]
    others = sorted(kind for kind in kinds if not kind.endswith(GPU))
    if found is None and others:
        raise InvalidArgument(
            f"pack '{source.name}' has libraries for {', '.join(others)}, expected some for Python {version} on "
            f"{machine}: name another interpreter with --python"
        )
    return found


def _find_gpu_lock(source: Path, version: str) -> Path:
    found = source / f"requirements-{version}-{GPU}.txt"
    if found.is_file():
        return found
    others = sorted(path.stem.split("-")[1] for path in source.glob(f"requirements-*-{GPU}.txt"))
    if not others:
        raise InvalidArgument(f"pack '{source.name}' has no libraries for NVIDIA GPUs: leave out --gpu")
    raise InvalidArgument(
        f"pack '{source.name}' has libraries for NVIDIA GPUs and Python {', '.join(others)}, expected some for Python "
        f"{version}: name another interpreter with --python"
    )


def _make_environment(place: Path, wish: PackWish, lock: Path) -> None:
    """Make a virtual environment with the wheels of a lock file.

    `-I`: `-m` alone imports from the current directory first, where another user may have left a `venv.py` or `pip.py`.
    """
    run([wish.python, "-I", "-m", "venv", str(place)], f"{wish.python} -m venv (Debian: apt-get install python3-venv)")
    pip = [str(place / "bin/python"), "-I", "-m", "pip", "--disable-pip-version-check"]
    index = [] if wish.wheels is None else ["--no-index", f"--find-links={wish.wheels}"]
    arguments = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--requirement", str(lock)]
    run([*pip, "install", "--quiet", *index, *arguments], "pip install")
    run([*pip, "uninstall", "--quiet", "--yes", "pip"], "pip uninstall")


def _probe(place: Path) -> None:
    """Import the backend with its library.

    Raises:
        Unavailable: it cannot be imported here.
    """
    interpreter = interpreter_of(place / ENVIRONMENT)
    command = [*interpreter.command, "edge_serve.pack.probe", str(place)]
    done = subprocess.run(command, env=dict(interpreter.variables), capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGILL:
        raise Unavailable(f"the library of pack '{place.name}' needs an instruction that this processor lacks")
    if done.returncode:
        raise Unavailable(f"pack '{place.name}' does not work here: {(done.stdout + done.stderr).strip()[-1000:]}")


def _finish(place: Path, name: str, version: str, lock: Path | None) -> None:
    """Write pack.json, when everything else is on the disk."""
    text = manifest(name, __version__, version, platform.machine(), lock)
    os.sync()
    with (place / MANIFEST).open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def manifest(name: str, version: str, python: str, machine: str, lock: Path | None) -> str:
    """Return the text of pack.json.

    Args:
        version: of edge-serve, or of the package.
        python: version of the interpreter, such as `3.11`.
        lock: the file of requirements; None = the pack has no environment.
    """
    members = {
        "name": name,
        "version": version,
        "interface": INTERFACE,
        "python": python,
        "architectures": [machine],
        "requirements_sha256": hashlib.sha256(lock.read_bytes()).hexdigest() if lock is not None else "",
    }
    return json.dumps(members, indent=2) + "\n"
