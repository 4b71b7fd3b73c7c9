"""The error of a failed request, with its cause in words and the advice for an operator."""

from __future__ import annotations

import re
import ssl

from ota.errors import FetchError


class RequestFailed(FetchError):
    """A failed request to a repository.

    Attributes:
        again: another try in this run may succeed.
        retry_after: seconds that the server asked for, or None.
    """

    def __init__(self, message: str, *, again: bool = True, retry_after: float | None = None) -> None:
        # parts come from the network, and are printed to terminals
        super().__init__("".join(one if one.isprintable() else "?" for one in message))
        self.again = again
        self.retry_after = retry_after


#: error of OpenSSL -> cause, and advice
_TLS = (
    ("certificate is not yet valid", "the server's certificate is not yet valid: check this device's clock"),
    (
        "certificate has expired",
        "the server's certificate has expired: renew it on the server (or this device's clock is ahead)",
    ),
    ("hostname mismatch", "the server's certificate is for another name: use the name in the certificate in URL"),
    ("ip address mismatch", "the server's certificate is for another name: use the name in the certificate in URL"),
    (
        "self.signed certificate|unable to get (local )?issuer",
        "the server's certificate is signed by an unknown CA: name the CA's PEM file in CA_CERT",
    ),
    (
        "alert.certificate.(required|expired|unknown|revoked)|alert.unknown.ca|alert.bad.certificate"
        "|alert.handshake.failure",
        "the server refused this device's certificate (missing, expired, or of another CA): "
        "set CLIENT_CERT and CLIENT_KEY, or renew the certificate",
    ),
    ("wrong.version.number|http.request|record layer failure", "the server does not speak TLS there: check URL's port"),
)


#: may pass by itself: the network may have failed
TLS_ENDED = "the connection ended in the TLS handshake: check the network, and CLIENT_CERT"


def tls_failure(error: BaseException) -> str:
    """Return the cause of a failed TLS handshake in words; "" = not an error of TLS."""
    found: BaseException | None = error
    for _ in range(8):
        if found is None or isinstance(found, ssl.SSLError):
            break
        inner = found.args[-1] if found.args else None
        found = inner if isinstance(inner, BaseException) else found.__cause__ or found.__context__
    if not isinstance(found, ssl.SSLError):
        return ""
    text = str(found)
    if isinstance(found, ssl.SSLEOFError):
        return TLS_ENDED
    for pattern, words in _TLS:
        if re.search(pattern, re.sub("[_ ]", " ", text), re.IGNORECASE):
            return words
    return f"TLS failed: {text}"
