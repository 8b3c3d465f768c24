"""The TLS of pages, for browsers and Prometheus: clients show no certificate.

Owns when a new certificate is taken: at the next handshake after its files have changed. Must not
know who serves the pages.
"""

import os
import ssl
from contextlib import suppress
from pathlib import Path


def page_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the context of a port for pages. Raises OSError or ValueError for files that cannot be
    used; those that replace them later leave what the port has."""
    first = used = _context(certificate, key)
    seen = _marks(certificate, key)

    def take(connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: object) -> None:
        nonlocal used, seen
        with suppress(OSError, ValueError):
            marks = _marks(certificate, key)
            if marks != seen:
                used, seen = _context(certificate, key), marks
        connection.context = used

    first.sni_callback = take  # OpenSSL calls it for clients that name no host, too.
    return first


def _marks(*paths: Path) -> list[tuple[int, int, int]]:
    """Return what another content of files changes."""
    states = map(os.stat, paths)
    return [(state.st_mtime_ns, state.st_size, state.st_ino) for state in states]


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key, password=b"")  # Else OpenSSL asks for it.
    return context
