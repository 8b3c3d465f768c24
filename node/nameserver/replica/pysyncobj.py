"""Every private name of PySyncObj 0.3.17 that we use, with `pysyncobj_wire` (rule C9).

Owns the object that PySyncObj replicates: our journal in place of the library's, a dump without
pickle, and the rule which replica may stand for election (`lives`). Must not know asyncio or the
content of a command. All code here runs on one thread.

Only this exact version was read line by line; `check_version` refuses any other.
"""

import math
import os
import socket
import time
from _socket import inet_ntop
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import pysyncobj
import pysyncobj.pickle
import pysyncobj.tcp_connection
import pysyncobj.tcp_server
import pysyncobj.transport
import pysyncobj.version

from node.errors.nameserver import FilesDamagedError, PysyncobjVersionError
from node.nameserver.directory.directory import Directory
from node.nameserver.directory.fields import Result
from node.nameserver.replica import messages
from node.nameserver.replica.dump import NAME as DUMP_NAME
from node.nameserver.replica.dump import Dump, read_dump, write_dump
from node.nameserver.replica.journal import Entry, Journal
from node.nameserver.replica.lives import ReplicaLives
from node.nameserver.replica.messages import NO_OP, REGULAR
from node.nameserver.replica.plain_values import encoded_value, refuse_pickle
from node.nameserver.replica.pysyncobj_wire import BoundedConnection, MemberReplica, Transport
from store.files.file_system import FileSystem

# The library replaces this function by one for Windows on every system: from then on code in the
# same process that lists connections fails, for example psutil.
socket.inet_ntop = inet_ntop

VERSION: Final = "0.3.17"

_FIRST_ENTRY: Final[Entry] = (NO_OP, 1, 0)


class Answer(Future[tuple[Result | None, int]]):
    """The library's answer to a command: a result, or None, and one of the library's reasons."""

    def __init__(self, deadline_s: float) -> None:
        """Expect the answer until `deadline_s`; after it the library may forget this object."""
        super().__init__()
        self.deadline_s = deadline_s

    def __call__(self, result: Result | None, reason: int) -> None:
        """Take the answer; called on the thread that ticks."""
        if not self.done() and self.set_running_or_notify_cancel():
            self.set_result((result, reason))


@dataclass(frozen=True, slots=True)
class RaftTimes:
    """Times of the Raft below, in seconds (rule C6)."""

    tick_s: float = 0.1
    heartbeat_s: float = 0.15
    election_min_s: float = 0.5
    election_max_s: float = 1.0
    fallback_s: float = 1.5
    """Time after which an isolated leader steps down."""
    meet_s: float = 1.0
    """Time that a starting replica waits for the others, which may know that its disk is old."""


JOURNAL_SIZE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Size above which the journal is compacted."""
JOURNAL_ENTRY_COUNT_MAX: Final = 2_000
"""Entries above which the journal is compacted: some minutes of heartbeats, half a megabyte."""
COMMAND_COUNT_MAX: Final = 1_024
"""Commands that wait for a turn of the library's thread. More are refused."""
ASK_BACK_SECONDS: Final = 1.0
"""Interval at which a replica without memory submits the entry that ends its joining."""
_NEVER_SECONDS: Final = 10**9
_SILENCE_SECONDS: Final = 3.5
"""Silence after which a connection is closed; several heartbeats."""


def check_version() -> None:
    """Raise PysyncobjVersionError unless the version is the one that this file was written for."""
    if pysyncobj.version.VERSION != VERSION:
        raise PysyncobjVersionError(VERSION, str(pysyncobj.version.VERSION))


def _harden() -> None:
    """Replace functions and classes of the library by ours, for the whole process."""
    pysyncobj.pickle.dumps = encoded_value
    pysyncobj.pickle.loads = pysyncobj.pickle.load = pysyncobj.pickle.dump = refuse_pickle
    pysyncobj.transport.TcpConnection = BoundedConnection
    pysyncobj.tcp_server.TcpConnection = BoundedConnection


class DirectoryReplica(MemberReplica):
    """One replica of a directory. Made, ticked and closed on one thread."""

    def __init__(
        self,
        machine: Directory,
        fs: FileSystem,
        directory: str,
        address: str,
        members: list[str],
        *,
        password: str | None,
        times: RaftTimes,
    ) -> None:
        """Read the files and bind the port.

        Raises PysyncobjVersionError, FilesDamagedError, a store error, or SyncObjException when the
        port cannot be bound.
        """
        check_version()
        _harden()
        self.failure: Exception | None = None
        self._machine, self._fs, self._directory = machine, fs, directory
        self._dump_path = os.path.join(directory, DUMP_NAME)
        self.journal = Journal(fs, directory, address, members)
        try:
            self._fit_to_dump()
            self.lives = ReplicaLives(fs, directory, address, self.journal, meet_s=times.meet_s)
            self._is_held, self._must_tell, self._next_ask_s = False, False, 0.0
            others = [member for member in members if member != address]
            conf = self._conf(address, password, times)
            super().__init__(address, others, conf, transportClass=Transport)
        except BaseException:
            self.journal.abandon()
            self._close_leftovers()
            raise
        self._adopt_journal()

    def _conf(self, address: str, password: str | None, times: RaftTimes) -> Any:
        return pysyncobj.SyncObjConf(
            password=password,
            autoTick=False,
            bindAddress=address,
            maxBindRetries=1,
            commandsQueueSize=COMMAND_COUNT_MAX,
            commandsWaitLeader=False,
            dynamicMembershipChange=False,
            raftMinTimeout=times.election_min_s,
            raftMaxTimeout=times.election_max_s,
            appendEntriesPeriod=times.heartbeat_s,
            leaderFallbackTimeout=times.fallback_s,
            connectionTimeout=max(_SILENCE_SECONDS, times.election_max_s),
            connectionRetryTime=0.2,
            # Without batches a command leaves at once, and its arrival wakes the thread.
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
        """Cut the journal to the end of the dump. Raises FilesDamagedError if entries are missing
        before the journal's first one."""
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
        """Do the work that is due, then wait for an event for up to `timeout_s`. Raises the errors
        that must end this replica."""
        self._hold()
        self.doTick(timeout_s)
        if self.failure is not None:
            raise self.failure
        self.sync()
        if self._must_tell or self.lives.is_due():
            self.lives.save()
            self._SyncObj__transport.tell_all()
            self._must_tell = False
        self._ask_back()
        if self.journal.size_bytes > JOURNAL_SIZE_BYTES_MAX:
            self.forceLogCompaction()

    def _hold(self) -> None:
        """Keep this replica from standing for election while it may not take part. Repeat this on
        each tick, since any append resets the deadline."""
        if not self.lives.takes_part:
            self._SyncObj__raftElectionDeadline = math.inf
            self._is_held = True
        elif self._is_held:
            wait_s = self._SyncObj__generateRaftTimeout()
            self._SyncObj__raftElectionDeadline = time.monotonic() + wait_s
            self._is_held = False

    def _ask_back(self) -> None:
        """Submit the entry that ends the joining, once the leader knows that we have no memory."""
        now_s, leader = time.monotonic(), self.leader_address
        if self.lives.is_joining and self.lives.has_told(leader) and now_s >= self._next_ask_s:
            self._next_ask_s = now_s + ASK_BACK_SECONDS
            self._applyCommand(NO_OP + self.lives.marker, None)

    def submit(self, encoded: bytes, answer: Answer) -> None:
        """Submit a command; from any thread."""
        self._applyCommand(REGULAR + encoded, answer)

    def forget_expired(self) -> None:
        """Drop callbacks whose answer was lost, which the library would keep for ever."""
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
        """The address of the leader, as far as this replica knows; empty: none."""
        leader = self._getLeader()
        return leader.id if leader is not None else ""

    @property
    def refused_count(self) -> int:
        """The count of connections that were closed because of invalid or unexpected messages."""
        return int(self._SyncObj__transport.refused_count)

    def close(self) -> None:
        """Close the port, the connections and the files."""
        with ExitStack() as closing:
            closing.callback(self._close_leftovers)
            closing.callback(self.destroy)
            if self.failure is None:
                self.lives.save()
            else:
                self.journal.abandon()

    def _close_leftovers(self) -> None:
        """Close descriptors that the library leaves open: a socket, half a dump, the wake pipe."""
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
        """Apply an entry; raise no error, since the library would repeat the entry for ever."""
        if self.lives.is_joining and command == NO_OP + self.lives.marker:
            self.lives.become_full()
            self._must_tell = True
        return self._machine.apply(command[1:]) if command[:1] == REGULAR else None

    def _write_dump(self, path: str, entries: tuple[Entry, Entry, object]) -> None:
        """Write a dump; the library would go on without one after an error."""
        last, before_last, _ = entries
        with self.ending():
            write_dump(self._fs, path, Dump(last, before_last, self._machine.snapshot()))

    def _read_dump(self, path: str) -> tuple[Entry, Entry, list[str]]:
        """Load a dump; the library would only log an error."""
        with self.ending():
            dump = read_dump(self._fs, path)
            self._machine.restore(dump.directory)
        return dump.last, dump.before_last, []
