"""The ports of the broker to the driver and to the name server: types only.

`node.replication.raft.driver.RaftDriver` is the one in production; tests have a small one that
commits on its own.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from node.state.appends import Committed, Prepared
from quorumlog.pb.log_pb2 import GroupRoute
from raft.messages import Index, NodeId, Term
from raft.transitions import Role


class BrokerDriver(Protocol):
    """The driver as the broker uses it; promises: `node.replication.raft.driver.RaftDriver`."""

    is_ready: bool

    @property
    def node_id(self) -> NodeId: ...
    @property
    def role(self) -> Role: ...
    @property
    def term(self) -> Term: ...
    @property
    def leader_id(self) -> NodeId: ...
    @property
    def applied_index(self) -> Index: ...

    def append(
        self, batch: bytes, check: Callable[[Prepared], None]
    ) -> "asyncio.Future[Committed]": ...
    def read_barrier(self) -> "asyncio.Future[Index]": ...
    def add_listener(self, listener: Callable[[], None]) -> None: ...


OtherGroups = Callable[[Iterable[str]], Iterable[GroupRoute]]
"""Returns the other groups of the cluster and their shares of these topics, by group name.

The call does not wait: everything unknown is left out.
"""


def no_other_groups(_topics: Iterable[str]) -> Iterable[GroupRoute]:
    """Return none: there is no name server."""
    return ()
