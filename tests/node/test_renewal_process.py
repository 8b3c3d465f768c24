"""Certificates and secrets that are renewed while nodes run: no connection is lost by it."""

import shutil
import ssl
from functools import partial
from pathlib import Path

import grpc
import pytest

from deploy.local import LocalCluster
from deploy.local_metrics import metric_of, sum_of
from node.peers.security.tls import TlsFiles
from qlog.server.authority import Authority
from quorumlog.page_tls import page_context, refusal
from tests.node.framed.clients import RESPONSE, ROUTE, FramedClient
from tests.node.peers.certificates import new_year
from tests.node.processes import NodeClient, SingleNode
from tests.patience import wait_for

PORTS = ("address", "framed_address", "peer_address", "http_address", "console_address")


def replace(files: TlsFiles, new: TlsFiles) -> None:
    """Put new files in the place of old ones, each at once."""
    for place, path in zip(files, new, strict=True):
        if place is not None and path is not None:
            temporary = place.with_suffix(".tmp")
            shutil.copy(path, temporary)
            temporary.replace(place)


def place(node: SingleNode, port: str) -> tuple[str, int]:
    return "127.0.0.1", int(node.node_json()[port].rpartition(":")[2])


def shown(node: SingleNode, port: str) -> str:
    """The certificate of a port, to a client that shows none."""
    return ssl.get_server_certificate(place(node, port))


def metric(node: SingleNode, name: str, **labels: str) -> float:
    return sum_of(node.http("/metrics")[1], f"quorumlog_{name}", **labels)


def channel(node: SingleNode, trusted: Path, files: TlsFiles) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(
        trusted.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    return grpc.secure_channel(node.node_json()["address"], credentials)


def context(trusted: Path, files: TlsFiles) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(trusted))
    made.load_cert_chain(files.certificate, files.key)
    return made


def test_each_port_shows_new_certificates_and_keeps_its_connections(tmp_path: Path) -> None:
    old = Authority(tmp_path, "old", ends=new_year(2100))
    new = Authority(tmp_path, "new", ends=new_year(2120))
    client, stranger = old.files("client"), new.files("stranger")
    files = TlsFiles(*(tmp_path / name for name in ("node.pem", "node.key", "ca.pem")))
    replace(files, old.files("first")._replace(ca=old.path))
    names = ("tls_certificate_file", "tls_key_file", "tls_ca_file")
    flags = dict(zip(names, map(str, files), strict=True))
    with (
        SingleNode(
            tmp_path / "n1", **flags, tls_client_auth="", http_tls="", console="read"
        ) as node,
        channel(node, old.path, client) as kept,
        FramedClient(place(node, "framed_address"), context(old.path, client)) as framed,
    ):
        NodeClient(kept).create_topic("orders")
        assert framed.call(ROUTE, 1, b"").flags == RESPONSE
        (before,) = {shown(node, port) for port in PORTS}  # It starts the console, too.
        files.key.write_text("no key")
        wait_for(
            "the refusal",
            lambda: sum_of(node.http("/metrics")[1], "quorumlog_files_refused_total") == 1,
        )
        assert "tls_key_file" in str(node.status()["warnings"])
        assert [shown(node, port) for port in PORTS] == [before] * len(PORTS)

        for name, hosts in (("other", ("127.0.0.1",)), ("first", ("db.example",))):
            refused = metric(node, "files_refused_total")
            strange = (new if name == "other" else old).files(name, hosts)
            replace(files, strange._replace(ca=old.path))
            wait_for(
                "the next refusal",
                lambda since=refused: metric(node, "files_refused_total") > since,  # type: ignore[misc]
            )
            assert "would refuse it" in str(node.status()["warnings"])
            assert {shown(node, port) for port in PORTS} == {before}

        replace(files, new.files("second")._replace(ca=new.path))
        wait_for(
            "the renewal",
            lambda: sum_of(node.http("/metrics")[1], "quorumlog_files_renewed_total") == 1,
        )
        assert node.status()["warnings"] == []
        after = {shown(node, port) for port in PORTS}
        assert len(after) == 1
        assert before not in after
        NodeClient(kept).append("orders", b"x")
        assert framed.call(ROUTE, 2, b"").flags == RESPONSE
        with channel(node, new.path, stranger) as known:
            assert NodeClient(known).status().node_id == 1
        with FramedClient(place(node, "framed_address"), context(new.path, stranger)) as known:
            assert known.call(ROUTE, 1, b"").flags == RESPONSE
        with channel(node, new.path, client) as unknown, pytest.raises(grpc.RpcError):
            NodeClient(unknown).status()  # The old authority is trusted no more.


def test_pages_keep_a_certificate_of_their_authority_until_it_signs_another(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    files, caller = old.files("pages"), ssl.create_default_context(cafile=str(old.path))
    pages = page_context(files.certificate, files.key, old.path)
    for authority, host in ((new, "127.0.0.1"), (old, "db.example")):
        replace(files, authority.files("other", (host,))._replace(ca=None))
        assert not refusal(pages, caller, host)


@pytest.mark.long
def test_the_secret_is_renewed_node_by_node_without_an_election(tmp_path: Path) -> None:
    """As docs/operations.md has it; in the middle of each round a node connects anew."""
    old, new = "0123456789abcdef", "fedcba9876543210"
    shared = tmp_path / "secret"

    def write(node: int, *secrets: str) -> None:
        file = shared.with_name(f"secret{node}")
        file.write_text("\n".join(secrets) + "\n")
        file.chmod(0o600)

    write(0, old)
    shared = shared.with_name("secret0").rename(shared)
    cluster = LocalCluster.create(tmp_path / "c", 3, settings={"secret_file": str(shared)})
    for node in cluster.node_ids:
        write(node, old)
        file = cluster.node_directory(node) / "node.toml"
        file.write_text(file.read_text().replace(f"{shared}", f"{shared}{node}"))

    def is_renewed(node: int, count: int) -> bool:
        return cluster.log_path(node).read_text().count("the node uses the new secret") == count

    with cluster:
        leader = cluster.leader_id()
        first, last = (node for node in cluster.node_ids if node != leader)
        terms = {row.term for row in cluster.status()}
        for count, secrets in enumerate([(old, new), (new, old), (new,)], start=1):
            for node in (first, leader, last):
                write(node, *secrets)
                wait_for("the renewal", partial(is_renewed, node, count))
                if node == first:  # The others have the secrets of the round before.
                    cluster.stop(last)
                    cluster.start(last)
                    cluster.wait_ready()
        assert {row.term for row in cluster.status()} == terms
        assert cluster.leader_id() == leader
        refused = "quorumlog_peer_closed_total"
        for node in cluster.node_ids:
            assert metric_of(cluster, node, refused, reason="bad_auth") == 0
