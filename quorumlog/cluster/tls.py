"""TLS of a client, from PEM files.

Owns which of the files go together. Must not know where the paths come from: a program, the command
line, or a job of Spark.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from quorumlog.arguments import check_path
from quorumlog.errors import InvalidRequestError, PemFileError
from quorumlog.tls_words import reason_of_key
from quorumlog.user_files import CERTIFICATE, PRIVATE_KEY, UserFileError, read_pem

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
        certificate, PemFileError for a file that cannot be used.
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

        ca, certificate = (_pem(path, CERTIFICATE) for path in (self.ca, self.certificate))
        key = _pem(self.key, PRIVATE_KEY)
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
                raise _unusable(self.key, *reason_of_key(key, error, self.key)) from None
        if ca is None:  # gRPC would trust others than frames do, of its own.
            authorities = context.get_ca_certs(binary_form=True)
            ca = "".join(map(ssl.DER_cert_to_PEM_cert, authorities)).encode() or None
        return TlsCredentials(grpc.ssl_channel_credentials(ca, key, certificate), context, self)


def _trusting(path: str) -> "ssl.SSLContext":
    import ssl

    try:
        return ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        do = "write certificates as PEM, from BEGIN CERTIFICATE to END CERTIFICATE"
        raise _unusable(path, "no certificate in PEM can be read", do) from None


def _pem(path: str, holds: str) -> bytes | None:
    try:
        return read_pem(path, holds) if path else None
    except UserFileError as error:
        raise _unusable(path, error.what, error.do) from None


def _unusable(path: str, cause: str, do: str) -> PemFileError:
    error = PemFileError(f"TLS cannot use {path}: {cause}; {do}")
    error.cause = cause
    return error


NO_TLS: Final = ClientTls()
