"""The files that give roles to bearer tokens and to client certificates. One line each; text after # is ignored.

<role> sha256:<hash> <name>          a token: only its hash is stored, and 256 random bits cannot be guessed from that
<role> sha256:<fingerprint>          a certificate; colons between the digits do not matter
<role> CN=camera-3,O=Acme            all certificates whose subject has these parts
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from edge_serve.access.roles import Role, parse_role
from edge_serve.errors import InvalidArgument
from edge_serve.files import locked, read_small, sync_directory
from edge_serve.messages.peer import Certificate
from edge_serve.records import frozen

T = TypeVar("T")

_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_NAME = re.compile(r"[\w.@:/-]{1,128}")


@frozen
class AccessToken:
    """A token of the file.

    Attributes:
        digest: SHA-256 of its characters, in hexadecimal.
        name: of its owner, for people.
    """

    role: Role
    digest: str
    name: str


class Tokens:
    """The tokens of a file."""

    def __init__(self, entries: Iterable[AccessToken]) -> None:
        self.entries = tuple(entries)

    def role_of(self, token: str) -> Role | None:
        """Return the role of a client with this token; None if the token is unknown. Takes as long for all."""
        digest = hashlib.sha256(token.encode("latin-1", "replace")).hexdigest()
        found: Role | None = None
        for entry in self.entries:
            if hmac.compare_digest(entry.digest, digest):
                found = entry.role
        return found


def parse_tokens(text: str) -> Tokens:
    """Parse the tokens in a file.

    Raises:
        ValueError: a line is invalid; the text has its number. It does not quote the line, which may contain a token
            by mistake.
    """
    entries: dict[str, AccessToken] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        match = _HASH.fullmatch(words[1]) if len(words) in (2, 3) else None
        if match is None:
            raise ValueError(f"line {number} is not '<role> sha256:<64 hexadecimal digits> <name>'")
        try:
            role = parse_role(words[0])
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if match[1] in entries:
            raise ValueError(f"line {number} has the same token as another line")
        entries[match[1]] = AccessToken(role, match[1], words[2] if len(words) == 3 else "")
    return Tokens(entries.values())


def new_token(path: Path, role: Role, name: str) -> str:
    """Make a token, add its hash to the file, and return the token. Create the file if it does not exist.

    Raises:
        InvalidArgument: the name or the file is invalid. OSError: the file cannot be written.
    """
    if name and not _NAME.fullmatch(name):
        raise InvalidArgument(f"found name '{name}', expected up to 128 letters, digits and _ . @ : / -")
    import secrets  # the server only reads tokens, and starts sooner

    token = secrets.token_urlsafe(32)
    line = f"{role.word} sha256:{hashlib.sha256(token.encode()).hexdigest()} {name}".rstrip() + "\n"
    path = Path(os.path.realpath(path))  # a link stays
    with locked(path.parent):  # two commands that add tokens to a file do so one after the other
        before = ""
        if path.exists():
            read_tokens(str(path))
            before = path.read_text()
        _replace(path, before + ("" if before.endswith("\n") or not before else "\n") + line)
        sync_directory(path.parent)
    return token


def _replace(path: Path, text: str) -> None:
    """Replace the whole file at once, so that a server never reads half of it. Only its owner may read a new file."""
    import tempfile

    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            if path.exists():
                status = path.stat()
                os.fchmod(file.fileno(), status.st_mode & 0o777)
                if os.geteuid() == 0:
                    os.fchown(file.fileno(), status.st_uid, status.st_gid)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
#: not inside a word: without its end, a rule would fit more certificates
_COMMENT = re.compile(r"(?:^|\s)#.*")
_PART = re.compile(r"([A-Za-z][A-Za-z0-9.]*)=((?:[^,\\]|\\.)+)")


@frozen
class Rule:
    """Gives `role` to certificates with this fingerprint, or with all these parts in their subject."""

    role: Role
    fingerprint: str = ""
    subject: frozenset[tuple[str, str]] = frozenset()

    def fits(self, certificate: Certificate) -> bool:
        """Return whether the rule applies to a certificate."""
        if self.fingerprint:
            return self.fingerprint == certificate.fingerprint
        return self.subject <= certificate.subject


class CertificateRoles:
    """The rules of a file."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)

    def role_of(self, certificate: Certificate) -> Role:
        """Return the highest role that a rule gives to a certificate; NONE if no rule applies."""
        return max((rule.role for rule in self._rules if rule.fits(certificate)), default=Role.NONE)


def parse_certificate_roles(text: str) -> CertificateRoles:
    """Parse the roles that a file gives to certificates.

    Raises:
        ValueError: a line is invalid; the text has its number.
    """
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        rule = _COMMENT.sub("", line).strip()
        if not rule:
            continue
        try:
            rules.append(_parse_rule(rule))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return CertificateRoles(rules)


def _parse_rule(text: str) -> Rule:
    words = text.split(None, 1)
    if len(words) < 2:
        raise ValueError("expected a role and a certificate")
    role, which = words
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


def read_tokens(path: str) -> Tokens:
    """Read and parse the file of tokens.

    Raises:
        InvalidArgument: the file cannot be read, or is invalid.
    """
    try:
        return _read(path, "token file", parse_tokens)
    except InvalidArgument as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        advice = f"make one with edge-serve token {path} infer"
        raise InvalidArgument(f"there is no token file '{path}': {advice}") from error.__cause__


def read_certificate_roles(path: str) -> CertificateRoles:
    """Read and parse the file of certificates' roles.

    Raises:
        InvalidArgument: the file cannot be read, or is invalid.
    """
    return _read(path, "certificate role file", parse_certificate_roles)


def _read(path: str, kind: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(read_small(path).decode())
    except OSError as error:
        raise InvalidArgument(f"cannot read the {kind} '{path}': {error.strerror}") from error
    except ValueError as error:  # UnicodeDecodeError is one
        raise InvalidArgument(f"the {kind} '{path}': {error}") from error
