"""Places: at which addresses the nodes of the cluster speak the remoting protocol.

Owns what each node told of itself, and which node answers for which broker name. A name stays with
its node while that node is up, and is answered for by the next one otherwise: clients keep a route
for 30 s, and a name without an address is an error in their tools. Other nodes are asked in the
background, so a route is answered from memory.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from node.broker.core.broker_names import BrokerNames
from node.rocketmq.cluster import GatewayCluster, GroupNode
from quorumlog.pb.log_pb2 import RouteResponse
from raft.messages import NodeId

ASK_INTERVAL_S: Final = 2.0


class NamedPlace(NamedTuple):
    """A broker name, and the address at which a node answers for it."""

    name: str
    number: int
    address: str


AskRoute = Callable[[str], Awaitable[RouteResponse | None]]
"""Asks the node at an address for its route; None: it does not answer."""


class Places:
    """The remoting addresses of all nodes. One per gateway."""

    def __init__(self, cluster: GatewayCluster, ask: AskRoute, name_count: int) -> None:
        self._cluster = cluster
        self._ask_route = ask
        self._name_count = name_count
        self._by_node: dict[str, tuple[str, ...]] = {}
        """Addresses by broker name, by the address of the node's client service."""
        self._names: dict[str, BrokerNames] = {}
        self._seen: dict[str, set[NodeId]] = {}
        """Nodes of each group that were seen up since the start."""

    def names_of(self, group: str) -> BrokerNames:
        """Return the broker names of a group."""
        names = self._names.get(group)
        if names is None:
            names = self._names[group] = BrokerNames(group, self._name_count)
        return names

    def group_of(self, name: str) -> str | None:
        """Return the group of a broker name; None if no group has it."""
        for group in self._cluster.groups():
            if self.names_of(group).number_of(name) is not None:
                return group
        return None

    def learn(self, node_address: str, remoting_addresses: Sequence[str]) -> None:
        """Take what a node tells of itself: one address for each broker name, or one for all. An
        empty host stands for the host of the node's client service."""
        host = node_address.rpartition(":")[0]
        addresses = tuple(
            f"{host}{one}" if one.startswith(":") else one for one in remoting_addresses
        )
        if addresses:
            self._by_node[node_address] = addresses
        else:
            self._by_node.pop(node_address, None)

    def address_of(self, node_address: str, number: int = 0) -> str:
        """Return the address at which a node answers for a broker name; empty if it is unknown."""
        addresses = self._by_node.get(node_address, ())
        if not addresses:
            return ""
        return addresses[number] if number < len(addresses) else addresses[0]

    def brokers(self, group: str, nodes: Sequence[GroupNode]) -> list[NamedPlace]:
        """Return the names of a group and where each is answered for; none if no node told where.

        `nodes` are those that are up. The n-th name is that of the n-th node of the group, up or
        not, and the next one's while that node is down or has not told its address.
        """
        up = {node.node_id: node.address for node in nodes if self._by_node.get(node.address)}
        if not up:
            return []
        seen = self._seen.setdefault(group, set(self._cluster.node_ids(group)))
        seen |= {node.node_id for node in nodes}
        in_order = sorted(seen)
        rows = []
        for number, name in enumerate(self.names_of(group).all):
            at = number % len(in_order)
            node_id = next(one for one in (*in_order[at:], *in_order[:at]) if one in up)
            rows.append(NamedPlace(name, number, self.address_of(up[node_id], number)))
        return rows

    def routed_address(self, group: str, number: int) -> str:
        """Return the address of a broker name in routes of now; empty if there is none."""
        brokers = self.brokers(group, self._cluster.groups().get(group, ()))
        return brokers[number].address if brokers else ""

    # --- Asking ---

    async def watch(self) -> None:
        """Ask each known node at intervals where it speaks the protocol."""
        while True:
            addresses = self._cluster.node_addresses()
            await asyncio.gather(*(self._ask(address) for address in addresses))
            await asyncio.sleep(ASK_INTERVAL_S)

    async def _ask(self, address: str) -> None:
        route = await self._ask_route(address)
        if route is not None:  # Else what the node told before stays true until it tells otherwise.
            self.learn(address, route.remoting_addresses)
