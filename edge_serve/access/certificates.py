"""The file of certificates' roles: a line each; what follows # is not read.

<role> sha256:<fingerprint>          one certificate; colons between the digits are no matter
<role> CN=camera-3,O=Acme            every certificate whose subject has all of these
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from edge_serve.access.roles import Role, parse_role
from edge_serve.errors import InvalidArgument
from edge_serve.files import read_small
from edge_serve.messages.peer import Certificate

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"([A-Za-z][A-Za-z0-9.]*)=((?:[^,\\]|\\.)+)")


@dataclass(frozen=True, slots=True)
class Rule:
    """Gives `role` to certificates with this fingerprint, or with all of these in their subject."""

    role: Role
    fingerprint: str = ""
    subject: frozenset[tuple[str, str]] = frozenset()

    def fits(self, certificate: Certificate) -> bool:
        """Whether this is one of them."""
        if self.fingerprint:
            return self.fingerprint == certificate.fingerprint
        return self.subject <= certificate.subject


class CertificateRoles:
    """All rules of a file."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._rules = tuple(rules)

    def role_of(self, certificate: Certificate) -> Role:
        """The highest role that a rule gives; NONE if none fits."""
        return max((rule.role for rule in self._rules if rule.fits(certificate)), default=Role.NONE)


def parse_certificate_roles(text: str) -> CertificateRoles:
    """Parse the roles that a file gives to certificates.

    Raises:
        ValueError: with the number of the first line that says nothing known.
    """
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split(None, 1)
        if not words:
            continue
        try:
            rules.append(_rule(*words))
        except (TypeError, ValueError) as error:
            reason = str(error) if isinstance(error, ValueError) else "expected a role and a certificate"
            raise ValueError(f"line {number}: {reason}") from None
    return CertificateRoles(rules)


def _rule(role: str, which: str) -> Rule:
    which = which.strip()
    if which.startswith("sha256:"):
        fingerprint = which.removeprefix("sha256:").replace(":", "").lower()
        if not _FINGERPRINT.fullmatch(fingerprint):
            raise ValueError(f"found '{which}', expected sha256: and 64 hexadecimal digits")
        return Rule(parse_role(role), fingerprint=fingerprint)
    pairs = []
    for part in re.split(r"(?<!\\),", which):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"found '{which}', expected sha256:<fingerprint> or a subject as CN=name,O=organization")
        pairs.append((match[1].upper(), re.sub(r"\\(.)", r"\1", match[2])))
    return Rule(parse_role(role), subject=frozenset(pairs))


def read_certificate_roles(path: str) -> CertificateRoles:
    """Read and parse the file of certificates' roles.

    Raises:
        InvalidArgument: it cannot be read, or says something that it may not.
    """
    try:
        return parse_certificate_roles(read_small(path).decode())
    except OSError as error:
        raise InvalidArgument(f"cannot read the certificate role file '{path}': {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgument(f"the certificate role file '{path}': {error}") from error
