"""The log of a replica: whose it is, what it remembers, what it takes from others.

The store below is in tests/store/replicated/test_shipped_store.py, the state above in
test_log_state.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.sender import HaProtocolError
from node.replication.ha.core.types import AckMode, EpochStart, HaBinding, HaSettings, HaStanding
from node.replication.ha.storage.epoch_file import EPOCH_FILE
from node.replication.ha.storage.log import HaLog, ImageNeededError
from node.replication.ha.storage.replica_file import GroupChangedError
from node.runtime.identity import IdentityMismatchError
from store.errors import CorruptionError, LayoutError
from tests.node.ledger_cluster import open_log as open_ledger_log
from tests.node.replication.ha.ha_logs import (
    FILE,
    GROUP,
    Replica,
    log_bytes,
    open_log,
    topic_command,
)
from tests.store.records import batch
from tests.store.shipped_stores import killed

# --- Whose it is ---


def test_a_new_disk_counts_for_nothing_until_somebody_decides(tmp_path: Path) -> None:
    with open_log(tmp_path / "s") as log:
        assert log.is_new
        assert log.replica.standing is HaStanding.JOINING
        first = log.replica.incarnation
        assert log.end == log.store.durable_position == log.min_position == 0
    with open_log(tmp_path / "s") as log:
        assert log.is_new, "nothing was promised"
        assert log.replica.incarnation != first
        kept = log.replica._replace(
            bound=HaBinding(4, 2, 77), standing=HaStanding.FULL, mode=AckMode.ASYNC
        )
        log.save_state(kept)
    with open_log(tmp_path / "s") as log:
        assert not log.is_new
        assert log.replica == kept


def test_another_cluster_group_or_node_is_refused(tmp_path: Path) -> None:
    open_log(tmp_path / "s").close()
    wrong: list[Callable[[], HaLog]] = [
        lambda: open_log(tmp_path / "s", 2),
        lambda: open_log(tmp_path / "s", cluster_id="d"),
        lambda: open_log(tmp_path / "s", group=GROUP._replace(group="h")),
    ]
    for attempt in wrong:
        with pytest.raises(IdentityMismatchError, match="belongs to"):
            attempt()
    open_log(tmp_path / "s").close()


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (GROUP._replace(copies=3), "copies"),
        (GROUP._replace(replica_ids=(1, 2)), "replicas"),
        (GROUP._replace(replica_ids=(1, 2, 3, 4)), "replicas"),
    ],
)
def test_a_changed_group_takes_a_fenced_step(
    tmp_path: Path, changed: HaSettings, name: str
) -> None:
    """fault-matrix C3: other numbers would make fences that do not meet what was acked."""
    open_log(tmp_path / "s").close()
    with pytest.raises(GroupChangedError, match=name) as error:
        open_log(tmp_path / "s", group=changed)
    assert error.value.code == "ha.group_changed"
    open_log(tmp_path / "s").close()


def test_the_directory_of_the_other_mode_is_refused(tmp_path: Path) -> None:
    open_log(tmp_path / "s").close()
    with pytest.raises(LayoutError, match="master-slave"):
        open_ledger_log(tmp_path / "s", 1)
    open_ledger_log(tmp_path / "r", 1).close()
    with pytest.raises(LayoutError, match="cluster's node"):
        open_log(tmp_path / "r")


@pytest.mark.parametrize("name", ["haBinding.1", "haReplica.1"])
def test_a_log_without_what_was_promised_is_refused(tmp_path: Path, name: str) -> None:
    with Replica(tmp_path / "s") as replica:
        replica.begin_epoch(1)
        replica.put(0)
    (tmp_path / "s" / name).unlink()
    with pytest.raises(LayoutError):
        open_log(tmp_path / "s")


# --- Epochs ---


def test_epochs_are_never_of_bytes_that_are_not_there(tmp_path: Path) -> None:
    with Replica(tmp_path / "s") as replica:
        replica.begin_epoch(1)
        end = replica.put(0)
        replica.sync()
        epochs = Epochs(replica.log.epochs.entries)
        epochs.append(2, end)
        epochs.append(3, end + 100)  # Taken over before the bytes of epoch 2 came.
        replica.log.save_epochs(epochs)
        image = killed(tmp_path / "s", tmp_path / "image")
    for _ in range(2):
        with open_log(image) as log:
            assert log.end == end
            assert log.epochs.entries == (EpochStart(1, 0), EpochStart(2, end))
            assert log.epoch_at(end - 1) == EpochStart(1, 0)
        assert b"\n3-" not in (image / EPOCH_FILE).read_bytes()


def test_damaged_epochs_stop_the_start(tmp_path: Path) -> None:
    with Replica(tmp_path / "s") as replica:
        replica.begin_epoch(1)
        replica.put(0)
    (tmp_path / "s" / EPOCH_FILE).write_bytes(b"1\n77\n1-0\n")
    with pytest.raises(CorruptionError):
        open_log(tmp_path / "s")


# --- Crashes of the process ---


def test_unsynced_records_are_dropped_at_opening(tmp_path: Path) -> None:
    """It may be half of a batch, and nobody was promised it."""
    with Replica(tmp_path / "s") as replica:
        replica.begin_epoch(1)
        ends = replica.fill(0, 15)
        replica.confirm(ends[2])
        half = replica.log.prepare(batch(30, 33) + topic_command("half")).content
        replica.log.append(replica.log.prepare(batch(30, 33) + topic_command("half")))
        image = killed(tmp_path / "s", tmp_path / "image")
        before = log_bytes(replica.log)
    file = image / "commitlog" / f"{0:020d}"
    data, cut = file.read_bytes(), half.record_positions[2] + 50
    file.write_bytes(data[:cut] + bytes(len(data) - cut))
    with Replica(image) as again:
        assert again.log.end == again.log.store.durable_position == ends[-1]
        assert log_bytes(again.log) == before[: ends[-1]]
        assert again.log.prepare(batch(30, 31)).queues == {(b"orders", 0): (15, 1)}


def test_all_that_is_whole_stays_after_a_power_loss_and_a_kill(tmp_path: Path) -> None:
    """The mark may be older than what was promised to the others; opening promises it."""
    with Replica(tmp_path / "s") as replica:
        replica.begin_epoch(1)
        replica.fill(0, 30)
        replica.sync()
        end = replica.fill(30, 36)[-1]
        image = killed(tmp_path / "s", tmp_path / "image")
    (image / "boot_id").write_text("of before\n")
    with open_log(image) as log:
        assert log.end == log.store.durable_position == end
        again = killed(image, tmp_path / "again")
    with open_log(again) as log:
        assert log.end == end


def test_a_log_of_which_nothing_was_synced_begins_again_at_0(tmp_path: Path) -> None:
    """From the master's stream, or with an image where that begins later."""
    with Replica(tmp_path / "m") as master, Replica(tmp_path / "s", 2) as slave:
        master.begin_epoch(1)
        slave.log.save_state(slave.log.replica)
        master.fill(0, 90)
        master.confirm()
        stop = master.log.ship_end(0, master.log.end, 3000)
        data = master.log.store.shipped.read_raw(0, stop)
        assert slave.log.store.has_room(len(data))
        slave.log.store.write_raw(slave.log.check_raw(0, data))
        images = [killed(tmp_path / "s", tmp_path / name) for name in ("stream", "image")]
    with Replica(tmp_path / "m") as master, Replica(images[0], 2) as slave:
        assert slave.log.end == 0
        slave.catch_up(master)
        assert slave.seen == master.seen
    with Replica(tmp_path / "m") as master, Replica(images[1], 2) as slave:
        slave.state.take_image(master.state.make_image()())
        slave.catch_up(master)
        assert slave.seen == master.seen


# --- What it takes from others ---


def test_bytes_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    with Replica(tmp_path / "m") as master, Replica(tmp_path / "s", 2) as slave:
        master.begin_epoch(1)
        ends = master.fill(0, 12)
        slave.follow(master, ends[1])
        before = log_bytes(slave.log)
        data = master.log.store.shipped.read_raw(ends[1], ends[2])
        for position, body in [
            (ends[1], data[:-1]),
            (ends[1], data[:99] + bytes([data[99] ^ 1]) + data[100:]),
            (ends[1], b""),
            (ends[2], master.log.store.shipped.read_raw(ends[2], ends[3])),
            (ends[0], master.log.store.shipped.read_raw(ends[0], ends[1])),
        ]:
            with pytest.raises(HaProtocolError):
                slave.log.check_raw(position, body)
        assert log_bytes(slave.log) == before
        slave.log.store.write_raw(slave.log.check_raw(ends[1], memoryview(data)))
        assert slave.log.end == ends[2]


def test_an_empty_log_does_not_begin_in_the_middle(tmp_path: Path) -> None:
    with Replica(tmp_path / "m") as master, Replica(tmp_path / "s", 2) as slave:
        master.begin_epoch(1)
        master.fill(0, 90)
        stop = master.log.ship_end(FILE, master.log.end, 3000)
        with pytest.raises(ImageNeededError) as error:
            slave.log.check_raw(FILE, master.log.store.shipped.read_raw(FILE, stop))
        assert error.value.position == FILE
        assert slave.log.end == 0
        slave.follow(master)


def test_a_log_that_was_emptied_begins_with_an_image_only(tmp_path: Path) -> None:
    """Its queue offsets are those of a history with nothing in common."""
    with Replica(tmp_path / "m") as master, Replica(tmp_path / "s", 2) as slave:
        for replica, number in ((master, 1), (slave, 2)):
            replica.lead(number, 0, 90)
            replica.delete_below(FILE)
        slave.cut(FILE, master)
        with pytest.raises(ImageNeededError):
            slave.log.check_raw(FILE, b"")
    with Replica(tmp_path / "m") as master, Replica(tmp_path / "s", 2) as slave:
        assert (slave.log.end, slave.log.min_position) == (FILE, FILE)
        stop = master.log.ship_end(FILE, master.log.end, 3000)
        with pytest.raises(ImageNeededError):
            slave.log.check_raw(FILE, master.log.store.shipped.read_raw(FILE, stop))
        slave.state.take_image(master.state.make_image()())
        slave.catch_up(master)
        assert (slave.seen, slave.topics) == (master.seen, master.topics)
