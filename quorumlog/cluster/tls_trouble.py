"""The fault of TLS between this client and an address, found by one handshake without gRPC.

gRPC tells neither what the other side refused nor that the other side speaks TLS, and a node sends
no reason with gRPC. So a connection that gRPC could not make, and that may be a fault of TLS, is
tried once more here. Must not know calls.
"""

import asyncio
import ssl
from typing import Final

from quorumlog.cluster.tls import ClientTls, TlsCredentials
from quorumlog.errors import NoTlsError, QuorumlogError
from quorumlog.tls_words import (
    DATES,
    DEMANDS_ONE,
    REFUSES,
    SPEAKS_TLS,
    UNTRUSTED,
    TlsReason,
    reason_of,
)

_MARKS: Final = ("andshake failed", "Verification", "Socket closed", "Secure read", "reset by peer")
_PATIENCE_S: Final = 0.5
_TRIES: Final = 2
"""A node that ends closes connections, too, but takes no other one."""
_FILES: Final = "(ClientTls, the variables QUORUMLOG_CLIENT_TLS_..., or qlog context)"


async def as_tls_trouble(
    error: QuorumlogError, address: str, tls: TlsCredentials | None
) -> QuorumlogError:
    """Return the error `client.tls` if TLS kept the client from `address`, else `error`."""
    if not any(mark in error.message for mark in _MARKS):
        return error
    reason = reason_of(error.message) or await _found(address, tls)
    if reason is None:
        return error
    what, do = reason
    if tls is None and reason is SPEAKS_TLS:
        do = f"give the client the CA file of the nodes {_FILES}"
    elif tls is not None and reason is UNTRUSTED:
        files = tls.files.ca
        what = f"the authority of its certificate is not {f'in {files}' if files else 'known here'}"
        do = f"give the client the CA file of the nodes {_FILES}"
    elif tls is not None and reason is REFUSES:
        what = f"it refuses the certificate {tls.files.certificate}"
        do = "use one of the authority in tls_ca_file of the node"
        dates = _dates_of(tls.files)
        if dates is not None:
            what, do = f"{what}, and {dates.what}", dates.do
    elif reason is DEMANDS_ONE:
        do = f"give the client a certificate and its key {_FILES}"
    trouble = NoTlsError(f"no TLS with {address}: {what}; {do}")
    trouble.cause = what
    return trouble


async def _found(address: str, tls: TlsCredentials | None) -> TlsReason | None:
    for _ in range(_TRIES):
        try:
            reason = await _tried(address, tls)
        except (OSError, ValueError, TimeoutError) as error:
            # A plain port that closed a plain connection has no fault of TLS.
            return None if tls is None else reason_of(error)
        if reason is None:
            return None
    return reason


async def _tried(address: str, tls: TlsCredentials | None) -> TlsReason | None:
    """Shake hands once, and read. Raises OSError, that of TLS included."""
    if tls is not None:
        context = tls.context
    else:  # Without the authorities of the machine, whose loading would hold up the loop.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    async with asyncio.timeout(_PATIENCE_S):
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=context, server_hostname=host
        )
        try:
            if tls is None:
                return SPEAKS_TLS
            if await reader.read(1):
                return None
            return REFUSES if tls.files.certificate else DEMANDS_ONE
        finally:
            writer.transport.abort()


def _dates_of(files: ClientTls) -> TlsReason | None:
    """Return what is wrong with the dates of the client's certificate, if anything, as a node sees
    it in a handshake in memory that trusts this certificate."""
    sides = []
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(protocol)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(files.certificate, files.key, password=b"")
        sides.append(context)
    node, client = sides
    node.verify_mode = ssl.CERT_REQUIRED
    node.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    node.load_verify_locations(files.certificate)
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(one, other), node.wrap_bio(other, one, server_side=True)
    for end in ends * _TRIES:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            reason = reason_of(error)
            return reason if reason in DATES else None
    return None
