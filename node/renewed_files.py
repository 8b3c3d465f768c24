"""The certificates and secrets of a process, read again while it runs.

Owns which files are watched, what is made of them, and the order in which parts take it. Must not
know the parts: each hands over what takes new content.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from grpc import ServerCertificateConfiguration, ServerCredentials

from node.config.conflicts import check_files
from node.config.environment import tls_files
from node.config.settings import Settings
from node.peers.security.tls import (
    Tls,
    Validity,
    grpc_server_credentials,
    page_pem,
    refusals,
    validity,
)
from node.runtime.renewal import Renewals
from node.users.node_proofs import NodeProofs


class RenewedFiles:
    """One per process. Make it before a file is used for the first time."""

    def __init__(self, settings: Settings, renewals: Renewals, proofs: NodeProofs) -> None:
        """`proofs` knows nodes by the secrets."""
        self._settings = settings
        self.on_tls: Final[list[Callable[[Tls], None]]] = []
        self.on_secrets: Final[list[Callable[[Sequence[bytes]], None]]] = []
        """The parts that take new ones."""
        self.tls_validity: dict[str, Validity] = {}
        self._grpc_renewed: ServerCertificateConfiguration | None = None
        """What gRPC shows from the next handshake on; None: what it has."""
        self._proofs = proofs
        proofs.secrets = settings.secrets()
        tls, own = tls_files(settings), settings.peers.get(settings.node_id)
        self._hosts = {settings.advertised(0).host, *([own.peer_address.host] if own else ())}
        self._refusals: dict[str, str] = {}
        """Why callers do not connect with the certificate in use: it may be meant."""
        if tls is not None:
            self._refusals = refusals(tls, self._hosts)
            paths = [path for path in tls if path is not None]
            renewals.watch("certificates", paths, self._read_tls)
        if settings.secret_file is not None:
            renewals.watch("secret", [settings.secret_file], self._read_secrets)

    def grpc_credentials(self) -> ServerCredentials | None:
        """Return those of the client port, renewed with the files; None: no TLS. Raises
        TlsFileError."""
        tls = tls_files(self._settings)
        if tls is None:
            return None
        self.tls_validity = validity(tls)
        return grpc_server_credentials(
            tls,
            require_client_certificate=self._settings.tls_client_auth,
            renewed=self._renewed_for_grpc,
        )

    def page_file(self) -> int | None:
        """Return the descriptor of a file in memory that holds the certificate in use and its key,
        for the pages of this process and of those it starts; None: no TLS for pages. The caller
        closes it. Raises TlsFileError."""
        tls = tls_files(self._settings)
        if tls is None or not self._settings.http_tls:
            return None
        descriptor = os.memfd_create("certificate of pages")
        os.pwrite(descriptor, page_pem(tls), 0)
        self.on_tls.append(partial(_rewrite, descriptor))
        return descriptor

    def _renewed_for_grpc(self) -> ServerCertificateConfiguration | None:
        """Return what gRPC has not had yet. Called on its threads."""
        new, self._grpc_renewed = self._grpc_renewed, None
        return new

    def _read_tls(self) -> Callable[[], None]:
        settings = self._settings
        check_files(settings, "tls_certificate_file", "tls_key_file", "tls_ca_file")
        files = tls_files(settings)
        assert files is not None, "the files are watched"
        tls = Tls.of(files, require_client_certificate=settings.tls_client_auth)
        why = refusals(files, self._hosts)
        for name in why.keys() - self._refusals.keys():
            what = (
                "clients that trust tls_ca_file" if name == "tls_ca_file" else f"who dials {name}"
            )
            reason = f"{what} would refuse it, and takes the old one: {why[name]}"
            do = "get a certificate of tls_ca_file that names the addresses of this node"
            raise files.error("certificate", reason, do)
        return partial(self._take_tls, tls, why)

    def _take_tls(self, tls: Tls, why: dict[str, str]) -> None:
        self._refusals = why
        self.tls_validity, self._grpc_renewed = tls.validity, tls.grpc_server
        for take in self.on_tls:
            take(tls)

    def _read_secrets(self) -> Callable[[], None]:
        check_files(self._settings, "secret_file")
        return partial(self._take_secrets, self._settings.secrets())

    def _take_secrets(self, secrets: Sequence[bytes]) -> None:
        self._proofs.secrets = secrets
        for take in self.on_secrets:
            take(secrets)


def _rewrite(descriptor: int, tls: Tls) -> None:
    os.ftruncate(descriptor, 0)  # Who reads it now gets no certificate, and keeps the old one.
    os.pwrite(descriptor, tls.pages, 0)
