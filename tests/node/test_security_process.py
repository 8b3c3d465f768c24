"""Real nodes that speak TLS and prove a secret to each other; strangers are refused by name."""

import contextlib
import shutil
import ssl
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from deploy.local import LocalCluster
from deploy.local_metrics import metric_of
from node.rocketmq.callers import SERVICE
from qlog import main
from qlog.connection import CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE
from tests.node.framed.clients import RESPONSE, ROUTE, FramedClient, request
from tests.node.peers.certificates import tls_settings
from tests.node.processes import NodeClient, SingleNode, typed_error
from tests.node.rocketmq.remoting.clients import json_frame
from tests.patience import PATIENCE_S, wait_for


def test_a_cluster_over_tls_serves_known_clients_only(tmp_path: Path) -> None:
    authority, given = tls_settings(tmp_path)
    files = authority.files("client")
    with LocalCluster.create(tmp_path / "c", 3, settings=given) as cluster:
        address = cluster.address(cluster.leader_id())
        ca = authority.path.read_bytes()
        credentials = grpc.ssl_channel_credentials(
            ca, files.key.read_bytes(), files.certificate.read_bytes()
        )
        with grpc.secure_channel(address, credentials) as channel:
            client = NodeClient(channel)
            client.create_topic("orders")
            assert len(client.append("orders", b"x").synced_by) >= 2
        for channel in (
            grpc.insecure_channel(address),
            grpc.secure_channel(address, grpc.ssl_channel_credentials(ca)),
        ):
            with channel, pytest.raises(grpc.RpcError) as caught:
                NodeClient(channel).status()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        host, _, port = cluster.framed_address(cluster.leader_id()).rpartition(":")
        framed = ssl.create_default_context(cafile=str(authority.path))
        for _ in range(2):
            with contextlib.suppress(OSError), FramedClient((host, int(port)), framed) as unknown:
                unknown.send(request(ROUTE, 1))
                assert unknown.read_to_the_end() == b""
        framed.load_cert_chain(files.certificate, files.key)
        with FramedClient((host, int(port)), framed) as framed_client:
            assert framed_client.call(ROUTE, 1, b"").flags == RESPONSE
        refused = "quorumlog_framed_closed_total"
        assert metric_of(cluster, cluster.leader_id(), refused, reason="handshake") == 2
        for node in cluster.node_ids:
            assert "0123456789abcdef" not in cluster.log_path(node).read_text()
        expiry = "quorumlog_tls_expiry_timestamp_seconds"
        assert metric_of(cluster, 1, expiry, file="certificate") == 4_733_510_400
        assert metric_of(cluster, 1, "quorumlog_node", broker_group="g0") == 1
        mine = {CA_VARIABLE: str(authority.path), CERTIFICATE_VARIABLE: str(files.certificate)}
        mine[KEY_VARIABLE] = str(files.key)
        for command in ("cluster status", "topic list", "nameserver status"):
            arguments = [*command.split(), "--server", address]

            def succeeds(words: list[str] = arguments) -> bool:
                shown = CliRunner().invoke(main, words, env=mine, prog_name="qlog")
                return shown.exit_code == 0

            wait_for(command, succeeds)  # The name server may be electing yet.
        arguments = ["topic", "list", "--server", address]
        stranger = CliRunner().invoke(main, arguments, env=dict.fromkeys(mine), prog_name="qlog")
        assert stranger.exit_code == 3, stranger.stdout
        assert "code client.tls" in stranger.stderr


@pytest.mark.parametrize(
    ("rocketmq", "at_framed", "at_grpc"),
    [("auto", False, True), ("on", True, True), ("off", False, False)],
)
def test_rocketmq_is_served_beyond_loopback_only_if_somebody_said_so(
    tmp_path: Path, rocketmq: str, at_framed: bool, at_grpc: bool
) -> None:
    # The system takes 127.1 for 127.0.0.1, the settings for a name that others may reach.
    beyond = {"listen_framed": "127.1:0", "rocketmq": rocketmq}
    with SingleNode(tmp_path / "n", **beyond) as node, node.client() as client:
        port = int(node.node_json()["framed_address"].rpartition(":")[2])
        with FramedClient(("127.0.0.1", port)) as framed:
            framed.send(json_frame({"code": 0, "opaque": 1, "flag": 0}))
            if at_framed:
                assert framed.socket.recv(1)
            else:
                assert framed.read_to_the_end() == b""
        with FramedClient(("127.0.0.1", port)) as framed:
            assert framed.call(ROUTE, 1, b"").flags == RESPONSE
        is_named = "rocketmq 127.1:0: any client" in client.status().detail
        assert is_named is (rocketmq == "on")
        send = client.channel.unary_unary(f"/{SERVICE}/SendMessage")
        if at_grpc:
            assert send(b"", timeout=PATIENCE_S)
        else:
            with pytest.raises(grpc.RpcError) as refused:
                send(b"", timeout=PATIENCE_S)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert typed_error(refused.value).code == "node.rocketmq_off"
        assert ("rocketmq = on" in node.log_path.read_text()) is not at_framed


@pytest.mark.long
def test_a_node_with_another_secret_or_file_size_is_kept_out(tmp_path: Path) -> None:
    _, given = tls_settings(tmp_path)
    with LocalCluster.create(tmp_path / "c", 3, settings=given) as cluster:
        odd = cluster.leader_id() % 3 + 1
        cluster.stop(odd)
        other = tmp_path / "other"
        other.write_text("another secret of some length")
        other.chmod(0o600)
        file = cluster.node_directory(odd) / "node.toml"
        file.write_text(file.read_text().replace(str(given["secret_file"]), str(other)))
        cluster.start(odd)
        wait_for("the refusal", lambda: "bad_auth" in cluster.log_path(odd).read_text())
        states = {s.node_id: s for s in cluster.status()}
        assert not states[odd].is_ready
        assert all(s.is_ready for n, s in states.items() if n != odd)
        cluster.stop(odd)
        shutil.rmtree(cluster.node_directory(odd) / "data")
        text = file.read_text().replace(str(other), str(given["secret_file"]))
        file.write_text(text.replace('"8MiB"', '"16MiB"'))
        cluster.start(odd)
        wait_for("the refusal", lambda: "wrong_file_size" in cluster.log_path(odd).read_text())
        assert "set one file_size_bytes for the group" in cluster.log_path(odd).read_text()
        assert not {s.node_id: s for s in cluster.status()}[odd].is_ready
