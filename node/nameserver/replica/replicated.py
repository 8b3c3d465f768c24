"""The replica for the node: asyncio on one side, PySyncObj's thread on the other.

Owns the thread, the lock around the directory, the way of a command to a confirmed result, and the
status. Must not know private names of the library (`pysyncobj` does) or the meaning of commands.

A result is believed after it was read back (rule C4): when the library reports that a command was
applied, one more command asks the directory, by id, for its result. If an answer is lost, the
command is sent again under the same id, which the directory carries out once. So `change` returns a
true result, or raises an error with the known outcome.
"""

import asyncio
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

from pysyncobj import FAIL_REASON, SyncObjException

from node.config.nameserver import NameServerSettings
from node.errors.nameserver import (
    ChangeUnknownError,
    NameServerSettingsError,
    NoQuorumError,
    ReplicaFailedError,
)
from node.nameserver.directory.directory import (
    CHANGES_OF_VALUES,
    COMMAND_SIZE_BYTES_MAX,
    Command,
    Directory,
    encoded_command,
    read_back_command,
)
from node.nameserver.directory.fields import Result
from node.nameserver.directory.limits import DirectoryLimits
from node.nameserver.replica.last_seen import LastSeen
from node.nameserver.replica.pysyncobj import Answer, DirectoryReplica, RaftTimes
from node.nameserver.replica.status import CHANGE_COUNT_MAX, REPORT_COUNT_MAX, NameServerStatus
from node.runtime.clock import unix_ms
from node.runtime.room import Room
from store.errors import LimitExceededError
from store.files.file_system import FileSystem
from store.files.meta_file import Json

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

TIMEOUT_MS: Final = 5_000
PAUSE_SECONDS: Final = 0.1
"""Pause between two attempts, for example while there is no leader."""
ATTEMPT_SECONDS: Final = 1.5
"""Time for one attempt, whose answer may have been lost."""
_FORGET_SECONDS: Final = 1.0
_DEFAULT_TIMES: Final = RaftTimes()
_NOT_TAKEN: Final = frozenset(
    {
        FAIL_REASON.QUEUE_FULL,
        FAIL_REASON.MISSING_LEADER,
        FAIL_REASON.NOT_LEADER,
        FAIL_REASON.REQUEST_DENIED,
    }
)
"""Reasons that mean that the command is in no log. Any other reason leaves that open."""


class _LockedDirectory(Directory):
    """The directory behind a lock: one thread applies commands and another one reads."""

    def __init__(self, limits: DirectoryLimits | None) -> None:
        super().__init__(limits)
        self.lock = threading.RLock()

    def apply(self, encoded: bytes) -> Result:
        with self.lock:
            return super().apply(encoded)

    def snapshot(self) -> dict[str, Any]:
        with self.lock:
            return super().snapshot()

    def restore(self, state: Json) -> None:
        with self.lock:
            super().restore(state)


class NameServer:
    """One replica. Call all methods on the event loop's thread."""

    def __init__(
        self,
        settings: NameServerSettings,
        *,
        limits: DirectoryLimits | None = None,
        times: RaftTimes = _DEFAULT_TIMES,
        fs: FileSystem | None = None,
    ) -> None:
        """Check the settings. Raises NameServerSettingsError."""
        settings.check()
        self._settings, self._times = settings, times
        self._fs = fs or FileSystem()
        self._directory = _LockedDirectory(limits)
        self._last_seen = LastSeen()
        self._replica: DirectoryReplica | None = None
        self._thread: threading.Thread | None = None
        self._must_stop = threading.Event()
        self.failure: Exception | None = None
        """The error that ended the replica; None if there was none."""
        self._reports = Room("commands of the name server", REPORT_COUNT_MAX)
        self._changes = Room("changes of values", CHANGE_COUNT_MAX)

    async def start(self) -> None:
        """Read the files, bind the port, and start the thread.

        Raises NameServerSettingsError when the port is taken, PysyncobjVersionError,
        FilesDamagedError or a store error; the replica does not run then.
        """
        assert self._thread is None, "a name server is started once"
        started = Future[None]()
        started.set_running_or_notify_cancel()  # The thread ends what it began.
        self._thread = threading.Thread(target=self._run, args=(started,), name="nameserver")
        self._thread.start()
        await asyncio.wrap_future(started)

    async def stop(self) -> None:
        """End the thread; close port and files. The outcome of pending commands stays unknown."""
        self._must_stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def change(
        self, command: Command, *, key: str | None = None, timeout_ms: int = TIMEOUT_MS
    ) -> Result:
        """Carry out a command and return the result read back: accepted, or refused with a reason.

        Raises BusyError, NoQuorumError (not applied), ChangeUnknownError or ReplicaFailedError.
        """
        with self._room_for(command):
            return await self._changed(command, key or uuid.uuid4().hex, timeout_ms)

    async def _changed(self, command: Command, key: str, timeout_ms: int) -> Result:
        deadline_s = time.monotonic() + timeout_ms / 1000
        is_open = False
        while True:
            result, reason = await self._attempt(command, key, deadline_s)
            if reason == FAIL_REASON.SUCCESS:
                assert result is not None, "the library applied what is no command"
                if result.reason in _WITHOUT_EFFECT:
                    return result
                is_open = True
                attempted, reason = await self._attempt(read_back_command(), key, deadline_s)
                if reason == FAIL_REASON.SUCCESS and attempted is not None:
                    if attempted.reason != "not_found":
                        return attempted
                    _log.warning("command %s was reported as applied and was not", key)
            is_open = is_open or reason not in _NOT_TAKEN
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise ChangeUnknownError(key, timeout_ms) if is_open else NoQuorumError(timeout_ms)
            await asyncio.sleep(min(PAUSE_SECONDS, left_s))

    async def report(self, command: Command, *, timeout_ms: int = TIMEOUT_MS) -> Result:
        """Carry out a heartbeat: one attempt, not read back, since the next one follows soon.

        Raises BusyError, NoQuorumError, ChangeUnknownError or ReplicaFailedError.
        """
        key = uuid.uuid4().hex
        deadline_s = time.monotonic() + timeout_ms / 1000
        with self._room_for(command):
            result, reason = await self._attempt(command, key, deadline_s)
        if result is not None:
            return result
        if reason in _NOT_TAKEN:
            raise NoQuorumError(timeout_ms)
        raise ChangeUnknownError(key, timeout_ms)

    def look(self, reader: Callable[[Directory], _T]) -> _T:
        """Call a reader with the directory, with last-seen times of this process; return its
        result.

        The reader must not change the directory. The times in it compare with the current time of
        day.
        """
        with self._directory.lock:
            return reader(self._last_seen.view(self._directory, unix_ms()))

    def snapshot(self) -> dict[str, Json]:
        """Return the replicated state, which is the same on all replicas with the same entries."""
        return self._directory.snapshot()

    @property
    def is_running(self) -> bool:
        """Whether the replica was started and has neither failed nor stopped."""
        return self._replica is not None

    @property
    def leader(self) -> str:
        """The address of the leading replica, as far as this one knows; empty: none."""
        replica = self._replica
        # A follower without connections still names its last leader.
        return replica.leader_address if replica is not None and replica.hasQuorum else ""

    @property
    def is_leader(self) -> bool:
        """Whether this replica believes that it leads; there may be two."""
        return self.leader == self._settings.address

    def compact(self) -> None:
        """Make this replica write a dump and shorten its journal soon."""
        if self._replica is not None:
            self._replica.forceLogCompaction()

    def status(self) -> NameServerStatus:
        """Return the status of this replica."""
        replica, failure = self._replica, self.failure
        limits = self._directory.limits
        status = NameServerStatus(
            "failed" if failure is not None else "stopped",
            in_flight_count=self._reports.used + self._changes.used,
            directory_size_bytes=self.look(lambda directory: directory.size_bytes),
            directory_size_bytes_max=limits.topics_size_bytes_max + limits.pairs_size_bytes_max,
            failure=str(failure or ""),
        )
        if replica is None:
            return status
        leader = self.leader
        state = "no_leader"
        if replica.lives.is_joining:
            state = "joining"
        elif leader:
            state = "leader" if leader == self._settings.address else "follower"
        return replace(
            status,
            state=state,
            leader=leader,
            term=replica.raftCurrentTerm,
            commit_index=replica.raftCommitIndex,
            applied_index=replica.raftLastApplied,
            journal_size_bytes=replica.journal.size_bytes,
            refused_count=replica.refused_count,
            failure=replica.lives.problem,
            old_copy_count=len(replica.lives.refused),
            dropped_memory_count=replica.lives.dropped_memory_count,
        )

    async def _attempt(
        self, command: Command, key: str, deadline_s: float
    ) -> tuple[Result | None, int]:
        """Submit a command once and return the library's answer, which may be wrong."""
        replica = self._replica
        if replica is None:
            raise ReplicaFailedError(str(self.failure or "it is not running"))
        if not replica.hasQuorum:
            return None, FAIL_REASON.MISSING_LEADER  # The library would drop the command.
        encoded = encoded_command(command, key)
        if len(encoded) > COMMAND_SIZE_BYTES_MAX:
            what = "a command of the name server"
            raise LimitExceededError(what, len(encoded), COMMAND_SIZE_BYTES_MAX)
        until_s = min(deadline_s, time.monotonic() + ATTEMPT_SECONDS)
        answer = Answer(until_s)
        try:
            replica.submit(encoded, answer)
            async with asyncio.timeout(until_s - time.monotonic()):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            return None, FAIL_REASON.UNKNOWN_OUTCOME

    @contextmanager
    def _room_for(self, command: Command) -> Iterator[None]:
        """Hold room for a command until its result was read back. Raises BusyError."""
        room = self._changes if command["op"] in CHANGES_OF_VALUES else self._reports
        host = room.take()
        try:
            yield
        finally:
            room.give_back(host)

    def _run(self, started: Future[None]) -> None:
        """Make the replica, tick it and close it; the function of the thread."""
        try:
            replica = self._made()
        except Exception as error:  # noqa: BLE001 - handed to the caller of `start`
            started.set_exception(error)
            return
        self._replica = replica
        started.set_result(None)
        try:
            self._tick(replica)
        except Exception as error:  # noqa: BLE001 - any fault ends this replica and nothing else
            # A replica that may be wrong no longer sends messages; the data path continues.
            self.failure = replica.failure = error
            _log.exception("this replica of the name server has stopped")
        finally:
            self._replica = None
            replica.close()

    def _made(self) -> DirectoryReplica:
        settings = self._settings
        _check_address(settings.address)
        os.makedirs(settings.directory, mode=0o700, exist_ok=True)
        os.chmod(settings.directory, 0o700)
        try:
            return DirectoryReplica(
                self._directory,
                self._fs,
                settings.directory,
                settings.address,
                list(settings.members),
                password=settings.password,
                times=self._times,
            )
        except SyncObjException as error:
            raise _taken(settings.address) from error

    def _tick(self, replica: DirectoryReplica) -> None:
        next_forget_s = 0.0
        while not self._must_stop.is_set():
            try:
                replica.tick(self._times.tick_s)
            except OSError as error:
                if replica.failure is not None:
                    raise
                _log.warning("the name server's network: %s", error)
                self._must_stop.wait(self._times.tick_s)
            now_s = time.monotonic()
            if now_s >= next_forget_s:
                next_forget_s = now_s + _FORGET_SECONDS
                replica.forget_expired()


_WITHOUT_EFFECT: Final = frozenset({"malformed", "too_large"})
"""Reasons of commands that were refused before their id was read: without effect, and not to be
read back."""


def _check_address(address: str) -> None:
    """Raise NameServerSettingsError when the address is taken: the library would log a page of text
    about it."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_server((host, int(port))).close()
    except OSError as error:
        raise _taken(address) from error


def _taken(address: str) -> NameServerSettingsError:
    remedy = "it cannot be bound; is another process using it?"
    return NameServerSettingsError("listen", address, remedy)
