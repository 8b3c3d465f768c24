"""TLS of a client, from PEM files.

Owns which of the files go together. Must not know where the paths come from: a program, the command
line, or a job of Spark.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from quorumlog.arguments import check_path
from quorumlog.errors import InvalidRequestError

if TYPE_CHECKING:
    import grpc


class ClientTls(NamedTuple):
    """Paths of PEM files, empty where not given. Any of them turns TLS on:
    `connect("host:8081", credentials=ClientTls(ca="ca.pem").credentials())`.
    """

    ca: str = ""
    """The authority that signed the nodes' certificates; empty: the authorities of the system."""
    certificate: str = ""
    """The client's own certificate, for nodes with `tls_client_auth`; it needs `key`."""
    key: str = ""

    def credentials(self) -> "grpc.ChannelCredentials | None":
        """Read the files, as they are now. None, for no TLS, if none is given.

        Raises InvalidRequestError for a certificate without its key or a key without its
        certificate, and OSError for a file that cannot be read.
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
        import grpc

        ca, certificate, key = (Path(path).read_bytes() if path else None for path in self)
        return grpc.ssl_channel_credentials(ca, key, certificate)


NO_TLS: Final = ClientTls()
