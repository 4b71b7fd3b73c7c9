"""The access decision: whether a client has the role that an operation needs, and the error if it has not."""

from __future__ import annotations

import enum

from edge_serve.access.credentials import CertificateRoles, Tokens
from edge_serve.access.roles import Role
from edge_serve.errors import EdgeServeError, PermissionDenied, Unauthenticated
from edge_serve.messages.peer import Peer
from edge_serve.records import frozen


class AdminAccess(enum.Enum):
    """The clients that may use the role admin (`--admin-access`)."""

    LOOPBACK = "loopback"
    ANYWHERE = "anywhere"
    SOCKET = "socket"


@frozen
class AccessRequest:
    """The credentials that a request carries.

    Attributes:
        authorization: the header's value.
        forwarded: a proxy sent the request for another client.
        origin: of the web page that sent it, unless the page is this server's or its origin is allowed.
    """

    authorization: str | None = None
    forwarded: bool = False
    origin: str | None = None


@frozen
class Policy:
    """The configured tokens and certificates, and the role of a client without either.

    Attributes:
        tokens, certificates: None = no such file is configured. Without both, all clients have all roles.
        anonymous: the role of a client without a token and without a certificate.
    """

    tokens: Tokens | None = None
    certificates: CertificateRoles | None = None
    anonymous: Role = Role.NONE
    admin_access: AdminAccess = AdminAccess.LOOPBACK

    def check(self, peer: Peer, needed: Role, asked: AccessRequest) -> EdgeServeError | None:
        """Return the error for a client that lacks the role; None if it has the role."""
        if peer.administrator or needed is Role.NONE:
            return None
        if self.tokens is not None or self.certificates is not None:
            refusal = self._without_role(peer, needed, asked)
            if refusal is not None:
                return refusal
        return self._out_of_place(peer, asked) if needed is Role.ADMIN else None

    def may_read_log(self, peer: Peer, asked: AccessRequest) -> bool:
        """Return whether a client with the role `read` may read the log, and paths and texts of models in the status.

        It may if its token or certificate gives it that role, or if it is on this device, and no page of another
        origin sent the request.
        """
        here = peer.local and not asked.forwarded and asked.origin is None
        return here or any(role is not None and role >= Role.READ for role in self._own_roles(peer, asked))

    def _without_role(self, peer: Peer, needed: Role, asked: AccessRequest) -> EdgeServeError | None:
        own = self._own_roles(peer, asked)
        known = [role for role in own if role is not None]
        if len(known) < len(own):
            return Unauthenticated("this token is not known here", invalid=True)
        role = max([self.anonymous, *known])
        if role >= needed:
            return None
        if known:
            return PermissionDenied(f"this needs the role {needed.word}, and this client has the role {role.word}")
        how = "a token (Authorization: Bearer ...)" if self.tokens is not None else "a client certificate"
        return Unauthenticated(f"this needs the role {needed.word}: show {how} that has it")

    def _own_roles(self, peer: Peer, asked: AccessRequest) -> list[Role | None]:
        """Return the roles that a client's certificate and its token give; None = the token is unknown."""
        roles: list[Role | None] = []
        if self.certificates is not None and peer.certificate is not None:
            roles.append(self.certificates.role_of(peer.certificate))
        if self.tokens is not None and (token := _bearer(asked.authorization)) is not None:
            roles.append(self.tokens.role_of(token))
        return roles

    def _out_of_place(self, peer: Peer, asked: AccessRequest) -> EdgeServeError | None:
        """Return the error for a client that may not use the role admin from its place; None if it may."""
        if asked.origin is not None:
            advice = "open the page by the device's address or host name, or start the server with the page's origin in"
            return PermissionDenied(f"pages of {asked.origin} may not do this: {advice} --http-cors-origin")
        if self.admin_access is AdminAccess.SOCKET:
            return PermissionDenied("this is for --admin-socket only here (--admin-access=socket)")
        if self.admin_access is AdminAccess.LOOPBACK and (not peer.local or asked.forwarded):
            where = "through a proxy" if peer.local else "from another machine"
            return PermissionDenied(
                f"this is for clients on the device itself, and the request came {where}: use --admin-socket there, or "
                "start the server with --admin-access=anywhere"
            )
        return None


def _bearer(authorization: str | None) -> str | None:
    """Return the token of an `Authorization` field; None if the field has another scheme (RFC 6750 2.1)."""
    if authorization is None:
        return None
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
