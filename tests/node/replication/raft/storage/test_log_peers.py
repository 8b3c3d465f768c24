"""What a follower takes from its leader, and what a truncation gives back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.replication.raft.storage.log import LedgerLog
from raft.errors import ForeignChainError, PeerProtocolError
from raft.messages import AppendRequest, Configuration, ConfigurationAt
from raft.ready import EntryKind
from store.errors import CorruptionError, StoreError
from store.files import failpoints
from tests.node.ledger_cluster import crash, sync
from tests.node.ledger_logs import (
    VOTERS,
    append_request,
    data_image,
    new_log,
    put,
    queue_numbers,
    reopen,
    ship,
)
from tests.store.overwrites import flip
from tests.store.records import batch


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[LedgerLog]:
    with new_log(tmp_path / "leader") as log:
        yield log


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[LedgerLog]:
    with new_log(tmp_path / "follower", 2) as log:
        yield log


# --- A follower ---


def test_the_part_that_is_stored_already_is_skipped(leader: LedgerLog, follower: LedgerLog) -> None:
    for lo in range(0, 60, 3):
        put(leader, lo, lo + 3, term=1 + lo // 21, size_bytes=2000)
    ship(leader, follower, 0, 9)
    raw = leader.read_raw(4, 20)
    checked = follower.check_raw(append_request(leader, 4, 20), memoryview(raw))
    with pytest.raises(AssertionError, match="was not checked"):
        follower.write_raw(9, 20, raw)
    with pytest.raises(AssertionError, match="checked up to 20, not 21"):
        follower.write_raw(9, 21, checked)
    follower.write_raw(9, 20, checked)
    assert data_image(follower) == data_image(leader)
    assert follower.load().runs == leader.load().runs


def test_bytes_that_are_not_what_the_message_says_are_refused(
    leader: LedgerLog, follower: LedgerLog
) -> None:
    for lo in range(0, 12, 3):
        put(leader, lo, lo + 3, term=1 + lo // 6)
    leader.append(4, 3, EntryKind.CONFIGURATION, Configuration(VOTERS, (9,)))
    raw = leader.read_raw(0, 5)
    news = (ConfigurationAt(4, Configuration(VOTERS, (9,))),)
    good = append_request(leader, 0, 5, news)
    follower.check_raw(good, raw)
    wrong: list[tuple[AppendRequest, bytes]] = [
        (good, raw[:-1]),
        (good, raw + b"\0"),
        (good, raw[:60] + b"\x01" + raw[61:]),
        (good, b""),
        (good._replace(hi=4), raw),
        (good._replace(hi=6), raw),
        (good._replace(runs=((0, 1), (3, 2), (4, 3))), raw),
        (good._replace(runs=((0, 3),)), raw),
        (good._replace(configurations=()), raw),
        (good._replace(configurations=(ConfigurationAt(4, Configuration(VOTERS)),)), raw),
        (good, leader.read_raw(1, 5)),
    ]
    before = data_image(follower)
    for message, payload in wrong:
        with pytest.raises(PeerProtocolError):
            follower.check_raw(message, payload)
    assert data_image(follower) == before
    # Nothing is looked at that the core will refuse: the entry before is not here.
    assert follower.check_raw(good._replace(prev_index=7, prev_term=1), b"garbage") is None
    follower.write_raw(0, 5, follower.check_raw(good, raw))
    assert follower.load().configurations[-1] == news[0]
    # Later terms, told of as if all were of that of the entry before.
    rest, message = leader.read_raw(1, 5), append_request(leader, 1, 5, news)
    follower.check_raw(message, rest)
    with pytest.raises(PeerProtocolError, match="announced"):
        follower.check_raw(message._replace(runs=((1, 1),)), rest)


def test_another_history_under_the_same_terms_is_refused(
    leader: LedgerLog, follower: LedgerLog
) -> None:
    """Two leaders of one term wrote it; what differs first is named, however much was sent."""
    for lo in range(0, 30, 3):
        put(leader, lo, lo + 3, term=1, size_bytes=2000)
    ship(leader, follower, 0, 4)
    put(follower, 50, 51, term=1)
    for lo in range(60, 90, 3):
        put(follower, lo, lo + 3, term=1, size_bytes=2000)
    before = data_image(follower)

    for lo, hi in ((0, 10), (2, 7), (4, 5), (4, 10)):
        raw = leader.read_raw(lo, hi)
        with pytest.raises(ForeignChainError, match="the log through entry 4 is") as caught:
            follower.check_raw(append_request(leader, lo, hi), raw, hi - 1)
        assert (caught.value.index, caught.value.content) == (4, leader.chain_at(4))
    follower.check_raw(append_request(leader, 1, 4), leader.read_raw(1, 4), 3)
    assert data_image(follower) == before
    assert leader.chain_at(3) == follower.chain_at(3)
    assert leader.chain_at(4) != follower.chain_at(4)
    assert leader.chain_at(10) is None


def test_two_changes_on_the_way_are_no_other_history(
    leader: LedgerLog, follower: LedgerLog
) -> None:
    """Both leave the stored chain CRC as it was, and each of them makes it a wrong one."""
    put(leader, 0, 3)
    put(leader, 3, 6)
    ship(leader, follower, 0, 1)
    raw, message = leader.read_raw(1, 2), append_request(leader, 1, 2)
    refused = set[object]()
    for at in (23, 40, 43):  # The last byte of the term, and two of the body's CRC.
        changed = raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :]
        with pytest.raises(ForeignChainError) as caught:
            follower.check_raw(message, changed)
        refused.add((caught.value.index, caught.value.content))
    assert len(refused) == 3, "each was changed in another way"
    with pytest.raises(ForeignChainError) as caught:
        follower.check_raw(message, changed)
    assert (caught.value.index, caught.value.content) in refused
    follower.check_raw(message, raw)


@pytest.mark.parametrize("at", [8, 20, 36])  # Index, term, chain.
def test_a_bit_that_flipped_is_no_other_history(
    leader: LedgerLog, follower: LedgerLog, at: int
) -> None:
    for lo in range(0, 30, 3):
        put(leader, lo, lo + 3)
    ship(leader, follower, 0, 10)
    position = follower.position_of(4)
    flip(follower.store.ledger.files.files[0], position + at)

    assert follower.chain_at(4) is None, "it vouches for nothing"
    for lo, hi in ((5, 7), (3, 5)):
        with pytest.raises(CorruptionError):
            follower.check_raw(append_request(leader, lo, hi), leader.read_raw(lo, hi), hi - 1)
    assert follower.chain_at(9) == leader.chain_at(9)


# --- Truncation ---


def test_a_truncation_gives_the_queue_offsets_back(tmp_path: Path) -> None:
    with new_log(tmp_path) as log:
        for lo in range(0, 30, 3):
            put(log, lo, lo + 3, size_bytes=3000)
        log.dispatch(3)
        sync(log)
        log.store.maintain()
        log.truncate_from(5)
        assert log.store.engine.mark.mark.durable_position == log.position_of(5)
        assert log.load().runs == ((0, 1),)
        log.store.find_offsets()
        prepared = log.prepare(batch(100, 102))
        assert prepared.queues == {(b"orders", 0): (15, 2)}
        log.append(5, 2, EntryKind.DATA, prepared)
        log.dispatch(6)
        assert queue_numbers(log) == [*range(15), 100, 101]
        with pytest.raises(AssertionError, match="readers have seen"):
            log.truncate_from(4)


STEPS = [
    "durable_mark.write",
    "replica_store.before_cut",
    "ledger.before_cut",
    "mapped_file.truncate",
    "mapped_file.truncate=EIO@2",
    "fs.sync",
    "fs.write",
    "fs.unlink",
]


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_within_a_truncation_leaves_a_prefix_that_can_be_cut_again(
    tmp_path: Path, step: str
) -> None:
    log = new_log(tmp_path)
    for lo in range(0, 60, 3):
        put(log, lo, lo + 3, size_bytes=3000)
    log.dispatch(3)
    log.store.maintain()
    sync(log)
    files = len(log.store.ledger.files.files)
    assert files > 2
    specification = step if "=" in step else f"{step}=EIO"
    with failpoints.armed(specification), pytest.raises((OSError, StoreError)):
        log.truncate_from(5)
    crash(log)
    with reopen(tmp_path) as log:
        loaded = log.load()
        assert 4 <= loaded.last_index <= 19
        assert queue_numbers(log) == list(range(9))
        if loaded.last_index > 4:
            log.truncate_from(5)
        assert put(log, 15, 18, term=2) == 5
        log.dispatch(6)
        assert queue_numbers(log) == list(range(18))
