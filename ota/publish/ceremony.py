"""Signatures by keys of other machines, exchanged as files: request (publisher), sign (signer), collect (publisher).

The signer's machine needs no network and trusts no summary: it verifies the published metadata in the request from a
root that it knows (memory.py), and derives the description of the change from the metadata itself.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import Key, Signature, Signer
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Root, Targets

from ota import files
from ota.documents.names import name as checked_name
from ota.documents.targets import has_document
from ota.errors import OtaError, Untrusted, UsageError
from ota.publish.change import (
    MissingSignatures,
    PendingChange,
    check_unexpired,
    delegator_of,
    find_missing_signatures,
    keyids_of,
    read_pending,
    settle,
    write_pending,
)
from ota.publish.description import describe
from ota.publish.keys import has_natural_id
from ota.publish.repository import RepositoryState, read_target
from ota.publish.roles import ROOT, TARGETS
from ota.publish.workspace import Workspace
from ota.strict_json import parse, to_canonical_json

SCHEMA = 2
#: the metadata of a role twice, and its documents
MOST_REQUEST = 64 * 1024 * 1024
REQUEST, SIGNATURES = "edge-ota signing request", "edge-ota signatures"


@dataclass(frozen=True, slots=True)
class SigningRequest:
    """A change for which signatures are requested.

    Attributes:
        published: every version of root, targets, and each role of the change, as devices know them; empty before the
            first publication.
        change: role -> its new metadata, with the signatures that it has already.
        names: key ID -> the publisher's name for it.
        documents: SHA-256 -> document, for those in which the change differs from the published metadata; an older
            publisher wrote none.
    """

    published: RepositoryState
    change: Mapping[str, Metadata[Any]]
    names: Mapping[str, str]
    documents: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def after(self) -> RepositoryState:
        """The metadata after the change."""
        return self.published.with_roles(self.change)

    def words(self, in_full: Collection[str] = ()) -> list[str]:
        """Return a description of the change, one line for each difference.

        Args:
            in_full: roles whose whole content is described, because their published metadata is not trusted.
        """
        found = []
        for role, metadata in self.change.items():
            before = None if role in in_full else self.published.newest.get(role)
            known = before.signed if before is not None else None
            found += describe(role, known, metadata.signed, self.names, self.documents)
        return found

    def roles_of(self, keyid: str) -> list[str]:
        """Return the roles of the change that a key may sign and has not signed."""
        found = []
        for role, metadata in self.change.items():
            keyids = {*keyids_of(self.after, role)[1], *keyids_of(self.published, role)[1]}
            if keyid in keyids and keyid not in metadata.signatures:
                found.append(role)
        return found


def write_request(workspace: Workspace, state: RepositoryState, out: Path, now: float) -> SigningRequest:
    """Write the waiting change to a file for the machines with the keys.

    Raises:
        UsageError: no change waits. Expired: a role of the change has waited for too long.
    """
    pending = _waiting_change(workspace)
    check_unexpired(state, pending, now)
    published = {role: state.roles[role].to_dict() for role in (TARGETS, *pending.roles) if role in state.roles}
    value = {
        "schema": SCHEMA,
        "kind": REQUEST,
        "roots": [root.to_dict() for root in state.roots],
        "published": published,
        "change": {role: one.to_dict() for role, one in pending.roles.items()},
        "names": {keyid: place.name for keyid, place in workspace.keys.items()},
        "documents": {sha256: data.decode() for sha256, data in _changed_documents(workspace, state, pending)},
    }
    data = to_canonical_json(value)
    files.write_durably(out, data)
    return read_request(data, str(out))


def _changed_documents(
    workspace: Workspace, state: RepositoryState, pending: PendingChange
) -> Iterator[tuple[str, bytes]]:
    """Yield SHA-256 and bytes of each document that a change lists anew, and of the published one in its place."""
    for data in pending.documents.values():
        yield hashlib.sha256(data).hexdigest(), data
    for role in pending.roles.keys() & state.roles.keys():
        old, new = (one.roles[role].signed.targets for one in (state, pending))
        for target, listed in old.items():
            if has_document(target) and new.get(target, listed) != listed:
                with contextlib.suppress(OtaError):  # the signer sees the whole content instead
                    yield listed.hashes["sha256"], read_target(workspace.repository, target, listed)


def _waiting_change(workspace: Workspace) -> PendingChange:
    pending = read_pending(workspace)
    if pending is None:
        raise UsageError("no change waits for signatures: there is nothing to request or collect")
    return pending


def read_request(data: bytes, what: str) -> SigningRequest:
    """Return the request in a file. Verify the metadata in it.

    Raises:
        Untrusted: it does not. UsageError: it is another file.
    """
    found = _read(data, what, REQUEST, MOST_REQUEST)
    try:
        published = RepositoryState(
            [Metadata[Root].from_dict(root) for root in found["roots"]],
            {checked_name(role, what): Metadata.from_dict(one) for role, one in found["published"].items()},
        )
        change = {checked_name(role, what): Metadata.from_dict(one) for role, one in found["change"].items()}
        names = {str(keyid): str(name) for keyid, name in found["names"].items()}
        documents = {str(sha256): text.encode() for sha256, text in found.get("documents", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError, RepositoryError) as error:
        raise Untrusted(f"{what} is damaged ({error}): write it again with 'edge-ota publish request'") from None
    request = SigningRequest(published, change, names, documents)
    _check(request, what)
    return request


def _check(request: SigningRequest, what: str) -> None:
    """Refuse a request whose published metadata has no valid signatures, or whose change is not its next version."""
    published = request.published
    _check_roots(published.roots, what)
    for role, metadata in published.roles.items():
        signed = published.roots and keyids_of(published, role)[0]
        if not signed or find_missing_signatures(published, published, role, metadata) is not None:
            raise Untrusted(f"{what}: its published {role} is not signed by the keys of this repository; do not sign")
    for role, metadata in request.change.items():
        known = published.version(role)
        if metadata.signed.version != known + 1:
            raise Untrusted(f"{what}: {role} goes from version {known} to {metadata.signed.version}; do not sign")
        if not isinstance(metadata.signed, Root if role == ROOT else Targets):
            raise Untrusted(f"{what}: the metadata of {role} is of another kind ({metadata.signed.type}); do not sign")
    if any(hashlib.sha256(data).hexdigest() != sha256 for sha256, data in request.documents.items()):
        raise Untrusted(f"{what} has a document with other bytes than its SHA-256; do not sign")
    for role, metadata in (*((ROOT, root) for root in published.roots), *request.change.items()):
        for key in _keys_in(metadata.signed):
            if not has_natural_id(key):
                raise Untrusted(f"{what}: {role} gives the ID {key.keyid[:16]} to another key; do not sign")


def _check_roots(roots: Sequence[Metadata[Root]], what: str) -> None:
    """Refuse published roots of which one is not signed by its own keys and by those of the root before it."""
    for number, root in enumerate(roots):
        before, after = RepositoryState(list(roots[:number])), RepositoryState(list(roots[: number + 1]))
        if not isinstance(root.signed, Root) or (number and root.signed.version != before.root.version + 1):
            raise Untrusted(f"{what}: its published roots are not one after the other; do not sign")
        if find_missing_signatures(before, after, ROOT, root) is not None:
            raise Untrusted(
                f"{what}: its published root {root.signed.version} is not signed by its own keys and by those of the "
                "root before it; do not sign"
            )


def _keys_in(payload: Root | Targets) -> list[Key]:
    if isinstance(payload, Root):
        return list(payload.keys.values())
    return list(payload.delegations.keys.values()) if payload.delegations is not None else []


def sign(request: SigningRequest, signers: Sequence[Signer]) -> tuple[bytes, list[str]]:
    """Return the file with signatures, and the signed roles.

    Raises:
        UsageError: no key may sign anything of the change, or each has signed already.
    """
    signatures, roles = [], []
    for signer in signers:
        for role in request.roles_of(signer.public_key.keyid):
            metadata = request.change[role]
            signature = signer.sign(metadata.signed_bytes)
            signatures.append(
                {
                    "role": role,
                    "version": metadata.signed.version,
                    "sha256": hashlib.sha256(metadata.signed_bytes).hexdigest(),
                    "keyid": signature.keyid,
                    "sig": signature.signature,
                }
            )
            roles.append(role)
    if not signatures:
        keys = ", ".join(sorted({keyid[:16] for role in request.change for keyid in keyids_of(request.after, role)[1]}))
        raise UsageError(f"this key may sign nothing here, or has signed already; the keys that may are {keys}")
    return to_canonical_json({"schema": SCHEMA, "kind": SIGNATURES, "signatures": signatures}), roles


def collect(
    workspace: Workspace, state: RepositoryState, found: Sequence[tuple[str, bytes]], now: float
) -> list[MissingSignatures]:
    """Add signatures to the waiting change. Publish it when every threshold is met.

    Args:
        found: name and bytes of each file.

    Raises:
        Untrusted: a signature is wrong. UsageError: a file is another one, or belongs to another change.
    """
    pending = _waiting_change(workspace)
    request = SigningRequest(state, pending.roles, {})
    for what, data in found:
        for one in _signatures(data, what):
            _add(request, one, what)
    write_pending(workspace, pending)
    for role, metadata in pending.roles.items():
        if metadata.signed.version != state.version(role) + 1:
            raise OtaError(
                f"the change is too old: {role} has version {state.version(role)} by now; "
                "drop it with 'request --discard', and make it again"
            )
    waiting = settle(workspace, state, pending, now)
    if not waiting:
        files.unlink(workspace.pending)
    return waiting


def _signatures(data: bytes, what: str) -> Iterator[dict[str, Any]]:
    for one in _read(data, what, SIGNATURES, files.MOST_DOCUMENT).get("signatures", []):
        kinds = {"role": str, "version": int, "sha256": str, "keyid": str, "sig": str}
        if not isinstance(one, dict) or any(not isinstance(one.get(name), kind) for name, kind in kinds.items()):
            raise Untrusted(f"{what} is damaged: sign the request again")
        yield one


def _add(request: SigningRequest, one: Mapping[str, Any], what: str) -> None:
    role = one["role"]
    metadata = request.change.get(role)
    if metadata is None or hashlib.sha256(metadata.signed_bytes).hexdigest() != one["sha256"]:
        raise UsageError(
            f"{what} signs version {one['version']} of {role[:100]!r} of another change, perhaps an older one: "
            "write the request again, and sign that"
        )
    for state in (request.after, request.published):
        if one["keyid"] in keyids_of(state, role)[1]:
            key = delegator_of(state, role).get_key(one["keyid"])
            signature = Signature(one["keyid"], one["sig"])
            try:
                key.verify_signature(signature, metadata.signed_bytes)
            except UnverifiedSignatureError:
                raise Untrusted(f"{what} has a wrong signature for {role}: sign the request again") from None
            metadata.signatures[one["keyid"]] = signature
            return
    raise Untrusted(f"{what} is signed with a key that is none of {role}'s")


def _read(data: bytes, what: str, kind: str, most_bytes: int) -> dict[str, Any]:
    found = parse(data, what, most_bytes)
    if found.get("kind") != kind:
        said = f"it is '{found['kind'][:60]}'" if isinstance(found.get("kind"), str) else "it is something else"
        raise UsageError(f"{what} is no '{kind}': {said}")
    if found.get("schema") != SCHEMA:
        raise UsageError(f"{what} has schema {found.get('schema')!r}, and this edge-ota reads {SCHEMA}: update it")
    return found
