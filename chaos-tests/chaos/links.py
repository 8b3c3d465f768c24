"""Every link of a cluster: one proxy for each ordered pair of nodes, one from clients to each node,
and from each node that has no replica of the name server to those that have one.

Owns the meaning of cutting, slowing or breaking a link in one direction or both; must not know the
reason. A node dials every peer, so the bytes from a to b go upstream through a>b and downstream
through b>a.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from chaos.toxiproxy import BOTH, DOWNSTREAM, UPSTREAM, Proxy, Toxiproxy

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

    def relay(self, source: int, target: int, port: int) -> int:
        """Put a proxy before a port; return its own. Used by `LocalCluster.create`."""
        name = f"{_name_of(source)}>{target}"
        found = self._proxies[source, target] = self._server.create(name, port)
        return found.port

    def port(self, pair: Pair) -> int:
        """Return the port at which a link is dialled."""
        return self._proxies[pair].port

    @property
    def nodes(self) -> tuple[int, ...]:
        """All nodes that a link leads to."""
        return tuple(sorted({target for _, target in self._proxies}))

    def between(self, one: Iterable[int], other: Iterable[int]) -> list[Pair]:
        """Return the links that join two sets of nodes, in both directions."""
        left, right = set(one), set(other)
        return [
            (a, b)
            for a, b in self._proxies
            if (a in left and b in right) or (a in right and b in left)
        ]

    # --- Cuts: silent, without notice to either side ---

    def cut(self, pairs: Sequence[Pair]) -> None:
        """Stop all bytes on these links, and close no connection."""
        for pair in pairs:
            for stream in BOTH:
                self._proxies[pair].add("timeout", stream, timeout=0)

    def cut_direction(self, source: int, target: int) -> None:
        """Lose the bytes from one node to the other; the other direction stays whole."""
        self._proxies[source, target].add("timeout", UPSTREAM, timeout=0)
        self._proxies[target, source].add("timeout", DOWNSTREAM, timeout=0)

    def join(self, pairs: Sequence[Pair]) -> None:
        """Undo `cut`; this closes the connections that were cut."""
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
        """Remove this toxic in both directions."""
        for pair in pairs:
            for stream in BOTH:
                self._proxies[pair].remove(kind, stream)

    def refuse(self, pairs: Sequence[Pair]) -> None:
        """Close open connections, and refuse new ones."""
        for pair in pairs:
            self._proxies[pair].disable()

    def accept(self, pairs: Sequence[Pair]) -> None:
        """Undo `refuse`."""
        for pair in pairs:
            self._proxies[pair].enable()

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

    def swallowed(self, pairs: Sequence[Pair]) -> dict[tuple[str, str], tuple[int, int]]:
        """Return the bytes in and out of these links so far, to prove that a fault took effect."""
        counts = self._server.byte_counts()
        names = {self._proxies[pair].name for pair in pairs}
        return {key: value for key, value in counts.items() if key[0] in names}


def _name_of(source: int) -> str:
    if source == CLIENTS:
        return "clients"
    return str(source) if source > 0 else f"asking-{-source}"
