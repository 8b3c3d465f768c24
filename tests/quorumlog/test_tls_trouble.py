"""Clients that TLS keeps from a node hear at once which fault it is, over gRPC of real sockets."""

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

import quorumlog
from node.peers.security.tls import TlsFiles, grpc_server_credentials
from qlog.server.authority import Authority
from quorumlog import ClientTls, errors
from quorumlog.cluster.nameserver import NameServers
from quorumlog.command_errors import explain
from tests.node.peers.certificates import new_year
from tests.patience import PATIENCE_S


class Files:
    """What a node and a client show and trust, good at first."""

    def __init__(self, directory: Path) -> None:
        self.authority, self.other = Authority(directory), Authority(directory, "other")
        self.node: TlsFiles | None = self.authority.files("node")
        self.show(self.authority.files("me", ()))

    def show(self, own: TlsFiles) -> None:
        self.client = ClientTls(str(self.authority.path), str(own.certificate), str(own.key))

    def serve(self, *hosts: str, begins: int = 2000, ends: int = 2100) -> None:
        dates = {"begins": new_year(begins), "ends": new_year(ends)}
        self.node = self.authority.files("node", hosts or ["127.0.0.1"], **dates)

    def show_dated(self, begins: int, ends: int) -> None:
        dates = {"begins": new_year(begins), "ends": new_year(ends)}
        self.show(self.authority.files("me", (), **dates))

    def give(self, **changes: str) -> None:
        self.client = self.client._replace(**changes)


CASES: dict[str, tuple[Callable[[Files], object], str]] = {
    "no CA": (lambda f: f.give(ca=""), "the authority of its certificate is not known here; give"),
    "wrong CA": (lambda f: f.give(ca=str(f.other.path)), "is not in .*other.pem; give the client"),
    "no certificate": (
        lambda f: f.give(certificate="", key=""),
        "it demands a certificate .* which shows none; give the client a certificate",
    ),
    "other authority": (lambda f: f.show(f.other.files("s")), r"refuses the certificate .*s.pem; "),
    "own expired": (lambda f: f.show_dated(1999, 2000), "me.pem, and its certificate has expired"),
    "own early": (lambda f: f.show_dated(2100, 2101), "me.pem, and .* is not valid yet; renew"),
    "expired": (lambda f: f.serve(ends=2001), ": its certificate has expired; renew it"),
    "early": (lambda f: f.serve(begins=2099), ": its certificate is not valid yet; renew it"),
    "other host": (lambda f: f.serve("127.0.0.9"), ": its certificate is of another host; use a"),
    "plain client": (lambda f: f.give(ca="", certificate="", key=""), "it speaks TLS, and this"),
    "plain node": (lambda f: setattr(f, "node", None), "it does not speak TLS, and this side does"),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_fault_of_tls_is_named_and_not_retried(tmp_path: Path, case: str) -> None:
    files, (spoil, text) = Files(tmp_path), CASES[case]
    spoil(files)
    server = grpc.aio.server()
    if files.node is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        credentials = grpc_server_credentials(files.node, require_client_certificate=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        with pytest.raises(errors.NoTlsError, match=text) as refused:
            async with quorumlog.connect(
                f"127.0.0.1:{port}",
                credentials=files.client.credentials(),
                connect_timeout_ms=int(1000 * PATIENCE_S),
            ):
                pass
        error = refused.value
        credentials = files.client.credentials()
        async with NameServers(f"127.0.0.1:{port}", credentials=credentials) as names:
            assert [one.failure for one in await names.status()] == [str(error)]
        assert (error.code, error.retryable) == ("client.tls", False)
        told = explain(error)
        assert told.what == f"no TLS with 127.0.0.1:{port}"
        assert str(error) == f"{told.what}: {told.why}; {told.do}"
    finally:
        await server.stop(0)
