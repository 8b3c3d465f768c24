"""TLS of a client, from PEM files.

Owns which of the files go together. Must not know where the paths come from: a program, the command
line, or a job of Spark.
"""

import codecs
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from quorumlog.arguments import check_path
from quorumlog.errors import InvalidRequestError
from quorumlog.tls_words import reason_of_key

if TYPE_CHECKING:
    import ssl

    import grpc


class TlsCredentials(NamedTuple):
    """Certificates that a client shows and trusts, in the forms of its two transports."""

    channel: "grpc.ChannelCredentials"
    """For gRPC."""
    context: "ssl.SSLContext"
    """For frames."""
    files: "ClientTls"
    """Where both come from, for the texts of errors."""


class ClientTls(NamedTuple):
    """Paths of PEM files, empty where not given. Any of them turns TLS on:
    `connect("host:8081", credentials=ClientTls(ca="ca.pem").credentials())`.
    """

    ca: str = ""
    """The authority that signed the nodes' certificates; empty: the authorities of the system."""
    certificate: str = ""
    """The client's own certificate, for nodes with `tls_client_auth`; it needs `key`."""
    key: str = ""

    def credentials(self) -> "TlsCredentials | None":
        """Read the files, as they are now. None, for no TLS, if none is given.

        Raises InvalidRequestError for a certificate without its key or a key without its
        certificate or a file that is no PEM, and OSError for a file that cannot be read.
        """
        for name, path in self._asdict().items():
            check_path(name, path)
        if bool(self.certificate) != bool(self.key):
            raise InvalidRequestError(
                f"only {self.certificate or self.key} is given; a certificate of a client and its "
                f"private key go together"
            )
        if not any(self):
            return None
        import ssl

        import grpc

        ca, certificate, key = (
            Path(path).read_bytes().removeprefix(codecs.BOM_UTF8) if path else None for path in self
        )
        context = ssl.create_default_context() if ca is None else _trusting(self.ca)
        if key is not None:
            try:
                context.load_cert_chain(
                    self.certificate,
                    self.key,
                    password=b"",  # Else OpenSSL asks for it on the terminal, if there is one.
                )
            except ssl.SSLError as error:
                _trusting(self.certificate)  # Names this file, if the fault is its own.
                raise _of_key(self.key, key, error) from None
        if ca is None:  # gRPC would trust others than frames do, of its own.
            authorities = context.get_ca_certs(binary_form=True)
            ca = "".join(map(ssl.DER_cert_to_PEM_cert, authorities)).encode() or None
        return TlsCredentials(grpc.ssl_channel_credentials(ca, key, certificate), context, self)


def _trusting(path: str) -> "ssl.SSLContext":
    import ssl

    try:
        return ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        raise InvalidRequestError(
            f"TLS cannot use {path}: no certificate in PEM can be read; write certificates as PEM, "
            f"from BEGIN CERTIFICATE to END CERTIFICATE"
        ) from None


def _of_key(path: str, key: bytes, error: Exception) -> InvalidRequestError:
    reason = reason_of_key(key, error, path)
    return InvalidRequestError(f"TLS cannot use {path}: {reason}")


NO_TLS: Final = ClientTls()
