"""The small channel in the place of gRPC, for the time of a world.

Owns the table: the functions of `grpc.aio` that make channels and servers, and how a node looks at
and cuts the connections of its server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc.aio

from node.services.bounds import connection_cut
from simulation.kernel.process import Process, current_process
from simulation.kernel.substitution import Substitution
from simulation.rpc.channel import Channel
from simulation.rpc.server import Server
from simulation.world import PACKAGES, World


@contextmanager
def rpc_parts(world: World) -> Iterator[None]:
    """Have calls simulated in a world that was entered."""
    servers: dict[Process, Server] = {}

    def channel(target: str, options: object) -> Channel:
        return Channel(current_process(world.hub), target)

    def secure_channel(*_: object, **__: object) -> Channel:
        raise NotImplementedError("TLS is not simulated")

    def server(options: object, maximum_concurrent_rpcs: int) -> Server:
        process = current_process(world.hub)
        assert process not in servers, f"{process.name} has a server"
        servers[process] = Server(process)
        return servers[process]

    def cut(peer: str, local_port: int) -> bool:
        call = servers[current_process(world.hub)].calls.get(peer)
        if call is not None:
            call.transport.abort()
        return call is not None

    substitution = Substitution(PACKAGES)
    try:
        # Without traffic nothing is estimated: no client sends a part of a message.
        connections = {connection_cut.cut_connection: cut, connection_cut.traffic_of: lambda _: {}}
        substitution.replace(connections)
        substitution.put(grpc.aio, "insecure_channel", channel)
        substitution.put(grpc.aio, "secure_channel", secure_channel)
        substitution.put(grpc.aio, "server", server)
        yield
    finally:
        substitution.undo()
