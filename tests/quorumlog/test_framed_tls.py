"""Frames over TLS, at a real node that demands certificates: with the files that gRPC takes."""

from pathlib import Path

import pytest

import quorumlog
from deploy.local import LocalCluster
from qlog.server.authority import Authority
from quorumlog import ClientTls, errors
from tests.node.peers.certificates import tls_settings
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long


async def test_messages_travel_over_tls_and_strangers_get_nowhere(tmp_path: Path) -> None:
    authority, settings = tls_settings(tmp_path)
    mine = authority.files("me")
    tls = ClientTls(str(authority.path), str(mine.certificate), str(mine.key))
    other = Authority(tmp_path, "others").files("stranger")
    stranger = ClientTls(str(authority.path), str(other.certificate), str(other.key))

    async def send(tls: ClientTls, connect_timeout_ms: int) -> None:
        async with quorumlog.connect(
            cluster.bootstrap,
            credentials=tls.credentials(),
            transport="framed",
            connect_timeout_ms=connect_timeout_ms,
        ) as client:
            await client.admin.create_topic("orders", queue_count=1)
            producer = client.producer()
            for i in range(5):
                await producer.send("orders", b"%d" % i)
            pulled = await client.pull("orders", 0, 0)
            assert [message.body for message in pulled.messages] == [b"%d" % i for i in range(5)]
            assert client.stats().framed_connections == 1

    with LocalCluster.create(tmp_path / "cluster", 1, settings=settings) as cluster:
        await send(tls, 1000 * PATIENCE_S)
        with pytest.raises(errors.UnavailableError):
            await send(stranger, 3_000)


def test_files_that_are_no_pem_are_refused_by_name(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("nonsense")
    with pytest.raises(errors.InvalidRequestError, match=r"TLS cannot use .*ca\.pem"):
        ClientTls(ca=str(ca)).credentials()
