"""Access checks of all doors: whether a client has the role that an operation needs."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar
from urllib.parse import urlsplit
from weakref import WeakSet

from edge_serve.access.credentials import read_certificate_roles, read_tokens
from edge_serve.access.policy import AccessRequest, AdminAccess, Policy
from edge_serve.access.roles import Role
from edge_serve.errors import EdgeServeError
from edge_serve.messages.peer import Peer
from edge_serve.records import frozen
from edge_serve.transport.door.reloaded import Reloaded

T = TypeVar("T")

#: returns the value of a header field, or of gRPC metadata, by its lower-case name
Field = Callable[[str], str | None]

#: fields by which proxies identify their clients (RFC 7239, RFC 9110 7.6.3, and their predecessors)
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


@frozen
class AccessSettings:
    """Settings of the access checks; "" = no such file.

    Attributes:
        origins: origins of web pages that may use the role admin, if their user has it.
    """

    token_file: str = ""
    certificate_file: str = ""
    anonymous: Role = Role.NONE
    admin_access: AdminAccess = AdminAccess.LOOPBACK
    origins: Sequence[str] = ()


class AnswerCache(Protocol):
    """Caches answers of a gate."""

    def clear(self) -> None:
        """Remove all answers: the policy has changed."""


class Access:
    """The access policy, as its files define it now.

    Attributes:
        denied: number of requests that the policy refused.

    Raises:
        InvalidArgument: a file is invalid at the start.
    """

    def __init__(self, settings: AccessSettings) -> None:
        self._settings = settings
        self.denied = 0
        self._caches: WeakSet[AnswerCache] = WeakSet()
        self._tokens = self._load(settings.token_file, read_tokens)
        self._certificates = self._load(settings.certificate_file, read_certificate_roles)
        self.policy = self._read()

    async def reload_changed(self) -> None:
        """Load the files that have changed. Called once a second."""
        for file in (self._tokens, self._certificates):
            if file is not None:
                await file.reload_changed()

    def gate(self, peer: Peer) -> AccessGate | None:
        """Return the access checks of one client; None if the client may do everything."""
        return None if peer.administrator else AccessGate(self, peer)

    def subscribe(self, cache: AnswerCache) -> None:
        """Clear `cache` after each change of the policy, for as long as it exists."""
        self._caches.add(cache)

    def is_foreign(self, origin: str, host: str | None) -> bool:
        """Return whether a web page of this origin is neither this server's own nor in the settings' `origins`.

        The owner of a DNS name can point it at this server (DNS rebinding), so that the origin equals the Host header.
        Therefore only an address, localhost, and the name of this machine count as this server's own.
        """
        if origin in self._settings.origins:
            return False
        try:
            there = urlsplit(origin)
            name = (there.hostname or "").removesuffix(".")  # browsers send the host as its user wrote it
            return there.netloc.lower() != (host or "").lower() or not (_is_address(name) or _is_own_name(name))
        except ValueError:
            return True

    def _load(self, path: str, read: Callable[[str], T]) -> Reloaded[T] | None:
        return Reloaded(path, [path], lambda: read(path), self._changed) if path else None

    def _read(self) -> Policy:
        return Policy(
            self._tokens.value if self._tokens is not None else None,
            self._certificates.value if self._certificates is not None else None,
            self._settings.anonymous,
            self._settings.admin_access,
        )

    def _changed(self) -> None:
        self.policy = self._read()
        for cache in list(self._caches):
            cache.clear()


class AccessGate:
    """Access checks of one client, or of all equal clients. Answers may be cached: see `Access.subscribe`."""

    __slots__ = ("_access", "_peer")

    def __init__(self, access: Access, peer: Peer) -> None:
        self._access = access
        self._peer = peer

    def count_denied(self) -> None:
        """Count a refused request, whether or not the answer came from a cache."""
        self._access.denied += 1

    def check(self, needed: Role, field: Field) -> EdgeServeError | None:
        """Return None if the client has the role, else the error to answer. `field` reads the head or the metadata."""
        return self._access.policy.check(self._peer, needed, self._asked(field))

    def rights_of_page(self, field: Field) -> tuple[Role, str, bool]:
        """Return the highest role that this server's page has for the client, why it lacks the role admin, and whether
        the client may read the log (see `Policy.may_read_log`)."""
        policy, asked = self._access.policy, self._asked_by_page(field)
        allowed = (role for role in reversed(Role) if policy.check(self._peer, role, asked) is None)
        refusal = policy.check(self._peer, Role.ADMIN, asked)
        reason = "" if refusal is None else refusal.message
        return next(allowed, Role.NONE), reason, policy.may_read_log(self._peer, asked)

    def _asked_by_page(self, field: Field) -> AccessRequest:
        """Return the credentials of a GET that a page may have sent.

        Browsers send an origin with a POST to the page's own server, but none with a GET. So the host is used instead,
        without its scheme, which a proxy may have changed.
        """
        asked, host = self._asked(field), field("host")
        if host and all(self._access.is_foreign(f"{scheme}://{host}", host) for scheme in ("http", "https")):
            return replace(asked, origin=f"http://{host}")
        return asked

    def _asked(self, field: Field) -> AccessRequest:
        origin = field("origin")
        if origin is not None and not self._access.is_foreign(origin, field("host")):
            origin = None
        forwarded = any(field(name) is not None for name in _FORWARDED)
        return AccessRequest(field("authorization"), forwarded, origin)


def _is_own_name(host: str) -> bool:
    """Return whether this is the machine's name, its first label, or that label in multicast DNS.

    No other party can register the last two in the Internet's DNS: `.local` is reserved for multicast DNS (RFC 6762 3),
    and a name of one label would be a top-level domain.
    """
    own = os.uname().nodename.lower()
    short = own.partition(".")[0]
    return bool(own) and host.lower() in (own, short, f"{short}.local")


def _is_address(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
