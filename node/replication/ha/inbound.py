"""Frames of the other replicas, on their way to the machine.

Owns the checks of bytes before the machine sees them, slaves that have to wait for room on their
disk, and images of the state. Must not know how the machine handles a frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from node.peers.stream import Side
from node.replication.ha.applied import AppliedState
from node.replication.ha.core.effects import HaEffects
from node.replication.ha.core.machine import HaMachine
from node.replication.ha.core.sender import HaProtocolError
from node.replication.ha.core.types import HaRole
from node.replication.ha.core.wire import Frame, Hello, ImagePiece, ImageRequest, Transfer
from node.replication.ha.link.connection import HaConnection
from node.replication.ha.link.image_transfer import ImageReceiver, ImageSender
from node.replication.ha.link.link import HaLink
from node.replication.ha.storage.log import HaLog, ImageNeededError
from store.errors import FileSystemError, StoreFullError
from store.log.shipped_log import CheckedRaw

ROOM_RETRY_MS: Final = 5
"""Pause after which a slave whose disk had no room for a transfer looks again: the next file of the
log is usually being made just then."""


class Inbound:
    """The inbound frames of one replica."""

    def __init__(
        self,
        machine: HaMachine,
        log: HaLog,
        applied: AppliedState,
        link: HaLink,
        *,
        give: Callable[[Callable[[HaMachine], HaEffects]], None],
        takes_inputs: Callable[[], bool],
        touch: Callable[[], None],
        on_fatal: Callable[[BaseException], None],
        make_image: Callable[[], Awaitable[bytes]],
    ) -> None:
        """`give` hands the machine an input; while it has to wait, `takes_inputs` says no. `touch`
        schedules a turn of the driver."""
        self._machine, self._log, self._applied, self._link = machine, log, applied, link
        self._give, self._takes_inputs, self._touch = give, takes_inputs, touch
        self._on_fatal, self._is_stopped = on_fatal, False
        self._loop = asyncio.get_running_loop()
        self._waiting_for_room: set[HaConnection] = set()
        self._unopened: list[HaConnection] = []
        """Connections that opened while the replica takes no inputs."""
        self._images = ImageReceiver()
        self.image_sender: Final = ImageSender(make_image, on_fatal)
        self.no_room_count = 0
        """Checks of frames that had to wait, as this disk had no room."""

    def stop(self) -> None:
        """Take no more, and stop sending images."""
        self._is_stopped = True
        self.image_sender.stop()

    def tick(self, now_ms: int) -> None:
        """Ask for an image if the state is missing."""
        if self._applied.wants_image:
            self._images.ask_one(self._image_sources(), now_ms)

    def _image_sources(self) -> list[HaConnection]:
        """Return connections to replicas that may have the state: the master, or all that promised
        to follow this node.

        An image names its history, so one that is of no use here does no harm.
        """
        state = self._machine.state
        if state.role is HaRole.SLAVE:
            links = [link for link in [state.up(state.bound.master_id)] if link and link.is_master]
        else:
            peers = [link.peer for link in state.downs() if link.promise is not None]
            links = [link for peer in peers if (link := state.up(peer)) is not None]
        return [connection_of(link.id) for link in links]

    def go_on(self) -> None:
        """Hand in the connections that opened while the replica took no inputs."""
        unopened, self._unopened = self._unopened, []
        for connection in unopened:
            self.on_open(connection)

    def on_open(self, connection: HaConnection) -> None:
        """Take a connection that passed its handshake."""
        if self._is_stopped:
            return
        if not self._takes_inputs():
            self._unopened.append(connection)
            return
        if connection.side is Side.DIALLED:
            self._give(lambda machine: machine.dialled(connection, connection.peer))
        else:
            self._give(lambda machine: machine.accepted(connection))
        connection.begin()

    def on_frame(self, connection: HaConnection, frame: Frame) -> bool:
        """Take a frame; return whether it was taken. If not, `resume` offers it again."""
        if self._is_stopped:
            return True
        if not self._takes_inputs():
            self._wait_for_room(connection)
            return False
        checked: CheckedRaw | None = None
        machine = self._machine
        if isinstance(frame, Transfer) and machine.is_behind(connection, frame.position):
            # The sender's log begins behind the end of this one, so this one must begin there, too.
            # The machine only notes the frame.
            self._images.ask(connection, machine.state.now_ms)
        elif isinstance(frame, Transfer) and frame.body:
            if not self._log.store.has_room(len(frame.body)):
                self._wait_for_room(connection)
                return False
            try:
                checked = self._log.check_raw(frame.position, frame.body)
            except ImageNeededError:
                # The empty log begins with an image; bytes streamed before it are useless.
                self._images.ask(connection, machine.state.now_ms)
                self._give(lambda machine: machine.on_contact(connection))
                return True
            except HaProtocolError as error:
                self.close(connection, str(error))
                return True
        elif isinstance(frame, Hello) and frame.replica_id != connection.peer:
            self.close(connection, f"node {connection.peer} says it is {frame.replica_id}")
            return True
        elif isinstance(frame, ImageRequest):
            if not self._applied.is_missing:
                self.image_sender.begin(connection)
            return True
        elif isinstance(frame, ImagePiece):
            self._take_piece(connection, frame)
            return True
        self._give(lambda machine: machine.received(connection, frame, checked))
        return True

    def on_closed(self, connection: HaConnection) -> None:
        """Forget a connection that is gone."""
        self.forget(connection)
        if connection in self._unopened:
            self._unopened.remove(connection)
        elif not self._is_stopped:
            self._give(lambda machine: machine.disconnected(connection))

    def close(self, connection: HaConnection, reason: str) -> None:
        """End a useless connection."""
        self.forget(connection)
        self._link.close(connection, reason)
        self._give(lambda machine: machine.disconnected(connection))

    def forget(self, connection: HaConnection) -> None:
        """Stop all work for this connection."""
        self._waiting_for_room.discard(connection)
        self._images.forget(connection)
        self.image_sender.forget(connection)

    def _take_piece(self, connection: HaConnection, piece: ImagePiece) -> None:
        self._give(lambda machine: machine.on_contact(connection))
        begin = self._log.min_position
        try:
            data = self._images.take(connection, piece, self._machine.state.now_ms)
            if data is None:
                return
            is_behind = partial(self._machine.is_behind, connection)
            self._applied.take_image(data, is_behind)
        except (HaProtocolError, StoreFullError, FileSystemError) as error:
            self.close(connection, str(error))
            return
        except BaseException as error:
            self._on_fatal(error)
            raise
        if self._log.is_empty or self._log.min_position != begin:
            self.close(connection, "the log begins with an image, and is streamed again")
        self._touch()

    def _wait_for_room(self, connection: HaConnection) -> None:
        self.no_room_count += 1
        self._waiting_for_room.add(connection)
        self._loop.call_later(ROOM_RETRY_MS / 1000, self._retry_for_room, connection)

    def _retry_for_room(self, connection: HaConnection) -> None:
        if connection in self._waiting_for_room and not self._is_stopped:
            self._waiting_for_room.discard(connection)
            connection.resume()

    def needed_position(self, floor: int) -> int:
        """Return the position from which the log is still shipped, ignoring slaves behind
        `floor`."""
        needed = self._machine.state.end
        for link in self._machine.state.downs():
            if link.sender is not None and link.sender.next is not None:
                position = link.sender.acked or link.sender.next
                needed = min(needed, position if position >= floor else needed)
        return needed

    def drop_left_behind(self) -> None:
        """Close the links of slaves that need deleted bytes; the slaves dial and begin again."""
        for link in self._machine.state.downs():
            next_position = None if link.sender is None else link.sender.next
            if next_position is not None and next_position < self._log.min_position:
                self.close(connection_of(link.id), "what it needs next has expired")


def connection_of(link_id: object) -> HaConnection:
    """Return the connection behind a link id: ids are the connections given to `on_open`."""
    assert isinstance(link_id, HaConnection), f"link {link_id!r}"
    return link_id
