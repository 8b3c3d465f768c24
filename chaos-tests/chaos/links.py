"""Every link of a cluster: one proxy for each ordered pair of nodes, two from clients to each node,
and one from each node that has no replica of the name server to those that have one.

Owns the meaning of cutting, slowing or breaking a link in one direction or both; must not know the
reason. A node dials every peer, so the bytes from a to b go upstream through a>b and downstream
through b>a. Clients dial the gRPC port and the framed port of a node: both proxies are one link,
and every fault hits both.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from chaos.toxiproxy import BOTH, DOWNSTREAM, UPSTREAM, Proxy, Toxiproxy
from quorumlog.cluster.transport import Transport

CLIENTS: Final = 0
"""Source of a link: all clients."""
Pair = tuple[int, int]


def asking(node: int) -> int:
    """Return the link source of a node that asks the name server."""
    return -node


class Links:
    """The proxies of one cluster."""

    def __init__(self, server: Toxiproxy) -> None:
        self._server = server
        self._proxies: dict[Pair, Proxy] = {}
        self._framed: dict[Pair, Proxy] = {}
        """The second proxies of the links of clients."""

    def relay(self, source: int, target: int, port: int) -> int:
        """Put a proxy before a port; return its own. Used by `LocalCluster.create`."""
        name = f"{_name_of(source)}>{target}"
        proxy = self._proxies[source, target] = self._server.create(name, port)
        return proxy.port

    def relay_frames(self, target: int, port: int) -> int:
        """Put a proxy before the framed port of a node, as part of the link of its clients."""
        proxy = self._framed[CLIENTS, target] = self._server.create(f"framed>{target}", port)
        return proxy.port

    def ports(self, pair: Pair) -> list[int]:
        """Return the ports at which a link is dialled."""
        return [proxy.port for proxy in self._of([pair])]

    def _of(self, pairs: Iterable[Pair], over: Transport = "auto") -> list[Proxy]:
        """Return the proxies of links; of those of clients the ones of a transport."""
        proxies = []
        for pair in pairs:
            if pair not in self._framed or over != "framed":
                proxies.append(self._proxies[pair])
            if pair in self._framed and over != "grpc":
                proxies.append(self._framed[pair])
        return proxies

    @property
    def nodes(self) -> tuple[int, ...]:
        """All nodes that a link leads to."""
        return tuple(sorted({target for _, target in self._proxies}))

    def between(self, nodes: Iterable[int], others: Iterable[int]) -> list[Pair]:
        """Return the links that join two sets of nodes, in both directions."""
        left, right = set(nodes), set(others)
        return [
            (a, b)
            for a, b in self._proxies
            if (a in left and b in right) or (a in right and b in left)
        ]

    # --- Cuts: silent, without notice to either side ---

    def cut(self, pairs: Sequence[Pair]) -> None:
        """Stop all bytes on these links, and close no connection."""
        self.add(pairs, "timeout", timeout=0)

    def cut_direction(self, source: int, target: int) -> None:
        """Lose the bytes from one node to the other; the other direction stays whole."""
        self.add_one_way((source, target), "timeout", UPSTREAM, timeout=0)
        self.add_one_way((target, source), "timeout", DOWNSTREAM, timeout=0)

    def join(self, pairs: Sequence[Pair]) -> None:
        """Undo `cut`; this closes the connections that were cut."""
        self.remove(pairs, "timeout")

    def isolate(self, node: int) -> list[Pair]:
        """Cut a node from all others, not from clients; return the links."""
        pairs = self.between([node], [other for other in self.nodes if other != node])
        self.cut(pairs)
        return pairs

    def split(self, *sides: Sequence[int]) -> list[Pair]:
        """Cut the nodes of each side from those of all others; return the links."""
        pairs = [
            pair
            for at, side in enumerate(sides)
            for other in sides[at + 1 :]
            for pair in self.between(side, other)
        ]
        self.cut(pairs)
        return pairs

    # --- Other troubles ---

    def add(self, pairs: Sequence[Pair], kind: str, **attributes: int) -> None:
        """Add a toxic in both directions."""
        for proxy in self._of(pairs):
            for stream in BOTH:
                proxy.add(kind, stream, **attributes)

    def add_one_way(self, pair: Pair, kind: str, stream: str, **attributes: int) -> None:
        """Add a toxic to one stream of one link."""
        for proxy in self._of([pair]):
            proxy.add(kind, stream, **attributes)

    def remove(self, pairs: Sequence[Pair], kind: str) -> None:
        """Remove this toxic in both directions."""
        for proxy in self._of(pairs):
            for stream in BOTH:
                proxy.remove(kind, stream)

    def refuse(self, pairs: Sequence[Pair]) -> None:
        """Close open connections, and refuse new ones."""
        for proxy in self._of(pairs):
            proxy.disable()

    def accept(self, pairs: Sequence[Pair]) -> None:
        """Undo `refuse`."""
        for proxy in self._of(pairs):
            proxy.enable()

    def all_pairs(self, *, with_clients: bool = False) -> list[Pair]:
        """Return all links between nodes, optionally those of clients as well."""
        return [
            pair for pair in self._proxies if pair[0] > 0 or (with_clients and pair[0] == CLIENTS)
        ]

    def to_nameserver(self, *nodes: int) -> list[Pair]:
        """Return the links on which these nodes ask the name server; none with a replica."""
        return [pair for pair in self._proxies if pair[0] in map(asking, nodes)]

    def of_clients(self, *nodes: int) -> list[Pair]:
        """Return the links from clients to these nodes, by default to all."""
        return [(CLIENTS, node) for node in nodes or self.nodes]

    def heal(self) -> None:
        """Reset all links to their initial state."""
        self._server.reset()

    def swallowed(
        self, pairs: Sequence[Pair], over: Transport = "auto"
    ) -> dict[tuple[str, str], tuple[int, int]]:
        """Return the bytes in and out of these links so far, to prove that a fault took effect.

        `over`: of the links of clients, only the proxies of the transport in use; `auto`: both.
        """
        counts = self._server.byte_counts()
        names = {proxy.name for proxy in self._of(pairs, over)}
        return {key: value for key, value in counts.items() if key[0] in names}


def _name_of(source: int) -> str:
    if source == CLIENTS:
        return "clients"
    return str(source) if source > 0 else f"asking-{-source}"
