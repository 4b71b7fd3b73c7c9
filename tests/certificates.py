"""A certificate authority for tests: makes keys and certificates as PEM files, quickly (elliptic curves)."""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_NAMES = itertools.count()
_HOUR = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: Path
    key: Path
    fingerprint: str


class Authority:
    """Signs. `root` is its own certificate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("edge-serve tests", "")
        certificate = self._sign(self._name, self._key, None)
        self.root = folder / f"root{next(_NAMES)}.pem"
        self.root.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, name: str = "localhost", organization: str = "", *, days: float = 1, host: str = "localhost"
    ) -> Pair:
        """For a server on localhost, or for a client called `name`.

        Args:
            days: until it expires; below 0 = it has expired; host: "elsewhere" = for no address of this machine.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(_name(name, organization), key, host, days)
        number = next(_NAMES)
        pair = Pair(
            self._folder / f"cert{number}.pem",
            self._folder / f"key{number}.pem",
            certificate.fingerprint(hashes.SHA256()).hex(),
        )
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8
        pair.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()),
        )
        return pair

    def client(self, pair: Pair | None = None, alpn: str = "") -> ssl.SSLContext:
        """Return the context of a client that trusts this authority."""
        context = ssl.create_default_context(cafile=str(self.root))
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        if alpn:
            context.set_alpn_protocols([alpn])
        return context

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, host: str | None, days: float = 1
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _HOUR + min(0.0, days) * 24 * _HOUR)
            .not_valid_after(now + days * 24 * _HOUR)
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            # Python 3.13 and newer insist on it
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if host is None:
            usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, critical=True)
        else:
            names: list[x509.GeneralName] = [x509.DNSName(host)]
            if host == "localhost":
                names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _name(common: str, organization: str) -> x509.Name:
    pairs = [(NameOID.COMMON_NAME, common)] + ([(NameOID.ORGANIZATION_NAME, organization)] if organization else [])
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in pairs])
