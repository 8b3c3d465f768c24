"""The TLS of pages, for browsers and Prometheus: clients show no certificate.

Owns when a new certificate is taken: at the next handshake after its files have changed, if callers
that took the old one take it, too. Must not know who serves the pages.
"""

import os
import ssl
from contextlib import suppress
from pathlib import Path


def page_context(certificate: Path, key: Path, ca: Path | None = None) -> ssl.SSLContext:
    """Return the context of a port for pages. Raises OSError or ValueError for files that cannot be
    used; those that replace them later leave what the port has. So does a certificate that is not
    of `ca`, if the first one is."""
    seen = _marks(certificate, key)
    first = used = _context(certificate, key)
    is_of_ca = False
    with suppress(OSError):
        is_of_ca = ca is not None and _is_of(ca, first)

    def take(connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: object) -> None:
        nonlocal used, seen
        with suppress(OSError, ValueError):
            marks = _marks(certificate, key)
            if marks != seen:
                new = _context(certificate, key)
                if ca is None or not is_of_ca or _is_of(ca, new):
                    used, seen = new, marks
        connection.context = used

    first.sni_callback = take  # OpenSSL calls it for clients that name no host, too.
    return first


def refusal(server: ssl.SSLContext, caller: ssl.SSLContext, host: str | None = None) -> str:
    """Return why a caller would not take the certificate of a server; empty: it does."""
    to_server, to_caller = ssl.MemoryBIO(), ssl.MemoryBIO()
    dials = caller.wrap_bio(to_caller, to_server, server_hostname=host)
    answers = server.wrap_bio(to_server, to_caller, server_side=True)
    for side in (dials, answers, dials):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
    return ""


def _is_of(ca: Path, server: ssl.SSLContext) -> bool:
    caller = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    caller.check_hostname = False
    caller.load_verify_locations(ca)
    return not refusal(server, caller)


def _marks(*paths: Path) -> list[tuple[int, int, int]]:
    """Return what another content of files changes."""
    states = map(os.stat, paths)
    return [(state.st_mtime_ns, state.st_size, state.st_ino) for state in states]


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key, password=b"")  # Else OpenSSL asks for it.
    return context
