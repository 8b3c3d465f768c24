"""Every private name of PySyncObj 0.3.17 that we use, and nothing else (rule C9).

Owns the object that PySyncObj replicates, its transport and its connections: our journal in place
of the library's, a dump without pickle, unpickling that can make plain values only, bounded frames,
no strangers. Must not know asyncio or what a command says. All of it runs on one thread.

Only this exact version was read line by line; `check_version` refuses any other.
"""

import hmac
import os
import socket
import struct
import time
import zlib
from _socket import inet_ntop
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pysyncobj
import pysyncobj.pickle
import pysyncobj.tcp_connection
import pysyncobj.tcp_server
import pysyncobj.transport
import pysyncobj.version

from node.nameserver import messages
from node.nameserver.dump import Dump, index_and_term, read_dump, write_dump
from node.nameserver.errors import FilesDamagedError, LibraryVersionError
from node.nameserver.fields import Result
from node.nameserver.journal import Entry, Journal
from node.nameserver.plain import no_files, plain_dumps, plain_loads
from store.file_system import FileSystem
from store.meta_file import Json

# The library puts a function for Windows in place of this one on every system: whoever lists
# connections, psutil for one, fails in the same process from then on.
socket.inet_ntop = inet_ntop

VERSION: Final = "0.3.17"
DUMP_NAME: Final = "dump"

HANDSHAKE_SIZE_BYTES_MAX: Final = 4 * 1024
"""A frame of somebody who has not said who it is."""
FRAME_SIZE_BYTES_MAX: Final = 32 * 1024 * 1024
"""A frame of a replica, and what it may unpack to: a batch of entries, with room."""
STRANGER_COUNT_MAX: Final = 16
"""Connections that have not yet said who they are. More are closed at once."""
STRANGER_SECONDS_MAX: Final = 5.0

REGULAR: Final = b"\x00"
NO_OP: Final = b"\x01"
_FIRST_ENTRY: Final[Entry] = (NO_OP, 1, 0)
_LENGTH: Final = struct.Struct("i")


class Machine(Protocol):
    """What is replicated."""

    def apply(self, encoded: bytes) -> Result:
        """Carry out a command. Total and deterministic."""

    def snapshot(self) -> dict[str, Json]:
        """Return the whole state."""

    def restore(self, found: Json) -> None:
        """Become what a snapshot says."""


class Callback(Protocol):
    """Takes a result, or None and one of the library's reasons."""

    deadline_s: float
    """After it nobody waits, and the library may forget it."""

    def __call__(self, result: Result | None, reason: int) -> None:
        """Called on the thread that ticks."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of the Raft below, in seconds (rule C6)."""

    tick_s: float = 0.1
    heartbeat_s: float = 0.15
    election_min_s: float = 0.5
    election_max_s: float = 1.0
    fallback_s: float = 1.5
    """An isolated leader believes in itself for so long."""


JOURNAL_SIZE_BYTES_MAX: Final = 8 * 1024 * 1024
"""A longer journal is compacted."""
JOURNAL_ENTRY_COUNT_MAX: Final = 2_000
"""Likewise: some minutes of heartbeats, and half a megabyte."""
COMMAND_COUNT_MAX: Final = 1_024
"""Commands that wait for a turn of the library's thread. More are refused."""
_NEVER_SECONDS: Final = 10**9
_SILENCE_SECONDS: Final = 3.5
"""A connection that is silent for so long is closed; several heartbeats."""


def check_version() -> None:
    """Raise LibraryVersionError unless the version is the one that this file was written for."""
    if pysyncobj.version.VERSION != VERSION:
        raise LibraryVersionError(VERSION, str(pysyncobj.version.VERSION))


class _Connection(pysyncobj.tcp_connection.TcpConnection):  # type: ignore[misc]
    """A connection that holds a bounded amount of what a peer sends."""

    _TcpConnection__readBuffer: bytes
    recvLastTimestamp: int  # noqa: N815

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.frame_size_bytes_max = HANDSHAKE_SIZE_BYTES_MAX
        self.since_s = time.monotonic()
        super().__init__(*args, **kwargs)

    def connect(self, host: str, port: int) -> bool:
        """Dial; the library forgets the socket of a dial that fails at once."""
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
        except Exception:  # noqa: BLE001 - whatever a stranger's bytes cause, they are refused
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
        packed = unpacking.decompress(data, FRAME_SIZE_BYTES_MAX)
        if not unpacking.eof:
            raise ValueError("a frame that unpacks to too much")
        message = plain_loads(packed)
        if self.recvRandKey:
            key, message = message
            if not isinstance(key, bytes) or not hmac.compare_digest(key, self.recvRandKey):
                raise ValueError("a frame of another connection")
        return message


class _Transport(pysyncobj.transport.TCPTransport):  # type: ignore[misc]
    """Talks to members only; what leaves is durable, what arrives is checked."""

    _ready: bool

    def __init__(self, replica: "Replica", self_node: Any, other_nodes: Any) -> None:
        self._replica = replica
        self.refused_count = 0
        self._is_skipping = False
        super().__init__(replica, self_node, other_nodes)

    def setOnUtilityMessageCallback(self, message: str, callback: Any) -> None:  # noqa: N802
        """Take none: whoever can connect could change members or leaders with them."""

    def send(self, node: Any, message: messages.Message) -> bool:
        """Send what rests on the journal after the journal is durable."""
        replica = self._replica
        if replica.failure is not None:
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

    def _may_dial(self, address: str) -> bool:
        """Whether this is a member that dials us; of two, the one with the larger address does."""
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
            self._refuse(conn)
            return
        super()._onNewIncomingConnection(conn)

    def _onMessageReceived(self, node: Any, message: object) -> None:  # noqa: N802
        if not messages.is_sound(message):
            self._refuse(self._connections[node])
            return
        assert isinstance(message, dict)
        replica = self._replica
        if replica.failure is not None:
            return
        if message["type"] == "next_node_idx":
            last_index = replica.journal.last_index
            answer = messages.current_answer(message, replica.raftCurrentTerm, last_index)
            if answer is not None:
                super()._onMessageReceived(node, answer)
        elif message["type"] == "append_entries":
            self._on_append(node, message)
        else:
            super()._onMessageReceived(node, message)

    def _on_append(self, node: Any, message: messages.Message) -> None:
        replica = self._replica
        chunk = message.get("serialized")
        if message["term"] >= replica.raftCurrentTerm and chunk is not None:
            data, is_first, _ = chunk
            if self._skips_dump(node, data, is_first=is_first):
                return
        message, keeps_tail = messages.verified_append(message, replica.journal)
        if keeps_tail:
            with replica.journal.keeping_tail():
                super()._onMessageReceived(node, message)
        else:
            super()._onMessageReceived(node, message)

    def _skips_dump(self, node: Any, data: bytes, *, is_first: bool) -> bool:
        """Whether a part belongs to a dump of what we have: installing it would take us back."""
        if is_first:
            self._is_skipping = False
            stands_for = index_and_term(data)
            if stands_for is not None:
                index, term = stands_for
                self._is_skipping = self._replica.journal.term_at(index) == term
            if self._is_skipping:
                answer = {"type": "next_node_idx", "next_node_idx": index + 1}
                self.send(node, {**answer, "reset": True, "success": True})
        return self._is_skipping

    def _onTick(self) -> None:  # noqa: N802
        oldest_s = time.monotonic() - STRANGER_SECONDS_MAX
        for conn in [conn for conn in self._unknownConnections if conn.since_s < oldest_s]:
            self._refuse(conn)
        # The library closes its listener for good when one accept fails.
        if self._ready and self._server._TcpServer__fileno is None:
            self._ready = False
        super()._onTick()

    def _refuse(self, conn: Any) -> None:
        self.refused_count += 1
        self._unknownConnections.discard(conn)
        conn.disconnect()


def _harden() -> None:
    """Put ours in the place of the library's, once for the process."""
    pysyncobj.pickle.loads = plain_loads
    pysyncobj.pickle.dumps = plain_dumps
    pysyncobj.pickle.load = pysyncobj.pickle.dump = no_files
    pysyncobj.transport.TcpConnection = _Connection
    pysyncobj.tcp_server.TcpConnection = _Connection


class Replica(pysyncobj.SyncObj):  # type: ignore[misc]
    """One replica of a machine. Made, ticked and closed on one thread."""

    def __init__(
        self,
        machine: Machine,
        fs: FileSystem,
        directory: str,
        address: str,
        members: list[str],
        *,
        password: str | None,
        timing: Timing,
    ) -> None:
        """Read the files and bind the port.

        Raises LibraryVersionError, FilesDamagedError, a store error, or SyncObjException when the
        port cannot be bound.
        """
        check_version()
        _harden()
        self.failure: Exception | None = None
        self.refusals = 0
        self._machine, self._fs, self._directory = machine, fs, directory
        self._dump_path = os.path.join(directory, DUMP_NAME)
        self.journal = Journal(fs, directory, address, members)
        try:
            self._fit_to_dump()
            others = [member for member in members if member != address]
            conf = self._conf(address, password, timing)
            super().__init__(address, others, conf, transportClass=_Transport)
        except BaseException:
            self.journal.abandon()
            self._close_leftovers()
            raise
        self._adopt_journal()

    def _conf(self, address: str, password: str | None, timing: Timing) -> Any:
        return pysyncobj.SyncObjConf(
            password=password,
            autoTick=False,
            bindAddress=address,
            maxBindRetries=1,
            commandsQueueSize=COMMAND_COUNT_MAX,
            commandsWaitLeader=False,
            dynamicMembershipChange=False,
            raftMinTimeout=timing.election_min_s,
            raftMaxTimeout=timing.election_max_s,
            appendEntriesPeriod=timing.heartbeat_s,
            leaderFallbackTimeout=timing.fallback_s,
            connectionTimeout=max(_SILENCE_SECONDS, timing.election_max_s),
            connectionRetryTime=0.2,
            # Not batched: a command leaves at once, and its arrival wakes the thread.
            appendEntriesUseBatch=False,
            appendEntriesBatchSizeBytes=messages.BATCH_SIZE_BYTES,
            logCompactionBatchSize=messages.CHUNK_SIZE_BYTES,
            logCompactionMinEntries=JOURNAL_ENTRY_COUNT_MAX,
            logCompactionMinTime=_NEVER_SECONDS,
            useFork=False,
            fullDumpFile=self._dump_path,
            serializer=self._write_dump,
            deserializer=self._read_dump,
        )

    def _fit_to_dump(self) -> None:
        """Bring the journal to where the dump ends, and see that nothing lies between them."""
        journal = self.journal
        if os.path.exists(self._dump_path):
            _, index, term = read_dump(self._fs, self._dump_path).last
            journal.trim_to(index, term)
        elif len(journal) and journal.first_index > 1:
            raise FilesDamagedError(self._dump_path, "there is none, and the journal begins later")
        if not len(journal):
            journal.add(*_FIRST_ENTRY)
        journal.sync()

    def _adopt_journal(self) -> None:
        """Take our journal in place of the library's, before the first tick."""
        journal = self.journal
        last_term = journal.term_at(journal.last_index)
        assert last_term is not None, "a journal has an entry"
        self._SyncObj__raftLog = journal
        self._SyncObj__raftCurrentTerm = max(journal.getCurrentTerm(), last_term)
        self._SyncObj__votedForNodeId = journal.getVotedForNodeId()
        self._SyncObj__raftCommitIndex = journal.getRaftCommitIndex()

    def tick(self, timeout_s: float) -> None:
        """Do what is due, then wait for something to happen. Raises what must end this replica."""
        self.doTick(timeout_s)
        if self.failure is not None:
            raise self.failure
        self.sync()
        if self.journal.size_bytes > JOURNAL_SIZE_BYTES_MAX:
            self.forceLogCompaction()

    def sync(self) -> None:
        """Make the journal durable; a failure is remembered, so that nothing leaves any more."""
        try:
            self.journal.sync()
        except Exception as error:
            self.failure = error
            raise

    def submit(self, encoded: bytes, callback: Callback) -> None:
        """Hand in a command; from any thread."""
        self._applyCommand(REGULAR + encoded, callback)

    def forget_expired(self) -> None:
        """Let go of callbacks that the library would keep for ever: their answer was lost."""
        now_s = time.monotonic()
        replies = self._SyncObj__commandsWaitingReply
        for key in [key for key, waiting in replies.items() if waiting.deadline_s < now_s]:
            del replies[key]
        commits = self._SyncObj__commandsWaitingCommit
        for index in list(commits):
            commits[index] = [entry for entry in commits[index] if entry[1].deadline_s >= now_s]
            if not commits[index]:
                del commits[index]

    @property
    def is_leader(self) -> bool:
        """Whether this replica believes that it leads; there may be two."""
        return bool(self._isLeader())

    @property
    def leader_address(self) -> str:
        """Who leads, as far as this replica knows; empty: nobody."""
        leader = self._getLeader()
        return leader.id if leader is not None else ""

    @property
    def refused_count(self) -> int:
        """Connections that were closed because of what they sent."""
        return int(self._SyncObj__transport.refused_count)

    def close(self) -> None:
        """Close the port, the connections and the files."""
        if self.failure is not None:
            self.journal.abandon()
        try:
            self.destroy()
        finally:
            self._close_leftovers()

    def _close_leftovers(self) -> None:
        """Close what the library leaves open: a socket, half a dump, the pipe that wakes us."""
        transport = getattr(self, "_SyncObj__transport", None)
        if transport is not None:
            transport._server.unbind()
        serializer = getattr(self, "_SyncObj__serializer", None)
        incoming = getattr(serializer, "_Serializer__incomingTransmissionFile", None)
        if incoming is not None:
            incoming.close()
        notifier = getattr(self, "_SyncObj__pipeNotifier", None)
        if notifier is not None:
            os.close(notifier._PipeNotifier__pipeR)
            os.close(notifier._PipeNotifier__pipeW)

    def _SyncObj__doApplyCommand(self, command: bytes) -> Result | None:  # noqa: N802
        """Apply an entry. The library would repeat one that raises for ever."""
        return self._machine.apply(command[1:]) if command[:1] == REGULAR else None

    def _write_dump(self, path: str, entries: tuple[Entry, Entry, object]) -> None:
        """Write a dump. The library goes on without one when this fails; we do not."""
        last, before_last, _ = entries
        try:
            write_dump(self._fs, path, Dump(last, before_last, self._machine.snapshot()))
        except Exception as error:
            self.failure = error
            raise

    def _read_dump(self, path: str) -> tuple[Entry, Entry, list[str]]:
        """Load a dump. The library only logs when this fails, and then acknowledges nothing."""
        try:
            dump = read_dump(self._fs, path)
            self._machine.restore(dump.directory)
        except Exception as error:
            self.failure = error
            raise
        return dump.last, dump.before_last, []
