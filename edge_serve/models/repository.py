"""What lies on disk: `<repository>/<model>/<version>/...`, and whether it changed.

Version directories are integers without leading zeros; anything else is ignored, as in triton-inference-server/core
src/model_repository_manager/model_lifecycle.cc and docs/user_guide/model_repository.md of the server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_serve.errors import InvalidArgument

#: file -> (modification time ns, size): two equal fingerprints mean that nothing was touched in between
Fingerprint = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A model directory. `ambiguous` when the same name lies in two repositories."""

    name: str
    directory: Path
    ambiguous: bool = False


class Repository:
    """The model repositories, in the order of `--model-repository`."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = list(roots)

    def scan(self) -> dict[str, Found]:
        """Every model, by name.

        Raises:
            InvalidArgument: a repository cannot be read.
        """
        models: dict[str, Found] = {}
        for root in self.roots:
            for directory in _directories(root):
                twice = directory.name in models
                models[directory.name] = Found(directory.name, directory.resolve(), ambiguous=twice)
        return dict(sorted(models.items()))

    def find(self, name: str) -> Found | None:
        """One model by its directory's name."""
        places = [root / name for root in self.roots if os.path.isdir(root / name)]  # False also for an endless name
        return Found(name, places[0].resolve(), ambiguous=len(places) > 1) if places else None


def _directories(root: Path) -> Iterator[Path]:
    try:
        with os.scandir(root) as entries:
            yield from (Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise InvalidArgument(
            f"failed to read model repository '{root}': {error.strerror}; give --model-repository an existing directory"
        ) from error


def versions(directory: Path) -> list[int]:
    """The version directories of a model, ascending."""
    return sorted(
        int(path.name)
        for path in _directories(directory)
        if path.name.isascii() and path.name.isdigit() and (path.name == "0" or not path.name.startswith("0"))
    )


def fingerprint(directory: Path) -> Fingerprint:
    """Names, times and sizes of everything below `directory`, links followed; what vanishes meanwhile is left out."""
    rows = []
    for folder, names, files in os.walk(directory, followlinks=True):
        names[:] = [name for name in names if name != "__pycache__"]
        for name in [*files, *names]:
            path = os.path.join(folder, name)
            try:
                status = os.stat(path)
            except OSError:
                continue
            size = 0 if name in names else status.st_size
            rows.append((os.path.relpath(path, directory), 0 if name in names else status.st_mtime_ns, size))
    return tuple(sorted(rows))
