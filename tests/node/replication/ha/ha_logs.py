"""Replicas on real files, without links: their log and state, and a master's bytes for them."""

from dataclasses import replace
from pathlib import Path

from node.config.limits import Limits
from node.replication.ha.applied import AppliedState
from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.types import HaBinding, HaSettings, HaStanding
from node.replication.ha.storage.log import HaLog
from node.state.command_records import CommandEncoder
from quorumlog.pb.state_pb2 import Command
from store.files.file_system import FileSystem
from store.format import LOOPBACK
from tests.store.records import BORN, PAGE, batch, numbers, small_config
from tests.store.shipped_stores import sync

CONFIG = small_config(file_size_bytes=4 * PAGE, disk_reserve_bytes=0)
FILE = 4 * PAGE
GROUP = HaSettings("g", (1, 2, 3))
LIMITS = Limits()
ENCODER = CommandEncoder(LOOPBACK)


def must_not_die(cause: BaseException) -> None:
    raise AssertionError("the log wanted to end the process") from cause


def open_log(
    root: Path,
    node_id: int = 1,
    *,
    fs: FileSystem | None = None,
    group: HaSettings = GROUP,
    cluster_id: str = "c",
    **changes: object,
) -> HaLog:
    return HaLog.open(
        str(root),
        replace(CONFIG, **changes),  # type: ignore[arg-type]
        cluster_id=cluster_id,
        node_id=node_id,
        group=group,
        fs=fs,
        now_unix_ms=lambda: BORN,
        on_fatal=must_not_die,
    )


def topic_command(name: str) -> bytes:
    """The record of a command whose effect is easy to see."""
    command = Command()
    command.put_topic.topic = name
    command.put_topic.queue_count = 4
    command.put_topic.permission = 6
    return ENCODER.encode(command)


class Replica:
    """A log and the state over it, bound to an epoch as a full replica."""

    def __init__(
        self, root: Path, node_id: int = 1, fs: FileSystem | None = None, **changes: object
    ):
        self.root = root
        self.fs = fs or FileSystem()
        self.log = open_log(root, node_id, fs=self.fs, **changes)  # type: ignore[arg-type]
        if self.log.is_new:
            bound = HaBinding(1, 1, 99)
            self.log.save_state(self.log.replica._replace(bound=bound, standing=HaStanding.FULL))
        self.state = AppliedState(self.log, self.fs, LIMITS)

    @property
    def topics(self) -> set[str]:
        return set(self.state.machine.state.topics)

    @property
    def seen(self) -> list[int]:
        """What a reader sees."""
        store = self.log.store
        lo, _ = store.reads.queue_range("orders", 0)
        response = store.reads.pull("orders", 0, lo, max_count=10_000, max_size_bytes=1 << 24)
        return numbers(response.data)

    def begin_epoch(self, number: int) -> None:
        """Become the master of an epoch that begins here."""
        epochs = Epochs(self.log.epochs.entries)
        epochs.append(number, self.log.end)
        self.save_epochs(epochs)
        self.log.store.find_offsets()

    def save_epochs(self, epochs: Epochs) -> None:
        self.log.save_epochs(epochs)

    def put(self, lo: int, *, size_bytes: int = 400) -> int:
        """Append three records and a command that makes topic `t<lo>`; return the end."""
        data = batch(lo, lo + 3, size_bytes=size_bytes) + topic_command(f"t{lo}")
        return self.log.append(self.log.prepare(data)).end_position

    def fill(self, lo: int, hi: int, *, size_bytes: int = 400) -> list[int]:
        """Append records [lo, hi) so; return where each batch ends."""
        return [self.put(at, size_bytes=size_bytes) for at in range(lo, hi, 3)]

    def lead(self, number: int, lo: int, hi: int, *, size_bytes: int = 400) -> list[int]:
        """Begin an epoch with records [lo, hi), all confirmed; return where each batch ends."""
        self.begin_epoch(number)
        ends = self.fill(lo, hi, size_bytes=size_bytes)
        self.confirm()
        return ends

    def sync(self) -> None:
        sync(self.log.store)

    def confirm(self, position: int = 0) -> None:
        """Sync, and apply up to a position, by default all."""
        self.sync()
        self.state.apply(position or self.log.end)

    def follow(self, master: "Replica", hi: int = 0, *, limit: int = 3000) -> None:
        """Take the master's epochs and bytes, up to `hi` or all of them."""
        hi = hi or master.log.end
        while (lo := self.log.end) < hi:
            stop = master.log.ship_end(lo, hi, limit)
            data = master.log.store.shipped.read_raw(lo, stop)
            assert self.log.store.has_room(len(data))
            checked = self.log.check_raw(lo, data)
            self.adopt(master, stop)
            self.log.store.write_raw(checked)
        self.sync()

    def catch_up(self, master: "Replica", hi: int = 0) -> None:
        """Follow the master, and show all of that."""
        self.follow(master, hi)
        self.confirm()

    def adopt(self, master: "Replica", end: int) -> None:
        """Take over the master's epochs up to an end of the log, before the bytes come."""
        epochs = Epochs(self.log.epochs.entries)
        if epochs.adopt(master.log.epochs, end):
            self.save_epochs(epochs)

    def cut(self, lo: int, master: "Replica") -> None:
        """Cut to the point where the master's log parts, and take its epochs up to there."""
        self.state.cut(lo, self.log.end, self.log.epochs.last.number)
        epochs = Epochs(self.log.epochs.entries)
        epochs.truncate(lo, master.log.epochs)
        epochs.adopt(master.log.epochs, lo)
        self.save_epochs(epochs)

    def checkpoint(self) -> int:
        """Save one if there is news; return its position."""
        checkpoint = self.state.checkpoint()
        if checkpoint is None:
            return 0
        assert self.log.store.durable_position >= checkpoint.position
        self.state.save(checkpoint)
        return checkpoint.position

    def delete_below(self, position: int) -> None:
        """Delete whole files as retention does, once a checkpoint and the marks allow it."""
        self.checkpoint()
        self.log.store.maintain()
        self.log.store.expired_position = position
        work = self.log.store.detach_expired(min(position, self.state.checkpoint_position))
        assert work is not None
        work()
        assert self.log.min_position == position

    def close(self) -> None:
        self.log.close()

    def __enter__(self) -> "Replica":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def log_bytes(log: HaLog) -> bytes:
    """All bytes of a log, from where it begins."""
    files = log.store.log.files.files
    return b"".join(f.read(f.position, f.wrote_position - f.position) for f in files)
