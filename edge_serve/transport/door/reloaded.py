"""A value that is made from files, and made again when they change. After an invalid change the old value stays."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from edge_serve.aio.offload import offload
from edge_serve.aio.within import within
from edge_serve.errors import EdgeServeError, InvalidArgument

log = logging.getLogger(__name__)

T = TypeVar("T")

#: how long the files may take to be read at the start, seconds
START_SECONDS = 10.0


class Reloaded(Generic[T]):
    """Holds one such value. Users read `value` each time they need it; the server calls `reload_changed` once a second.

    Args:
        what: name for the log, such as "certificate of HTTP".
        load: makes the value; raises EdgeServeError for invalid files.
        changed: called after each change.

    Raises:
        EdgeServeError: the files are invalid at the start, or their file system does not answer.
    """

    def __init__(
        self, what: str, paths: Sequence[str], load: Callable[[], T], changed: Callable[[], None] | None = None
    ) -> None:
        self._what = what
        self._paths = [path for path in paths if path]
        self._load = load
        self._changed = changed
        try:
            self._loaded, self.value = within(START_SECONDS, lambda: (self._stat(), load()))
        except TimeoutError as error:
            names = ", ".join(f"'{path}'" for path in self._paths)
            advice = "see to the file system that it lies on"
            raise InvalidArgument(f"cannot read {names}: {error.strerror}; {advice}") from error
        self._seen = self._loaded
        #: the last error in the log; "" = the files are valid
        self._logged = ""

    async def reload_changed(self) -> bool:
        """Load files that changed, once they are the same in two calls: they may be half-written before.

        Files that cannot be loaded are tried again in each call, because a group or a mount may come to be what they
        need, which no change of the files shows. The files are read in a thread, because a slow disk must not block the
        loop.

        Returns:
            Whether there is a new value.
        """
        seen, before = await offload(self._stat), self._seen
        self._seen = seen
        if seen == self._loaded:
            self._logged = ""
            return False
        if seen != before:
            return False
        try:
            self.value = await offload(self._load)
        except EdgeServeError as error:
            if error.message != self._logged:
                self._logged = error.message
                log.error("%s: %s; the value loaded before stays in use", self._what, error.message)
            return False
        self._loaded, self._logged = seen, ""
        log.info("%s has changed and was loaded again", self._what)
        if self._changed is not None:
            self._changed()
        return True

    def _stat(self) -> list[tuple[int, int, int, int] | None]:
        return [_signature(path) for path in self._paths]


def _signature(path: str) -> tuple[int, int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size
