"""The parts of a client from start to close, and its counts.

Owns no call; must not know what producers and consumers do with the parts.
"""

import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from quorumlog.admin.admin import Admin
from quorumlog.cluster.broker_groups import BrokerGroups
from quorumlog.consume.raw import Raw
from quorumlog.consume.reads import Reads


@dataclass(frozen=True, slots=True)
class ClientStats:
    """Counts since the start of the client. `calls` does not count streams."""

    calls: int
    retries: int
    searches: int
    questions: int
    leader_changes: int
    connections: int


class Parts:
    """The objects that live from start to close."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        cluster_id: str | None,
        credentials: grpc.ChannelCredentials | None,
        timeout_ms: int,
    ) -> None:
        self.groups = BrokerGroups(bootstrap, cluster_id, credentials)
        self.reads = Reads(self.groups)
        self.admin = Admin(self.groups, timeout_ms)
        self.raw = Raw(self.groups, self.reads, timeout_ms)


def default_client_id() -> str:
    """Return a name of this process: host, pid and random digits."""
    return f"{socket.gethostname()}@{os.getpid()}-{secrets.token_hex(4)}"
