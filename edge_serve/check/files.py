"""Checks of what the settings name: files, directories, sockets and addresses, as this process may use them.

`edge-serve check-config` runs them as the service's user; nothing is opened for writing, and nothing is changed.
"""

from __future__ import annotations

import errno
import grp
import itertools
import os
import shlex
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from edge_serve.access.credentials import read_certificate_roles, read_tokens
from edge_serve.config.settings.server import ServerConfig, address_conflict
from edge_serve.door_settings import http_files
from edge_serve.errors import EdgeServeError
from edge_serve.models.repository.repository import may_name_model
from edge_serve.observe.metrics.options import parse_options
from edge_serve.transport.grpc.options import tls_of
from edge_serve.transport.sockets.tls import make_context

#: files of models that are looked at
_MOST_FILES = 20_000
#: bytes of a UNIX socket's path (unix(7), with the NUL behind it)
_LONGEST_SOCKET = 107


def problems(config: ServerConfig, environ: Mapping[str, str], made: tuple[str, ...] = ()) -> list[str]:
    """Return a line for each thing that the server could not use: what was found, what is expected, what to do.

    Args:
        made: directories that systemd makes before the server starts.
    """
    checks: list[Callable[[], object]] = [
        lambda: read_tokens(config.token_file) if config.token_file else None,
        lambda: read_certificate_roles(config.certificate_role_file) if config.certificate_role_file else None,
        lambda: make_context(files) if (files := http_files(config)) is not None else None,
        lambda: tls_of(config) if config.allow_grpc else None,
        lambda: parse_options(config.metrics_config),
    ]
    found = [text for path in config.model_repository for text in _repository(Path(path))]
    for check in checks:
        try:
            check()
        except EdgeServeError as error:
            found.append(error.message)
    found += _written("--log-file", config.log_file, special=True)
    found += _written("--trace-config triton,file", config.trace_config.file)
    state = config.state_directory or environ.get("STATE_DIRECTORY", "").partition(":")[0]
    found += _state_directory(state, made)
    found += _directory("--execution-env-directory", config.execution_env_directory, made)
    found += _socket("--admin-socket", config.admin_socket, made)
    if config.allow_http:
        found += _socket("--http-unix-socket", config.http_unix_socket, made)
    found += _same_paths(config)
    found += _group(config.admin_socket_group)
    found += _addresses(config)
    return found


def _repository(path: Path) -> Iterator[str]:
    """Find what is no directory, and what in its models the process may not read."""
    flag = "--model-repository"
    try:
        with os.scandir(path) as entries:
            shown = [entry for entry in entries if may_name_model(entry.name)]
    except OSError as error:
        yield f"{flag} '{path}': {error.strerror}; expected a directory of models that may be read"
        return
    looked_at = unreadable = 0
    first = ""
    # a directory that this process may not search shows its directories, and not where its links lead
    models = [entry.name for entry in shown if entry.is_dir(follow_symlinks=False) or os.path.isdir(entry.path)]
    top: list[tuple[str, list[str], list[str]]] = [(str(path), models, [])]
    for folder, names, files in itertools.chain(top, *(os.walk(path / name) for name in models)):
        looked_at += len(files)
        bad = [name for name in names if not os.access(f"{folder}/{name}", os.R_OK | os.X_OK)]
        paths = {name: f"{folder}/{name}" for name in files}
        bad += [name for name, file in paths.items() if os.path.exists(file) and not os.access(file, os.R_OK)]
        unreadable += len(bad)
        first = first or (f"{folder}/{bad[0]}" if bad else "")
        if looked_at > _MOST_FILES:
            break
    if unreadable:
        yield (
            f"{flag} '{path}': '{first}'{f' and {unreadable - 1} others' if unreadable > 1 else ''} may not be read; "
            f"give the service's user the right to: chmod -R o+rX {shlex.quote(str(path.absolute()))}"
        )


def _written(flag: str, path: str, *, special: bool = False) -> Iterator[str]:
    """Find why a file cannot be appended to.

    Args:
        special: a FIFO with a reader or a device will do.
    """
    if not path:
        return
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        parent = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(parent):
            yield f"{flag} '{path}': there is no directory '{parent}': make it"
        elif not os.access(parent, os.W_OK | os.X_OK):
            yield f"{flag} '{path}': the directory '{parent}' may not be written; change its owner, or choose another"
        return
    except OSError as error:
        yield f"{flag} '{path}': {error.strerror}; expected a file that may be written"
        return
    if stat.S_ISDIR(mode) or not (special or stat.S_ISREG(mode)):
        kind = "directory" if stat.S_ISDIR(mode) else "special file"
        yield f"{flag} '{path}': found a {kind}, expected a regular file"
    elif not os.access(path, os.W_OK):
        yield f"{flag} '{path}': the file may not be written; change its owner, or choose another"


def _directory(flag: str, path: str, made: tuple[str, ...]) -> Iterator[str]:
    if not path or (path in made and not os.path.lexists(path)):
        return
    if not os.path.isdir(path):
        yield f"{flag} '{path}': {'is no directory' if os.path.lexists(path) else 'does not exist: make it'}"
    elif not os.access(path, os.W_OK | os.X_OK):
        yield f"{flag} '{path}': the directory may not be written; change its owner, or choose another"


def _state_directory(path: str, made: tuple[str, ...]) -> Iterator[str]:
    """Find why the server could not use it, or make it if it is missing."""
    flag = "--state-directory"
    if os.path.lexists(path) or path in made or not path:
        yield from _directory(flag, path, made)
        return
    above = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        yield f"{flag} '{path}': cannot be made, because '{above}' is no directory; choose another"
    elif not os.access(above, os.W_OK | os.X_OK):
        yield f"{flag} '{path}': cannot be made, because '{above}' may not be written; make it, or choose another"


def _socket(flag: str, path: str, made: tuple[str, ...]) -> Iterator[str]:
    """Find why the server could not listen there."""
    if not path:
        return
    if len(os.fsencode(path)) > _LONGEST_SOCKET:
        yield f"{flag} '{path[:60]}...': found {len(os.fsencode(path))} bytes, expected at most {_LONGEST_SOCKET}"
        return
    if os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        yield f"{flag} '{path}': found something that is no socket: remove it, or choose another path"
        return
    yield from _directory(flag, os.path.dirname(os.path.abspath(path)), made)


def _same_paths(config: ServerConfig) -> Iterator[str]:
    """Find two settings that name one file: the server cannot listen twice, and a trace would replace the log."""
    sockets = ("--admin-socket", config.admin_socket), ("--http-unix-socket", config.http_unix_socket)
    files = ("--log-file", config.log_file), ("--trace-config triton,file", config.trace_config.file)
    for (flag, path), (other, same) in ([sockets] if config.allow_http else []) + [files]:
        if path and same and os.path.realpath(path) == os.path.realpath(same):
            yield f"{flag} and {other} name the same path '{path}': choose another for one of them"


def _group(name: str) -> Iterator[str]:
    if not name:
        return
    try:
        grp.getgrnam(name)
    except KeyError:
        yield f"--admin-socket-group: there is no group '{name}': make it with groupadd, or name another"


def _addresses(config: ServerConfig) -> Iterator[str]:
    for door in ("http", "grpc", "metrics"):
        if not getattr(config, f"allow_{door}"):
            continue
        flag, address = f"--{door}-address", getattr(config, f"{door}_address")
        try:
            for family, *_, place in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
                with socket.socket(family) as probe:
                    probe.bind(place)
        except (OSError, UnicodeError) as error:
            if address == "::" and isinstance(error, OSError) and error.errno == errno.EAFNOSUPPORT:
                continue  # the kernel has no IPv6, and the server listens on IPv4
            reason = error.strerror if isinstance(error, OSError) else "it is too long for a name"
            yield f"{flag} '{address}': {reason}; expected an address of this machine, as 127.0.0.1, ::1 or ::"
    if conflict := address_conflict(config, resolve=True):
        yield conflict
