"""What loading tells those who watch over the service, and what they tell it: which models are to be left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from edge_serve.errors import Internal


class LoadHistory:
    """One for the registry.

    Attributes:
        left_out: model -> why it is not loaded, until somebody asks for it by name or its directory changes.
        skipped: those of `left_out` that would have been loaded otherwise.
        returning: those that were skipped and are being loaded now.
        failed: models that failed to load when all were loaded last.
        unreadable: why the repositories could not be read when the server started; "" = they could, or can by now.
        reasons: model that lies in the repository -> why its last load failed.
        on_change: called when a load begins or ends, before anything of the model is touched.
    """

    def __init__(self) -> None:
        self.left_out: dict[str, str] = {}
        self.skipped: set[str] = set()
        self.returning: set[str] = set()
        self.failed: set[str] = set()
        self.unreadable = ""
        self.reasons: dict[str, str] = {}
        self.on_change: Callable[[], None] = lambda: None
        self._loading: Counter[str] = Counter()

    def loading(self) -> list[str]:
        """Models of which a version is being opened in a worker now."""
        return sorted(self._loading)

    @contextmanager
    def load(self, name: str) -> Iterator[None]:
        """A version of `name` is being opened."""
        self._loading[name] += 1
        self.on_change()
        try:
            yield
        finally:
            self._loading -= Counter([name])
            self.on_change()

    def wanted(self, names: Iterable[str]) -> list[str]:
        """Without those that are left out."""
        wanted = list(names)
        self.skipped.update(self.left_out.keys() & set(wanted))
        return [name for name in wanted if name not in self.left_out]

    def readmit(self, names: Iterable[str]) -> None:
        """Somebody wants these, or they are not what they were."""
        for name in names:
            self.left_out.pop(name, None)
            if name in self.skipped:
                self.skipped.discard(name)
                self.returning.add(name)

    def check(self, name: str) -> None:
        """May it be loaded, as the member of an ensemble, say?

        Raises:
            Internal: it is left out.
        """
        if name in self.left_out:
            raise Internal(f"model '{name}' is left out: {self.left_out[name]}")
