"""A replica dies, or its machine loses power, before any call that changes a file.

Histories, moments and images follow from the seed of each test. Two replicas take turns as master,
so the one that is looked at appends, follows, is cut and set aside, again and again. Every image is
opened, compared with what was durable at that moment, and used further.
"""

import copy
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.types import EpochStart, ReplicaState
from node.state.command_records import commands_in
from node.state.state import COMMAND_TOPIC
from store.files.file_system import FileSystem
from store.log.cut_file import list_cut_files, read_cut_file
from store.record.message import Message
from tests.node.replication.ha.ha_logs import FILE, Replica, log_bytes
from tests.seeds import some_of
from tests.store.crash_check import temporary_parent
from tests.store.power_loss import PowerLossFileSystem
from tests.store.records import messages
from tests.store.shipped_stores import killed

SEED_COUNT = 16
STEP_COUNT = 80
IMAGE_COUNT_MAX = 14
CALLS_PER_IMAGE = 30


@pytest.fixture
def parent() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="quorumlog-ha-", dir=temporary_parent()))
    yield directory
    shutil.rmtree(directory)


@dataclass
class Promised:
    """What must be found after a crash at this moment."""

    content: bytes = b""
    """The log is a beginning of it ..."""
    durable: int = 0
    """... and no shorter than this."""
    epochs: list[tuple[EpochStart, ...]] = field(default_factory=lambda: [()])
    """Any of these, without those behind the end."""
    states: list[ReplicaState | None] = field(default_factory=lambda: [None])
    cuts: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    """By epoch, lo and hi: what must be aside."""
    cutting: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    """The same for what may be."""


class Watched(Replica):
    """A replica of which is noted what it promises; a stream is synced piece by piece."""

    promised: Promised
    ends: list[int]

    def save_epochs(self, epochs: Epochs) -> None:
        self.promised.cuts |= self.promised.cutting  # A cut is durable before its epochs.
        self.promised.cutting = {}
        self.promised.epochs.append(epochs.entries)
        super().save_epochs(epochs)
        self.promised.epochs = [epochs.entries]

    def adopt(self, master: Replica, end: int) -> None:
        if self.log.end > self.promised.durable:
            self.sync()
        super().adopt(master, end)
        self.ends.append(end)

    def sync(self) -> None:
        super().sync()
        self.promised.durable = self.log.end


class Life:
    """The replica that dies, its partner, and the images of its deaths."""

    def __init__(self, parent: Path, seed: int) -> None:
        self.parent, self.random = parent, Random(seed)
        self.promised = Promised()
        self.images: list[tuple[Path, Promised, str]] = []
        self._thread = threading.current_thread()
        self.calls_per_image = CALLS_PER_IMAGE
        self.fs = PowerLossFileSystem(self.before_call)
        self.root = parent / "run"
        self.is_open = False
        self.replica = Watched(self.root, 1, self.fs)
        self.replica.promised, self.replica.ends = self.promised, [0]
        self.is_open = True
        self.promised.states = [self.replica.log.replica]
        self.partner = Replica(parent / "partner", 2)
        self.number = self.epoch = 0

    def before_call(self, name: str) -> None:
        if threading.current_thread() is not self._thread or not self.is_open:
            return
        if len(self.images) < IMAGE_COUNT_MAX and self.random.randrange(self.calls_per_image) == 0:
            self.die(name)

    def die(self, call: str) -> None:
        """Note what a crash leaves at this moment."""
        image = self.parent / f"image{len(self.images)}"
        if self.random.random() < 0.5:
            killed(self.root, image)
            kind = "kill"
        else:
            self.fs.build_image(str(self.root), str(image), self.random)
            (image / "boot_id").write_text("of before\n")
            kind = "power loss"
        self.images.append((image, copy.deepcopy(self.promised), f"{kind} before {call}"))

    # --- What the replica does ---

    def run(self) -> None:
        self.begin_epoch()
        steps: list[Callable[[], None]] = [
            *[self.put] * 6,
            *[self.replica.sync] * 3,
            *[self.confirm] * 3,
            self.checkpoint,
            self.replica.log.store.maintain,
            self.bind,
            *[self.fail_over] * 2,
        ]
        for _ in range(STEP_COUNT):
            self.random.choice(steps)()
        self.is_open = False
        self.replica.close()
        self.partner.close()

    def put(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            end = self.replica.put(self.number, size_bytes=self.random.randint(8, 900))
            self.number += 3
            self.replica.ends.append(end)
            self.promised.content = log_bytes(self.replica.log)

    def confirm(self) -> None:
        self.replica.confirm(self.random.choice(self.replica.ends))

    def checkpoint(self) -> None:
        self.replica.sync()
        self.replica.checkpoint()

    def bind(self) -> None:
        state = self.replica.log.replica
        new = state._replace(bound=state.bound._replace(number=state.bound.number + 1))
        self.promised.states.append(new)
        self.replica.log.save_state(new)
        self.promised.states = [new]

    def begin_epoch(self) -> None:
        """Become master."""
        self.epoch += 1
        self.replica.begin_epoch(self.epoch)

    def fail_over(self) -> None:
        """The partner becomes master behind a part of the log; this one is cut and follows."""
        replica, partner, promised = self.replica, self.partner, self.promised
        replica.sync()
        lo = self.random.choice([end for end in replica.ends if end >= partner.log.end])
        partner.follow(replica, lo, limit=1 << 20)
        self.epoch += 1
        partner.begin_epoch(self.epoch)
        partner.fill(self.number, self.number + 3 * self.random.randint(1, 12))
        self.number += 36
        partner.sync()
        hi = replica.log.end
        if lo < hi:
            key = (replica.log.epochs.last.number, lo, hi)
            promised.durable = lo
            promised.cutting = {key: promised.content[lo:]}
            replica.cut(lo, partner)
        replica.ends = [end for end in replica.ends if end <= lo]
        promised.content = log_bytes(partner.log)
        replica.follow(partner, limit=2000)
        self.begin_epoch()


# --- What is found ---


def check_image(image: Path, promised: Promised, how: str) -> None:
    replica = Replica(image)
    try:
        log, content = replica.log, promised.content
        assert promised.durable <= log.end <= len(content), how
        log_content = log_bytes(log)
        assert log_content == content[: log.end], how
        assert log.store.durable_position == log.end, how
        histories = [tuple(e for e in epochs if e.start <= log.end) for epochs in promised.epochs]
        assert log.epochs.entries in histories, how
        assert log.replica in promised.states, how
        check_cuts(image, promised, how)
        check_state(replica, log_content, how)
        use_further(replica, log_content)
    finally:
        replica.close()


def check_cuts(image: Path, promised: Promised, how: str) -> None:
    """What was cut is aside and whole; half of a file never counts as one."""
    fs = FileSystem()
    cuts = {}
    for cut in list_cut_files(fs, str(image)):
        cuts[cut.epoch, cut.lo, cut.hi] = b"".join(data for _, data in read_cut_file(fs, cut.path))
    assert cuts.items() >= promised.cuts.items(), how
    assert cuts.items() <= (promised.cuts | promised.cutting).items(), how


def check_state(replica: Replica, found: bytes, how: str) -> None:
    """State, queues and index are those of the log, as far as it was applied and to its end."""
    replica_records = records_of(found)
    assert replica.log.store.dispatched_position >= replica.state.applied, how
    for position in (replica.state.applied, replica.log.end):
        replica.state.apply(position)
        below = [record for record in replica_records if record.position < replica.state.applied]
        numbers = [int(record.body[:8]) for record in below if record.topic == "orders"]
        assert replica.topics == topics_in(below, found), how
        if position == replica.log.end:
            assert replica.seen == numbers, how
            if numbers:
                (last,) = replica.log.store.reads.messages_by_key("orders", f"key{numbers[-1]:04d}")
                assert last.position == max(r.position for r in below if r.topic == "orders")


def records_of(data: bytes) -> list[Message]:
    """All records of a log that begins at 0, without the blanks."""
    log_messages: list[Message] = []
    for lo in range(0, len(data), FILE):
        part = data[lo : lo + FILE]
        blank = part.find(b"\xcb\xd4\x31\x94")
        log_messages += messages(part if blank < 0 else part[: blank - 4])
    return log_messages


def topics_in(records: list[Message], data: bytes) -> set[str]:
    """Topics that the commands of a log make."""
    made = set()
    for record in records:
        if record.topic == COMMAND_TOPIC:
            at = record.position
            for _, command in commands_in(data[at : at + record.size_bytes]):
                made.add(command.put_topic.topic)
    return made


def use_further(replica: Replica, found: bytes) -> None:
    """The log goes on, without a gap in any queue, and opens again."""
    count = len(replica.seen)
    replica.begin_epoch(1000)
    end = replica.put(900_000)
    replica.confirm()
    assert replica.seen[count:] == [900_000, 900_001, 900_002]
    replica.checkpoint()
    replica.close()
    again = Replica(replica.root)
    try:
        assert again.log.end == end
        assert log_bytes(again.log)[: len(found)] == found
        assert again.state.applied == end
    finally:
        again.close()


@pytest.mark.parametrize("seed", some_of(range(SEED_COUNT), 6))
def test_a_crash_at_any_call_leaves_what_was_promised(parent: Path, seed: int) -> None:
    life = Life(parent, seed)
    life.run()
    assert len(life.images) > IMAGE_COUNT_MAX // 3, "the life was too short to die so often"
    for image, promised, how in life.images:
        check_image(image, promised, f"seed {seed}, {image.name}: {how}")


class Deaths:
    """Images of a replica in `root` that is killed, or loses power, before each of its calls."""

    def __init__(self, parent: Path) -> None:
        self.root = parent / "run"
        self.images: list[Path] = []
        self.fs = PowerLossFileSystem(self._before_call)
        self._parent, self._random = parent, Random(1)
        self._armed: threading.Thread | None = None

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Make them of the calls of this thread, as long as this lasts."""
        self._armed = threading.current_thread()
        yield
        self._armed = None

    def _before_call(self, _name: str) -> None:
        if threading.current_thread() is not self._armed:
            return
        number = len(self.images)
        kill, power = self._parent / f"kill{number}", self._parent / f"power{number}"
        killed(self.root, kill)
        self.fs.build_image(str(self.root), str(power), self._random)
        (power / "boot_id").write_text("of before\n")
        self.images += [kill, power]


@pytest.mark.parametrize("had_log", [False, True])
def test_a_crash_while_an_empty_log_begins_is_made_up_for(parent: Path, had_log: bool) -> None:
    """At any call: the next process is empty still, and takes the next image."""
    master = Replica(parent / "master")
    master.lead(1, 0, 120)
    master.delete_below(2 * FILE)
    data = master.state.make_image()()
    deaths = Deaths(parent)
    slave = Replica(deaths.root, 2, deaths.fs)
    if had_log:  # Nothing of it is the master's, and its first file is gone.
        slave.lead(1, 900, 990)
        slave.delete_below(FILE)
        slave.state.cut(FILE, slave.log.end, 1)
        slave.log.save_epochs(Epochs())
    with deaths.armed():
        slave.state.take_image(data)
    slave.close()
    assert len(deaths.images) > 20
    for image in deaths.images:
        slave = Replica(image, 2)
        assert slave.log.is_empty, image.name
        assert slave.seen == [], image.name
        slave.state.take_image(data)
        slave.catch_up(master)
        assert (slave.seen, slave.topics) == (master.seen, master.topics), image.name
        slave.close()
    master.close()


def beside(root: Path) -> list[tuple[int, bytes]]:
    """What was set aside, by position."""
    fs = FileSystem()
    pieces = [(int(path.name), path.read_bytes()) for path in root.glob("aside/*")]
    for cut in list_cut_files(fs, str(root)):
        pieces.append((cut.lo, b"".join(data for _, data in read_cut_file(fs, cut.path))))
    return pieces


def put_together(pieces: list[tuple[int, bytes]]) -> bytes:
    """The log that these are pieces of, up to the first gap."""
    data = b""
    for position, piece in sorted(pieces):
        if position > len(data):
            break
        data += piece[len(data) - position :]
    return data


@pytest.mark.parametrize("count", [10, pytest.param(48, marks=pytest.mark.long)])
def test_a_crash_while_a_log_goes_aside_loses_nothing_of_it(parent: Path, count: int) -> None:
    """Its master has deleted what comes next. At any call: what is not in the log is beside it."""
    master, slave = Replica(parent / "master"), Replica(parent / "run", 2)
    master.lead(1, 0, 120)
    slave.catch_up(master, 0)
    slave.checkpoint()
    slave.close()
    old, end = log_bytes(master.log), master.log.end
    master.fill(120, 300)
    master.confirm()
    begin = next(f.position for f in master.log.store.log.files.files if f.position > end)
    master.delete_below(begin)
    data = master.state.make_image()()
    deaths = Deaths(parent)
    deaths.fs.adopt(str(deaths.root))
    slave = Replica(deaths.root, 2, deaths.fs)
    assert len(slave.log.store.log.files.files) > 3
    with deaths.armed():
        slave.state.take_image(data, lambda position: position > end)
    assert (slave.log.min_position, slave.log.is_empty) == (begin, True)
    assert put_together(beside(deaths.root)) == old
    slave.close()
    assert len(deaths.images) > 48
    for image in deaths.images[:: len(deaths.images) // count]:
        slave = Replica(image, 2)
        pieces = [*beside(image), (slave.log.min_position, log_bytes(slave.log))]
        assert put_together(pieces) == old, image.name
        slave.state.take_image(data, lambda position: position > end)
        slave.catch_up(master)
        assert (slave.seen, slave.topics) == (master.seen, master.topics), image.name
        assert slave.checkpoint() == master.log.end
        slave.log.store.shipped.files.delete_aside()
        assert not list(image.glob("aside/*"))
        slave.close()
        again = Replica(image, 2)
        assert (again.seen, again.topics) == (master.seen, master.topics), image.name
        again.close()
    master.close()
