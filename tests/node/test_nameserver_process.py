"""A name server alone, with users on: what strangers, nodes and its user may do, and its files."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from deploy.local_process import free_ports
from node.config.load import ConfigError
from node.nameserver_process import load_settings
from node.peers.security.tls import TlsFiles
from qlog.server.authority import Authority
from quorumlog.cluster.channels import stub
from quorumlog.pb import admin_pb2
from quorumlog.pb import nameserver_pb2 as pb
from quorumlog.user_tokens import digest_of, first_user_text
from tests.node.peers.certificates import new_year
from tests.node.processes import SingleNode, typed_error
from tests.node.test_renewal_process import replace
from tests.node.users_files import ADMIN_TOKEN, user_settings
from tests.patience import PATIENCE_S, wait_for
from tests.qlog.running import PROGRAM

REQUESTS = {
    "NameServerStatus": pb.NameServerStatusRequest(),
    "TopicRoute": pb.TopicRouteRequest(topic="orders"),
    "GetValues": pb.GetValuesRequest(namespace="n"),
    "PutValue": pb.PutValueRequest(namespace="n", key="k", value="v"),
    "DeleteValue": pb.DeleteValueRequest(namespace="n", key="k"),
    "Report": pb.ReportRequest(group="g0"),
}


@contextmanager
def name_server(directory: Path, **settings: object) -> Iterator[tuple[str, Path]]:
    """Yield its client address and its log."""
    port, log = free_ports(1)[0], directory / "ns.log"
    given = {
        "directory": str(directory / "ns"),
        "listen": "127.0.0.1:0",
        "nameserver_listen": f"127.0.0.1:{port}",
        **settings,
    }
    file = directory / "ns.toml"
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items()))
    words = [sys.executable, "-c", PROGRAM, "nameserver", "--config", str(file)]
    with log.open("wb") as out, subprocess.Popen(words, env=os.environ, stderr=out) as process:
        try:
            at = directory / "ns" / "node.json"
            wait_for("the name server", lambda: process.poll() is not None or at.exists())
            assert process.poll() is None, log.read_text()
            yield json.loads(at.read_text())["address"], log
        finally:
            process.kill()


def call(address: str, name: str, token: str = "", ca: Path | None = None) -> Any:
    """Make a call, over TLS with a CA."""
    shown = (("authorization", f"Bearer {token}"),) if token else ()
    secure = ca and grpc.ssl_channel_credentials(ca.read_bytes())
    dialled = grpc.secure_channel(address, secure) if secure else grpc.insecure_channel(address)
    with dialled as channel:
        method = getattr(stub(channel, pb.DESCRIPTOR), name)
        return method(REQUESTS[name], timeout=PATIENCE_S, metadata=shown)


def refusal(address: str, name: str, token: str = "", ca: Path | None = None) -> str:
    """Make a call; return the code of its error, empty for none."""
    try:
        call(address, name, token, ca)
    except grpc.RpcError as error:
        return typed_error(error).code
    return ""


def test_a_stranger_gets_nothing_and_the_user_of_the_file_all_but_reports(tmp_path: Path) -> None:
    files = user_settings(tmp_path)
    with name_server(tmp_path, **files) as (address, log):
        wait_for("a leader", lambda: not refusal(address, "PutValue", ADMIN_TOKEN))
        for name in REQUESTS:
            assert refusal(address, name) == "node.unauthenticated", name
            assert refusal(address, name, "qlt_other") == "node.unauthenticated", name
            of_nodes = "node.unauthenticated" if name == "Report" else ""
            assert refusal(address, name, ADMIN_TOKEN) == of_nodes, name
        assert "strangers could misuse" not in log.read_text()
        assert "a call was refused" in log.read_text()
    del files["secret_file"]
    with pytest.raises(ConfigError, match="secret_file"):
        load_settings(None, {**files, "nameserver_listen": "127.0.0.1:1", "directory": "d"})


@pytest.mark.long
def test_its_files_are_read_again_and_its_nodes_stay(tmp_path: Path) -> None:
    old = Authority(tmp_path, "old", ends=new_year(2100))
    new = Authority(tmp_path, "new", ends=new_year(2120))
    pem = TlsFiles(*(tmp_path / name for name in ("node.pem", "node.key", "ca.pem")))
    replace(pem, old.files("first")._replace(ca=old.path))
    names = ("tls_certificate_file", "tls_key_file", "tls_ca_file")
    given = user_settings(tmp_path) | dict(zip(names, map(str, pem), strict=True))
    given["cluster_id"] = "c"
    with name_server(tmp_path, **given) as (address, log):
        given |= {"nameserver_servers": address, "nameserver_listen": "off"}
        with SingleNode(tmp_path / "n", **given) as node:

            def is_renewed(what: str, count: int) -> bool:
                logs = log.read_text(), node.log_path.read_text()
                return all(text.count(f"uses the new {what}") == count for text in logs)

            replace(pem, new.files("second")._replace(ca=new.path))
            wait_for("new certificates", lambda: is_renewed("certificates", 1))
            secret = Path(given["secret_file"])
            first = secret.read_text()
            for count, lines in enumerate([(first, "n" * 16), ("n" * 16, first), ("n" * 16,)], 1):
                secret.write_text("\n".join(lines))
                wait_for("new secrets", partial(is_renewed, "secret", count))
            credentials = grpc.ssl_channel_credentials(new.path.read_bytes())
            with grpc.secure_channel(node.node_json()["address"], credentials) as channel:
                stub(channel, admin_pb2.DESCRIPTOR).CreateTopic(
                    admin_pb2.CreateTopicRequest(topic="orders", queue_count=1),
                    metadata=(("authorization", f"Bearer {ADMIN_TOKEN}"),),
                )
            wait_for("a route", lambda: call(address, "TopicRoute", ADMIN_TOKEN, new.path).shares)
            Path(given["users_file"]).write_text(first_user_text("admin", digest_of("qlt_next")))
            wait_for("a user", lambda: not refusal(address, "GetValues", "qlt_next", new.path))
            assert refusal(address, "GetValues", ADMIN_TOKEN, new.path) == "node.unauthenticated"
