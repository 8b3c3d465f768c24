"""Real nodes that speak TLS and prove a secret to each other; strangers are refused by name."""

import shutil
from pathlib import Path

import grpc
import pytest

from deploy.local import LocalCluster
from tests.node.certificates import Authority
from tests.node.processes import NodeClient, run_to_end, wait_for

pytestmark = pytest.mark.slow


def settings(tmp_path: Path) -> tuple[Authority, dict[str, object]]:
    """What every node gets."""
    authority = Authority(tmp_path)
    files = authority.files("node")
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef\n")
    return authority, {
        "file_size_bytes": "8MiB",
        "secret_file": str(secret),
        "tls_certificate_file": str(files.certificate),
        "tls_key_file": str(files.key),
        "tls_ca_file": str(authority.path),
        "tls_client_auth": True,
    }


def test_a_cluster_over_tls_serves_known_clients_only(tmp_path: Path) -> None:
    authority, given = settings(tmp_path)
    known = authority.files("client")
    with LocalCluster.create(tmp_path / "c", 3, settings=given) as cluster:
        address = cluster.address(cluster.leader_id())
        ca = authority.path.read_bytes()
        credentials = grpc.ssl_channel_credentials(
            ca, known.key.read_bytes(), known.certificate.read_bytes()
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
        for node in cluster.node_ids:
            assert "0123456789abcdef" not in cluster.log_path(node).read_text()


def test_a_node_with_another_secret_or_file_size_is_kept_out(tmp_path: Path) -> None:
    _, given = settings(tmp_path)
    with LocalCluster.create(tmp_path / "c", 3, settings=given) as cluster:
        odd = cluster.leader_id() % 3 + 1
        cluster.stop(odd)
        other = tmp_path / "other"
        other.write_text("another secret of some length")
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


def test_tls_files_that_do_not_belong_together_end_the_start(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    done = run_to_end(
        tmp_path / "data",
        tls_certificate_file=str(authority.files("one").certificate),
        tls_key_file=str(authority.files("two").key),
    )
    assert done.returncode == 78, done.stderr
    assert "node.tls_file" in done.stderr
