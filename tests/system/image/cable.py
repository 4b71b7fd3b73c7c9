"""A network cable from this host to an emulated device, over which every port of the device can be tried.

QEMU's user network forwards single ports only. The cable is a tap interface with IPv6 link-local addresses, so it needs
root, and no other program of this host sees it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAC = "52:54:00:65:64:67"
#: link-local address that the kernel and systemd-networkd derive from that (RFC 4291, appendix A)
_ADDRESS = "fe80::5054:ff:fe65:6467"
_MDNS = ("ff02::fb", 5353)
#: connections that are tried at the same time
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Cable:
    """A plugged-in cable: the name of the host's interface."""

    interface: str

    def words(self) -> list[str]:
        """Return QEMU's words for the device's end."""
        return [
            "-netdev", f"tap,id=cable,ifname={self.interface},script=no,downscript=no",
            "-device", f"virtio-net-pci,netdev=cable,mac={_MAC},romfile=",
        ]  # fmt: skip

    def open_ports(self, ports: range = range(1, 65536)) -> list[int]:
        """Return the TCP ports that accept connections. A port without an answer in 10 seconds counts as closed."""
        found: list[int] = []
        for first in range(ports.start, ports.stop, _AT_ONCE):
            found += self._accepting(range(first, min(first + _AT_ONCE, ports.stop)))
        return found

    def resolve(self, name: str, seconds: float = 10) -> str:
        """Return the IPv6 address that the device answers for a name by multicast DNS (RFC 6762).

        Raises:
            TimeoutError: no answer.
        """
        query = struct.pack("!6H", 0, 0, 1, 0, 0, 0)
        query += b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
        query += struct.pack("!2H", 28, 1 | 0x8000)  # AAAA, answered to this port alone
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.settimeout(seconds)
            sock.sendto(query, (*_MDNS, 0, self._index()))
            answer, _ = sock.recvfrom(9000)
        return socket.inet_ntop(socket.AF_INET6, _first_aaaa(answer))

    def _index(self) -> int:
        return socket.if_nametoindex(self.interface)

    def _accepting(self, ports: range) -> list[int]:
        with contextlib.ExitStack() as closing, selectors.DefaultSelector() as selector:
            for port in ports:
                sock = closing.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
                sock.setblocking(False)
                sock.connect_ex((_ADDRESS, port, 0, self._index()))
                selector.register(sock, selectors.EVENT_WRITE, port)
            found = []
            while selector.get_map() and (ready := selector.select(10)):
                for key, _ in ready:
                    selector.unregister(key.fileobj)
                    assert isinstance(key.fileobj, socket.socket)
                    if key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                        found.append(key.data)
            return sorted(found)


@contextlib.contextmanager
def cable() -> Iterator[Cable]:
    """Yield a cable, which is removed at the end."""
    interface = f"edge{os.getpid()}"
    _ip("tuntap", "add", "dev", interface, "mode", "tap")
    try:
        _ip("link", "set", interface, "up")
        yield Cable(interface)
    finally:
        _ip("link", "del", interface)


def why_not() -> str:
    """Return why this host has no cable; "" = it can have one."""
    if os.geteuid():
        return "only root can make a tap interface: run the tests as root"
    return "" if Path("/dev/net/tun").exists() else "there is no /dev/net/tun, so no tap interface"


def _first_aaaa(answer: bytes) -> bytes:
    """Return the address of the first AAAA record of an answer (RFC 1035, section 4.1)."""
    questions, answers = struct.unpack_from("!2H", answer, 4)
    at = 12
    for _ in range(questions):
        at = _after_name(answer, at) + 4
    for _ in range(answers):
        at = _after_name(answer, at)
        kind, _, _, size = struct.unpack_from("!2HIH", answer, at)
        at += 10
        if kind == 28:
            return answer[at : at + 16]
        at += size
    raise AssertionError(f"an answer without an AAAA record: {answer!r}")


def _after_name(packet: bytes, at: int) -> int:
    while packet[at]:
        if packet[at] >= 0xC0:  # the rest of the name is elsewhere in the packet
            return at + 2
        at += 1 + packet[at]
    return at + 1


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
