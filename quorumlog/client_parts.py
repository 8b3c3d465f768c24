"""What a client is made of from start to close, and what it says of itself.

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
    """Counts since the start of the client. `calls` leaves out what goes through streams."""

    calls: int
    retries: int
    searches: int
    questions: int
    leader_changes: int
    connections: int


class Parts:
    """What lives from start to close."""

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
    """Name this process: host, pid and something random."""
    return f"{socket.gethostname()}@{os.getpid()}-{secrets.token_hex(4)}"
