"""The state of loads that supervision reads and sets: which models are loading, failed, or left out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from edge_serve.errors import Internal


class LoadHistory:
    """The loads of one registry.

    Attributes:
        left_out: model -> why it is not loaded, until a client asks for it by name or its directory changes.
        skipped: those of `left_out` that would have been loaded otherwise.
        returning: models that were skipped and are being loaded now.
        failed: models that failed the last time all models were loaded.
        unreadable: why the repositories could not be read when the server started; "" = they could, or can by now.
        on_change: called when a load begins, before it touches the model, and when it ends.
    """

    def __init__(self) -> None:
        self.left_out: dict[str, str] = {}
        self.skipped: set[str] = set()
        self.returning: set[str] = set()
        self.failed: set[str] = set()
        self.unreadable = ""
        self.on_change: Callable[[], None] = lambda: None
        self._loading: Counter[str] = Counter()
        #: model -> when its oldest load began
        self._began: dict[str, float] = {}
        #: loads that began before this time are late
        self._late_before = 0.0

    def loading(self) -> list[str]:
        """Return the models of which a version is being opened in a worker now."""
        return sorted(self._loading)

    def loading_in_time(self) -> list[str]:
        """Return those of `loading` that are not late."""
        return sorted(name for name, began in self._began.items() if began >= self._late_before)

    def note_late(self, began_before: float) -> None:
        """Count the loads as late that began before a time (`time.monotonic`): the server serves without them, and they
        are suspects of no crash."""
        self._late_before = began_before

    @contextmanager
    def load(self, name: str) -> Iterator[None]:
        """Count a load of `name` while the context lasts."""
        self._loading[name] += 1
        self._began.setdefault(name, time.monotonic())
        self.on_change()
        try:
            yield
        finally:
            self._loading -= Counter([name])
            if name not in self._loading:
                del self._began[name]
            self.on_change()

    def wanted(self, names: Iterable[str]) -> list[str]:
        """Return the names without those that are left out."""
        wanted = list(names)
        self.skipped.update(self.left_out.keys() & set(wanted))
        return [name for name in wanted if name not in self.left_out]

    def readmit(self, names: Iterable[str]) -> None:
        """Stop leaving these models out, because a client or operator asked for them or their files have changed."""
        for name in names:
            self.left_out.pop(name, None)
            if name in self.skipped:
                self.skipped.discard(name)
                self.returning.add(name)

    def remove(self, name: str) -> None:
        """Stop leaving a model out, because it is gone from the repository."""
        self.left_out.pop(name, None)
        self.skipped.discard(name)

    def check(self, name: str) -> None:
        """Check that a model, such as a member of an ensemble, may be loaded.

        Raises:
            Internal: the model is left out.
        """
        if name in self.left_out:
            raise Internal(f"model '{name}' is left out: {self.left_out[name]}")
