"""The transports of asyncio on the ends of streams, and how streams begin.

Owns what asyncio promises to protocols: when they are called, and in which order.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable
from typing import Any, Final

from simulation.kernel.hub import NS_PER_S
from simulation.kernel.process import Process
from simulation.network.links import RETRANSMIT_NS, Links
from simulation.network.sockets import SimulatedSocket, Sockets
from simulation.network.stream import End

CONNECT_TIMEOUT_NS: Final = 20 * NS_PER_S
HIGH_WATER_SIZE_BYTES: Final = 64 * 1024


class SimulatedTransport(asyncio.Transport):
    """The transport of asyncio on one end of a stream."""

    def __init__(self, process: Process, socket: SimulatedSocket, protocol: Any) -> None:
        super().__init__()
        assert socket.end is not None
        self._process, self._socket, self._end = process, socket, socket.end
        self._protocol: Any = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)
        self._is_reading, self._is_closing, self._is_lost = True, False, False
        self._is_writing_paused = False
        self._high, self._low = HIGH_WATER_SIZE_BYTES, HIGH_WATER_SIZE_BYTES // 4
        self._is_feed_due = False
        self._end.transport = self
        process.loop.call_soon(self._begin)

    def _begin(self) -> None:
        if self._is_lost:
            return
        self._protocol.connection_made(self)
        if self._end.error is not None:
            self.on_lost(self._end.error)
        else:
            self.on_received()

    # --- From the stream ---

    def on_received(self) -> None:
        """Have arrived bytes given to the protocol in the next turn."""
        if not self._is_feed_due and self._is_reading and not self._is_lost:
            self._is_feed_due = True
            self._process.loop.call_soon(self._feed)

    def _feed(self) -> None:
        self._is_feed_due = False
        end = self._end
        while end.received and self._is_reading and not self._is_lost and not self._is_closing:
            data = end.read()
            if not self._is_buffered:
                self._protocol.data_received(data)
                continue
            while data and not self._is_lost:
                room = memoryview(self._protocol.get_buffer(len(data)))
                size_bytes = min(len(room), len(data))
                assert size_bytes, "get_buffer() returned an empty buffer"
                room[:size_bytes] = data[:size_bytes]
                self._protocol.buffer_updated(size_bytes)
                data = data[size_bytes:]
        if end.is_eof and not end.received and self._is_reading and not self._is_lost:
            end.is_eof = False
            if not self._protocol.eof_received():
                self.close()

    def on_room(self) -> None:
        """Bytes have left; the protocol may write again."""
        if self._is_writing_paused and self._end.unsent_size_bytes <= self._low:
            self._is_writing_paused = False
            self._process.loop.call_soon(self._protocol.resume_writing)
        if self._is_closing and not self._end.unsent_size_bytes:
            self._lose(None)

    def on_lost(self, error: OSError | None) -> None:
        """The stream has ended without this side's doing."""
        self._lose(error)

    def _lose(self, error: OSError | None) -> None:
        if not self._is_lost:
            self._is_lost = self._is_closing = True
            self._process.loop.call_soon(self._protocol.connection_lost, error)

    # --- asyncio.Transport ---

    def write(self, data: Any) -> None:
        if self._is_closing or self._is_lost or not data:
            return
        self._end.send(bytes(data))
        if not self._is_writing_paused and self._end.unsent_size_bytes > self._high:
            self._is_writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._end.stop_reading()
        self._end.finish()
        if not self._end.unsent_size_bytes:
            self._lose(None)

    def abort(self) -> None:
        if not self._is_lost:
            self._end.abort()
            self._lose(None)

    def is_closing(self) -> bool:
        return self._is_closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        found = {
            "peername": self._end.remote,
            "sockname": self._end.local,
            "socket": self._socket,
        }
        return found.get(name, default)

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._end.received or self._end.is_eof:
            self.on_received()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER_SIZE_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._end.unsent_size_bytes


class SimulatedServer:
    """The result of `create_server`: accepts connections until it is closed."""

    def __init__(
        self,
        process: Process,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        backlog: int,
    ) -> None:
        self._process, self._factory = process, factory
        made = Sockets(process.hub).create_server((host, port), backlog=backlog)
        self.sockets = [made]
        process.loop.add_reader(made, self._accept)

    def _accept(self) -> None:
        while self.sockets and self.sockets[0].is_readable:
            accepted, _ = self.sockets[0].accept()
            SimulatedTransport(self._process, accepted, self._factory())

    def close(self) -> None:
        for one in self.sockets:
            self._process.loop.remove_reader(one)
            one.close()
        self.sockets = []


class Network(Links):
    """All machines of one world, with what event loops ask of their network, which know neither
    sockets nor transports."""

    attach = SimulatedTransport
    serve = SimulatedServer

    @staticmethod
    async def connect(
        process: Process, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        """Connect to an address. Raises OSError as the system does."""
        machine, network, hub = process.machine, process.machine.network, process.hub
        address = network.resolve(host)
        if address.startswith("127."):
            source, target = address, (address, port)
        else:
            source, target = machine.address, (address, port)
        local = (source, network.free_port())
        answered: asyncio.Future[SimulatedSocket] = process.loop.create_future()
        began_ns = hub.now_ns

        def refuse(error: OSError) -> None:
            if not answered.done():
                answered.set_exception(error)

        def knock() -> None:
            if answered.done() or not process.is_alive:
                return
            if hub.now_ns - began_ns > CONNECT_TIMEOUT_NS:
                refuse(TimeoutError(errno.ETIMEDOUT, "Connect call failed"))
                return
            way_back = network.is_cut(target[0], source)
            if network.is_cut(source, target[0]) or way_back or not machine_up(target[0]):
                hub.after(5 * RETRANSMIT_NS, knock)
                return
            hub.after(network.delay_ns(source, target[0], 60), arrive)

        def machine_up(at: str) -> bool:
            return at.startswith("127.") or network.has_power(at)

        def arrive() -> None:
            listener = network.listeners.get(target)
            if listener is None or len(listener.backlog) >= listener.backlog_count_max:
                error = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed")
                hub.after(network.delay_ns(target[0], source, 60), refuse, error)
                return
            mine = End(process, local, target)
            theirs = End(listener.process, target, local)
            mine.other, theirs.other = theirs, mine
            accepted = SimulatedSocket(listener.process, target)
            accepted.end = theirs
            listener.backlog.append(accepted)
            listener.process.loop.wake()
            own = SimulatedSocket(process, local)
            own.end = mine
            hub.after(network.delay_ns(target[0], source, 60), connected, own)

        def connected(own: SimulatedSocket) -> None:
            if answered.done() or not process.is_alive:
                own.close()
            else:
                answered.set_result(own)

        knock()
        own = await answered
        protocol = factory()
        transport = SimulatedTransport(process, own, protocol)
        await asyncio.sleep(0)
        return transport, protocol
