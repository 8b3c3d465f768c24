"""Certificates made when a test runs: an authority, and nodes on 127.0.0.1 that it vouches for."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from node.peers.security.tls import TlsFiles


def new_year(year: int) -> datetime.datetime:
    """The moment a year begins."""
    return datetime.datetime(year, 1, 1, tzinfo=datetime.UTC)


_FROM, _TO = new_year(1970), new_year(2120)


class Authority:
    """Signs certificates and writes them below a directory."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(name)
        certificate = (
            _builder(self._name, self._name, self._key)
            .not_valid_after(_TO)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = directory / f"{name}.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def files(
        self, name: str, *, address: str = "127.0.0.1", to: datetime.datetime = _TO
    ) -> TlsFiles:
        """Make a key and a certificate for `address` that ends at `to`."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.ExtendedKeyUsage(
            [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        )
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        certificate = (
            _builder(_subject(name), self._name, key)
            .not_valid_after(to)
            .add_extension(names, critical=False)
            .add_extension(usage, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        certificate_path = self._directory / f"{name}.pem"
        key_path = self._directory / f"{name}.key"
        certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        key_path.chmod(0o600)
        return TlsFiles(certificate_path, key_path, self.path)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
    )


def tls_settings(directory: Path) -> tuple[Authority, dict[str, object]]:
    """An authority below `directory`, and what every node of a cluster of it gets: its clients need
    a certificate, and its nodes a secret."""
    authority = Authority(directory)
    files = authority.files("node")
    secret = directory / "secret"
    secret.write_text("0123456789abcdef\n")
    secret.chmod(0o600)
    return authority, {
        "file_size_bytes": "8MiB",
        "secret_file": str(secret),
        "tls_certificate_file": str(files.certificate),
        "tls_key_file": str(files.key),
        "tls_ca_file": str(authority.path),
        "tls_client_auth": True,
    }
