"""The device's key on a PKCS#11 token: a P-256 key that is made there. Its private part never leaves the token."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ota import files
from ota.agent.device.identity import Identity
from ota.errors import StoreError, UsageError

#: the label of the key; a token may hold others
KEY_LABEL = "edge-ota device"
_MOST_PIN = 1024


@dataclass(frozen=True, slots=True)
class Pkcs11Token:
    """A PKCS#11 token and the file of its PIN.

    Attributes:
        module: the token's library. label: of the token. pin_file: its first line is the PIN of the user.
    """

    module: str
    label: str
    pin_file: Path

    @contextmanager
    def session(self, *, rw: bool = False) -> Iterator[Any]:
        """Yield a session in which the user is logged in.

        Raises:
            UsageError: python-pkcs11, the library, or the PIN does not exist. StoreError: the token refuses.
        """
        try:
            import pkcs11
            from pkcs11.exceptions import PKCS11Error
        except ImportError:
            raise UsageError("PKCS11_MODULE needs python-pkcs11: pip install 'edge-serve[ota-hsm]'") from None
        if not Path(self.module).is_file():
            raise UsageError(f"PKCS11_MODULE: {self.module} does not exist, expected the token's library")
        pin = (files.read(self.pin_file, _MOST_PIN) or b"").decode(errors="replace").partition("\n")[0].strip()
        if not pin:
            raise UsageError(f"PKCS11_PIN_FILE: {self.pin_file} does not exist or empty, expected the PIN of the token")
        try:
            with pkcs11.lib(self.module).get_token(token_label=self.label).open(rw=rw, user_pin=pin) as session:
                yield session
        except PKCS11Error as error:
            words = str(error) or type(error).__name__
            raise StoreError(f"the token {self.label!r} refuses: {words}; check PKCS11_TOKEN and the PIN") from error

    def sign(self, data: bytes) -> bytes:
        """Return an ECDSA signature of the SHA-256 of `data`, DER encoded."""
        with self.session() as session:
            import pkcs11
            from pkcs11.util.ec import encode_ecdsa_signature

            key = session.get_key(pkcs11.ObjectClass.PRIVATE_KEY, pkcs11.KeyType.EC, KEY_LABEL)
            found: bytes = encode_ecdsa_signature(
                key.sign(hashlib.sha256(data).digest(), mechanism=pkcs11.Mechanism.ECDSA)
            )
            return found


def load_token_identity(token: Pkcs11Token) -> Identity:
    """Return the identity of this device. Create its key on the token if there is none.

    Raises:
        UsageError, StoreError: as `Pkcs11Token.session`.
    """
    with token.session(rw=True) as session:
        import pkcs11
        from pkcs11.util.ec import encode_ec_public_key, encode_named_curve_parameters

        attributes = {pkcs11.Attribute.CLASS: pkcs11.ObjectClass.PUBLIC_KEY, pkcs11.Attribute.LABEL: KEY_LABEL}
        public = next(iter(session.get_objects(attributes)), None)
        if public is None:
            curve = {pkcs11.Attribute.EC_PARAMS: encode_named_curve_parameters("secp256r1")}
            parameters = session.create_domain_parameters(pkcs11.KeyType.EC, curve, local=True)
            public, _ = parameters.generate_keypair(label=KEY_LABEL, store=True)
        der = encode_ec_public_key(public)
    text = base64.encodebytes(der).replace(b"\n", b"").decode()
    lines = "\n".join(text[start : start + 64] for start in range(0, len(text), 64))
    pem = f"-----BEGIN PUBLIC KEY-----\n{lines}\n-----END PUBLIC KEY-----\n"
    return Identity(pem.encode(), hashlib.sha256(der).hexdigest(), token)
