"""Inner batches of RocketMQ: kept, named, never taken for damage, and never half readable."""

import pickle
from pathlib import Path

import pytest

from store import format as fmt
from store.derived.guard import DerivedScrubber
from store.errors import InnerBatchError, RecordFormatError
from store.files.failpoints import armed
from store.fsck.check import Check, verify
from store.fsck.plan import plan
from store.fsck.repair import apply
from store.fsck.types import no_progress
from store.record.inner_batches import DIRECTORY, is_inner_batch
from store.record.message import decode_message, encode_message
from store.store import Store
from tests.store.fakes import Derived, MemoryLog
from tests.store.foreign_logs import BATCHES, INNER_FLAGS, Foreign, inner_batch, plain, write_log
from tests.store.fsck_stores import given_sizes
from tests.store.records import batch, numbers, small_config

CONFIG = small_config()


def mixed(count: int = 30) -> list[Foreign]:
    """Inner batches of 1 to 5 messages, and ordinary messages between."""
    records, offset = [], 0
    for number in range(count):
        size = 1 + number % 5
        records.append(inner_batch(offset, size, UNIQ_KEY=f"unique{number}"))
        records.append(plain("orders", number, KEYS=f"key{number}"))
        offset += size
    return records


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_log(tmp_path / "store", CONFIG, mixed())
    return tmp_path / "store"


def log_bytes(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}


def checked(root: Path) -> tuple[list[str], list[str]]:
    """Return findings and notices of a check."""
    check = Check(str(root), given_sizes(CONFIG))
    return [str(n) for n in check.run(no_progress)], [str(n) for n in check.notices]


# --- A store ---


def test_a_directory_with_inner_batches_is_adopted_and_goes_on(root: Path) -> None:
    before = log_bytes(root)
    with Store.open(str(root), CONFIG, maintain=False) as store:
        assert store.recovery.was_adopted
        assert store.recovery.cut_size_bytes == 0
        assert log_bytes(root) == before
        assert numbers(store.pull("orders", 0, 0, max_count=100).data) == list(range(30))
        assert store.inner_batch_topics() == [BATCHES]
        assert store.counters.inner_batch_count == 30
        assert "1 topics have inner batches" in store.stats().warnings()[0]
        assert store.put(batch(30, 31)).queue_offsets == [30]
    assert (root / DIRECTORY / BATCHES).is_dir()
    assert not (root / "consumequeue" / BATCHES).exists(), "RocketMQ would not load it"
    with Store.open(str(root), CONFIG, maintain=False) as store:
        assert not store.recovery.derived_rebuilt
        assert store.recovery.dispatched_size_bytes == 0
        assert numbers(store.pull("orders", 0, 0, max_count=100).data) == list(range(31))
        with pytest.raises(InnerBatchError):
            store.pull(BATCHES, 0, 0)
    assert checked(root)[0] == []


def test_a_topic_of_inner_batches_is_an_error_and_not_empty(root: Path) -> None:
    with Store.open(str(root), CONFIG, maintain=False) as store:
        for call in (
            lambda: store.pull(BATCHES, 0, 0),
            lambda: store.pull(BATCHES, 0, 1_000),
            lambda: store.pull(BATCHES, 7, 0),
            lambda: store.queue_range(BATCHES, 0),
            lambda: store.offset_by_time(BATCHES, 0, 0),
            lambda: store.units(BATCHES, 0, 0, 1),
            lambda: store.records_at(BATCHES, 0, [0]),
            lambda: store.put(encode_message(BATCHES, 0, b"more")),
        ):
            with pytest.raises(InnerBatchError) as caught:
                call()
            assert caught.value.topic == BATCHES
            assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        assert "queue.type=BatchCQ" in str(caught.value)
        assert [queue.topic for queue in store.queues()] == ["orders"]
        assert store.queue_range("nobody", 0) == (0, 0)
        # A key finds the record as RocketMQ wrote it.
        (message,) = store.messages_by_key(BATCHES, "unique3")
        assert message.sys_flag == INNER_FLAGS
        assert message.properties["INNER_NUM"] == "4"
        assert message.properties["INNER_BASE"] == str(message.queue_offset) == "6"


def test_other_records_of_such_a_topic_have_no_queue_either(tmp_path: Path) -> None:
    """Their offsets jump as well; RocketMQ has them in the same queue as the inner batches."""
    root = tmp_path / "store"
    records = [plain(BATCHES, 0), plain("orders", 0), inner_batch(1, 3), plain(BATCHES, 4)]
    write_log(root, CONFIG, [*records, inner_batch(5, 2), plain("orders", 1)])
    with Store.open(str(root), CONFIG, maintain=False) as store:
        assert numbers(store.pull("orders", 0, 0).data) == [0, 1]
        with pytest.raises(InnerBatchError):
            store.pull(BATCHES, 0, 0)
    assert not (root / "consumequeue" / BATCHES).exists()
    findings, notices = checked(root)
    assert findings == []
    assert notices == [
        "inner batches of RocketMQ: 4 records of topic batches (queue.type=BatchCQ) are whole, "
        "kept, and not readable here"
    ]


def test_records_before_the_first_inner_batch_stay_readable(tmp_path: Path) -> None:
    root = tmp_path / "store"
    records = [plain(BATCHES, 0), plain(BATCHES, 1)]
    write_log(root, CONFIG, records)
    with Store.open(str(root), CONFIG, maintain=False) as store:
        assert numbers(store.pull(BATCHES, 0, 0).data) == [0, 1]
    for path in (root / "commitlog").iterdir():
        path.unlink()
    (root / "commitlog").rmdir()
    write_log(root, CONFIG, [*records, inner_batch(2, 3), plain(BATCHES, 5)])
    with Store.open(str(root), CONFIG, maintain=False) as store:
        assert not store.recovery.derived_rebuilt
        assert numbers(store.pull(BATCHES, 0, 0).data) == [0, 1]
        assert store.queue_range(BATCHES, 0) == (0, 2)
        with pytest.raises(InnerBatchError):
            store.pull(BATCHES, 0, 2)
    assert checked(root)[0] == []


def test_a_pass_over_the_log_finds_no_fault_with_them(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_log(root, CONFIG, [*mixed(), plain(BATCHES, 100)])
    with Store.open(str(root), CONFIG, maintain=False) as store:
        scrubber = DerivedScrubber(store.engine.guard, store.log, lambda: store.log.max_position)
        while not (piece := scrubber.step()).ends_pass:
            assert piece.wrong_count == 0
        lines: list[str] = []
        store.engine.guard.listen(lines.append)
        store.engine.guard.dispatcher.rebuild()
        assert len(lines) == 1, "once a process"
        assert lines[0].startswith("topic batches has inner batches of RocketMQ")


# --- A check ---


def test_no_plan_for_a_directory_of_rocketmq_cuts_it(root: Path) -> None:
    """Also before a store of ours has opened it, and with its derived files to be built."""
    before, given = log_bytes(root), given_sizes(CONFIG)
    actions = plan(str(root), verify(str(root), given=given), given=given)
    assert not [action for action in actions if action.position >= 0 and action.zero_hi]
    apply(str(root), actions)
    assert log_bytes(root) == before
    with Store.open(str(root), CONFIG, maintain=False) as store:
        assert numbers(store.pull("orders", 0, 0, max_count=100).data) == list(range(30))


def test_a_repair_builds_the_queues_around_them(root: Path) -> None:
    with Store.open(str(root), CONFIG, maintain=False):
        pass
    before = log_bytes(root)
    queue = next((root / "consumequeue" / "orders" / "0").iterdir())
    queue.write_bytes(b"\xff" * queue.stat().st_size)
    given = given_sizes(CONFIG)
    problems = list(verify(str(root), given=given))
    assert problems
    actions = plan(str(root), problems, given=given)
    assert "cut_log" not in {action.kind.value for action in actions}
    apply(str(root), actions)
    assert log_bytes(root) == before
    assert checked(root)[0] == []


# --- Which records are one ---


@pytest.mark.parametrize(
    ("flags", "properties", "expected"),
    [
        (INNER_FLAGS, {"INNER_BASE": "0", "INNER_NUM": "2"}, True),
        (0x80, {"TAGS": "a", "INNER_BASE": "0"}, True),
        (0x80 | 0x30, {"INNER_BASE": "0"}, True),
        (0x80, {"INNER_NUM": "2", "XINNER_BASE": "0"}, False),
        (0x80, {"TAGS": "INNER_BASE"}, False),
        (0x40, {"INNER_BASE": "0"}, False),
        (0, {"INNER_BASE": "0"}, False),
    ],
)
def test_flag_and_property_together_make_an_inner_batch(
    flags: int, properties: dict[str, str], expected: bool
) -> None:
    host = ("2001:db8::1", 9) if flags & 0x30 else ("127.0.0.1", 9)
    record = encode_message(
        "t", 0, b"b", properties, sys_flag=flags, born_host=host, store_host=host
    )
    assert is_inner_batch(b"xy" + record, 2) is expected


@pytest.mark.parametrize("flag", [1 << n for n in (0, 1, 6, 7, 8, 9, 10, 11, 20, 30)] + [-1 << 31])
def test_a_record_with_a_flag_that_nobody_knows_is_a_record(tmp_path: Path, flag: int) -> None:
    """As in RocketMQ: one unit, its keys, and the next offset."""
    log = MemoryLog()
    for number in range(20):
        sys_flag = flag if number % 3 == 1 else 0
        log.add("orders", 0, b"body", {"KEYS": f"key{number}"}, sys_flag=sys_flag)
    derived = Derived(tmp_path, log, CONFIG)
    assert derived.dispatcher.advance(log.max_position) == log.max_position
    queue = derived.queues.get(b"orders", 0)
    assert queue is not None
    assert queue.max_offset == 20
    units = fmt.CONSUME_QUEUE_UNIT.iter_unpack(queue.read_units(0, 20))
    assert [unit[:2] for unit in units] == log.records
    assert derived.index.entry_count == 20
    assert not (tmp_path / DIRECTORY).exists()


def test_an_append_takes_no_inner_batch(tmp_path: Path) -> None:
    with Store.open(str(tmp_path), CONFIG, maintain=False) as store:
        store.put(encode_message("orders", 0, b"x", sys_flag=0x40 | 0x800))
        with pytest.raises(RecordFormatError, match="no inner batch"):
            store.put(encode_message("orders", 0, b"x", sys_flag=0xC0))
        assert store.put(encode_message("orders", 0, b"y")).queue_offsets == [1]
        assert decode_message(store.pull("orders", 0, 0).data).sys_flag == 0x840


def test_a_step_that_failed_is_counted_once(tmp_path: Path) -> None:
    log = MemoryLog()
    properties = {"INNER_BASE": "0", "INNER_NUM": "9"}
    log.add("batches", 0, properties=properties, sys_flag=INNER_FLAGS, queue_offset=0)
    log.add("orders", 0)
    derived = Derived(tmp_path, log, CONFIG)
    calls: list[tuple[bytes, int]] = []
    derived.dispatcher.on_inner_batches = lambda topic, count: calls.append((topic, count))
    with armed("dispatch.before_index=EIO"), pytest.raises(OSError, match="failpoint"):
        derived.dispatcher.advance(log.max_position)
    derived.dispatcher.advance(log.max_position)
    assert calls == [(b"batches", 1)]
    assert derived.dispatcher.tail_offsets(log.max_position) == {}
