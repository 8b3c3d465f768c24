"""The reasons of failed TLS, in the words of clients, nodes and their logs.

Owns one table of what OpenSSL and BoringSSL (that of gRPC) write, and the faults of a key. Must
not know sockets or files.
"""

from typing import Final, NamedTuple


class TlsReason(NamedTuple):
    """A fault and its remedy."""

    what: str
    """About the other side of a connection, or a file, which the text of an error names before."""
    do: str

    def __str__(self) -> str:
        return f"{self.what}; {self.do}"


_RENEW: Final = "renew it, and compare the clocks of both machines"
_BOTH: Final = "use TLS on both sides or on none"
SHOWS_NONE: Final = TlsReason(
    "it shows no certificate",
    "give it a certificate, with its key, of an authority in tls_ca_file of this node",
)
DEMANDS_ONE: Final = TlsReason(
    "it demands a certificate of this side, which shows none",
    "give one of the authority that it trusts, with its key",
)
UNTRUSTED: Final = TlsReason(
    "its certificate is of an authority that this side does not trust",
    "trust the authority that signed it, or renew the certificate with one that is trusted",
)
SPEAKS_TLS: Final = TlsReason("it speaks TLS, and this side does not", _BOTH)
REFUSES: Final = TlsReason(
    "it refuses the certificate of this side",
    "give one of the authority that it trusts; its log names the fault",
)
DATES: Final = (
    TlsReason("its certificate has expired", _RENEW),
    TlsReason("its certificate is not valid yet", _RENEW),
)
_REASONS: Final = {
    "has expired": DATES[0],
    "not yet valid": DATES[1],
    **dict.fromkeys(
        ("Hostname Verification", "mismatch, certificate is not valid for"),
        TlsReason(
            "its certificate is of another host",
            "use a host name or IP address that the certificate has, or add this one to it",
        ),
    ),
    **dict.fromkeys(
        ("local issuer certificate", "signature failure", "self-signed", "self signed"), UNTRUSTED
    ),
    **dict.fromkeys(
        ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"),
        TlsReason("it does not speak TLS, and this side does", _BOTH),
    ),
    "DID_NOT_RETURN_A_CERTIFICATE": SHOWS_NONE,
    "ALERT_CERTIFICATE_REQUIRED": DEMANDS_ONE,
    "ALERT_UNKNOWN_CA": TlsReason(
        "it does not trust the authority of this side's certificate",
        "give a certificate of an authority that it trusts, or add this one there",
    ),
    "ALERT_CERTIFICATE_EXPIRED": TlsReason("it refuses this side's certificate as expired", _RENEW),
    **dict.fromkeys(("ALERT_BAD_CERTIFICATE", "ALERT_CERTIFICATE_UNKNOWN"), REFUSES),
}


def reason_of(text: object) -> TlsReason | None:
    """Return the reason in the text of an error of TLS; None for another text."""
    found = str(text)
    return next((reason for mark, reason in _REASONS.items() if mark in found), None)


def reason_of_key(key: bytes, error: Exception, path: object) -> TlsReason:
    """Return why OpenSSL refused the private key of a certificate that it can read."""
    if b"ENCRYPTED" in key:
        return TlsReason(
            "the key has a passphrase, which is never asked for",
            f"remove it, for example with 'openssl pkey -in {path} -out new.key'",
        )
    if "MISMATCH" in str(error):
        return TlsReason(
            "the key is of another certificate", "name the key that the certificate was made with"
        )
    return TlsReason(
        f"no private key in PEM can be read ({error})",
        "write the key as PEM, from BEGIN PRIVATE KEY to END PRIVATE KEY",
    )
