"""A load request with its own configuration or files (`parameters`; extension_model_repository.md)."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from edge_serve.aio.offload import offload
from edge_serve.config.stages import MOST_CONFIG_BYTES
from edge_serve.errors import Internal, InvalidArgument
from edge_serve.models.repository.names import is_text
from edge_serve.models.repository.walk import MOST_LEVELS
from edge_serve.records import frozen

if TYPE_CHECKING:
    import tempfile

log = logging.getLogger(__name__)

_FILE = "file:"
#: errors of a path rather than of the disk: a file where a directory should be, or the other way round, or too long
_BAD_PATH = frozenset((errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG))


@frozen
class Override:
    """The configuration and files that a client sent with a load request.

    Attributes:
        config: the configuration as JSON text, in place of config.pbtxt.
        files: path within the model directory -> content, in place of the model directory's.
    """

    config: str
    files: Mapping[str, bytes] = field(default_factory=dict)

    @staticmethod
    def parse(name: str, parameters: Mapping[str, Any]) -> Override | None:
        """Return the override of a request to load `name`; None when it has none.

        Raises:
            Internal: files without a configuration, or a path that leaves the directory.
            InvalidArgument: an unknown parameter, a path with too many levels, or too long a configuration.
        """
        # clients write `file:/1/model.py` as well; Triton joins it to the model's directory (core filesystem/api.cc)
        named = {key[len(_FILE) :].lstrip("/"): value for key, value in parameters.items() if key.startswith(_FILE)}
        files = {os.path.normpath(path): value for path, value in named.items()}
        unknown = [key for key in parameters if key != "config" and not key.startswith(_FILE)]
        if unknown:
            raise InvalidArgument(f"unrecognized load parameter '{unknown[0]}', expected 'config' or 'file:<path>'")
        for path in files:  # a path that leaves the directory begins with ".." now
            _check_path(name, path)
        config = parameters.get("config")
        if config is None and files:
            log.error("Load parameter 'config' must be specified for model file '%s' override", next(iter(files)))
            raise Internal(f"failed to load '{name}', failed to poll from model repository")
        if config is None:
            return None
        if len(str(config)) > MOST_CONFIG_BYTES:
            found = f"found a configuration of {len(str(config))} characters"
            raise InvalidArgument(f"load parameter 'config': {found}, expected at most {MOST_CONFIG_BYTES}")
        return Override(str(config), files)

    def directory(self, name: str) -> KeptFiles | None:
        """Create a directory that holds `<name>/` with the files; None if there are none. The caller must call
        `release`: the garbage collector may run at a depth of recursion at which it cannot remove directories.

        Raises:
            InvalidArgument: a path is too long, or lies below another file. Internal: no room for the files.
        """
        if not self.files:
            return None
        import tempfile  # few loads bring files, and the server starts sooner

        path = ""
        with contextlib.ExitStack() as undo:
            try:
                root = tempfile.TemporaryDirectory(prefix="edge-serve-", ignore_cleanup_errors=True)
                undo.callback(root.cleanup)
                for path, content in self.files.items():
                    target = Path(root.name, name, path)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content)
            except OSError as error:
                wrong = InvalidArgument if error.errno in _BAD_PATH else Internal
                raise wrong(f"model file override '{path[:200]}' cannot be written: {error.strerror}") from error
            undo.pop_all()
        return KeptFiles(root)


class KeptFiles:
    """The temporary directory with the files of a load request. The load has a reference to it, and so has each version
    that was loaded from it.

    Attributes:
        name: the path of the directory.
        cleanup: removes the directory.
    """

    def __init__(self, directory: tempfile.TemporaryDirectory[str]) -> None:
        self.name = directory.name
        self.cleanup = directory.cleanup
        self._references = 1

    def acquire(self) -> KeptFiles:
        """Return the files, for one more version."""
        self._references += 1
        return self

    async def release(self) -> None:
        """Release a reference. The last one removes the directory, in a thread."""
        self._references -= 1
        if not self._references:
            await offload(self.cleanup)


def _check_path(name: str, path: str) -> None:
    parts = PurePosixPath(path)
    if path == "." or ".." in parts.parts or "\x00" in path or not is_text(path):
        raise Internal(
            f"failed to load '{name}', failed to poll from model repository: model file override path {path!r} must "
            "stay inside the model directory, and be UTF-8"
        )
    if len(parts.parts) > MOST_LEVELS:
        found = f"found {len(parts.parts)} levels of directories"
        raise InvalidArgument(f"model file override path '{path[:200]}': {found}, expected at most {MOST_LEVELS}")
