"""A certificate authority for development and tests, and the certificates that it signs.

Owns the making of PEM files. Must not know commands or settings. The authority's own key is kept in
memory only: later certificates need another authority.
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from node.peers.security.tls import TlsFiles

LIFE: Final = datetime.timedelta(days=30)
_DAY: Final = datetime.timedelta(days=1)  # Clocks of other machines may be slow.


_NAME_LENGTH_MAX: Final = 253
_HOST: Final = re.compile(
    r"(?![0-9.]+$)(\*\.)?(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*"
)
"""Of DNS, with the underscore of containers; the first label may stand for any."""


class _Subject(NamedTuple):
    name: x509.Name
    key: ec.EllipticCurvePrivateKey


class Authority:
    """Signs certificates and writes them below a directory."""

    def __init__(
        self, directory: Path, name: str = "ca", *, ends: datetime.datetime | None = None
    ) -> None:
        """Make the authority and its file. Its certificates end at `ends`, in 30 days without."""
        self._directory = directory
        self.ends: Final = ends or datetime.datetime.now(datetime.UTC) + LIFE
        self._own = _subject(name)
        is_authority = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._builder(self._own).add_extension(is_authority, critical=True)
        self.path: Final = self._write(certificate, name)

    def files(
        self,
        name: str,
        hosts: Sequence[str] = ("127.0.0.1",),
        *,
        begins: datetime.datetime | None = None,
        ends: datetime.datetime | None = None,
    ) -> TlsFiles:
        """Make a key and a certificate of it: for a client, and for a server at `hosts`, names or
        IP addresses, unless there are none."""
        general_names = [_general_name(host) for host in hosts]  # First: nothing is written then.
        own = _subject(name)
        usage = [
            ExtendedKeyUsageOID.CLIENT_AUTH,
            *([ExtendedKeyUsageOID.SERVER_AUTH] * bool(hosts)),
        ]
        certificate = self._builder(own, begins, ends).add_extension(
            x509.ExtendedKeyUsage(usage), critical=False
        )
        if hosts:
            names = x509.SubjectAlternativeName(general_names)
            certificate = certificate.add_extension(names, critical=False)
        key = own.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        key_path = self._directory / f"{name}.key"
        _write(key_path, key, 0o600)
        return TlsFiles(self._write(certificate, name), key_path, self.path)

    def _builder(
        self,
        subject: _Subject,
        begins: datetime.datetime | None = None,
        ends: datetime.datetime | None = None,
    ) -> x509.CertificateBuilder:
        ends = ends or self.ends
        begins = begins or min(datetime.datetime.now(datetime.UTC), ends) - _DAY
        builder = x509.CertificateBuilder(self._own.name, subject.name, subject.key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(begins).not_valid_after(ends)

    def _write(self, certificate: x509.CertificateBuilder, name: str) -> Path:
        path = self._directory / f"{name}.pem"
        signed = certificate.sign(self._own.key, hashes.SHA256())
        _write(path, signed.public_bytes(serialization.Encoding.PEM), 0o644)
        return path


def _subject(name: str) -> _Subject:
    common_name = x509.NameAttribute(NameOID.COMMON_NAME, name)
    return _Subject(x509.Name([common_name]), ec.generate_private_key(ec.SECP256R1()))


def _general_name(host: str) -> x509.GeneralName:
    """Return the name of a host in a certificate. Raises ValueError for another text."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if len(host) > _NAME_LENGTH_MAX or not _HOST.fullmatch(host):
            raise ValueError(f"{host[:80]!r} is neither a host name nor an IP address") from None
        return x509.DNSName(host)


def _write(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(content)
