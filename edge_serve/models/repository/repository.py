"""The model repositories: `<repository>/<model>/<version>/...`, scanned, and fingerprinted to find changes.

Version directories are integers of 64 bits without leading zeros; other entries are ignored, as in
triton-inference-server/core src/model_repository_manager/model_lifecycle.cc and docs/user_guide/model_repository.md of
the server.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TypeVar

from edge_serve.config.checks.ensemble import NAMESPACE_END
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.layout import advice_on_repository_file, refusal_of
from edge_serve.config.settings.table import nearest
from edge_serve.errors import InvalidArgument, UnreadableEntry, with_advice
from edge_serve.models.repository.names import CONTROLS, check_name, has_controls, is_text
from edge_serve.models.repository.reading import READ_SECONDS, Faults, Reader, ReadStage
from edge_serve.models.repository.walk import Row, walk
from edge_serve.records import frozen

T = TypeVar("T")

log = logging.getLogger(__name__)

#: an entry that was not readable is read again after so many times the duration of the attempt, and at most seconds
_REST, _LONGEST_REST = 60.0, 600.0
#: how long after a load that could not read a model `snapshots` names it, so that it is tried again, seconds
_LOAD_REST = 60.0

#: versions are int64 in the protocol and in config.pbtxt
_HIGHEST_VERSION = (1 << 63) - 1

#: entries of a model directory that contain only configuration
_CONFIGURATION = ("config.pbtxt", "configs")
#: directories beside the versions of a model
_BESIDE_VERSIONS = frozenset({"configs", "warmup", "initial_state", "golden"})

#: directories that programs and file systems make wherever they are: Python's cache, and ext4's where a repository is a
#: file system of its own. Triton takes them for models that do not load.
_NO_MODELS = frozenset(("__pycache__", "lost+found"))

#: why a link leads to nothing
_LEADS_NOWHERE = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "does not exist",
    errno.ENAMETOOLONG: "is too long for a path",
    errno.ELOOP: "leads back to it",
}

#: equal fingerprints mean that no file was changed in between
Fingerprint = tuple[Row, ...]


@frozen
class FoundModel:
    """A model directory.

    Attributes:
        name: the name of its entry in the repository, or with namespaces `<repository>::<name>`.
        directory: the resolved directory of the entry. When a link is pointed elsewhere, this stays, so that a
            restarted worker finds the files that it had.
        ambiguous: whether two repositories have a model of this name, without namespaces.
    """

    name: str
    directory: Path
    ambiguous: bool = False


class Repository:
    """The model repositories, in the order of `--model-repository`; one that is given twice is one, as in Triton.

    No method that reads the disk waits longer than about `READ_SECONDS`, whatever the file system does. An entry that
    cannot be read is logged once and left out until it can be read. `faults`, `bound`, `places`, and `retry` read no
    disk: only they may be called on the event loop.

    Args:
        namespaced: models of one name may lie in several repositories (`--model-namespacing`). Each then goes by
            `<repository>::<name>`, which is how Triton's src/model.h writes a ModelIdentifier.

    Attributes:
        nameless: directories that `scan` left out, because their names are not UTF-8; each is logged once.
    """

    def __init__(self, roots: Sequence[Path], *, namespaced: bool = False) -> None:
        self.roots = list(dict.fromkeys(roots))
        self.namespaced = namespaced
        self.nameless: set[Path] = set()
        self._reader = Reader()
        self._faults = Faults()
        #: model that could not be read -> when `snapshots` tries again
        self._rest: dict[str, float] = {}
        #: model that a load could not read -> when it can be tried again
        self._load_due: dict[str, float] = {}
        #: with namespaces: name -> the models of this name that the last scan found, in the order of the repositories
        self._scanned: dict[str, list[str]] = {}

    @property
    def faults(self) -> dict[str, str]:
        """The entries that could not be read, by the names of their models, and why."""
        return self._faults.reasons()

    def named(self, names: Collection[str]) -> list[str]:
        """Return the models that a client may mean by these names, each once: with namespaces, the models of a name in
        all repositories."""
        found = self._find_namespaces(names)
        return list(dict.fromkeys(one for name in names for one in found.get(name, [name])))

    def bind(self, config: pb.ModelConfig, ensemble: str) -> None:
        """Write into the steps of an ensemble which model of a name they mean: first the one in the ensemble's own
        repository."""
        steps = config.ensemble_scheduling.step
        found = self._find_namespaces({step.model_name for step in steps})
        for step in steps:
            step.model_namespace = _nearest_namespace(step.model_name, ensemble, found)

    def bound(self, config: pb.ModelConfig, ensemble: str) -> bool:
        """Return whether the steps still mean the models that `bind` wrote into them, according to the last scan."""
        return all(
            step.model_namespace == _nearest_namespace(step.model_name, ensemble, self._scanned)
            for step in config.ensemble_scheduling.step
        )

    def _find_namespaces(self, names: Collection[str]) -> dict[str, list[str]]:
        """Return the models of each name, in the order of the repositories. An entry that cannot be read may be one."""
        plain = [name for name in names if name and "/" not in name and may_name_model(name)] if self.namespaced else []
        places = {str(root / name): (name, root) for name in plain for root in self.roots}
        results = self._reader.read_all({path: partial(_may_be_directory, path) for path in places})
        found: dict[str, list[str]] = {}
        for path, (name, root) in places.items():
            if results[path]:  # or it is an error
                found.setdefault(name, []).append(_identity(root, name))
        return found

    def scan(self) -> dict[str, FoundModel]:
        """Return every model, by name, or with namespaces by `<repository>::<name>`.

        Raises:
            InvalidArgument: a repository cannot be read.
        """
        models: dict[str, FoundModel] = {}
        faults: dict[str, str] = {}
        scanned: dict[str, list[str]] = {}
        for root in self.roots:
            for path, directory in self._directories(root):
                name = _identity(root, path.name) if self.namespaced else path.name
                if self.namespaced and directory is not None:
                    scanned.setdefault(path.name, []).append(name)
                if not is_text(path.name):
                    self._log_nameless(path)
                elif directory is not None and has_controls(path.name):
                    faults[name] = f"the name of a model must not contain {CONTROLS}"
                elif isinstance(directory, Path):
                    models[name] = FoundModel(name, directory, ambiguous=name in models)
                elif isinstance(directory, Exception):
                    faults[name] = str(directory) or repr(directory)
        self._faults.scanned(models, faults)
        self._scanned = scanned
        return dict(sorted(models.items()))

    def _directories(self, root: Path) -> list[tuple[Path, Path | Exception | None]]:
        """Return each entry of a repository, and the directory that it is or leads to, or why it cannot be read."""
        try:
            real, names, links = self._reader.read(str(root), partial(_list, root))
        except UnreadableEntry as error:
            raise InvalidArgument(f"failed to read model repository '{root}': {error.message}") from error
        targets = self._reader.read_all({str(root / name): partial(_target, root / name, real) for name in links})
        entries: list[tuple[Path, Path | Exception | None]] = [(root / name, real / name) for name in names]
        return entries + [(Path(path), target) for path, target in targets.items()]

    def places(self, name: str) -> list[Path]:
        """Return the places where the directory of a model can be, by its key in `scan`. Reads no disk."""
        roots = [root for root in self.roots if not self.namespaced or namespace_of(name) == str(root.absolute())]
        return [root / plain_name(name) for root in roots]

    def find_missing(self, directories: Mapping[str, Sequence[Path]]) -> dict[str, list[Path]]:
        """Return the directories that do not exist any more. One that cannot be read may exist.

        Args:
            directories: by the model, by its key in `scan`, that they belong to.
        """
        results = self._reader.read_all({name: partial(_missing, paths) for name, paths in directories.items()})
        return {name: result for name, result in results.items() if not isinstance(result, Exception)}

    def find(self, name: str) -> FoundModel | None:
        """Return one model, by its key in `scan`.

        Raises:
            InvalidArgument: no model can have this name, perhaps because it leads out of the repository.
            UnreadableEntry: its entry exists, and cannot be read.
        """
        check_name(plain_name(name))
        jobs = {str(path): partial(_target, path, path.parent) for path in self.places(name)}
        targets = self._reader.read_all(jobs)
        places = [target for target in targets.values() if isinstance(target, Path)]
        if places:
            return FoundModel(name, places[0], ambiguous=len(places) > 1)
        for error in (target for target in targets.values() if isinstance(target, Exception)):
            self._add_unread(name, str(error))
            raise error
        return None

    def like(self, name: str) -> str:
        """Return the model whose name is most like `name`; "" = none is, or a repository cannot be read."""
        try:
            return nearest(plain_name(name), map(plain_name, self.scan()))
        except InvalidArgument:
            return ""

    def read(self, found: FoundModel, function: Callable[[], T], seconds: float = READ_SECONDS) -> T:
        """Call a function that reads a model directory, and return its result.

        Raises:
            UnreadableEntry: the directory cannot be read, or not within `seconds`.
        """
        try:
            result = self._reader.read(found.name, function, seconds)
        except UnreadableEntry as error:
            self._add_unread(found.name, error.message)
            raise
        self._faults.remove(ReadStage.WALK, found.name)
        self._faults.remove(ReadStage.LOAD, found.name)
        return result

    def _add_unread(self, name: str, reason: str) -> None:
        """Add a model that a load could not read."""
        self._faults.add(ReadStage.LOAD, name, reason)
        self._load_due[name] = time.monotonic() + _LOAD_REST

    def fingerprints(self, models: Iterable[FoundModel]) -> dict[str, Fingerprint]:
        """Return the fingerprint of each model that can be read. All together take little longer than one."""
        jobs = {found.name: partial(fingerprint, found.directory) for found in models}
        results = self._reader.read_all(jobs)
        return {name: result for name, result in results.items() if not isinstance(result, Exception)}

    def snapshots(self) -> tuple[dict[str, Snapshot], set[str]]:
        """Return a snapshot of every model, and the names of those that cannot be read now. A model that has both was
        not read by its last load, about a minute ago, and may be readable now.

        Raises:
            InvalidArgument: a repository cannot be read.
        """
        found = self.scan()
        now = time.monotonic()
        for name, due in list(self._rest.items()):  # other threads may add to it
            if name not in found or due <= now:
                self._rest.pop(name, None)
        jobs = {name: partial(self._snapshot, one) for name, one in found.items() if name not in self._rest}
        snapshots = {}
        for name, result in self._reader.read_all(jobs).items():
            if isinstance(result, Exception):
                self._faults.add(ReadStage.WALK, name, str(result) or repr(result))
            else:
                self._faults.remove(ReadStage.WALK, name)
                snapshots[name] = result
        unread = self._faults.reasons(ReadStage.LOAD)
        self._load_due = {name: due for name, due in list(self._load_due.items()) if name in unread}
        again = {name for name in unread if self._load_due.get(name, 0.0) <= now}
        return snapshots, {*self._rest, *self.faults} - snapshots.keys() | again

    def retry(self) -> None:
        """Let the next `snapshots` read all entries that it could not read before."""
        self._rest.clear()
        self._load_due.clear()

    def _snapshot(self, found: FoundModel) -> Snapshot:
        began = time.monotonic()
        try:
            return snapshot(found)
        except UnreadableEntry:
            now = time.monotonic()
            self._rest[found.name] = now + min(_REST * (now - began), _LONGEST_REST)
            raise

    def _log_nameless(self, directory: Path) -> None:
        """Log a directory that no client could ask for, and no index could list."""
        if directory not in self.nameless:
            self.nameless.add(directory)
            log.warning("%r is left out: the name of a model must be UTF-8", os.fspath(directory))


def _identity(root: Path, name: str) -> str:
    return f"{root.absolute()}{NAMESPACE_END}{name}"


def plain_name(identity: str) -> str:
    """Return the name that clients see."""
    return _halves(identity)[1]


def namespace_of(identity: str) -> str:
    """Return the repository in a model's identity; "" without namespaces."""
    return _halves(identity)[0]


def _halves(identity: str) -> tuple[str, str]:
    """Divide an identity. A name may contain `::`; an absolute repository has a slash, which a name cannot have."""
    above, slash, last = identity.rpartition("/")
    directory, end, name = last.partition(NAMESPACE_END)
    return (f"{above}/{directory}", name) if slash and end else ("", identity)  # --load-model=a/b names no model


def _list(root: Path) -> tuple[Path, list[str], list[str]]:
    """Return the resolved repository, the names of its directories, and the names of its links."""
    try:
        with os.scandir(root) as entries:
            shown = [entry for entry in entries if may_name_model(entry.name)]
            names = [entry.name for entry in shown if entry.is_dir(follow_symlinks=False)]
            return root.resolve(), names, [entry.name for entry in shown if entry.is_symlink()]
    except OSError as error:
        hint = "expected a directory of models that this user can read" + _like(root)
        if isinstance(error, NotADirectoryError):
            hint = with_advice(hint, advice_on_repository_file(root))
        raise InvalidArgument(f"failed to read model repository '{root}': {error.strerror}; {hint}") from error


def may_name_model(name: str) -> bool:
    """Return whether an entry of a repository is a model if it is a directory: not if it is hidden or of a program."""
    return not name.startswith(".") and name not in _NO_MODELS


def _like(root: Path) -> str:
    """Return a hint for a mistyped repository: the directory beside it that has the most similar name."""
    try:
        with os.scandir(root.parent) as entries:
            close = nearest(root.name, [entry.name for entry in entries if entry.is_dir()])
    except OSError:
        return ""
    return f", did you mean '{root.parent / close}'?" if close and close != root.name else ""


def _target(path: Path, root: Path) -> Path | None:
    """Return the directory that an entry of a repository is or leads to; None if it is neither a directory nor a link.

    Raises:
        OSError: the file system fails.
        UnreadableEntry: the link leads to no directory, or the directory holds the repository itself.
    """
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            if path.is_symlink():
                raise UnreadableEntry(_link_advice(path, "is no directory"))
            return None
    except OSError as error:
        if error.errno in _LEADS_NOWHERE and path.is_symlink():
            raise UnreadableEntry(_link_advice(path, _LEADS_NOWHERE[error.errno])) from error
        if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):
            return None
        raise
    directory = path.resolve()
    if root.resolve().is_relative_to(directory):
        raise UnreadableEntry(f"leads to {directory}, which holds the repository itself: expected a model directory")
    return directory


def _missing(directories: Sequence[Path]) -> list[Path]:
    return [directory for directory in directories if not _may_exist(directory)]


def _may_exist(directory: Path) -> bool:
    try:
        directory.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _link_advice(path: Path, wrong: str) -> str:
    """Return where a link leads, and the command that points it at the directory of a model in one step."""
    link, fresh = quote(os.path.abspath(path)), quote(os.path.abspath(path.with_name(f".{path.name}")))
    return (
        f"the link leads to '{os.readlink(path)}', which {wrong}: point it at the directory of a model "
        f"(ln -s DIRECTORY {fresh} && mv -T {fresh} {link}), or remove it"
    )


def _nearest_namespace(name: str, ensemble: str, models: Mapping[str, Sequence[str]]) -> str:
    """Return the namespace of the model of `name` that a step of an ensemble means, among `models` by their names."""
    found = [namespace_of(identity) for identity in models.get(name, [name])]
    own = namespace_of(ensemble)
    return own if own in found else found[0]


def _may_be_directory(path: str) -> bool:
    """Return whether this is a directory or a link. Reads the entry only, not what a link leads to."""
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def versions(directory: Path) -> list[int]:
    """Return the version directories of a model, ascending.

    Raises:
        UnreadableEntry: the directory of the model cannot be read.
    """
    try:
        with os.scandir(directory) as entries:
            return sorted(int(entry.name) for entry in entries if _is_version_directory(entry))
    except OSError as error:
        wrong = InvalidArgument if error.errno == errno.ENOENT else UnreadableEntry
        reason = refusal_of(error, directory)
        raise wrong(f"failed to read the directory of a model '{directory}': {reason}") from error


def _is_version_directory(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry of a model is a version. Log Triton's line on a directory that may be meant as one."""
    name = entry.name
    if _is_version(name):
        return _is_directory(entry)
    if not entry.is_dir(follow_symlinks=False) or not name.isprintable():
        return False
    if name.isascii() and name.isdigit() and name.startswith("0"):
        log.warning(
            "ignore version directory '%s' which contains leading zeros in its directory name: %s", name, entry.path
        )
    elif name not in _BESIDE_VERSIONS and not name.startswith((".", "_")):
        log.info("ignore version directory '%s' which fails to convert to integral number: %s", name, entry.path)
    return False


def _is_version(name: str) -> bool:
    number = name.isascii() and name.isdigit() and (name == "0" or not name.startswith("0"))
    return number and int(name) <= _HIGHEST_VERSION


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        log.warning("%s is no version: it cannot be read: %s", entry.path, error.strerror)
        return False


def fingerprint(directory: Path) -> Fingerprint:
    """Return names, times and sizes of everything below `directory`; see `walk`, also for its errors."""
    return tuple(row for row, _ in walk(directory))


def without_configuration(print: Fingerprint) -> Fingerprint:
    """Return a fingerprint without the configuration files, which are compared by their content."""
    return tuple(row for row in print if _top(row[0]) not in _CONFIGURATION)


def of_version(print: Fingerprint, version: int) -> Fingerprint:
    """Return the part of `without_configuration` about one version: its own directory, and the files that all share."""
    rows = [(row, _top(row[0])) for row in without_configuration(print)]
    return tuple(row for row, top in rows if not top.isdigit() or top == str(version))


def _top(path: str) -> str:
    return path.partition(os.sep)[0]


@frozen
class Snapshot:
    """A model directory at one moment; equal snapshots are the same model.

    Attributes:
        directory: with links resolved.
        parts: entry of the model directory -> its fingerprint.
        whole: entries that were renamed into place complete; "" = the model itself.

    """

    directory: Path
    ambiguous: bool
    parts: Mapping[str, Fingerprint]
    whole: frozenset[str] = field(default=frozenset(), compare=False)


def snapshot(found: FoundModel) -> Snapshot:
    """Take a snapshot of a model on disk.

    A rename changes the change time of a directory, which is then later than that of all entries in it, and not its
    modification time; creating, removing or writing an entry changes both.

    Raises:
        UnreadableEntry: as in `walk`.
    """
    parts: dict[str, list[Row]] = {}
    newest: dict[str, int] = {}
    for row, changed in walk(found.directory):
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
