"""The device's key: made on the first start, in a file with mode 0600 or on a token. The private part never leaves the
device.

Its fingerprint is the SHA-256 of the public key (DER, SubjectPublicKeyInfo). The publisher signs name and fingerprint
(`edge-ota publish device add`), so two devices with one name are detected.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ota import files
from ota.errors import StoreError
from ota.settings import AgentSettings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE = "key.pem"
_PUBLIC_FILE = "device.pub"


class Signer(Protocol):
    """Signs reports with the key of this device."""

    def sign(self, data: bytes) -> bytes:
        """Return a signature of `data`."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a device: its key pair.

    Attributes:
        public_pem: its public key, for `device add --key`.
        fingerprint: 64 hexadecimal digits.
    """

    public_pem: bytes
    fingerprint: str
    signer: Signer


class _FileSigner:
    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)


def default_name(fingerprint: str) -> str:
    """Return the name of a device for which the settings and the document give none."""
    return f"dev-{fingerprint[:16]}"


def open_identity(settings: AgentSettings, directory: Path) -> Identity:
    """Return the identity of this device: from the token that the settings name, else from a file of `directory`.

    Raises:
        StoreError: the key, or the token, cannot be used. UsageError: a setting of the token is wrong.
    """
    if not settings.pkcs11_module:
        return load_identity(directory)
    from ota.agent.device.token import Pkcs11Token, load_token_identity

    token = Pkcs11Token(settings.pkcs11_module, settings.pkcs11_token, settings.pkcs11_pin_file)
    found = load_token_identity(token)
    _write_public(directory, found.public_pem)
    return found


def public_identity(directory: Path) -> tuple[str, Path]:
    """Return the fingerprint of this device ("" = no key yet) and the file of its public key."""
    path = directory / _PUBLIC_FILE
    lines = (files.read(path, 64 * 1024) or b"").split()
    try:
        der = base64.b64decode(b"".join(lines[3:-3]), validate=True)
    except ValueError:
        der = b""
    return hashlib.sha256(der).hexdigest() if der else "", path


def load_identity(directory: Path) -> Identity:
    """Return the identity of this device. Create its key (Ed25519) if there is none.

    Raises:
        StoreError: the key cannot be read or written. It is never replaced: a new key is another device.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path = directory / KEY_FILE
    pem = files.read(path, 64 * 1024)
    if pem is None:
        files.make_directory(directory, 0o700)
        key = Ed25519PrivateKey.generate()
        no_passphrase = serialization.NoEncryption()
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_passphrase)
        files.write_durably(path, pem, 0o600)
    try:
        found = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError):
        found = None
    if not isinstance(found, Ed25519PrivateKey):
        text = f"{path} is not an Ed25519 key (PEM, without a passphrase)"
        raise StoreError(f"{text}: restore the right file, or remove it and add the device again")
    return _identity(directory, found)


def _write_public(directory: Path, pem: bytes) -> None:
    if files.read(directory / _PUBLIC_FILE) != pem:
        files.make_directory(directory, 0o700)
        files.write_durably(directory / _PUBLIC_FILE, pem, 0o644)


def _identity(directory: Path, key: Ed25519PrivateKey) -> Identity:
    from cryptography.hazmat.primitives import serialization

    public = key.public_key()
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    der, pem = (
        public.public_bytes(serialization.Encoding.DER, info),
        public.public_bytes(serialization.Encoding.PEM, info),
    )
    _write_public(directory, pem)
    return Identity(pem, hashlib.sha256(der).hexdigest(), _FileSigner(key))
