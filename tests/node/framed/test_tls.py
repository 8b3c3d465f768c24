"""TLS at the framed port: as at the gRPC port, and everyone else gets nowhere."""

import contextlib
import ssl
from pathlib import Path

import pytest

from node.framed.frames import Reason
from node.framed.limits import FramedLimits
from node.peers.security.tls import TlsFiles, client_port_context
from node.runtime.accounts import Kind, Limit
from qlog.server.authority import Authority
from tests.node.framed.servers import append, put, served
from tests.patience import eventually

pytestmark = pytest.mark.parametrize("loop", ["uvloop"])


def server(files: TlsFiles, *, client_auth: bool = False) -> ssl.SSLContext:
    return client_port_context(files, require_client_certificate=client_auth)


def client_of(ca: Path, own: TlsFiles | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca))
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


def node_files(authority: Authority) -> TlsFiles:
    return authority.files("node")._replace(ca=authority.path)


async def test_calls_go_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with served(tmp_path / "n", tls=server(node_files(authority))) as it:
        client = await it.client(client_of(authority.path))
        client.send(b"".join(append(n, n, n + 1) for n in range(300)))
        receipts = {r.opaque: r.append() for r in [await client.read() for _ in range(300)]}
        assert [receipts[n].queues[0].first_offset for n in range(300)] == list(range(300))


async def test_a_client_shows_a_certificate_where_one_is_demanded(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files, stranger = authority.files("client"), Authority(tmp_path, "others").files("stranger")
    tls = server(node_files(authority), client_auth=True)
    async with served(tmp_path / "n", tls=tls) as it:
        client = await it.client(client_of(authority.path, files))
        await put(client, 1, 0, 1)
        for own in (None, stranger):
            with contextlib.suppress(OSError):  # With TLS 1.3 the client may learn it later.
                refused = await it.client(client_of(authority.path, own))
                refused.send(append(1, 0, 1))
                assert await refused.read_to_the_end() == b""
        await eventually(lambda: it.closed == {Reason.HANDSHAKE: 2}, "two refusals")
        assert it.append_count == 1


async def test_clients_of_another_authority_or_without_tls_get_nowhere(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "others")
    async with served(tmp_path / "n", tls=server(node_files(authority))) as it:
        with pytest.raises(ssl.SSLCertVerificationError):
            await it.client(client_of(other.path))
        await eventually(lambda: it.closed == {Reason.HANDSHAKE: 1}, "the refusal")
        client = await it.client()
        client.send(append(1, 0, 1))
        await client.read_to_the_end()  # At most an alert of TLS.
        await eventually(lambda: it.closed == {Reason.HANDSHAKE: 2}, "the next refusal")
        assert it.append_count == 0


async def test_a_permissive_port_serves_clients_with_and_without_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = server(node_files(authority))
    async with served(tmp_path / "n", tls=tls, is_permissive=True) as it:
        for number, own in enumerate((None, client_of(authority.path))):
            client = await it.client(own)
            await put(client, 1, number, number + 1)


async def test_tls_at_a_plain_port_gets_nowhere(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with served(tmp_path / "n") as it:
        with pytest.raises(OSError):  # noqa: PT011 - of TLS or of the socket, as it comes.
            await it.client(client_of(authority.path))
        assert it.closed == {Reason.LENGTH: 1}


@pytest.mark.parametrize(("data", "is_permissive"), [(b"\x16", False), (b"", True)])
async def test_a_handshake_that_does_not_go_on_ends(
    tmp_path: Path, data: bytes, is_permissive: bool
) -> None:
    """As does a client that says nothing at a port that takes clear text, too."""
    tls, limits = server(node_files(Authority(tmp_path))), FramedLimits(handshake_ms_max=50)
    at = served(tmp_path / "n", tls=tls, is_permissive=is_permissive, limits=limits)
    async with at as it:
        client = await it.client()
        client.send(data)
        await client.read_to_the_end()
        await eventually(lambda: it.closed == {Reason.HANDSHAKE: 1}, "the end")
        assert it.server.connections.count == 0


async def test_unfinished_handshakes_count_as_connections(tmp_path: Path) -> None:
    authority, held = Authority(tmp_path), {Kind.CONNECTIONS: Limit("connections", 4)}
    async with served(tmp_path / "n", tls=server(node_files(authority)), held=held) as it:
        silent = [await it.client() for _ in range(2)]
        await eventually(lambda: it.server.connections.count == 2, "two handshakes")
        third = await it.client()
        assert await third.read_to_the_end() == b""
        assert it.closed == {Reason.NO_ROOM: 1}
        for one in silent:
            one.close()


async def test_a_stop_during_handshakes_leaves_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with served(tmp_path / "n", tls=server(node_files(authority))) as it:
        for _ in range(5):
            await it.client()
        await eventually(lambda: it.server.connections.count == 5, "five handshakes")
        await it.server.stop(0)
        assert it.server.connections.count == 0


async def test_a_stop_right_after_a_connect_leaves_nothing(tmp_path: Path) -> None:
    """uvloop closed such a socket without a word, and the stop waited for ever."""
    async with served(tmp_path / "n") as it:
        await it.client()
        await it.server.stop(0)
        assert it.server.connections.count == 0
