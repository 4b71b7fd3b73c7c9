"""What lies on disk: `<repository>/<model>/<version>/...`, and whether it changed.

Version directories are integers of 64 bits without leading zeros; anything else is ignored, as in
triton-inference-server/core src/model_repository_manager/model_lifecycle.cc and docs/user_guide/model_repository.md of
the server.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edge_serve.config import model_config_pb2 as pb
from edge_serve.config.checks_ensemble import NAMESPACE_END
from edge_serve.errors import InvalidArgument
from edge_serve.models.names import is_text

log = logging.getLogger(__name__)

#: versions are int64 in the protocol and in config.pbtxt
_HIGHEST_VERSION = (1 << 63) - 1

#: entries of a model directory that nothing but the configuration is read from
_CONFIGURATION = ("config.pbtxt", "configs")

#: rows of (path, modification time ns, size, inode): two equal ones mean that nothing was touched in between
Fingerprint = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A model directory.

    Attributes:
        name: its directory's, or with namespaces `<repository>::<name>`.
        ambiguous: the same name lies in two repositories, and there are no namespaces.
    """

    name: str
    directory: Path
    ambiguous: bool = False


class Repository:
    """The model repositories, in the order of `--model-repository`; one that is given twice is one, as in Triton.

    Args:
        namespaced: models of one name may lie in several repositories (`--model-namespacing`). Each then goes by
            `<repository>::<name>`, which is how Triton's src/model.h writes a ModelIdentifier.

    Attributes:
        nameless: directories that `scan` has left out, because their names are no text; each is told once.
    """

    def __init__(self, roots: Sequence[Path], *, namespaced: bool = False) -> None:
        self.roots = list(dict.fromkeys(roots))
        self.namespaced = namespaced
        self.nameless: set[Path] = set()

    def named(self, name: str) -> list[str]:
        """What a client may mean by `name`: that itself, or with namespaces the models of this name that lie here."""
        if not self.namespaced or namespace_of(name):
            return [name]
        return [_identity(root, name) for root in self.roots if os.path.isdir(root / name)] or [name]

    def bind(self, config: pb.ModelConfig, ensemble: str) -> None:
        """Write into the steps of an ensemble which of the models of a name is meant: that beside it before others."""
        for step in config.ensemble_scheduling.step:
            step.model_namespace = self._namespace(step.model_name, ensemble)

    def bound(self, config: pb.ModelConfig, ensemble: str) -> bool:
        """Whether the steps still mean what `bind` wrote into them."""
        steps = config.ensemble_scheduling.step
        return all(step.model_namespace == self._namespace(step.model_name, ensemble) for step in steps)

    def _namespace(self, name: str, ensemble: str) -> str:
        found = [namespace_of(identity) for identity in self.named(name)]
        own = namespace_of(ensemble)
        return own if own in found else found[0]

    def scan(self) -> dict[str, Found]:
        """Every model, by name, or with namespaces by `<repository>::<name>`.

        Raises:
            InvalidArgument: a repository cannot be read.
        """
        models: dict[str, Found] = {}
        for root in self.roots:
            for directory in _directories(root):
                if not is_text(directory.name):
                    self._tell_nameless(directory)
                    continue
                name = _identity(root, directory.name) if self.namespaced else directory.name
                models[name] = Found(name, directory.resolve(), ambiguous=name in models)
        return dict(sorted(models.items()))

    def find(self, name: str) -> Found | None:
        """One model, by what `scan` calls it."""
        roots = [root for root in self.roots if not self.namespaced or namespace_of(name) == str(root.absolute())]
        own = plain_name(name)
        places = [root / own for root in roots if os.path.isdir(root / own)]  # False also for an endless name
        return Found(name, places[0].resolve(), ambiguous=len(places) > 1) if places else None

    def _tell_nameless(self, directory: Path) -> None:
        """No client could ask for it, and no index could list it."""
        if directory not in self.nameless:
            self.nameless.add(directory)
            log.warning("%r is left out: the name of a model must be UTF-8", os.fspath(directory))


def _identity(root: Path, name: str) -> str:
    return f"{root.absolute()}{NAMESPACE_END}{name}"


def plain_name(identity: str) -> str:
    """The name that clients see."""
    return _halves(identity)[1]


def namespace_of(identity: str) -> str:
    """The repository that a model goes by; "" without namespaces."""
    return _halves(identity)[0]


def _halves(identity: str) -> tuple[str, str]:
    """A name may have `::` in it, and a repository that is absolute has a slash, which a name cannot have."""
    above, slash, last = identity.rpartition("/")
    directory, _, name = last.partition(NAMESPACE_END)
    return (f"{above}/{directory}", name) if slash else ("", identity)


def _directories(
    root: Path, what: str = "model repository", hint: str = "; give --model-repository an existing directory"
) -> Iterator[Path]:
    try:
        with os.scandir(root) as entries:
            yield from (Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise InvalidArgument(f"failed to read {what} '{root}': {error.strerror}{hint}") from error


def versions(directory: Path) -> list[int]:
    """The version directories of a model, ascending."""
    return sorted(
        int(path.name)
        for path in _directories(directory, "the directory of a model", "")
        if path.name.isascii() and path.name.isdigit() and (path.name == "0" or not path.name.startswith("0"))
        if int(path.name) <= _HIGHEST_VERSION
    )


def fingerprint(directory: Path) -> Fingerprint:
    """Names, times and sizes of everything below `directory`, links followed; what vanishes meanwhile is left out."""
    return tuple(row for row, _ in _walk(directory))


def without_configuration(print: Fingerprint) -> Fingerprint:
    """What a model's fingerprint says beside the configuration, which is compared by what it says."""
    return tuple(row for row in print if _top(row[0]) not in _CONFIGURATION)


def of_version(print: Fingerprint, version: int) -> Fingerprint:
    """What `without_configuration` says about one version: its own directory, and what all versions share."""
    rows = [(row, _top(row[0])) for row in without_configuration(print)]
    return tuple(row for row, top in rows if not top.isdigit() or top == str(version))


def _top(path: str) -> str:
    return path.partition(os.sep)[0]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model directory at one moment; equal ones are the same model.

    Attributes:
        directory: with links resolved.
        parts: entry of the model directory -> what lies there.
        whole: entries that were renamed into place when everything in them was there already; "" = the model itself.
    """

    directory: Path
    ambiguous: bool
    parts: Mapping[str, Fingerprint]
    whole: frozenset[str] = field(default=frozenset(), compare=False)


def snapshot(found: Found) -> Snapshot:
    """The model as it lies on disk now.

    A rename changes the change time of a directory, which nothing else in it then surpasses, and not its modification
    time; an entry that is made, removed or written changes both.
    """
    parts: dict[str, list[tuple[str, int, int, int]]] = {}
    newest: dict[str, int] = {}
    for row, changed in _walk(found.directory):
        top, deeper, _ = row[0].partition(os.sep)
        parts.setdefault(top, []).append(row)
        if deeper:
            newest[top] = max(newest.get(top, 0), changed)
        newest[""] = max(newest.get("", 0), changed)
    whole = {top for top, inside in newest.items() if _came_after(found.directory / top, inside)}
    return Snapshot(
        found.directory, found.ambiguous, {top: tuple(rows) for top, rows in parts.items()}, frozenset(whole)
    )


def _came_after(directory: Path, inside_ns: int) -> bool:
    try:
        status = os.stat(directory)
    except OSError:
        return False
    return status.st_ctime_ns > status.st_mtime_ns and status.st_ctime_ns > inside_ns


def _walk(directory: Path) -> list[tuple[tuple[str, int, int, int], int]]:
    """The row of each entry, and its change time; by path. A link to a directory that leads there is not followed."""
    rows = []
    #: directory that is still to be read -> those that lead there, by device and inode
    above: dict[str, frozenset[tuple[int, int]]] = {}
    for folder, names, files in os.walk(directory, followlinks=True):
        leads = above.pop(folder, None) or _identities(folder)
        folders = {name for name in names if name != "__pycache__"}
        for name in [*files, *folders]:
            path = os.path.join(folder, name)
            try:
                status = os.stat(path)
            except OSError:
                continue
            time_ns, size = (0, 0) if name in folders else (status.st_mtime_ns, status.st_size)
            rows.append(((os.path.relpath(path, directory), time_ns, size, status.st_ino), status.st_ctime_ns))
            if name in folders and (status.st_dev, status.st_ino) not in leads:
                above[path] = leads | {(status.st_dev, status.st_ino)}
        names[:] = [name for name in names if os.path.join(folder, name) in above]
    return sorted(rows)


def _identities(folder: str) -> frozenset[tuple[int, int]]:
    try:
        status = os.stat(folder)
    except OSError:
        return frozenset()
    return frozenset({(status.st_dev, status.st_ino)})
