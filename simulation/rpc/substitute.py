"""The simulated parts that take the place of parts of gRPC, for the time of a world.

Owns the table: the two classes of the extension module that `grpc.aio` builds on, what of its
Python part reads a clock or depends on addresses in memory, and how a node looks at and cuts the
connections of its gRPC server.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from grpc._cython import cygrpc
from grpc.aio import _channel, _utils

from node.services.bounds import connection_cut
from simulation.kernel.hub import Hub
from simulation.kernel.process import Process, current_process
from simulation.kernel.substitution import Substitution
from simulation.machines.modules import Time
from simulation.rpc.channel import SimulatedChannel
from simulation.rpc.server import ServerConnection, SimulatedServer
from simulation.world import PACKAGES, World


class Parts(NamedTuple):
    """Replacements, for `kernel.substitution`."""

    table: dict[Any, Any]
    """Simulated parts by the real ones, in our modules."""
    attributes: list[tuple[Any, str, Any]]
    """Owner, name and new value of attributes of grpcio."""


def substitute(hub: Hub) -> Parts:
    """Return the replacements of one world."""
    rpc_port = _RpcPort(hub)
    return Parts(
        {
            connection_cut.cut_connection: rpc_port.cut_connection,
            connection_cut.traffic_of: rpc_port.traffic_of,
        },
        [
            (cygrpc, "AioChannel", rpc_port.channel),
            (cygrpc, "AioServer", rpc_port.server),
            (_utils, "time", Time(hub)),
            (_channel, "weakref", SimpleNamespace(WeakSet=OrderedWeakSet)),
        ],
    )


@contextmanager
def rpc_parts(world: World) -> Iterator[None]:
    """Have gRPC simulated in a world that was entered."""
    parts = substitute(world.hub)
    substitution = Substitution(PACKAGES)
    try:
        substitution.replace(parts.table)
        for owner, name, value in parts.attributes:
            substitution.put(owner, name, value)
        yield
    finally:
        substitution.undo()


class _RpcPort:
    """Makes channels and servers for the process whose code asks."""

    def __init__(self, hub: Hub) -> None:
        self._hub: Final = hub
        self._servers: dict[Process, list[SimulatedServer]] = {}

    def channel(self, target: bytes, options: Any, credentials: Any, _loop: Any) -> Any:
        """Return what `cygrpc.AioChannel` would."""
        return SimulatedChannel(current_process(self._hub), target, options, credentials)

    def server(
        self,
        _loop: Any,
        _thread_pool: Any,
        handlers: Any,
        interceptors: Any,
        options: Any,
        call_count_max: int | None,
    ) -> Any:
        """Return what `cygrpc.AioServer` would."""
        process = current_process(self._hub)
        made = SimulatedServer(process, handlers, interceptors, options, call_count_max)
        if process not in self._servers:
            self._servers[process] = []
            process.on_end.append(partial(self._forget, process))
        self._servers[process].append(made)
        return made

    def _forget(self, process: Process) -> None:
        del self._servers[process]

    # --- As node.services.bounds.connection_cut ---

    def cut_connection(self, peer: str, local_port: int) -> bool:
        """End the connection of a peer to a port; return whether it was found."""
        for connection in self._connections(local_port):
            if connection.peer == peer:
                connection.transport.abort()
                return True
        return False

    def traffic_of(self, local_port: int) -> dict[Any, connection_cut.Traffic]:
        """Return the traffic of each connection to a port, by its client's address."""
        return {
            connection_cut.address_of(one.peer): connection_cut.Traffic(
                one.received_size_bytes, one.sent_size_bytes
            )
            for one in self._connections(local_port)
        }

    def _connections(self, local_port: int) -> Iterator[ServerConnection]:
        for server in self._servers.get(current_process(self._hub), ()):
            if local_port in server.ports:
                yield from [one for one in server.connections if one.transport is not None]


class OrderedWeakSet:
    """A WeakSet whose order is that of adding: `grpc.aio` ends the calls of a channel in it."""

    def __init__(self) -> None:
        self._items: dict[int, weakref.ref[Any]] = {}

    def add(self, item: Any) -> None:
        """Hold an item weakly."""
        at = id(item)
        self._items[at] = weakref.ref(item, lambda _: self._items.pop(at, None))

    def discard(self, item: Any) -> None:
        """Remove an item, if it is there."""
        self._items.pop(id(item), None)

    def clear(self) -> None:
        """Remove all."""
        self._items.clear()

    def __iter__(self) -> Iterator[Any]:
        found = [one() for one in self._items.values()]
        return iter([item for item in found if item is not None])

    def __len__(self) -> int:
        return len(self._items)
