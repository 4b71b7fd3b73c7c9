"""Keys of roles: PKCS#8 files with a passphrase, or keys on a PKCS#11 token. No secret is passed in argv."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.formats import encode_canonical
from securesystemslib.signer import CryptoSigner, HSMSigner, Key, Signer, SSlibKey

from ota import files
from ota.documents.names import name as checked_name
from ota.errors import OtaError, Untrusted, UsageError
from ota.strict_json import parse, to_canonical_json

LEAST_PASSPHRASE = 12
PASSPHRASE = "EDGE_OTA_PUBLISH_PASSPHRASE"
PIN = "EDGE_OTA_PUBLISH_PIN"
MOST_KEY = 64 * 1024
#: seconds for all answers at the terminal to a command for which others wait
ANSWER_SECONDS = 300.0
#: those that are left; None = no command waits for this one
_left: float | None = None


@contextlib.contextmanager
def limit_answers() -> Iterator[None]:
    """Limit the time of all questions at the terminal to ANSWER_SECONDS, while this command has the lock of others."""
    global _left
    _left = ANSWER_SECONDS
    try:
        yield
    finally:
        _left = None


def ask_in_time(question: str, ask: Callable[[str], str] = getpass.getpass) -> str:
    """Ask at the terminal, and return the answer. There is no limit outside of `limit_answers`.

    Raises:
        OtaError: there is no answer in time.
    """
    global _left
    if _left is None:
        return ask(question)

    def end(number: int, frame: object) -> None:
        raise TimeoutError

    before, start = signal.signal(signal.SIGALRM, end), time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, max(_left, 0.001))
    try:
        return ask(question)
    except TimeoutError:
        raise OtaError(
            f"no answer within {ANSWER_SECONDS:g} s, and other commands may wait for this one: repeat it"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        _left -= time.monotonic() - start


class KeyProblem(OtaError):
    """A key is missing, or its passphrase is wrong."""

    reason = "key"


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """A public key, and the place of its private part.

    Attributes:
        uri: `file:NAME.pem` (in the workspace's keys/), `hsm:ID?label=TOKEN`, or "" = on another machine.
        module: the PKCS#11 library of a token.
    """

    name: str
    public: SSlibKey
    uri: str = ""
    module: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"name": self.name, "public": public_dict(self.public), "uri": self.uri, "module": self.module}


@dataclass(slots=True)
class Secrets:
    """Passphrases and PINs, from a file, the environment, or the terminal. Each is asked for once.

    Attributes:
        file: holds the passphrase of all keys on its first line.
        ask: called where there is a terminal.
        none: new keys get no passphrase.
        known: what was typed, by the name of the key.
    """

    file: Path | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    ask: Callable[[str], str] = ask_in_time
    terminal: Callable[[], bool] = lambda: sys.stdin.isatty()
    none: bool = False
    known: dict[str, str] = field(default_factory=dict)

    def of(self, name: str, what: str = "passphrase", variable: str = PASSPHRASE) -> str:
        """Return the secret of a key.

        Raises:
            KeyProblem: there is none, and no terminal to ask for it.
        """
        if name in self.known:
            return self.known[name]
        if self.file is not None and variable == PASSPHRASE:
            return _first_line(self.file)
        own = f"{variable}_{name.upper().replace('-', '_').replace('.', '_')}"
        for one in (own, variable):
            if one in self.environ:
                return self.environ[one]
        if not self.terminal():
            raise KeyProblem(
                f"the key {name} needs its {what}, and there is no terminal to ask: "
                f"set {variable}" + (", or give --passphrase-file FILE" if variable == PASSPHRASE else "")
            )
        self.known[name] = self.ask(f"{what} of the key {name}: ")
        return self.known[name]

    def fresh(self, name: str) -> str:
        """Return the passphrase for a new key. At a terminal, the user types one for all new keys, twice.

        Raises:
            KeyProblem: it is too short, or was typed differently.
        """
        if self.none:
            return ""
        before = dict(self.known)
        found = self.known.get("", "") or self.of(name)
        if len(found) < LEAST_PASSPHRASE:
            raise KeyProblem(
                f"the passphrase has {len(found)} characters, expected at least {LEAST_PASSPHRASE}: use six words"
            )
        if self.known != before and self.ask("the same again: ") != found:
            raise KeyProblem("the two passphrases differ: begin again")
        if self.known != before:
            self.known[""] = found
        self.known[name] = found
        return found


def generate(kind: str) -> CryptoSigner:
    """Return a new key."""
    return CryptoSigner(Ed25519PrivateKey.generate() if kind == "ed25519" else generate_private_key(SECP256R1()))


def write_private(path: Path, signer: CryptoSigner, passphrase: str) -> None:
    """Write a private key, readable by its owner only, and encrypted if there is a passphrase.

    Raises:
        KeyProblem: there is such a file already.
    """
    if path.exists():
        raise KeyProblem(f"{path} already exists, and a key is never overwritten: give the new key another name")
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        encryption = serialization.BestAvailableEncryption(passphrase.encode())
    data = signer._private_key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    files.make_directory(path.parent, 0o700)
    files.write_durably(path, data, 0o600)


def read_private(path: Path, name: str, secrets: Secrets) -> CryptoSigner:
    """Return the key in a file.

    Raises:
        KeyProblem: the file is missing or no key, or the passphrase is wrong.
    """
    data = files.read(path, MOST_KEY)
    if data is None:
        raise KeyProblem(f"{path}, the key {name}, does not exist: restore it, or sign on the machine that has it")
    try:
        secret = secrets.of(name).encode() if b"ENCRYPTED" in data else None
        return CryptoSigner(serialization.load_pem_private_key(data, secret))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        if b"ENCRYPTED" in data:  # a wrong passphrase may look like a damaged file, by chance
            raise KeyProblem(f"the passphrase of the key {name} ({path}) is wrong, or the file is damaged") from None
        raise KeyProblem(f"{path} is not a readable private key: {error}") from None


def signer_of(place: KeyPlace, keys: Path, secrets: Secrets) -> Signer:
    """Return the signer of a key.

    Args:
        keys: the directory of key files.

    Raises:
        KeyProblem: the key is on another machine, or cannot be opened.
    """
    if not place.uri:
        raise KeyProblem(f"the private part of the key {place.name} is not on this machine")
    if place.uri.startswith("hsm:"):
        return TokenSigner(place, secrets)
    signer = read_private(keys / place.uri.removeprefix("file:"), place.name, secrets)
    if signer.public_key.keyid != place.public.keyid:
        raise KeyProblem(f"{keys / place.uri.removeprefix('file:')} is another key than {place.name}")
    return signer


class TokenSigner(Signer):
    """Signs on a PKCS#11 token. Errors of the token name the key."""

    def __init__(self, place: KeyPlace, secrets: Secrets) -> None:
        self._place = place
        _use_module(place.module)
        self._inner = HSMSigner.from_priv_key_uri(place.uri, place.public, lambda _: secrets.of(place.name, "PIN", PIN))

    @property
    def public_key(self) -> Key:
        """The public part."""
        return self._place.public

    @classmethod
    def from_priv_key_uri(cls, priv_key_uri: str, public_key: Key, secrets_handler: Any = None) -> Signer:
        """Raise NotImplementedError: keys come from the workspace."""
        raise NotImplementedError

    def sign(self, payload: bytes) -> Any:
        """Return a signature.

        Raises:
            KeyProblem: the token does not exist, the PIN is wrong, or it has no such key.
        """
        try:
            signature = self._inner.sign(payload)
        except Exception as error:
            raise KeyProblem(f"the token did not sign with the key {self._place.name}: {_told(error)}") from None
        try:
            self.public_key.verify_signature(signature, payload)
        except UnverifiedSignatureError:
            raise KeyProblem(
                f"the key with this ID on the token is another one than {self._place.name}: put the token with that "
                "key in, or give the role another key with 'edge-ota publish rotate'"
            ) from None
        return signature


def generate_on_token(module: str, label: str, number: int, name: str, secrets: Secrets) -> KeyPlace:
    """Create a P-256 key on a token. Its private part cannot leave the token.

    Raises:
        KeyProblem: python-pkcs11, the library, the token, or the PIN is missing or wrong, or the ID is taken.
    """
    _use_module(module)
    import pkcs11
    from pkcs11.util.ec import encode_named_curve_parameters

    try:
        token = pkcs11.lib(module).get_token(token_label=label)
        with token.open(rw=True, user_pin=secrets.of(name, "PIN", PIN)) as session:
            identifier = number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")
            if list(session.get_objects({pkcs11.Attribute.ID: identifier})):
                raise KeyProblem(f"the token {label!r} has a key with ID {number} already: give another --token-id")
            parameters = session.create_domain_parameters(
                pkcs11.KeyType.EC,
                {pkcs11.Attribute.EC_PARAMS: encode_named_curve_parameters("secp256r1")},
                local=True,
            )
            parameters.generate_keypair(id=identifier, label=name, store=True)
        return import_from_token(module, label, number, name, secrets)
    except KeyProblem:
        raise
    except Exception as error:
        raise KeyProblem(f"the token {label!r} did not make the key {name}: {_told(error)}") from None


def import_from_token(module: str, label: str, number: int, name: str, secrets: Secrets) -> KeyPlace:
    """Return the place of a key that is already on a token.

    Raises:
        KeyProblem: the token or the key does not exist.
    """
    _use_module(module)
    try:
        _, public = HSMSigner.import_(number, label, lambda _: secrets.of(name, "PIN", PIN))
    except Exception as error:
        raise KeyProblem(f"the token {label!r} has no usable key with ID {number}: {_told(error)}") from None
    return KeyPlace(name, public, f"hsm:{number}?{urlencode({'label': label})}", module)


def _use_module(module: str) -> None:
    try:
        import pkcs11  # noqa: F401
    except ImportError:
        raise KeyProblem("keys on a token need python-pkcs11: pip install 'edge-serve[ota-hsm]'") from None
    if not Path(module).is_file():
        raise KeyProblem(
            f"the PKCS#11 library {module!r} does not exist: give --pkcs11 the path of the token's library"
        )
    os.environ["PYKCS11LIB"] = module


def _told(error: Exception) -> str:
    """Return an error of PKCS#11 in words. Many have no text."""
    cause = error.__cause__ or error
    words = {"PinIncorrect": "the PIN is wrong", "PinLocked": "the PIN is locked", "NoSuchToken": "no such token"}
    return words.get(type(cause).__name__) or str(cause) or type(cause).__name__


def has_natural_id(key: Key) -> bool:
    """Return whether a key's ID is the hash of the key, so that no other key can have this ID."""
    text = encode_canonical({"keytype": key.keytype, "scheme": key.scheme, "keyval": key.keyval}) or ""
    return hashlib.sha256(text.encode()).hexdigest() == key.keyid


def public_dict(key: Key) -> dict[str, Any]:
    """Return a public key in the form of TUF, with its ID."""
    return {"keyid": key.keyid, **key.to_dict()}


def public_from(found: object, what: str) -> SSlibKey:
    """Return the key that `public_dict` encoded.

    Raises:
        Untrusted: it is none.
    """
    try:
        fields = dict(found)  # type: ignore[call-overload]  # any failure is reported below
        key = Key.from_dict(fields.pop("keyid"), fields)
        if not isinstance(key, SSlibKey):
            raise TypeError(type(key).__name__)
        if not has_natural_id(key):
            raise ValueError("its ID is that of another key")
    except (KeyError, TypeError, ValueError) as error:
        raise Untrusted(f"{what} is not a public key: {error}") from None
    return key


def write_public(path: Path, place: KeyPlace) -> None:
    """Write the file for the publisher's machine: name and public key."""
    files.write_durably(path, to_canonical_json({"schema": 1, "name": place.name, "public": public_dict(place.public)}))


def read_public(path: Path) -> KeyPlace:
    """Return the key of a file from `write_public`, or of a PEM file, which names the key.

    Raises:
        UsageError: there is no such file. Untrusted: it is not a public key.
    """
    data = files.read_given(path, "a public key that 'edge-ota publish key' wrote", MOST_KEY)
    if b"PRIVATE KEY" in data:
        raise UsageError(f"{path} is a private key: it stays where it is; give the public one, {path.stem}.pub.json")
    if data.startswith(b"-----BEGIN"):
        try:
            return KeyPlace(path.stem, SSlibKey.from_crypto(serialization.load_pem_public_key(data)))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise Untrusted(f"{path} is not a public key of a known kind: {error}") from None
    found = parse(data, str(path), MOST_KEY)
    return KeyPlace(checked_name(found.get("name"), f"{path}: name"), public_from(found.get("public"), str(path)))


def fingerprint(key: Key) -> str:
    """Return the start of a key's ID, grouped for people."""
    return " ".join(key.keyid[at : at + 4] for at in range(0, 16, 4))


def _first_line(path: Path) -> str:
    data = files.read_given(path, "a file with a passphrase on its first line", MOST_KEY)
    return data.decode(errors="replace").partition("\n")[0].strip("\r")
