"""Starts a program in a Landlock domain (landlock(7)): `landlock.py RULES PROGRAM...`, or RULES and our own module.

The domain has to be there before user code runs, and before a thread of a library that user code could get at: the
kernel confines the calling thread and what it starts. RULES is JSON, made by `sandbox`:

    closed        files and directories that are not there for the program
    readable      directories that it can read, and not change
    open          directories that are open whole, whatever lies below
    own           the same, for a model; what its links lead to in the repositories can be read
    listed        directories whose files are closed, and whose directories are not
    repositories  directories whose models are closed, and other entries are not

Landlock has rules that allow and none that forbid. So everything is allowed but what is `closed`, by a rule for each
neighbour of each directory on the way there. What appears later in one of these directories is closed as well.
Directories can be listed everywhere. Runs by its path in any of our interpreters: the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import resource
import runpy
import signal
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

#: the same numbers on every processor (asm-generic/unistd.h)
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION, _PATH_BENEATH, _PR_SET_NO_NEW_PRIVS = 1, 1, 38
#: linux/landlock.h
_WRITE_FILE, _READ_FILE, _REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = (1 << bit for bit in (1, 2, 4, 5, 7, 8))
_MAKE_SOCK, _MAKE_FIFO, _MAKE_SYM, _REFER, _TRUNCATE = (1 << bit for bit in (9, 10, 12, 13, 14))
#: a rule for a file may have no others
_FILE_RIGHTS = _WRITE_FILE | _READ_FILE | _TRUNCATE
_MAKE = _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM
_RIGHTS = _FILE_RIGHTS | _REFER | _REMOVE_DIR | _REMOVE_FILE | _MAKE
#: abstract UNIX sockets, and signals, of processes outside the domain
_SCOPED = 1 << 0 | 1 << 1
#: before it a file could not be moved to another directory, which programs do
OLDEST, _WITH_TRUNCATE, WITH_SCOPES = 2, 3, 6
#: how long a file system may take to answer
_ANSWER_SECONDS = 1.0
#: types of file systems that no other program or machine has to answer for
_LOCAL = frozenset((
    "autofs", "binfmt_misc", "bpf", "btrfs", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs",
    "efivarfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "fusectl", "hugetlbfs", "iso9660", "mqueue", "nsfs",
    "ntfs3", "overlay", "proc", "pstore", "ramfs", "rootfs", "securityfs", "squashfs", "sysfs", "tmpfs", "tracefs",
    "vfat", "xfs", "zfs",
))  # fmt: skip
#: a blank, a tab, a line break or a backslash in a path of /proc/self/mountinfo
_ESCAPED = re.compile(r"\\([0-7]{3})")
#: links that are followed in one path, as by the kernel
_MOST_LINKS = 40
#: links of a model that are followed; more is no model
_MOST_ENTRIES = 10_000

#: A mark on workers: this hard limit is 0, and only root can raise it again in a descendant. Linux has ignored the
#: limit since 2.4.25, so it limits nothing, and no other program sets it.
_RLIMIT_LOCKS, _MARK = 10, 0

_LIBC = ctypes.CDLL(None, use_errno=True)


class _RulesetAttr(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """Return the version of the kernel's Landlock; 0 where there is none, or this process may not use it."""
    try:
        return _call(_CREATE_RULESET, None, 0, _GET_VERSION)
    except OSError:
        return 0


def mark() -> None:
    """Mark this process and its descendants for `is_marked`."""
    resource.setrlimit(_RLIMIT_LOCKS, (_MARK, _MARK))


def is_marked(process: int) -> bool:
    """Return whether a process descends from a worker. One that has ended counts as one: it may have been."""
    try:
        with open(f"/proc/{process}/limits") as limits:
            line = next(line for line in limits if line.startswith("Max file locks"))
    except (OSError, StopIteration):
        return True
    return line.split()[4] == str(_MARK)


def confine(rules: Mapping[str, Sequence[str]]) -> None:
    """Put this process into a Landlock domain. Without Landlock it only loses set-user-ID programs.

    Raises:
        OSError: the kernel refuses.
    """
    abi = version()
    if _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise _error()
    if abi < OLDEST:
        return
    rights = _RIGHTS if abi >= _WITH_TRUNCATE else _RIGHTS & ~_TRUNCATE
    attr = _RulesetAttr(rights, 0, _SCOPED)
    size = ctypes.sizeof(attr) if abi >= WITH_SCOPES else 8
    ruleset = _call(_CREATE_RULESET, ctypes.byref(attr), size, 0)
    try:
        for path, allowed in grants(rules):
            _allow(ruleset, path, allowed & rights)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def grants(rules: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, int]]:
    """Yield paths, and the rights that are allowed below each. Nothing on a file system that does not answer is."""
    files = _Files(_dead_mounts())
    for path, rights in _grants(rules, files):
        if not files.is_dead(path):
            yield path, rights


def _grants(rules: Mapping[str, Sequence[str]], files: _Files) -> Iterator[tuple[str, int]]:
    given = {kind: {files.resolve(path) for path in rules.get(kind, ())} for kind in _KINDS}
    repositories, listed = given["repositories"], given["listed"]
    opened = given["open"] | given["own"]
    closed = given["closed"] - opened
    for place in listed:  # nothing but its directories
        closed.update(entry.path for entry in files.entries(place) if not entry.is_dir(follow_symlinks=False))
    for place in repositories:
        found = [files.resolve(entry.path) for entry in files.entries(place)]
        closed.update({path for path in found if files.is_model(path)} - opened)
    links = {target for place in given["own"] for target in files.links(place) if _is_below(target, repositories)}
    readable = given["readable"] | links
    yield from ((path, _RIGHTS) for path in opened)
    yield from ((path, _READ_FILE) for path in readable)
    passed = {parent for path in (*closed, *readable) for parent in _parents(path)} | repositories | listed
    if passed:
        yield from _neighbours("/", passed, closed | readable | opened, files)
    else:
        yield "/", _RIGHTS


_KINDS = ("closed", "readable", "open", "own", "listed", "repositories")


def _neighbours(directory: str, passed: set[str], decided: set[str], files: _Files) -> Iterator[tuple[str, int]]:
    for entry in files.entries(directory):
        if entry.path in decided or entry.is_symlink():  # the target of a link has its own rule
            continue
        if entry.path in passed:
            yield from _neighbours(entry.path, passed, decided, files)
        else:
            yield entry.path, _RIGHTS


class _Files:
    """Looks at files, and never at those below `dead` mount points, where a system call hangs."""

    def __init__(self, dead: Collection[str]) -> None:
        self._dead = dead

    def is_dead(self, path: str) -> bool:
        return bool(self._dead) and any(place in self._dead for place in (path, *_parents(path)))

    def resolve(self, path: str) -> str:
        """Return what `os.path.realpath` does. A path that comes to a dead mount point is not followed from there."""
        real, rest, links = "", path.split("/")[::-1], 0
        while rest:
            name = rest.pop()
            if name in ("", "."):
                continue
            if name == "..":
                real = real.rpartition("/")[0]
                continue
            here = f"{real}/{name}"
            if here in self._dead or links > _MOST_LINKS:
                return "/".join([here, *reversed(rest)])
            try:
                target = os.readlink(here)
            except OSError:  # no link, or not there
                real = here
                continue
            links += 1
            real = "" if target.startswith("/") else real
            rest += target.split("/")[::-1]
        return real or "/"

    def entries(self, directory: str) -> list[os.DirEntry[str]]:
        if self.is_dead(directory):
            return []
        try:
            with os.scandir(directory) as found:
                return list(found)
        except OSError:  # not there, or not for this user
            return []

    def is_model(self, path: str) -> bool:
        """Return whether this is the directory of a model, or may be: a file system that does not answer hides it."""
        if self.is_dead(path) or os.path.lexists(f"{path}/config.pbtxt"):
            return True
        return any(entry.name.isdigit() for entry in self.entries(path))

    def links(self, directory: str) -> Iterator[str]:
        """Yield the targets of links in a model's directory: versions may lie in another place of the repository."""
        if self.is_dead(directory):
            return
        seen = 0
        for folder, names, files in os.walk(directory):
            for name in (*names, *files):
                seen += 1
                if os.path.islink(path := f"{folder}/{name}"):
                    yield self.resolve(path)
            names[:] = [name for name in names if not self.is_dead(f"{folder}/{name}")]
            if seen > _MOST_ENTRIES:
                return


def _dead_mounts() -> set[str]:
    """Return the mount points of file systems that do not answer within `_ANSWER_SECONDS`, all asked at once.

    Child processes ask, because nothing can interrupt a thread that waits for such a file system. A thread could also
    outlive the start, and it would not be confined. File systems that need no other program or machine are not asked.
    """
    try:
        with open("/proc/self/mountinfo", errors="surrogateescape") as lines:
            mounts = [(line.split()[4], line.partition(" - ")[2].partition(" ")[0]) for line in lines]
    except OSError:
        return set()
    asked = {_ESCAPED.sub(lambda found: chr(int(found[1], 8)), place) for place, kind in mounts if kind not in _LOCAL}
    left = {}
    for place in asked:
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                os.statvfs(place)  # caches answer a `stat`
            os._exit(0)
        left[child] = place
    end = time.monotonic() + _ANSWER_SECONDS
    while left and time.monotonic() < end:
        for child in [child for child in left if os.waitpid(child, os.WNOHANG)[0]]:
            del left[child]
        time.sleep(0.001)
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, os.WNOHANG)  # without waiting: the kernel may keep it until the file system answers
    return set(left.values())


def _is_below(path: str, places: set[str]) -> bool:
    return any(parent in places for parent in _parents(path))


def _parents(path: str) -> Iterator[str]:
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # removed meanwhile
        return
    try:
        attr = _PathBeneathAttr(rights, fd)
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(attr), 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        attr = _PathBeneathAttr(rights & _FILE_RIGHTS, fd)  # no directory; `fstat` would ask the file system
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(attr), 0)
    finally:
        os.close(fd)


def _call(number: int, *arguments: object) -> int:
    made = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result: int = _LIBC.syscall(ctypes.c_long(number), *made)
    if result < 0:
        raise _error()
    return result


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def main(arguments: Sequence[str]) -> None:
    """Run the rest of the arguments in the domain that the first one describes."""
    rules, *command = arguments
    given = json.loads(rules)
    mark()
    try:
        confine(given)
    except OSError as error:
        sys.exit(f"this worker cannot be kept from the server's files ({error}): --worker-sandbox=false goes without")
    if command[0].startswith("/"):
        os.environ.update(given.get("variables", {}))
        try:
            os.execv(command[0], command)
        except OSError as error:
            sys.exit(f"'{command[0]}' cannot be started: {error.strerror}")
    sys.argv[:] = command
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
