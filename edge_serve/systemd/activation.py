"""Listening sockets that the service manager holds for us (sd_listen_fds(3)), and which door each of them is for.

They stay open while the service restarts: clients wait in their queues. Which is whose is decided from values;
`inherit` is the shell that has the descriptors.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from edge_serve.config.settings.server import ServerConfig
from edge_serve.errors import InvalidArgument
from edge_serve.transport.door.listeners import Listener, adopt

#: the first descriptor that is handed over
FIRST = 3
#: doors by the names that FileDescriptorName= may give
DOORS = ("http", "grpc", "metrics", "admin")


#: the sockets that systemd passed, by door; a door without any listens by itself
Inherited = Mapping[str, list[Listener]]


def numbers_and_names(environ: Mapping[str, str], pid: int) -> list[tuple[int, str]]:
    """Descriptors for process `pid` and their names.

    Raises:
        InvalidArgument: the variables make no sense.
    """
    if environ.get("LISTEN_PID", "") != str(pid):
        return []
    count = environ.get("LISTEN_FDS", "0")
    if not re.fullmatch("[0-9]{1,3}", count):  # a process has 1024 descriptors, unless it asks for more
        raise InvalidArgument(
            f"LISTEN_FDS is '{count}', expected the number of sockets that the service manager hands over"
        )
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    return [(FIRST + i, names[i] if i < len(names) else "") for i in range(int(count))]


def door_of(name: str, place: int | str, config: ServerConfig) -> str:
    """Return the door of a socket, by its name or else by its address.

    Args:
        name: FileDescriptorName=, or the name of its unit.
        place: its port, its path, or "@" and its abstract name; "" = unknown.

    Raises:
        InvalidArgument: it is for none of them, or it has no path and is for the door `admin`, which asks for no token:
            the mode of its file says who may connect.
    """
    places: dict[int | str, str] = {
        config.metrics_port: "metrics",
        config.grpc_port: "grpc",
        config.http_port: "http",
        config.http_unix_socket: "http",
        config.admin_socket: "admin",
    }
    found = place or "an unknown place"
    door = name if name in DOORS else places.get(place) if place else None
    if door is None:
        raise InvalidArgument(
            f"found a socket '{name}' at {found} from the service manager, "
            f"expected FileDescriptorName= to be one of {', '.join(DOORS)}, or the address of one of these doors"
        )
    if door == "admin" and not str(place).startswith("/"):
        raise InvalidArgument(
            f"the door admin gives clients all rights without a token: found {found} for it from the service manager, "
            "expected ListenStream= to be a path, such as /run/edge-serve/admin.sock"
        )
    return door


def inherit(environ: Mapping[str, str], pid: int, config: ServerConfig) -> Inherited:
    """Take over what was handed to process `pid`.

    Raises:
        InvalidArgument: something is no listening socket, is for no door, or is for the door `admin` and has no path.
    """
    found: dict[str, list[Listener]] = {}
    for fd, name in numbers_and_names(environ, pid):
        try:
            listener = adopt(fd)
        except OSError as error:
            raise InvalidArgument(
                f"socket '{name}' of the service manager: {error}; ListenStream= makes one"
            ) from error
        sock = listener.sock
        place = listener.name if sock.family == socket.AF_UNIX else int(sock.getsockname()[1])
        found.setdefault(door_of(name, place, config), []).append(listener)
    return found
