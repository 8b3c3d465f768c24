"""The sockets of PySyncObj under our rules: bounded frames of plain values, members only.

Owns its connections and its transport, and the choice of messages that leave and reach its Raft
(`lives` decides which members count). With `pysyncobj` the only place for private names of the
library (rule C9). Must not know the files. Of the content of a command it knows only the marker
that ends a joining. All code here runs on one thread.
"""

import contextlib
import hmac
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pysyncobj
import pysyncobj.tcp_connection
import pysyncobj.transport

from node.nameserver.replica import messages
from node.nameserver.replica.dump import index_and_term
from node.nameserver.replica.journal import Journal
from node.nameserver.replica.lives import ReplicaLives, told_in
from node.nameserver.replica.messages import NO_OP
from node.nameserver.replica.plain_values import decoded_value
from node.peers.lives_codec import LivesFormatError
from node.runtime.busiest import of_busiest

HANDSHAKE_SIZE_BYTES_MAX: Final = 4 * 1024
"""Size of a frame, packed and unpacked, of a peer that has not identified itself."""
HANDSHAKE_VALUE_COUNT_MAX: Final = 8
"""Values in such a frame: a key and an address."""
FRAME_SIZE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Size of a frame of a replica, packed and unpacked: a batch of entries, with room."""
FRAME_VALUE_COUNT_MAX: Final = 5 * messages.ENTRY_COUNT_MAX + 64
"""Values in such a frame: entries with a command of two parts and two numbers each."""
STRANGER_COUNT_MAX: Final = 16
"""Connections of peers that have not identified themselves. One more closes the oldest of
the busiest address, so that silent strangers keep no replica out."""
STRANGER_SECONDS_MAX: Final = 5.0
_LENGTH: Final = struct.Struct("i")
_FOLLOWER: Final = 0
"""The library's number of the follower state."""


class BoundedConnection(pysyncobj.tcp_connection.TcpConnection):  # type: ignore[misc]
    """A connection that buffers a bounded amount of a peer's bytes."""

    _TcpConnection__readBuffer: bytes
    recvLastTimestamp: int  # noqa: N815

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.frame_size_bytes_max = HANDSHAKE_SIZE_BYTES_MAX
        self.since_s = time.monotonic()
        self.host = ""
        """The address of a peer that dialled us."""
        super().__init__(*args, **kwargs)
        if kwargs.get("socket") is not None:
            with contextlib.suppress(OSError):
                self.host = str(kwargs["socket"].getpeername()[0])

    def connect(self, host: str, port: int) -> bool:
        """Dial; return whether the dial has begun. Close the socket of a dial that fails at once,
        which the library would leak."""
        is_begun = bool(super().connect(host, port))
        if not is_begun:
            self.disconnect()
        return is_begun

    def _TcpConnection__processRead(self) -> bool:  # noqa: N802
        if len(self._TcpConnection__readBuffer) > self.frame_size_bytes_max:
            return False
        read = pysyncobj.tcp_connection.TcpConnection._TcpConnection__processRead
        return bool(read(self))

    def _TcpConnection__processParseMessage(self) -> Any:  # noqa: N802
        buffer = self._TcpConnection__readBuffer
        if len(buffer) < _LENGTH.size:
            return None
        (size_bytes,) = _LENGTH.unpack_from(buffer)
        if not 0 < size_bytes <= self.frame_size_bytes_max:
            self.disconnect()
            return None
        end = _LENGTH.size + size_bytes
        if len(buffer) < end:
            return None
        try:
            message = self._opened(buffer[_LENGTH.size : end])
        except Exception:  # noqa: BLE001 - bytes of strangers may raise any error, all are refused
            self.disconnect()
            return None
        self._TcpConnection__readBuffer = buffer[end:]
        return message

    def _opened(self, data: bytes) -> Any:
        if self.encryptor:
            sent_s = self.encryptor.extract_timestamp(data)
            if sent_s < self.recvLastTimestamp:
                raise ValueError("an old frame")
            self.recvLastTimestamp = sent_s
            data = self.encryptor.decrypt(data)
        unpacking = zlib.decompressobj()
        packed = unpacking.decompress(data, self.frame_size_bytes_max)
        if not unpacking.eof:
            raise ValueError("a frame that unpacks to too much")
        is_known = self.frame_size_bytes_max > HANDSHAKE_SIZE_BYTES_MAX
        count_max = FRAME_VALUE_COUNT_MAX if is_known else HANDSHAKE_VALUE_COUNT_MAX
        message = decoded_value(packed, count_max)
        if self.recvRandKey:
            key, message = message
            if not isinstance(key, bytes) or not hmac.compare_digest(key, self.recvRandKey):
                raise ValueError("a frame of another connection")
        return message


class MemberReplica(pysyncobj.SyncObj):  # type: ignore[misc]
    """The library's object, as its transport sees it: which messages and members count.

    A subclass sets the attributes before it calls `SyncObj.__init__`, which makes the transport.
    """

    failure: Exception | None
    """The error that must end this replica; no message leaves or reaches the Raft after it."""
    journal: Journal
    lives: ReplicaLives

    def may_say(self, member: str, message: messages.Message) -> bool:
        """Whether a message may leave: a replica without memory sends none that others count."""
        kind = message["type"]
        if kind == "apply_command":
            is_marker = message["command"] == NO_OP + self.lives.marker
            return not is_marker or self.lives.has_told(member)
        if kind == "next_node_idx":
            return self.lives.has_met
        return kind == "apply_command_response" or self.lives.takes_part

    def may_hear(self, member: str, message: messages.Message) -> bool:
        """Whether a message may reach the Raft. Commands always may, since they are no votes."""
        kind = message["type"]
        if kind in ("apply_command", "apply_command_response"):
            return True
        if kind == "next_node_idx":
            return self.lives.has_met
        may_take = self.lives.has_met if kind == "append_entries" else self.lives.takes_part
        return may_take and self.lives.counts(member)

    def step_down(self) -> None:
        """Become a follower without a leader."""
        self._SyncObj__setState(_FOLLOWER)
        self._SyncObj__raftLeader = None

    def forget_acks(self, node: Any) -> None:
        """Reset the match index of a member that lost the memory of its acks."""
        if node in self._SyncObj__raftMatchIndex:
            self._SyncObj__raftMatchIndex[node] = 0

    @contextmanager
    def without_news_of(self, node: Any) -> Iterator[None]:
        """Keep a member's last response time, so that a message does not count for the quorum."""
        times = self._SyncObj__lastResponseTime
        before_s = times.get(node)
        yield
        if before_s is not None:
            times[node] = before_s

    def connected_nodes(self) -> tuple[Any, ...]:
        """Return the connected members."""
        return tuple(self._SyncObj__connectedNodes)

    @property
    def hasQuorum(self) -> bool:  # noqa: N802
        """Whether the connected members that count, and this one, are a majority. Any thread."""
        lives = self.lives
        count = sum(lives.counts(node.id) for node in self.connected_nodes())
        return 2 * (count + (not lives.is_joining)) > len(self.journal.members)

    def sync(self) -> None:
        """Make the journal durable, before a message leaves."""
        with self.ending():
            self.journal.sync()

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Set `failure` on an error, so that no message leaves from then on."""
        try:
            yield
        except Exception as error:
            self.failure = error
            raise


class Transport(pysyncobj.transport.TCPTransport):  # type: ignore[misc]
    """Talks to members only; syncs the journal before messages leave, and checks arriving ones."""

    _ready: bool

    def __init__(self, replica: MemberReplica, self_node: Any, other_nodes: Any) -> None:
        self._replica = replica
        self.refused_count = 0
        self._is_skipping = False
        super().__init__(replica, self_node, other_nodes)

    def setOnUtilityMessageCallback(self, message: str, callback: Any) -> None:  # noqa: N802
        """Register no callback: any process that can connect could change members or leaders."""

    def send(self, node: Any, message: messages.Message) -> bool:
        """Send a message after the journal is durable; return whether it was sent."""
        replica = self._replica
        if replica.failure is not None or not replica.may_say(node.id, message):
            return False
        replica.sync()
        if message["type"] == "next_node_idx":
            message = {**message, "term": replica.raftCurrentTerm}
        return bool(super().send(node, message))

    def _onIncomingMessageReceived(self, conn: Any, message: object) -> None:  # noqa: N802
        if self._syncObj.encryptor and not conn.sendRandKey:
            is_welcome = isinstance(message, bytes) and len(message) == 32
        else:
            is_welcome = isinstance(message, str) and self._may_dial(message)
        if not is_welcome:
            self._refuse(conn)
            return
        if isinstance(message, str):
            conn.frame_size_bytes_max = FRAME_SIZE_BYTES_MAX
            earlier = self._connections.pop(self._nodeAddrToNode[message], None)
            if earlier is not None:
                earlier.disconnect()
        super()._onIncomingMessageReceived(conn, message)

    def _onNodeConnected(self, node: Any) -> None:  # noqa: N802
        """Send our lives to a connected member before any other message."""
        self._replica.lives.on_disconnected(node.id)
        super()._onNodeConnected(node)
        self._tell(node)

    def _onNodeDisconnected(self, node: Any) -> None:  # noqa: N802
        self._replica.lives.on_disconnected(node.id)
        super()._onNodeDisconnected(node)

    def tell_all(self) -> None:
        """Send the lives, as this replica knows them, to all connected members."""
        for node in self._replica.connected_nodes():
            if (
                self._connections[node].state
                != pysyncobj.tcp_connection.CONNECTION_STATE.DISCONNECTED
            ):
                self._tell(node)

    def _tell(self, node: Any) -> None:
        replica = self._replica
        if replica.failure is None:
            replica.sync()
            # Not `send`: the library sets the state of a connection that it dialled after this.
            # The password proves any member, so the message names its sender and its receiver.
            between = {"from": self._selfNode.address, "to": node.address}
            self._connections[node].send({**replica.lives.tell(), **between})

    def _on_told(self, node: Any, members: list[str], lives: bytes) -> None:
        replica = self._replica
        try:
            finding = replica.lives.hear(node.id, members, lives)
        except LivesFormatError:
            self._refuse(self._connections[node])
            return
        if not replica.lives.counts(node.id):
            replica.forget_acks(node)
        for member in finding.cut:
            connection = self._connections.get(self._nodeAddrToNode[member])
            if connection is not None:
                connection.disconnect()
        if finding.has_lost_memory:
            replica.step_down()
            self.tell_all()

    def _may_dial(self, address: str) -> bool:
        """Whether the address is a member that dials us; of two, the larger address dials."""
        node = self._nodeAddrToNode.get(address)
        return node is not None and not self._shouldConnect(node)

    def _onOutgoingConnected(self, conn: Any) -> None:  # noqa: N802
        conn.frame_size_bytes_max = FRAME_SIZE_BYTES_MAX
        super()._onOutgoingConnected(conn)

    def _onOutgoingMessageReceived(self, conn: Any, message: object) -> None:  # noqa: N802
        if isinstance(message, bytes) and len(message) == 32:
            super()._onOutgoingMessageReceived(conn, message)
        else:
            self._refuse(conn)

    def _onNewIncomingConnection(self, conn: Any) -> None:  # noqa: N802
        if len(self._unknownConnections) >= STRANGER_COUNT_MAX:
            strangers = sorted(self._unknownConnections, key=lambda stranger: stranger.since_s)
            self._refuse(of_busiest(strangers, lambda stranger: stranger.host))
        super()._onNewIncomingConnection(conn)

    def _onMessageReceived(self, node: Any, message: object) -> None:  # noqa: N802
        if not messages.is_sound(message):
            self._refuse(self._connections[node])
            return
        assert isinstance(message, dict)
        replica = self._replica
        if replica.failure is not None:
            return
        statement = told_in(message)
        between = message.get("from"), message.get("to")
        if statement is not None and between != (node.address, self._selfNode.address):
            self._refuse(self._connections[node])
        elif statement is not None:
            self._on_told(node, *statement)
        elif replica.may_hear(node.id, message):
            if "term" in message:
                replica.lives.on_term(node.id, message["term"])
            if message["type"] == "next_node_idx":
                self._on_answer(node, message)
            elif message["type"] == "append_entries":
                self._on_append(node, message)
            else:
                super()._onMessageReceived(node, message)

    def _on_answer(self, node: Any, message: messages.Message) -> None:
        replica, lives = self._replica, self._replica.lives
        answer = messages.current_answer(
            message, replica.raftCurrentTerm, replica.journal.last_index
        )
        if answer is None:
            return
        if not lives.counts(node.id):
            # The answer tells where to go on sending, and is neither an ack nor a sign of a quorum.
            with replica.without_news_of(node):
                super()._onMessageReceived(node, {**answer, "success": False})
            return
        if answer["success"]:
            last_index = answer["next_node_idx"] - 1
            committed = min(last_index, replica.raftCommitIndex)
            lives.on_promise(node.id, answer["term"], last_index, committed)
        super()._onMessageReceived(node, answer)

    def _on_append(self, node: Any, message: messages.Message) -> None:
        replica = self._replica
        chunk = message.get("serialized")
        if message["term"] >= replica.raftCurrentTerm and chunk is not None:
            data, is_first, _ = chunk
            if self._skips_dump(node, data, is_first=is_first):
                return
        held_index = messages.held_by_leader(message)
        if held_index is not None:
            committed = min(held_index, message["commit_index"])
            replica.lives.on_promise(node.id, message["term"], held_index, committed)
        message, keeps_tail = messages.verified_append(message, replica.journal)
        with replica.journal.keeping_tail() if keeps_tail else contextlib.nullcontext():
            super()._onMessageReceived(node, message)

    def _skips_dump(self, node: Any, data: bytes, *, is_first: bool) -> bool:
        """Handle a part of a dump of entries that we have, since installing the dump would take us
        back; return whether to skip the part."""
        if is_first:
            self._is_skipping = False
            stands_for = index_and_term(data)
            if stands_for is not None:
                index, term = stands_for
                self._is_skipping = self._replica.journal.covers(index, term)
            if self._is_skipping:
                answer = {"type": "next_node_idx", "next_node_idx": index + 1}
                self.send(node, {**answer, "reset": True, "success": True})
        return self._is_skipping

    def _onTick(self) -> None:  # noqa: N802
        oldest_s = time.monotonic() - STRANGER_SECONDS_MAX
        for conn in [conn for conn in self._unknownConnections if conn.since_s < oldest_s]:
            self._refuse(conn)
        # The library closes its listener permanently when one accept fails.
        if self._ready and self._server._TcpServer__fileno is None:
            self._ready = False
        super()._onTick()

    def _refuse(self, conn: Any) -> None:
        self.refused_count += 1
        self._unknownConnections.discard(conn)
        conn.disconnect()
