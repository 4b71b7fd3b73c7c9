"""Power cuts, enumerated: file operations are recorded, and every state that a cut could leave is put on disk.

The model of a file system is weaker than ext4: what was written to a file is lost, half there, or zeros until that file
is synced; entries of a directory are lost until that directory is synced, all of them, those after any point, or those
of one directory only. A rename is atomic, and durable as soon as one of its two directories is synced.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ota import files
from ota.files import DiskOperation

#: what became of bytes that were not synced
POLICIES = ("full", "half", "empty", "zeros")
#: path -> the content of a file, the target of a link, or None for a directory
Tree = dict[str, bytes | str | None]


@dataclass(eq=False)
class _File:
    durable: bytes = b""
    content: bytes = b""

    def after(self, policy: str) -> bytes:
        if self.content == self.durable or policy == "full":
            return self.content
        if policy == "empty":
            return self.durable
        new = self.content[len(self.durable) :] if self.content.startswith(self.durable) else self.content
        kept = self.durable if self.content.startswith(self.durable) else b""
        return kept + (new[: len(new) // 2] if policy == "half" else bytes(len(new)))


@dataclass(eq=False)
class _Link:
    target: str


@dataclass(eq=False)
class _Directory:
    durable: dict[str, _Node] = field(default_factory=dict)
    now: dict[str, _Node] = field(default_factory=dict)


_Node = _File | _Link | _Directory


@dataclass(eq=False)
class _Edit:
    """A change of names that is not durable yet."""

    changes: list[tuple[_Directory, str, _Node | None]]

    def touches(self, directory: _Directory) -> bool:
        return any(one is directory for one, _, _ in self.changes)


class Disk:
    """The files below a directory, as they are and as they would be after a power cut.

    Args:
        forgetful: paths for which fsync does nothing: a fault to be found.
    """

    def __init__(self, root: Path, forgetful: Callable[[str], bool] = lambda path: False) -> None:
        self._path = root
        self._root = _load(root)
        self._pending: list[_Edit] = []
        self._forgetful = forgetful

    def do(self, operation: DiskOperation) -> None:
        """Follow an operation."""
        getattr(self, f"_{operation.kind}")(operation)

    def states(self) -> Iterator[Tree]:
        """Yield the trees that a power cut now could leave."""
        pending = self._pending
        choices = [pending[:count] for count in range(len(pending) + 1)]
        choices += [[one for one in pending if one.touches(folder)] for folder in self._folders(pending)]
        for chosen in choices:
            overlay: dict[tuple[int, str], _Node | None] = {}
            for edit in chosen:
                overlay.update(((id(folder), name), node) for folder, name, node in edit.changes)
            for policy in POLICIES:
                yield dict(_tree(self._root, "", policy, overlay))

    @staticmethod
    def _folders(pending: list[_Edit]) -> list[_Directory]:
        found: dict[int, _Directory] = {}
        for edit in pending:
            found.update((id(folder), folder) for folder, _, _ in edit.changes)
        return list(found.values())

    def _parent(self, path: str) -> tuple[_Directory, str]:
        *above, name = Path(path).relative_to(self._path).parts or ("",)
        folder = self._root
        for part in above:
            inner = folder.now[part]
            assert isinstance(inner, _Directory), path
            folder = inner
        return folder, name

    def _at(self, path: str) -> _Node:
        folder, name = self._parent(path)
        return folder.now[name] if name else folder

    def _edit(self, *changes: tuple[_Directory, str, _Node | None]) -> None:
        for folder, name, node in changes:
            if node is None:
                folder.now.pop(name, None)
            else:
                folder.now[name] = node
        self._pending.append(_Edit(list(changes)))

    def _create(self, operation: DiskOperation) -> None:
        folder, name = self._parent(operation.path)
        known = folder.now.get(name)
        if isinstance(known, _File):
            known.content = b""
        else:
            self._edit((folder, name, _File()))

    def _write(self, operation: DiskOperation) -> None:
        file = self._at(operation.path)
        assert isinstance(file, _File)
        before = file.content.ljust(operation.offset, b"\0")
        end = operation.offset + len(operation.data)
        file.content = before[: operation.offset] + operation.data + before[end:]

    def _truncate(self, operation: DiskOperation) -> None:
        file = self._at(operation.path)
        assert isinstance(file, _File)
        file.content = file.content[: operation.offset]

    def _fsync(self, operation: DiskOperation) -> None:
        if self._forgetful(operation.path):
            return
        node = self._at(operation.path)
        if isinstance(node, _File):
            node.durable = node.content
        elif isinstance(node, _Directory):
            for edit in [one for one in self._pending if one.touches(node)]:
                self._pending.remove(edit)
                for folder, name, inner in edit.changes:
                    if inner is None:
                        folder.durable.pop(name, None)
                    else:
                        folder.durable[name] = inner

    def _rename(self, operation: DiskOperation) -> None:
        (old, name), (new, other) = self._parent(operation.path), self._parent(operation.target)
        self._edit((old, name, None), (new, other, old.now[name]))

    def _link(self, operation: DiskOperation) -> None:
        folder, name = self._parent(operation.target)
        self._edit((folder, name, self._at(operation.path)))

    def _symlink(self, operation: DiskOperation) -> None:
        folder, name = self._parent(operation.path)
        self._edit((folder, name, _Link(operation.target)))

    def _unlink(self, operation: DiskOperation) -> None:
        folder, name = self._parent(operation.path)
        if name in folder.now:
            self._edit((folder, name, None))

    _rmdir = _unlink

    def _mkdir(self, operation: DiskOperation) -> None:
        folder, name = self._parent(operation.path)
        if name not in folder.now:
            self._edit((folder, name, _Directory()))

    def _chmod(self, operation: DiskOperation) -> None:
        """Permissions are not modelled."""


def _load(path: Path) -> _Directory:
    """Return a tree that is durable, with hard links."""
    inodes: dict[int, _File] = {}

    def load(folder: Path) -> _Directory:
        found: dict[str, _Node] = {}
        for one in folder.iterdir():
            if one.is_symlink():
                found[one.name] = _Link(os.readlink(one))
            elif one.is_dir():
                found[one.name] = load(one)
            else:
                data = one.read_bytes()
                found[one.name] = inodes.setdefault(one.stat().st_ino, _File(data, data))
        return _Directory(dict(found), dict(found))

    return load(path)


def _tree(
    folder: _Directory, path: str, policy: str, overlay: dict[tuple[int, str], _Node | None]
) -> Iterator[tuple[str, bytes | str | None]]:
    inside: dict[str, _Node | None] = dict(folder.durable)
    inside.update((name, node) for (place, name), node in overlay.items() if place == id(folder))
    for name, node in sorted(inside.items()):
        if isinstance(node, _Directory):
            yield f"{path}{name}", None
            yield from _tree(node, f"{path}{name}/", policy, overlay)
        elif isinstance(node, _Link):
            yield f"{path}{name}", node.target
        elif node is not None:
            yield f"{path}{name}", node.after(policy)


def put(tree: Tree, root: Path) -> None:
    """Make the tree the content of a directory."""
    shutil.rmtree(root)
    root.mkdir()
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir()
        elif isinstance(content, str):
            (root / path).symlink_to(content)
        else:
            (root / path).write_bytes(content)


def name_of(tree: Tree) -> str:
    """Return a digest, so that equal states are tried once."""
    return hashlib.sha256(repr(sorted(tree.items())).encode()).hexdigest()


@contextlib.contextmanager
def recorded(ignored: Path) -> Iterator[list[DiskOperation]]:
    """Record the operations of the agent, but those on `ignored`: it claims no durability."""
    found: list[DiskOperation] = []
    names = (str(ignored), str(ignored.with_name(f".{ignored.name}.new")))

    def record(operation: DiskOperation) -> None:
        if operation.path not in names:
            found.append(operation)

    before, files.point = files.point, record
    try:
        yield found
    finally:
        files.point = before


def crash_states(root: Path, operations: list[DiskOperation], disk: Disk) -> Iterator[tuple[int, Tree]]:
    """Yield each state once, with the number of operations before the cut."""
    seen: set[str] = set()
    for count in range(len(operations) + 1):
        if count:
            disk.do(operations[count - 1])
        for tree in disk.states():
            if (digest := name_of(tree)) not in seen:
                seen.add(digest)
                yield count, tree
