"""The peer of a connection, as far as the connection knows it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from edge_serve.records import frozen


@frozen
class Certificate:
    """A client's certificate that was verified.

    Attributes:
        fingerprint: SHA-256 of its bytes, in lower-case hexadecimal.
        subject: pairs of attribute and value, as (CN, camera-3).
    """

    fingerprint: str
    subject: frozenset[tuple[str, str]]

    @staticmethod
    def of(data: bytes, fields: Mapping[str, Any]) -> Certificate:
        """Return a certificate, from its DER bytes and the fields that `ssl.SSLSocket.getpeercert` returns."""
        names: Iterable[Iterable[tuple[str, str]]] = fields.get("subject", ())
        pairs = frozenset((_SHORT.get(name, name), value) for group in names for name, value in group)
        return Certificate(hashlib.sha256(data).hexdigest(), pairs)


#: names as `openssl x509 -subject -nameopt RFC2253` prints them (RFC 4514 3), by OpenSSL's long names
_SHORT = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}


@frozen
class Peer:
    """A client.

    Attributes:
        local: on this device: a UNIX socket, or a loopback address.
        administrator: came through the socket for administration, and may do everything.
    """

    local: bool
    administrator: bool = False
    certificate: Certificate | None = None


#: for callers that have no connection
LOCAL = Peer(local=True)
#: a client on the socket for administration
ADMINISTRATOR = Peer(local=True, administrator=True)
