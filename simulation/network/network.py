"""The network of a world, with what event loops ask of it.

Owns nothing beside the links: it brings sockets and transports to loops that know neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from simulation.kernel.process import Process
from simulation.network import transport
from simulation.network.links import Links
from simulation.network.sockets import SimulatedSocket


class Network(Links):
    """All machines of one world."""

    async def connect(
        self, process: Process, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect to an address. Raises OSError as the system does."""
        return await transport.connect(process, factory, host, port)

    def attach(
        self, process: Process, socket: SimulatedSocket, protocol: asyncio.BaseProtocol
    ) -> asyncio.Transport:
        """Put a protocol on a connected socket."""
        return transport.attach(process, socket, protocol)

    def serve(
        self,
        process: Process,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        backlog: int,
    ) -> transport.SimulatedServer:
        """Listen at an address, and give each connection a protocol."""
        return transport.SimulatedServer(process, factory, host, port, backlog)
