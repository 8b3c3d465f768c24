"""TLS: peers prove certificates to each other, strangers without one get no further than bytes."""

import asyncio
import os
import pickle
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from node.peers.frames import PAYLOAD_SIZE_BYTES_MAX, FrameKind
from node.peers.handshake import CloseCode
from node.peers.security.tls import (
    SOON_S,
    TlsFileError,
    TlsFiles,
    client_context,
    date_warnings,
    grpc_server_credentials,
    server_context,
    validity,
)
from node.peers.types import LinkLimits
from qlog.server.authority import Authority
from tests.node.links import (
    LIMITS,
    Frame,
    Node,
    Raw,
    introduce,
    nodes,
    raw_to,
    send,
    transport_of,
)
from tests.node.peers.certificates import new_year
from tests.patience import PATIENCE_S, eventually
from tests.seeds import noise


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), ends=new_year(2120))


@pytest.fixture(scope="module")
def files(authority: Authority) -> TlsFiles:
    return authority.files("node")


def _node(node: int, files: TlsFiles, limits: LinkLimits = LIMITS) -> Node:
    return Node(node, limits, tls=files)


async def test_frames_pass_over_tls(authority: Authority) -> None:
    node1, node2 = (_node(node, authority.files(f"node{node}")) for node in (1, 2))
    async with nodes(node1, node2):
        frames: list[Frame] = [
            (FrameKind.APPEND, b"%d" % size, noise(size))
            for size in (0, 1, 5000, 100_000, PAYLOAD_SIZE_BYTES_MAX, 3)
        ] * 2
        for frame in frames:
            await send(node1.link, 2, frame)
            await send(node2.link, 1, frame)
        await eventually(lambda: len(node1.frames) == len(node2.frames) == len(frames))
        assert node2.frames == [(1, frame) for frame in frames]
        assert node1.frames == [(2, frame) for frame in frames]
        dialled = node1.peer(2).dialled
        assert dialled is not None
        tls = transport_of(dialled).get_extra_info("ssl_object")
        assert tls.version() == "TLSv1.3"


NAMES = {
    "other authority": "an authority that this side does not trust",
    "other address": "its certificate is of another host",
    "no client certificate": "",
    "expired": "its certificate has expired",
}


@pytest.mark.parametrize("case", NAMES)
async def test_a_certificate_that_does_not_fit_is_refused(
    case: str, files: TlsFiles, authority: Authority, tmp_path: Path
) -> None:
    wrong = {
        "other authority": Authority(tmp_path).files("stranger"),
        "other address": authority.files("elsewhere", hosts=["127.0.0.99"]),
        "no client certificate": files,
        "expired": authority.files("expired", ends=new_year(2021)),
    }[case]

    node1, node2 = _node(1, files), _node(2, wrong)
    if case == "no client certificate":
        bare = ssl.create_default_context(cafile=files.ca)
        node2.link._dialler.tls = bare
    async with nodes(node1, node2, acquainted=False):
        # Node 1 refuses what node 2 shows when it dials, and when it is dialled.
        if case != "other address":
            node2.link.set_peers({1: ("127.0.0.1", node1.port)})
            await eventually(lambda: node1.closed_counts.get(CloseCode.TLS, 0) >= 1)
        if case != "no client certificate":
            node1.link.set_peers({2: ("127.0.0.1", node2.port)})
            await eventually(lambda: node1.link.stats().peers[0].last_trouble.startswith("tls: "))
            trouble = node1.link.stats().peers[0].last_trouble
            assert NAMES[case] in trouble
        assert node1.events == []


async def test_plain_bytes_on_a_tls_port_get_nowhere(files: TlsFiles) -> None:
    async with nodes(_node(1, files), acquainted=False) as (one,):
        for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(64)):
            async with raw_to(one) as raw:
                await raw.put(data)
                await _closed(raw)
        await eventually(lambda: one.closed_counts == {CloseCode.TLS: 2})


async def test_tls_at_one_side_only_is_named_as_a_possible_cause(files: TlsFiles) -> None:
    limits = LIMITS._replace(handshake_ms_max=100)
    async with nodes(_node(1, files, limits), Node(2, limits), acquainted=False) as (one, two):
        introduce(one, two)
        await eventually(lambda: CloseCode.TIMEOUT in two.closed_counts)
        assert "is TLS on at one side only?" in two.link.stats().peers[0].last_trouble
        assert (one.events, two.events) == ([], [])


async def test_unfinished_tls_handshakes_are_bounded_in_number_and_time(files: TlsFiles) -> None:
    limits = LIMITS._replace(handshake_count_max=8, handshake_ms_max=300)
    async with nodes(_node(1, limits=limits, files=files), acquainted=False) as (one,):
        fd_count = len(os.listdir("/proc/self/fd"))
        raws: list[Raw] = []
        try:
            for _ in range(100):
                raws.append(await Raw().dial(one.port))
                assert one.link.stats().handshake_count <= 8
            await eventually(lambda: one.link.stats().accepted_count == 100)
            await eventually(lambda: sum(one.closed_counts.values()) == 100)
            assert set(one.closed_counts) == {CloseCode.DISPLACED, CloseCode.TIMEOUT}
            # The loop may open one of its own meanwhile.
            await eventually(
                lambda: len(os.listdir("/proc/self/fd")) <= fd_count + len(raws) + 2,
                "sockets closed",
            )
        finally:
            for raw in raws:
                raw.close()


async def test_a_slow_reader_over_tls_is_bounded(files: TlsFiles) -> None:
    limits = LIMITS._replace(queued_size_bytes_max=6 << 20, silence_ms_max=60_000)
    async with nodes(_node(1, files, limits), _node(2, files, limits)) as (one, two):
        for connection in two.peer(1).connections:
            transport_of(connection).pause_reading()
        sent = 0
        while one.link.send(2, FrameKind.APPEND, b"", bytes(100_000)):
            sent += 1
            await eventually(lambda: True)
            assert sent < 2000, "the limit does not hold"
        assert one.link.queued_size_bytes(2) <= 6 << 20
        two.is_counting_only = True
        for connection in two.peer(1).connections:
            transport_of(connection).resume_reading()
        await eventually(lambda: two.received_count == sent)


async def test_grpc_credentials(files: TlsFiles) -> None:
    for is_required in (True, False):
        async with _served(files, is_required=is_required) as port:
            assert await _is_taken(port, files)
            assert await _is_taken(port, files, with_certificate=False) is not is_required


async def test_while_authorities_change_certificates_of_both_are_taken(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    both = tmp_path / "both.pem"
    both.write_bytes(old.path.read_bytes() + new.path.read_bytes())
    first, second = (a.files(f"of-{a.path.stem}")._replace(ca=both) for a in (old, new))

    async with nodes(_node(1, first), _node(2, second)) as (one, two):
        await send(one.link, 2, (FrameKind.APPEND, b"", b"x"))
        await send(two.link, 1, (FrameKind.APPEND, b"", b"y"))
        await eventually(lambda: one.frames and two.frames)
    for server, client in ((first, second), (second, first)):
        async with _served(server, is_required=True) as port:
            assert await _is_taken(port, client)
    async with _served(second, is_required=True) as port:
        assert not await _is_taken(port, first._replace(ca=old.path)), "it trusts the old alone"


def ends_of(files: TlsFiles) -> dict[str, float]:
    return {name: each.ends_unix_s for name, each in validity(files).items()}


@pytest.mark.parametrize("year", [1972, 2026, 2049, 2050, 2500, 9999])
def test_when_certificates_end_is_known(authority: Authority, tmp_path: Path, year: int) -> None:
    files = authority.files("own", begins=new_year(1971), ends=new_year(year))
    assert files.ca is not None
    expected = {"certificate": new_year(year).timestamp(), "ca": new_year(2120).timestamp()}
    assert ends_of(files) == expected
    own = {"certificate": validity(files)["certificate"]}
    begin, end = own["certificate"]
    when = f"{year}-01-01 00:00:00 UTC"
    for now, words in (
        (begin - 1, "begins at"),
        (end - SOON_S, ""),
        (end - SOON_S + 1, f"ends at {when}"),
        (end, f"ended at {when}: new connections are refused; renew it"),
    ):
        found = "".join(map(str, date_warnings(own, now)))
        assert found.startswith(f"the certificate in tls_certificate_file {words}" if words else "")
        assert bool(found) == bool(words)
    chain = tmp_path / "chain.pem"
    later = authority.files("other", ends=new_year(9999)).certificate.read_text()
    for tables in ((files.certificate.read_text(), later), (later, files.certificate.read_text())):
        chain.write_text("a text\n".join(tables))
        ends = ends_of(files._replace(certificate=chain, ca=None))
        assert ends == {"certificate": expected["certificate"]}, "the first that ends counts"


def test_a_malformed_certificate_has_no_end(files: TlsFiles, tmp_path: Path) -> None:
    odd, good = tmp_path / "odd.pem", ends_of(files._replace(ca=None))
    for content in ("", "AAAA", "MAA=", "MIID", "\u00e9"):
        pem = f"-----BEGIN CERTIFICATE-----\n{content}\n-----END CERTIFICATE-----\n"
        odd.write_text(pem)
        assert ends_of(TlsFiles(odd, files.key)) == {}
        odd.write_text(pem + files.certificate.read_text())
        assert ends_of(TlsFiles(odd, files.key)) == good


@pytest.mark.parametrize("name", ["certificate", "key", "ca"])
@pytest.mark.parametrize("content", [None, b"no PEM"])
def test_a_file_that_cannot_be_used_is_named(
    name: str, content: bytes | None, files: TlsFiles, tmp_path: Path
) -> None:
    path = tmp_path / "file.pem"
    if content is not None:
        path.write_bytes(content)
    broken = files._replace(**{name: path})
    for use in (server_context, client_context):
        with pytest.raises(TlsFileError, match=r"file\.pem") as found:
            use(broken)
        assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)
    with pytest.raises(TlsFileError):
        grpc_server_credentials(broken, require_client_certificate=True)


def test_a_key_of_another_certificate_is_refused(files: TlsFiles, authority: Authority) -> None:
    with pytest.raises(TlsFileError, match="is of another certificate"):
        server_context(files._replace(key=authority.files("other").key))


def test_without_an_authority_nobody_is_asked_for_a_certificate(files: TlsFiles) -> None:
    bare = files._replace(ca=None)
    assert server_context(bare).verify_mode is ssl.CERT_NONE
    client = client_context(bare)
    assert (client.verify_mode, client.check_hostname) == (ssl.CERT_REQUIRED, True)


@asynccontextmanager
async def _served(files: TlsFiles, *, is_required: bool) -> AsyncIterator[int]:
    """A server of the client service that has no method; its port."""
    server = grpc.aio.server()
    credentials = grpc_server_credentials(files, require_client_certificate=is_required)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    yield port
    await server.stop(None)


async def _is_taken(port: int, files: TlsFiles, *, with_certificate: bool = True) -> bool:
    """Whether client and server trust each other."""
    assert files.ca is not None
    pair = (files.key.read_bytes(), files.certificate.read_bytes())
    credentials = grpc.ssl_channel_credentials(
        files.ca.read_bytes(), *(pair if with_certificate else ())
    )
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        try:
            await channel.unary_unary("/none/None")(b"", timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            return bool(error.code() is grpc.StatusCode.UNIMPLEMENTED)
    raise AssertionError("nobody serves that")


async def _closed(raw: Raw) -> None:
    """Read until the end, whatever comes: a TLS alert is no frame."""
    loop = asyncio.get_running_loop()
    try:
        while await loop.sock_recv(raw.socket, 4096):
            pass
    except ConnectionError:
        return
