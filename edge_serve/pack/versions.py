"""The versions of a pack in a backend directory, and which of them the server finds.

    NAME                 a link to the version that models are loaded with from now on
    .NAME-xxxxxxxx/NAME  a version: it stays while a worker runs it, or a command makes it

The user of a version holds a shared lock on its directory: the front end for its workers (`launch.environments`), and
the command that makes it. So files that a worker has yet to import are neither replaced nor removed. A directory NAME
that was made by hand is replaced and removed only while no server uses it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from edge_serve.errors import Unavailable
from edge_serve.files import lock_shared, locked


@contextlib.contextmanager
def new_version(name: str, root: Path) -> Iterator[Path]:
    """Yield an empty directory for a version, locked. After an error it is removed, unless the server finds it already.

    Raises:
        OSError: it cannot be made.
    """
    version = _place(name, root)
    version.mkdir()
    lock = lock_shared(version)
    try:
        yield version
    except BaseException:
        if not _is_found(version, root / name):
            shutil.rmtree(version.parent, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def switch(version: Path, link: Path) -> None:
    """Make models load with a version from now on, in one step.

    Raises:
        Unavailable: see `locked_if_made_by_hand`.
        OSError: the directory cannot be written.
    """
    fresh = version.with_name("link")
    fresh.symlink_to(version.relative_to(link.parent))
    if not link.is_symlink():
        take_away(link)
    fresh.rename(link)
    os.sync()  # before older versions are removed: after a power cut the link must not name one of them


def is_version_link(link: Path) -> bool:
    """Return whether a path is a link that `switch` made, also when its version is gone."""
    version = Path(os.path.realpath(link))
    home = version.parent
    return (
        link.is_symlink()
        and version.name == link.name
        and home.name.startswith(f".{link.name}-")
        and home.parent == Path(os.path.realpath(link.parent))
    )


@contextlib.contextmanager
def locked_if_made_by_hand(link: Path) -> Iterator[None]:
    """Lock a directory that takes the place of the link, except on a file system without locks. It has no other path,
    so workers that import its files later would import those of its successor.

    Raises:
        Unavailable: a server uses it.
    """
    with contextlib.ExitStack() as undo:
        if link.is_dir() and not link.is_symlink():
            try:
                undo.enter_context(locked(link, fcntl.LOCK_EX | fcntl.LOCK_NB))
            except BlockingIOError as error:
                raise Unavailable(
                    f"'{link}' was made by hand, and a server uses it: unload its models, or stop the server, and run "
                    "the command again"
                ) from error
            except OSError:  # the server has no lock there either
                pass
        yield


def take_away(link: Path) -> None:
    """Make the server find no version. A directory that was made by hand becomes one, which `sweep` removes.

    Raises:
        Unavailable: see `locked_if_made_by_hand`.
    """
    with locked_if_made_by_hand(link):
        if link.is_symlink():
            link.unlink()
        elif link.is_dir():
            link.rename(_place(link.name, link.parent))


def versions(name: str, root: Path) -> list[Path]:
    """Return the versions of a pack, whole or not."""
    return sorted(root.glob(f".{name}-*/{name}"))


def sweep(name: str, root: Path) -> list[Path]:
    """Remove the versions that the server does not find, and that are not in use. Return those that are in use.

    Raises:
        OSError: one cannot be removed.
    """
    link, used = root / name, []
    for version in versions(name, root):
        if _is_found(version, link):  # not locked even for a moment: a model that is loaded then could not lock it
            continue
        with contextlib.ExitStack() as undo:
            try:
                undo.enter_context(locked(version, fcntl.LOCK_EX | fcntl.LOCK_NB))
            except FileNotFoundError:  # another command has removed it
                continue
            except OSError:
                used.append(version)
                continue
            if not _is_found(version, link):  # with the lock: a command may have switched to it
                shutil.rmtree(version.parent)
    return [version for version in used if not _is_found(version, link)]


def _is_found(version: Path, link: Path) -> bool:
    return version.resolve() == link.resolve()


def _place(name: str, root: Path) -> Path:
    """Return a path for a version, in a new directory that the service's user can read."""
    home = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root))
    home.chmod(0o755)
    return home / name
