"""One replica that a test ticks by hand, and its leader played by the test over a real socket."""

import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from node.nameserver.directory.directory import Directory, encoded_command, put_pair_command
from node.nameserver.replica.messages import REGULAR
from node.nameserver.replica.plain_values import decoded_value, encoded_value
from node.nameserver.replica.pysyncobj import DirectoryReplica, RaftTimes
from store.files.file_system import FileSystem
from tests.node.nameserver.replicas import free_addresses
from tests.patience import PATIENCE_S, wait_for

_LENGTH = struct.Struct("i")


@contextmanager
def follower(
    directory: Path, addresses: list[str] | None = None
) -> Iterator[tuple[DirectoryReplica, Directory, "Leader"]]:
    """A replica ticked by the test, and a peer in the test that can be its leader."""
    own, other, third = addresses or sorted(free_addresses(3))
    directory.mkdir(exist_ok=True)
    machine = Directory()
    # It never wants to lead, and waits for nobody.
    times = RaftTimes(election_min_s=60.0, election_max_s=61.0, meet_s=0.0)
    replica = replica_of(machine, directory, own, [own, other, third], times)
    leader = Leader(replica, own, other)
    try:
        yield replica, machine, leader
    finally:
        leader.close()
        replica.close()


def replica_of(
    machine: Directory, directory: Path, own: str, members: list[str], times: RaftTimes
) -> DirectoryReplica:
    """A replica without a thread."""
    return DirectoryReplica(
        machine, FileSystem(), str(directory), own, members, password=None, times=times
    )


class Leader:
    """Speaks the library's protocol to one follower."""

    def __init__(self, replica: DirectoryReplica, address: str, own: str) -> None:
        self._replica, self._address, self._own = replica, address, own
        self._socket: socket.socket | None = None
        self._buffer = b""
        self.told: list[Any] = []
        """What the follower said of lives."""
        self.connect()

    def connect(self) -> None:
        """Dial, also again."""
        self.connect_unnamed()
        self.send(self._own)

    def connect_unnamed(self) -> None:
        """Dial, and do not say who dials."""
        self.close()
        host, port = self._address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._socket.settimeout(0.005)
        self._buffer = b""

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()

    def send(self, message: Any) -> None:
        """Send any object as the library does."""
        self.send_raw(zlib.compress(encoded_value(message)))

    def send_raw(self, data: bytes) -> None:
        """Send a frame."""
        assert self._socket is not None
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def append(self, prev: int, prev_term: int, entries: list[Any], commit: int, term: int) -> None:
        """Send an append."""
        self.send(
            {
                "type": "append_entries",
                "term": term,
                "commit_index": commit,
                "entries": entries,
                "prevLogIdx": prev,
                "prevLogTerm": prev_term,
            }
        )

    def answers(self, count: int) -> list[Any]:
        """Tick the follower until it has answered so often."""
        messages: list[Any] = []

        def are_there() -> bool:
            self._replica.tick(0.001)
            messages.extend(self._read())
            return len(messages) >= count

        if count:
            wait_for(f"{count} answers", are_there)
        return messages

    def listen(self, turns: int) -> list[Any]:
        """Tick the follower so often and return what it answered, if anything."""
        messages: list[Any] = []
        for _ in range(turns):
            self._replica.tick(0.001)
            messages += self._read()
        return messages

    def is_refused(self) -> bool:
        """Tick the follower until it hangs up."""

        def has_hung_up() -> bool:
            self._replica.tick(0.001)
            try:
                self._read()
            except ConnectionError:
                return True
            return False

        return wait_for("the end of the connection", has_hung_up)

    def _read(self) -> list[Any]:
        assert self._socket is not None
        try:
            data = self._socket.recv(65536)
        except TimeoutError:
            return []
        if not data:
            raise ConnectionResetError
        self._buffer += data
        messages = []
        while len(self._buffer) >= 4:
            end = 4 + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                break
            message = decoded_value(zlib.decompress(self._buffer[4:end]), 1_000)
            if "lives" in message:
                self.told.append(message)
            else:
                messages.append(message)
            self._buffer = self._buffer[end:]
        return messages


def entry(index: int, term: int) -> tuple[bytes, int, int]:
    """An entry that puts the pair of its index."""
    command = put_pair_command("ns", f"k{index}", "v")
    return REGULAR + encoded_command(command, f"c{index}"), index, term
