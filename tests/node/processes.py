"""Real nodes as processes, each bounded in time, and gRPC clients of them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc

from deploy.local_nodes import DIRECT
from deploy.local_process import NodeProcess, spawn
from node.config.limits import TEST_VARIABLE
from node.errors.translation import ERROR_TRAILER
from quorumlog.cluster.channels import stub
from quorumlog.pb import admin_pb2, common_pb2, log_pb2
from store.record.message import encode_message
from tests.patience import PATIENCE_S, wait_for

_T = TypeVar("_T")

LOOPBACK_FLAGS = {
    "node_id": "1",
    "listen": "127.0.0.1:0",
    "peer_listen": "127.0.0.1:0",
    "http_listen": "127.0.0.1:0",
    "file_size_bytes": "8MiB",
    "log_format": "json",
    "heartbeat_ms": "25",
    "election_min_ms": "100",
}


def arguments(directory: Path, **flags: str) -> list[str]:
    """Options of a node that serves a directory alone, at free ports. Empty: a flag alone."""
    given = {**LOOPBACK_FLAGS, "directory": str(directory), **flags}
    words = []
    for name, value in given.items():
        words.append(f"--{name.replace('_', '-')}")
        words += [value] if value else []
    return words


def run_to_end(
    directory: Path, environment: Mapping[str, str] | None = None, **flags: str
) -> "subprocess.CompletedProcess[str]":
    """Run a node that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "node", *arguments(directory, **flags)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, **(environment or {})},
    )


class SingleNode:
    """A cluster of one node. Its process can be ended and started again."""

    def __init__(
        self, directory: Path, limits: Mapping[str, int] | None = None, /, **flags: str
    ) -> None:
        """`limits` are `PortLimits` that differ from the defaults."""
        self.directory, self._flags = directory, flags
        self._limits = json.dumps(dict(limits or {}))
        self.log_path = directory.with_suffix(".log")
        self.process: NodeProcess | None = None

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start it and wait until it is ready."""
        (self.directory / "node.json").unlink(missing_ok=True)
        self.process = spawn(
            "node",
            arguments(self.directory, **self._flags),
            log=self.log_path,
            environment={**os.environ, TEST_VARIABLE: self._limits, **(environment or {})},
        )
        wait_for("the node to serve", lambda: self.status().get("ready", False))

    def status(self) -> dict[str, Any]:
        """What /status says; empty as long as nobody answers."""
        assert self.process is not None, "it was not started"
        assert self.process.is_alive, f"it ended: {self.log_path.read_text()}"
        try:
            answer: dict[str, Any] = self.http("/status")[1]
            return answer if answer["pid"] == self.process.pid else {}
        except OSError:
            return {}

    def http(self, path: str) -> tuple[int, Any]:
        """Status and content of a page."""
        import urllib.error
        import urllib.request

        try:
            node = self.node_json()
            scheme = node.get("http_scheme", "http")
            request = urllib.request.Request(f"{scheme}://{node['http_address']}{path}")
            if "http_token" in node:
                request.add_header("authorization", f"Bearer {node['http_token']}")
            with DIRECT.open(request, timeout=PATIENCE_S) as answer:
                text = answer.read().decode()
                is_json = answer.headers["content-type"].startswith("application/json")
                return answer.status, json.loads(text) if is_json else text
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def node_json(self) -> dict[str, Any]:
        """The file that says where it listens."""
        content: dict[str, Any] = json.loads((self.directory / "node.json").read_text())
        return content

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        assert self.process is not None, "it was not started"
        assert self.process.send(number), "it has ended"

    def wait_end(self) -> int | None:
        """Wait for the end of the process; return its exit code."""
        assert self.process is not None, "it was not started"
        assert self.process.wait_end(int(PATIENCE_S * 1000)), "it does not end"
        return self.process.exit_code

    def stop(self) -> int | None:
        """Stop it gracefully."""
        self.signal(signal.SIGTERM)
        return self.wait_end()

    @contextmanager
    def client(self) -> Iterator["NodeClient"]:
        """Connect to it."""
        with connected(self.node_json()["address"]) as client:
            yield client

    def __enter__(self) -> "SingleNode":
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.process is not None and self.process.send(signal.SIGKILL):
            self.process.wait_end(int(PATIENCE_S * 1000))


class NodeClient:
    """Stubs of one node, and the calls that tests make most."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.log = stub(channel, log_pb2.DESCRIPTOR)
        self.admin = stub(channel, admin_pb2.DESCRIPTOR)

    def create_topic(self, topic: str, queue_count: int = 1) -> None:
        """Create a topic."""
        request = admin_pb2.CreateTopicRequest(topic=topic, queue_count=queue_count)
        self.admin.CreateTopic(request, timeout=PATIENCE_S)

    def append(self, topic: str, *bodies: bytes, **fields: Any) -> log_pb2.AppendResponse:
        """Append one batch to queue 0."""
        records = b"".join(encode_message(topic, 0, body, {}) for body in bodies)
        request = log_pb2.AppendRequest(records=records, record_count=len(bodies), **fields)
        response: log_pb2.AppendResponse = self.log.Append(request, timeout=PATIENCE_S)
        return response

    def pull(self, topic: str, offset: int = 0, **fields: Any) -> log_pb2.PullResponse:
        """Read queue 0."""
        request = log_pb2.PullRequest(topic=topic, offset=offset, **fields)
        response: log_pb2.PullResponse = self.log.Pull(request, timeout=PATIENCE_S)
        return response

    def status(self) -> admin_pb2.NodeStatusResponse:
        """What the node says of itself."""
        request = admin_pb2.NodeStatusRequest()
        response: admin_pb2.NodeStatusResponse = self.admin.NodeStatus(request, timeout=PATIENCE_S)
        return response


@contextmanager
def connected(address: str) -> Iterator[NodeClient]:
    """Connect to a node's client service."""
    with grpc.insecure_channel(address) as channel:
        yield NodeClient(channel)


def typed_error(error: grpc.RpcError) -> common_pb2.Error:
    """The typed error that came with a status."""
    trailers = [value for key, value in error.trailing_metadata() if key == ERROR_TRAILER]
    assert len(trailers) == 1, error
    return common_pb2.Error.FromString(trailers[0])
