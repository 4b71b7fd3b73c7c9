"""The owner of each port of the server: edge-serve itself, systemd for it, another program, or no process."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_serve.doctor.finding import Finding
from edge_serve.records import frozen
from edge_serve.transport.door.listeners import advice_on_listening

_LISTENING = "0A"
#: errors of addresses that this machine has
_TAKEN = (errno.EADDRINUSE, errno.EACCES)
#: addresses to listen on that mean every one of the machine, and the one that reaches them from there
_EVERY, _LOOPBACK = ("0.0.0.0", "::"), "127.0.0.1"
#: words in the command line of an edge-serve server
_OURS = ("edge-serve", "edge_serve", "tritonserver")
#: processes that are looked at for the owner of a socket
_MOST_PROCESSES = 20_000

#: the parts of a status document that are used here
Document = Mapping[str, Any]


@frozen
class DoorPort:
    """A port of the settings.

    Attributes:
        address: on which the server listens, or a name.
        flag: the option that chooses another port.
    """

    number: int
    address: str
    flag: str

    @property
    def url(self) -> str:
        """The URL of the port for a client on this machine."""
        host = _LOOPBACK if self.address in _EVERY else self.address
        return f"http://[{host}]:{self.number}" if ":" in host else f"http://{host}:{self.number}"


@frozen
class Owner:
    """The process that listens.

    Attributes:
        pid: 0 = another user's process, which only root can name.
    """

    pid: int = 0
    command: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether the process is an edge-serve server."""
        return any(word in self.command for word in _OURS)


def examine_port(
    wanted: DoorPort, document: Document | None = None, held: Iterable[int] = (), root: Path = Path("/")
) -> Finding:
    """Examine one port.

    Args:
        document: of the running server, where it could be asked.
        held: ports of edge-serve's socket units.
    """
    port, error = wanted.number, _refusal(wanted)
    if error is None:
        return Finding("port", f"{port}: free", True)
    # the kernel refuses a port below 1024 to this user before it sees that the port is in use
    taken = error.errno in _TAKEN
    door = door_at(port, document) if taken else ""
    if door and document is not None:
        pid, version = document.get("server", {}).get("pid"), document.get("versions", {}).get("edge-serve")
        return Finding("port", f"{port}: edge-serve {version} listens here for {door} (pid {pid})", True)
    owner = find_owner(port, root) if taken else None
    if owner is not None and owner.is_ours:
        return Finding("port", f"{port}: edge-serve listens here (pid {owner.pid})", True)
    if port in held:
        return Finding("port", f"{port}: systemd holds it for edge-serve", True)
    who = f"in use by {owner.command} (pid {owner.pid})" if owner is not None and owner.pid else error.strerror
    hint = "; root sees by which program" if owner is not None and not owner.pid else ""
    in_use = error.errno == errno.EADDRINUSE
    advice = f"stop that program, or choose another port with {wanted.flag}" if in_use else advice_on_listening(error)
    return Finding("port", f"{port}: {who}{hint}", False, advice)


def door_at(port: int, document: Document | None) -> str:
    """Return the protocol for which the running server listens on `port`; "" = it does not."""
    doors = document.get("server", {}).get("doors", {}) if document is not None else {}
    for door, addresses in doors.items():
        if any(str(address).rpartition(":")[2] == str(port) for address in addresses):
            return str(door)
    return ""


def is_local(wanted: DoorPort) -> bool:
    """Return whether the URL of the port leads to this machine: another one must not receive a token."""
    error = None if wanted.address in _EVERY else _refusal(wanted)
    return error is None or error.errno in _TAKEN


def _refusal(wanted: DoorPort) -> OSError | None:
    """Return why the server could not listen there; None = it could."""
    try:
        for family, *_, place in socket.getaddrinfo(
            wanted.address, wanted.number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, wanted.address != "::")
                probe.bind(place)
    except OSError as error:
        if wanted.address == "::" and error.errno == errno.EAFNOSUPPORT:  # the server listens on IPv4 there
            return _refusal(replace(wanted, address="0.0.0.0"))
        return error
    except UnicodeError:
        return OSError(errno.EINVAL, "the address is too long for a name")
    return None


def find_owner(port: int, root: Path = Path("/")) -> Owner | None:
    """Return the process that listens on a TCP port; None = none does."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port, root)}
    if not wanted:
        return None
    for folder in list((root / "proc").glob("[0-9]*"))[:_MOST_PROCESSES]:
        try:
            if any(_link(file) in wanted for file in (folder / "fd").iterdir()):
                return Owner(int(folder.name), _command(folder))
        except OSError:  # it has ended, or belongs to another user
            continue
    return Owner()


def _inodes(port: int, root: Path) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on `port` (proc_net(5))."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (root / "proc/net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if len(fields) > 9 and fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _command(folder: Path) -> str:
    """Return the command line of a process, at most the first words that say which program it is."""
    try:
        words: Sequence[str] = (folder / "cmdline").read_bytes()[:4096].decode(errors="replace").split("\0")
    except OSError:
        return ""
    return " ".join(words[:4]).strip()[:120]
