"""Starts a program in a Landlock domain (landlock(7)): `landlock.py RULES PROGRAM...`, or RULES and a module of ours.

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
Directories can be listed everywhere. Runs by its path in any Python of ours: the standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import runpy
import signal
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

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
#: how long the entries of a repository may take to answer
_ANSWER_SECONDS = 1.0
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
    """Yield paths, and the rights that are allowed below each."""
    given = {kind: {os.path.realpath(path) for path in rules.get(kind, ())} for kind in _KINDS}
    repositories, listed = given["repositories"], given["listed"]
    opened = given["open"] | given["own"]
    closed = given["closed"] - opened
    for place in listed:  # nothing but its directories
        closed.update(entry.path for entry in _entries(place) if not entry.is_dir(follow_symlinks=False))
    for place in repositories:
        silent = _silent(place)
        closed.update(silent)
        found = [entry.path for entry in _entries(place) if entry.path not in silent]
        closed.update({os.path.realpath(path) for path in found if _is_model(path)} - opened)
    links = {target for place in given["own"] for target in _links(place) if _is_below(target, repositories)}
    readable = given["readable"] | links
    yield from ((path, _RIGHTS) for path in opened)
    yield from ((path, _READ_FILE) for path in readable)
    passed = {parent for path in (*closed, *readable) for parent in _parents(path)} | repositories | listed
    if passed:
        yield from _neighbours("/", passed, closed | readable | opened)
    else:
        yield "/", _RIGHTS


_KINDS = ("closed", "readable", "open", "own", "listed", "repositories")


def _neighbours(directory: str, passed: set[str], decided: set[str]) -> Iterator[tuple[str, int]]:
    for entry in _entries(directory):
        if entry.path in decided or entry.is_symlink():  # what a link leads to has its own place
            continue
        if entry.path in passed:
            yield from _neighbours(entry.path, passed, decided)
        else:
            yield entry.path, _RIGHTS


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return list(found)
    except OSError:  # not there, or not for this user
        return []


def _is_model(path: str) -> bool:
    return os.path.isfile(f"{path}/config.pbtxt") or any(entry.name.isdigit() for entry in _entries(path))


def _silent(repository: str) -> set[str]:
    """Return the entries of a repository that do not answer: links to dead file systems, and mount points of such ones.

    Child processes ask them, because nothing can interrupt a thread that waits for a dead file system.
    """
    try:
        with open("/proc/self/mountinfo", errors="replace") as lines:
            mounts = {line.split()[4] for line in lines}
    except OSError:
        mounts = set()
    asked = [entry.path for entry in _entries(repository) if entry.is_symlink() or entry.path in mounts]
    if not asked or not _unanswered([asked]):
        return set()
    return {path for [path] in _unanswered([[path] for path in asked])}


def _unanswered(groups: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return the groups of paths that have not all answered in time."""
    left = {}
    for group in groups:
        child = os.fork()
        if not child:
            for path in group:
                _is_model(path)
            os._exit(0)
        left[child] = group
    end = time.monotonic() + _ANSWER_SECONDS
    while left and time.monotonic() < end:
        for child in [child for child in left if os.waitpid(child, os.WNOHANG)[0]]:
            del left[child]
        time.sleep(0.001)
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, os.WNOHANG)  # without waiting: the kernel may keep it until the file system answers
    return list(left.values())


def _links(directory: str) -> Iterator[str]:
    """Yield the targets of links in a model's directory: versions may lie in another place of the repository."""
    seen = 0
    for folder, names, files in os.walk(directory):
        for name in (*names, *files):
            seen += 1
            if os.path.islink(path := f"{folder}/{name}"):
                yield os.path.realpath(path)
        if seen > _MOST_ENTRIES:
            return


def _is_below(path: str, places: set[str]) -> bool:
    return any(parent in places for parent in _parents(path))


def _parents(path: str) -> Iterator[str]:
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # it has gone meanwhile
        return
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISLNK(mode):
            return
        attr = _PathBeneathAttr(rights if stat.S_ISDIR(mode) else rights & _FILE_RIGHTS, fd)
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
