"""Everything that a repository should not hold, and a file system that does not answer."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.server.running import python_model

_LIBC = ctypes.CDLL(None, use_errno=True)
_AT_ONCE = 2  # MNT_DETACH

#: with these a root user is subject to the modes of files, as the service's user is
WITHOUT_OVERRIDE = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


@contextlib.contextmanager
def silent_file_system(directory: Path) -> Iterator[None]:
    """Mount a FUSE file system there whose daemon never answers, as with a dead NFS server.

    Raises:
        OSError: it cannot be mounted here.
    """
    device = os.open("/dev/fuse", os.O_RDWR)
    try:
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if _LIBC.mount(b"silent", os.fsencode(directory), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), "mount")
        try:
            yield
        finally:
            os.close(device)  # whoever waits for it gets an error now
            device = -1
            _LIBC.umount2(os.fsencode(directory), _AT_ONCE)
    finally:
        if device >= 0:
            os.close(device)


@contextlib.contextmanager
def silent_file_systems(directories: Sequence[Path]) -> Iterator[None]:
    """Make the directories, and mount one of these in each; the test is skipped where none can be mounted."""
    with contextlib.ExitStack() as stack:
        for directory in directories:
            directory.mkdir()
            try:
                stack.enter_context(silent_file_system(directory))
            except OSError as error:
                pytest.skip(f"no FUSE here: {error}")
        yield


def bad_links(root: Path) -> dict[str, str]:
    """Links that lead nowhere or too far: name -> what the index says of it."""
    targets = {
        "to_root": ("/", "holds the repository itself"),
        "to_proc": ("/proc/self", r"belongs to the kernel \(proc\)"),
        "to_sys": ("/sys", r"belongs to the kernel \(sysfs\)"),
        "to_here": (".", "holds the repository itself"),
        "to_itself": ("to_itself", "the link leads to 'to_itself', which leads back to it: point it at"),
        "through_a_file": ("/etc/hostname/x", "which does not exist"),
        "to_a_file": ("/etc/hostname", "which is no directory"),
        "to_nothing": ("nothing", "the link leads to 'nothing', which does not exist"),
    }
    for name, (target, _) in targets.items():
        (root / name).symlink_to(target)
    (root / ".to_itself").symlink_to(".to_itself")
    return {name: reason for name, (_, reason) in targets.items()}


def bad_kinds(root: Path) -> dict[str, str]:
    """Models with files of other kinds and sizes; the same."""
    os.mkfifo(root / "a_pipe")
    with socket.socket(socket.AF_UNIX) as door:
        here = os.getcwd()
        os.chdir(root)  # the path of a socket may have 107 bytes
        door.bind("a_socket")
        os.chdir(here)
    with contextlib.suppress(PermissionError):
        os.mknod(root / "a_device", 0o600 | 0o20000, os.makedev(1, 3))
    os.mkfifo(python_model(root, "pipe_as_model") / "1" / "pipe")
    os.replace(root / "pipe_as_model/1/pipe", root / "pipe_as_model/1/model.py")
    (python_model(root, "pipe_as_config") / "config.pbtxt").unlink()
    os.mkfifo(root / "pipe_as_config/config.pbtxt")
    (python_model(root, "device_as_model") / "1/model.py").unlink()
    (root / "device_as_model/1/model.py").symlink_to("/dev/zero")
    (python_model(root, "long_config") / "config.pbtxt").write_text("# a comment\n" * 200_000)
    deep = python_model(root, "deep") / "1"
    for _ in range(100):
        deep = deep / "d"
    deep.mkdir(parents=True)
    os.mkdir(os.fsencode(root) + b"/caf\xe9")
    for name in ("__pycache__", "lost+found"):  # no models: no index has them
        (root / name).mkdir()
    for name in ("two\nlines", "gpj.\u202eexe"):
        python_model(root, name)
    return {
        "two\nlines": "must not contain control characters",
        "gpj.\u202eexe": "must not contain control characters",
        "pipe_as_model": "'1/model.py' is a pipe",
        "pipe_as_config": "config.pbtxt: not a file",
        "device_as_model": "'1/model.py' is a pipe, a socket or a device",
        "long_config": "longer than 1048576 bytes",
        "deep": "in more than 64 levels",
    }


def unreadable(root: Path, elsewhere: Path) -> dict[str, str]:
    """Models that only a user who may do everything could read; the same."""
    (python_model(root, "closed")).chmod(0)
    (python_model(root, "closed_version") / "1").chmod(0)
    (python_model(root, "closed_config") / "config.pbtxt").chmod(0)
    (python_model(root, "closed_file") / "1/model.py").chmod(0)
    (elsewhere / "inside").mkdir(parents=True)
    (root / "to_closed").symlink_to(elsewhere / "inside")
    elsewhere.chmod(0)
    names = ("closed", "closed_version", "closed_config", "closed_file", "to_closed")
    return dict.fromkeys(names, "Permission denied")


def many_files(directory: Path, count: int) -> None:
    """Write so many files into a directory."""
    directory.mkdir()
    for number in range(count):
        os.close(os.open(directory / str(number), os.O_CREAT | os.O_WRONLY))
