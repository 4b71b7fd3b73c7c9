"""Checks of single values. Each function yields the reasons why a value is wrong."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
import re
from collections.abc import Iterator
from pathlib import Path

from image.device.provision.configuration import LABEL
from image.device.provision.mistakes import quoted

_HOST = re.compile(
    r"(?=.{1,253}$)([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
)
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
# enP4p65s0: a P and the PCI domain, where a machine has several
_INTERFACE = re.compile(r"[A-Za-z0-9*?._-]+( [A-Za-z0-9*?._-]+)*")
_WINDOW = re.compile(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d")
_VARIABLE = re.compile(r"EDGE_SERVE_[A-Z0-9_]+")
_LEAST_RSA_BITS = 3072
_KEY_TYPES = (
    "ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa",
    "sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com",
)  # fmt: skip
_SCOPED = re.compile(r"[^%]*(%[A-Za-z0-9._-]+)?")
#: systemd-networkd ignores such an address of the device, and such a gateway
_NO_SCOPE = "expected an address without '%' and an interface: network.interface names it"
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_EXPECTED_KEY = "expected a line of a .pub file, such as 'ssh-ed25519 AAAA... name'"


def host_name(text: str) -> Iterator[str]:
    """Check a host name: one label of RFC 1123, in lower case."""
    if not LABEL.fullmatch(text) or text == "localhost":
        yield f"found {quoted(text)}, expected up to 63 lower-case letters, digits, and '-', such as 'edge-1'"


def time_zone(text: str, zones: Path) -> Iterator[str]:
    """Check a time zone against the directory of zones."""
    if not _ZONE.fullmatch(text) or not os.path.isfile(zones / text):  # Path.is_file() raises for a very long name
        yield f"found {quoted(text)}, expected a time zone such as 'Europe/Berlin' or 'UTC'"


def interface(text: str) -> Iterator[str]:
    """Check the patterns of network interfaces."""
    if not _INTERFACE.fullmatch(text):
        yield f"found {quoted(text)}, expected names or patterns of interfaces, such as 'eth0' or 'en*'"


def address(text: str) -> Iterator[str]:
    """Check an address with its prefix."""
    try:
        found = ipaddress.ip_interface(text)
    except ValueError:
        yield f"found {quoted(text)}, expected an address with its prefix, such as '192.168.1.20/24'"
        return
    if "/" not in text:
        yield f"found {quoted(text)} without a prefix, expected such as '{text}/24'"
    elif "%" in text:
        yield f"found {quoted(text)}, {_NO_SCOPE}"
    elif _is_of_the_network(found.ip, found.network):
        yield f"found {quoted(text)}, which is the network or its broadcast address, expected an address within it"
    elif found.ip.is_loopback or found.ip.is_multicast or found.ip.is_unspecified:
        yield f"found {quoted(text)}, which no device can have, expected an address of your network"


def ip(text: str) -> Iterator[str]:
    """Check the address of another machine, without a prefix."""
    try:
        found = _ip(text)
    except ValueError:
        yield f"found {quoted(text)}, expected an address such as '192.168.1.1'"
        return
    if found.is_loopback or found.is_multicast or found.is_unspecified:
        yield f"found {quoted(text)}, which no other machine can have, expected an address such as '192.168.1.1'"


def _ip(text: str) -> _Address:
    """Return the address in a text.

    Raises:
        ValueError: it is none, or the name of its interface (`fe80::1%eth0`) has characters that `ipaddress` accepts
            and a file of systemd does not, such as the end of the line.
    """
    if not _SCOPED.fullmatch(text):
        raise ValueError(text)
    return ipaddress.ip_address(text)


def gateway(text: str, addresses: tuple[str, ...]) -> Iterator[str]:
    """Check that a gateway is another machine within a network of the device."""
    interfaces = [ipaddress.ip_interface(one) for one in addresses]
    networks = [one.network for one in interfaces]
    gateway = ipaddress.ip_address(text)
    if "%" in text:
        yield f"found {quoted(text)}, {_NO_SCOPE}"
    elif any(gateway == one.ip for one in interfaces):
        yield f"found {quoted(text)}, which is the device's own address, expected that of your router"
    elif any(_is_of_the_network(gateway, one) for one in networks):
        yield f"found {quoted(text)}, which no machine can have, expected the address of your router"
    elif not any(gateway in network for network in networks) and not gateway.is_link_local:
        names = ", ".join(map(str, networks))
        yield f"found {quoted(text)}, expected an address within network.address ({names})"


def _is_of_the_network(address: _Address, network: _Network) -> bool:
    """Return whether an address is that of the network itself, or its broadcast address. Networks of two have none."""
    if network.version == 6 or network.num_addresses <= 2:
        return False
    return address in (network.network_address, network.broadcast_address)


def host_or_address(text: str) -> Iterator[str]:
    """Check a host name or an address."""
    try:
        _ip(text)
    except ValueError:
        if not _HOST.fullmatch(text):
            yield f"found {quoted(text)}, expected a host name or an address, such as 'pool.ntp.org'"


def proxy(text: str) -> Iterator[str]:
    """Check the address of a proxy."""
    if not re.fullmatch(r"[^/?#]*//[^/?#]*/?", text) or not _is_url(text, ("http",)):
        yield f"found {_shown(text)}, expected http://host:port"


def url(text: str) -> Iterator[str]:
    """Check the address of a repository of updates."""
    if re.search("[?#]", text) or not _is_url(text, ("http", "https")):
        yield f"found {_shown(text)}, expected an address such as 'https://models.example/plant'"


def _shown(text: str) -> str:
    """Describe a wrong address. It is not quoted, because any part of it may be a password."""
    return "a text with '@' (in a password, write / ? # @ as %2F %3F %23 %40)" if "@" in text else "another text"


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    from urllib.parse import urlsplit  # most devices have no address to check

    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    plain = not re.search(r"[\s\"'\\\x00-\x20\x7f]", text)
    return plain and parts.scheme in schemes and bool(parts.hostname) and port != 0


def window(text: str) -> Iterator[str]:
    """Check hours of the day."""
    if not _WINDOW.fullmatch(text):
        yield f"found {quoted(text)}, expected hours such as '02:00-05:00'"


def setting(name: str, text: str) -> Iterator[str]:
    """Check name and text of a variable of the server. The server's own program checks the value."""
    if not _VARIABLE.fullmatch(name):
        yield f"found the name {quoted(name)}, expected that of a variable, such as EDGE_SERVE_LOG_VERBOSE"
    if not text.isprintable():
        yield f"{name}: found line ends or other control characters, expected text on one line"


def ssh_key(text: str) -> Iterator[str]:
    """Check a public key of SSH."""
    if "PRIVATE KEY" in text:
        yield f"found a private key, {_EXPECTED_KEY}: put the .pub file here, and make a new key"
        return
    words = text.split(None, 2)
    if not text.isprintable() or len(words) < 2 or words[0] not in _KEY_TYPES:
        yield f"found {quoted(text)}, {_EXPECTED_KEY}; options before the key are not allowed"
        return
    try:
        parts = list(_ssh_parts(base64.b64decode(words[1], validate=True)))
    except (binascii.Error, ValueError):
        parts = []
    if len(parts) < 2 or parts[0] != words[0].encode():
        yield f"found a damaged key {quoted(text)}, {_EXPECTED_KEY}"
    elif words[0] == "ssh-rsa":
        bits = int.from_bytes(parts[-1], "big").bit_length()
        if bits < _LEAST_RSA_BITS:
            yield f"found an RSA key of {bits} bits, expected at least {_LEAST_RSA_BITS}: use ssh-keygen -t ed25519"


def _ssh_parts(blob: bytes) -> Iterator[bytes]:
    """Yield the strings of a key (RFC 4253, section 6.6).

    Raises:
        ValueError: it is cut off.
    """
    while blob:
        length = int.from_bytes(blob[:4], "big")
        part, blob = blob[4 : 4 + length], blob[4 + length :]
        if len(part) != length or not length:
            raise ValueError("the key is cut off")
        yield part
