"""The directory of a new model: written beside its place under a hidden name, then renamed, so that no half is seen.

It is brought to the disk before that, so that no half is seen after a power cut either.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from edge_serve.config.model.layout import CONFIG_FILE
from edge_serve.errors import InvalidArgument
from edge_serve.files import lock_shared, locked, sync_directory, sync_tree
from edge_serve.models.repository.names import check_name, is_text
from edge_serve.records import frozen

#: version of a new model
VERSION = "1"
#: of the name of its directory while it is written
_STAGED = ".init-"


@frozen
class ModelPlace:
    """Where a new model goes.

    Attributes:
        staged: its directory while it is written.
    """

    repository: Path
    name: str
    staged: Path

    @property
    def version(self) -> Path:
        """The version directory while it is written."""
        return self.staged / VERSION

    def write(self, name: str, text: str) -> None:
        """Write a text file below the model's directory."""
        path = self.staged / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def new_directory(repository: Path, name: str) -> Iterator[ModelPlace]:
    """Yield the place of a new model. When the block ends without an error the model is there, else nothing is.

    Raises:
        InvalidArgument: a bad name, a model of this name is there, or the repository cannot be used.
        OSError: the directory cannot be written.
    """
    check_name(name)
    if name.startswith((".", "-")):
        raise InvalidArgument(f"invalid model name '{name}': the first character must not be '{name[0]}'")
    made = _prepare(repository)
    final = repository / name
    if os.path.lexists(final):
        raise InvalidArgument(f"'{final}' is there already: choose another name, or remove it first")
    _sweep(repository)
    staged = repository / f"{_STAGED}{secrets.token_hex(8)}"
    try:
        with contextlib.ExitStack() as undo:
            staged.mkdir()
            undo.callback(os.close, lock_shared(staged))
            (staged / VERSION).mkdir()
            yield ModelPlace(repository, name, staged)
            sync_tree(staged)
            os.rename(staged, final)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):
                repository.rmdir()
        raise
    for directory in (repository, repository.absolute().parent) if made else (repository,):
        with contextlib.suppress(OSError):  # the model is there, also in a directory that may not be read or synced
            sync_directory(directory)


def _sweep(repository: Path) -> None:
    """Remove the directories of commands that were killed. Those that still run have a lock."""
    for left in repository.glob(f"{_STAGED}{'[0-9a-f]' * 16}"):
        with contextlib.suppress(OSError), locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(left)


def _prepare(repository: Path) -> bool:
    """Make the repository where it does not exist. Return whether it was made."""
    if not is_text(str(repository.absolute())):
        raise InvalidArgument(f"--model-repository {os.fspath(repository)!a} is not UTF-8: rename the directory")
    if (repository / CONFIG_FILE).exists():
        raise InvalidArgument(
            f"'{repository}' is the directory of a model, because it has a {CONFIG_FILE}: give the directory above it "
            "(--model-repository)"
        )
    if repository.is_dir():
        return False
    if os.path.lexists(repository):
        raise InvalidArgument(f"--model-repository '{repository}' is no directory")
    if not repository.absolute().parent.is_dir():
        raise InvalidArgument(f"--model-repository '{repository}': there is no directory '{repository.parent}'")
    repository.mkdir()
    return True
