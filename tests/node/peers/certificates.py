"""Settings of nodes with TLS, and of an authority made when a test runs."""

import datetime
from pathlib import Path

from qlog.server.authority import Authority


def new_year(year: int) -> datetime.datetime:
    """The moment a year begins."""
    return datetime.datetime(year, 1, 1, tzinfo=datetime.UTC)


def tls_settings(directory: Path) -> tuple[Authority, dict[str, object]]:
    """An authority below `directory`, and what every node of a cluster of it gets: its clients need
    a certificate, and its nodes a secret."""
    authority = Authority(directory, ends=new_year(2120))
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
