"""Sizes of a plan are those of files that the store wrote."""

from pathlib import Path

import pytest

from deploy.local import NODE_COUNT_MAX
from node.runtime.accounts import LIMITS, Kind
from node.state.command_records import CommandEncoder
from planning.capacity.demand import COPIES_MAX
from planning.capacity.disks import IN_FLIGHT_SIZE_BYTES
from planning.capacity.hosts import CLIENT_GROUP_COUNT_MAX
from planning.capacity.traffic import MessageSizes
from planning.commands.formats import format_sizes, sizes_of
from planning.commands.rebalance import LAG_COUNT_MAX
from quorumlog.cluster.broker_groups import GROUPS_MAX
from raft.config import RaftConfig
from store.config import StoreConfig
from store.format import LOOPBACK
from store.record.message import encode_message
from store.store import Store
from tests.planning.capacity.sizes import demand

TOPIC, BODY, KEY = "orders", 300, "order-0001"
CONFIG = StoreConfig(
    container="ledger",
    file_size_bytes=1 << 20,
    consume_queue_units_per_file=1_000,
    ledger_index_units_per_file=1_024,
    index_slot_count=1_000,
    index_entry_count=4_000,
    preallocate_file_count=0,
)


def written(directory: Path, suffix: str = "") -> int:
    """The bytes that are not zero at the end of each file, summed over a directory."""
    files = [path for path in directory.rglob(f"*{suffix}") if path.is_file()]
    return sum(len(path.read_bytes().rstrip(b"\0")) for path in files)


@pytest.mark.parametrize(("batches", "count"), [(100, 1), (20, 30)])
def test_sizes_are_those_of_a_store(tmp_path: Path, batches: int, count: int) -> None:
    properties = {"KEYS": KEY}
    message = encode_message(TOPIC, 0, b"x" * BODY, properties)
    command = CommandEncoder(LOOPBACK).encode_producer_batch(2**64 - 1, 77, count)
    with Store.open(str(tmp_path), CONFIG, maintain=False) as store:
        first = store.log.max_position
        for _ in range(batches):
            store.append(message * count + command)
        grown = store.log.max_position - first
        assert sum(queue.max_offset for queue in store.queues()) == batches * (count + 1)
    formats = sizes_of(CONFIG)
    need = demand(
        body_size_bytes=BODY,
        topic_size_bytes=len(TOPIC),
        properties_size_bytes=len("KEYS") + len(KEY) + 2,
        batch_count=count,
    )
    sizes = MessageSizes.of(need, formats)
    assert sizes.record == len(message)
    # The record of the producer is taken at its largest: a few bytes of each entry.
    assert 0 <= batches * sizes.entry / grown - 1 < 0.02
    assert written(tmp_path / "consumequeue") == pytest.approx(
        batches * (count + 1) * formats.queue_unit_size_bytes, abs=20 * 2
    )
    [ledger] = tmp_path.glob("dledger-*")
    units = written(ledger / "index")
    assert units == pytest.approx(batches * formats.index_unit_size_bytes, abs=32)
    [keys] = [path for path in (tmp_path / "index").iterdir() if path.is_file()]
    assert keys.stat().st_size == formats.key_file_size_bytes + 40


def test_derived_bytes_are_the_sum_of_their_parts() -> None:
    formats = sizes_of(CONFIG)
    units = 11 * (20 + 4 / 256)
    keys = 2 * 10 * (20 + 4 * 1_000 / 4_000 + 4 / 256)
    assert formats.derived_size_bytes(10, 2) == pytest.approx(units + 32 + keys)
    assert formats.derived_size_bytes(10, 0) == pytest.approx(units + 32)


def test_a_long_topic_has_a_longer_field() -> None:
    formats = format_sizes()
    sizes = [formats.record_size_bytes(body=0, topic=n, properties=0) for n in (127, 128)]
    assert sizes == [91 + 127, 91 + 128 + 1]
    assert sizes[1] == len(encode_message("%RETRY%" + "a" * 121, 0, b""))


def test_limits_of_a_plan_are_those_of_the_product() -> None:
    assert (
        format_sizes().window_size_bytes == RaftConfig(group="x", node_id=1).window_size_bytes_max
    )
    assert CLIENT_GROUP_COUNT_MAX == GROUPS_MAX + 1
    assert COPIES_MAX == NODE_COUNT_MAX
    assert LIMITS[Kind.FRAMES].size_bytes_max == IN_FLIGHT_SIZE_BYTES
    assert RaftConfig(group="x", node_id=1).transfer_lag_entry_count_max == LAG_COUNT_MAX


def test_settings_of_this_machine_are_no_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORUMLOG_FILE_SIZE_BYTES", "64KiB")
    assert format_sizes().file_size_bytes == 1 << 30
    assert format_sizes(1 << 26).file_size_bytes == 1 << 26
