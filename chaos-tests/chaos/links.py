"""Every link of a cluster: one proxy for each ordered pair of nodes, one from clients to each node,
and from each node that has no replica of the name server to those that have one.

Owns what it means to cut, slow or break a link in one direction or both; must not know why. A node
dials every peer, so the bytes from a to b go upstream through a>b and downstream through b>a.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from chaos.toxiproxy import BOTH, DOWNSTREAM, UPSTREAM, Proxy, Toxiproxy

CLIENTS: Final = 0
"""Stands for all clients, as the source of a link."""
Pair = tuple[int, int]


def asking(node: int) -> int:
    """Stands for a node as one that asks the name server, as the source of a link."""
    return -node


class Links:
    """The proxies of one cluster."""

    def __init__(self, server: Toxiproxy) -> None:
        self._server = server
        self._proxies: dict[Pair, Proxy] = {}

    def relay(self, source: int, target: int, port: int) -> int:
        """Put a proxy before a port; return its own. What `LocalCluster.create` asks for."""
        name = f"{_name_of(source)}>{target}"
        found = self._proxies[source, target] = self._server.create(name, port)
        return found.port

    def port(self, pair: Pair) -> int:
        """Where a link is dialled."""
        return self._proxies[pair].port

    @property
    def nodes(self) -> tuple[int, ...]:
        """All nodes that a link leads to."""
        return tuple(sorted({target for _, target in self._proxies}))

    def between(self, one: Iterable[int], other: Iterable[int]) -> list[Pair]:
        """The links that join two sets of nodes, in both directions."""
        left, right = set(one), set(other)
        return [
            (a, b)
            for a, b in self._proxies
            if (a in left and b in right) or (a in right and b in left)
        ]

    # --- Cuts: silent, nobody is told ---

    def cut(self, pairs: Sequence[Pair]) -> None:
        """Nothing goes through any more, and no connection is closed."""
        for pair in pairs:
            for stream in BOTH:
                self._proxies[pair].add("timeout", stream, timeout=0)

    def cut_direction(self, source: int, target: int) -> None:
        """What one node sends to the other is lost; the other way all is well."""
        self._proxies[source, target].add("timeout", UPSTREAM, timeout=0)
        self._proxies[target, source].add("timeout", DOWNSTREAM, timeout=0)

    def join(self, pairs: Sequence[Pair]) -> None:
        """Undo `cut`; the connections that were cut are closed by it."""
        for pair in pairs:
            for stream in BOTH:
                self._proxies[pair].remove("timeout", stream)

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
        for pair in pairs:
            for stream in BOTH:
                self._proxies[pair].add(kind, stream, **attributes)

    def add_one_way(self, pair: Pair, kind: str, stream: str, **attributes: int) -> None:
        """Add a toxic to one stream of one link."""
        self._proxies[pair].add(kind, stream, **attributes)

    def remove(self, pairs: Sequence[Pair], kind: str) -> None:
        """Take that toxic away again."""
        for pair in pairs:
            for stream in BOTH:
                self._proxies[pair].remove(kind, stream)

    def refuse(self, pairs: Sequence[Pair]) -> None:
        """Close what is open, and refuse new connections."""
        for pair in pairs:
            self._proxies[pair].disable()

    def accept(self, pairs: Sequence[Pair]) -> None:
        """Undo `refuse`."""
        for pair in pairs:
            self._proxies[pair].enable()

    def all_pairs(self, *, with_clients: bool = False) -> list[Pair]:
        """All links between nodes, and to them."""
        return [
            pair for pair in self._proxies if pair[0] > 0 or (with_clients and pair[0] == CLIENTS)
        ]

    def to_nameserver(self, *nodes: int) -> list[Pair]:
        """The links on which these nodes ask the name server; none of one that has a replica."""
        return [pair for pair in self._proxies if pair[0] in map(asking, nodes)]

    def of_clients(self, *nodes: int) -> list[Pair]:
        """The links from clients to these nodes, or to all."""
        return [(CLIENTS, node) for node in nodes or self.nodes]

    def heal(self) -> None:
        """All links are as new."""
        self._server.reset()

    def swallowed(self, pairs: Sequence[Pair]) -> dict[tuple[str, str], tuple[int, int]]:
        """Bytes in and out of these links so far, for a proof that a fault bit."""
        counts = self._server.byte_counts()
        names = {self._proxies[pair].name for pair in pairs}
        return {key: value for key, value in counts.items() if key[0] in names}


def _name_of(source: int) -> str:
    if source == CLIENTS:
        return "clients"
    return str(source) if source > 0 else f"asking-{-source}"
