"""TLS from three PEM files: contexts for the peer link, credentials for the gRPC services.

Owns the demands on the other side; must not know the configuration file or the handshakes.
With a CA file peers prove certificates of that CA to each other; without one a peer that dials
trusts the system's CAs and proves nothing itself. A certificate must name the host (name or IP
address) that peers and clients dial. `Tls` is everything that is made of the files at one moment: a
node that runs takes another one when they change.
"""

import contextlib
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from node.errors.common import NodeError
from quorumlog.page_tls import refusal
from quorumlog.tls_words import reason_of_key
from quorumlog.user_files import CERTIFICATE, PRIVATE_KEY, UserFileError, read_pem

if TYPE_CHECKING:
    import grpc

SOON_S: Final = 14 * 86_400
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class TlsFileError(NodeError):
    """A TLS file cannot be used. The node does not start."""

    code = "node.tls_file"
    status = "FAILED_PRECONDITION"
    text = "{path} ({setting}): {reason}; {remedy}"
    setting: str
    path: str
    reason: str
    remedy: str


class TlsFiles(NamedTuple):
    """Where the PEM files are, as configured."""

    certificate: Path
    """Chain of this node, its own certificate first."""
    key: Path
    ca: Path | None = None
    """Authority that signs the certificates of the peers."""

    def error(self, name: str, reason: str, remedy: str) -> TlsFileError:
        """Return the error of a file, `name` being that of its field."""
        return TlsFileError(f"tls_{name}_file", str(getattr(self, name)), reason, remedy)


class Validity(NamedTuple):
    """The span in which all certificates of a file are valid, in seconds since 1970."""

    begins_unix_s: int
    ends_unix_s: int
    """New connections are refused from then on."""


class DateWarning(NamedTuple):
    """A certificate whose dates keep connections out, now or soon. The node starts with it."""

    setting: str
    what: str
    remedy: str = "renew it"

    def __str__(self) -> str:
        return f"the certificate in {self.setting} {self.what}; {self.remedy}"


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the context for connections that come in from peers. Raises TlsFileError."""
    context = _context(files, ssl.PROTOCOL_TLS_SERVER)
    if files.ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_port_context(files: TlsFiles, *, require_client_certificate: bool) -> ssl.SSLContext:
    """Return the context for clients that dial, with the demands of `grpc_server_credentials`.
    Raises TlsFileError."""
    context = _context(files, ssl.PROTOCOL_TLS_SERVER)
    # As over gRPC: clients need not be of this project.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if require_client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the context for dialling peers, whose host name is checked. Raises TlsFileError."""
    context = _context(files, ssl.PROTOCOL_TLS_CLIENT)
    if files.ca is None:
        context.load_default_certs()
    return context


def grpc_client_credentials(files: TlsFiles) -> "grpc.ChannelCredentials":
    """Return credentials to dial the client service of another node. Raises TlsFileError."""
    import grpc

    if files.ca is not None:
        roots: bytes | None = _read(files, "ca")
    else:  # Those that peers trust; gRPC has others of its own.
        authorities = client_context(files).get_ca_certs(binary_form=True)
        roots = "".join(map(ssl.DER_cert_to_PEM_cert, authorities)).encode() or None
    return grpc.ssl_channel_credentials(roots, _read(files, "key"), _read(files, "certificate"))


def grpc_server_credentials(
    files: TlsFiles,
    *,
    require_client_certificate: bool,
    renewed: "Callable[[], grpc.ServerCertificateConfiguration | None]" = lambda: None,
) -> "grpc.ServerCredentials":
    """Return credentials for the gRPC services. Raises TlsFileError, also for faults that gRPC
    would report only at the first connection. `renewed`, called on any thread at each handshake,
    returns what to use from then on; None: no change."""
    import grpc  # `qlog config check` does without.

    return grpc.dynamic_ssl_server_credentials(
        _grpc_configuration(files), renewed, require_client_certificate
    )


def _grpc_configuration(files: TlsFiles) -> "grpc.ServerCertificateConfiguration":
    import grpc

    server_context(files)
    ca = _read(files, "ca") if files.ca is not None else None
    pair = (_read(files, "key"), _read(files, "certificate"))
    return grpc.ssl_server_certificate_configuration([pair], ca)


class Tls(NamedTuple):
    """What new connections of a node use, all of it from the same files."""

    peer_server: ssl.SSLContext
    peer_client: ssl.SSLContext
    client_port: ssl.SSLContext
    grpc_server: "grpc.ServerCertificateConfiguration"
    grpc_client: "grpc.ChannelCredentials"
    validity: dict[str, Validity]
    pages: bytes
    """What `page_pem` returns."""

    @classmethod
    def of(cls, files: TlsFiles, *, require_client_certificate: bool) -> "Tls":
        """Read the files. Raises TlsFileError."""
        return cls(
            server_context(files),
            client_context(files),
            client_port_context(files, require_client_certificate=require_client_certificate),
            _grpc_configuration(files),
            grpc_client_credentials(files),
            validity(files),
            page_pem(files),
        )


def page_pem(files: TlsFiles) -> bytes:
    """Return the certificate of pages and its key, as one file has them. Raises TlsFileError."""
    return _read(files, "certificate") + b"\n" + _read(files, "key")


def validity(files: TlsFiles) -> dict[str, Validity]:
    """Return when all certificates of each file are valid, by `certificate` and `ca`, without a
    file whose certificates cannot be read. Raises TlsFileError."""
    names = ("certificate", "ca") if files.ca is not None else ("certificate",)
    spans = {name: _spans(files, name) for name in names}
    return {
        name: Validity(max(begins), min(ends))
        for name, (begins, ends) in spans.items()
        if begins and ends
    }


def refusals(files: TlsFiles, hosts: Iterable[str]) -> dict[str, str]:
    """Return why a caller that trusts the authority would not connect: by `tls_ca_file` if the
    certificate is not of it, and by each of the hosts that it does not name. Raises TlsFileError.
    """
    server, found = _context(files, ssl.PROTOCOL_TLS_SERVER), {}
    if files.ca is not None:
        caller = client_context(files)
        caller.check_hostname = False
        found["tls_ca_file"] = refusal(server, caller)
    caller = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    caller.load_verify_locations(files.certificate)
    caller.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # Its names alone count.
    for host in hosts:
        found[host] = refusal(server, caller, host)
    return {name: why for name, why in found.items() if why}


def date_warnings(by_file: Mapping[str, Validity], now_unix_s: float) -> list[DateWarning]:
    """Return a warning for each file of `validity` whose certificate has ended, ends within the
    time of the alert QuorumLogCertificateEnds, or has not begun."""
    found = []
    for name, (begins, ends) in by_file.items():
        if ends <= now_unix_s:
            what = f"ended at {_date(ends)}: new connections are refused"
        elif now_unix_s < begins:
            what = f"begins at {_date(begins)}: new connections are refused until then"
        elif ends - now_unix_s < SOON_S:
            what = f"ends at {_date(ends)}: new connections are refused from then on"
        else:
            continue
        found.append(DateWarning(f"tls_{name}_file", what))
    return found


def _date(unix_s: int) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _spans(files: TlsFiles, name: str) -> tuple[list[int], list[int]]:
    """Return the begins and the ends of the certificates in a file."""
    from cryptography import x509  # 8 MB and 0.1 s of a start, for nodes with TLS alone.

    begins, ends = [], []
    for one in _PEM.findall(_read(files, name).decode("utf-8", "replace")):
        with contextlib.suppress(ValueError):  # No start depends on it.
            certificate = x509.load_pem_x509_certificate(one.encode())
            begins.append(int(certificate.not_valid_before_utc.timestamp()))
            ends.append(int(certificate.not_valid_after_utc.timestamp()))
    return begins, ends


def _context(files: TlsFiles, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # All peers are of this project.
    _load(files, "certificate", ssl.SSLContext(protocol))  # Alone, so that its fault is its own.
    if files.ca is not None:
        _load(files, "ca", context)
    key = _read(files, "key")
    try:
        # With a passphrase on the key, OpenSSL would ask on the terminal and hang the node: give
        # none.
        context.load_cert_chain(files.certificate, files.key, password="")
    except (OSError, ValueError) as error:
        raise files.error("key", *reason_of_key(key, error, files.key)) from error
    return context


def _load(files: TlsFiles, name: str, context: ssl.SSLContext) -> None:
    _read(files, name)
    try:
        context.load_verify_locations(getattr(files, name))
    except (OSError, ValueError) as error:
        do = "write certificates as PEM, from BEGIN CERTIFICATE to END CERTIFICATE"
        raise files.error(name, "no certificate in PEM can be read", do) from error


def _read(files: TlsFiles, name: str) -> bytes:
    try:
        return read_pem(getattr(files, name), PRIVATE_KEY if name == "key" else CERTIFICATE)
    except UserFileError as error:
        raise files.error(name, error.what, error.do) from error
