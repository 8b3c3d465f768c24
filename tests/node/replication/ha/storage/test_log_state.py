"""The state over a log without entries: what it begins with, what a cut takes back, and images."""

from pathlib import Path

import pytest

from node.replication.ha.applied import AppliedState
from node.replication.ha.core.sender import HaProtocolError
from node.replication.ha.core.types import EpochStart
from node.replication.ha.storage.image import decode
from store.errors import FileSystemError, PositionRangeError, StoreFullError
from store.files import failpoints
from store.log.cut_file import CutFile
from tests.node.replication.ha.ha_logs import FILE, LIMITS, Replica, log_bytes
from tests.store.shipped_stores import killed


def names(lo: int, hi: int) -> set[str]:
    """Topics that the commands of records [lo, hi) make."""
    return {f"t{at}" for at in range(lo, hi, 3)}


def master_at(root: Path, *, epoch: int = 1, hi: int = 60) -> tuple[Replica, list[int]]:
    replica = Replica(root)
    replica.begin_epoch(epoch)
    return replica, replica.fill(0, hi)


# --- Applying ---


def test_the_state_follows_what_readers_see(tmp_path: Path) -> None:
    replica, ends = master_at(tmp_path / "m")
    with replica:
        assert (replica.state.applied, replica.topics) == (0, set())
        assert not replica.state.wants_image
        replica.confirm(ends[3])
        assert replica.state.applied == ends[3] == replica.state.machine.applied_index + 1
        assert (replica.seen, replica.topics) == (list(range(12)), names(0, 12))
        replica.state.apply(ends[1])  # A new master begins low.
        assert (replica.state.applied, replica.topics) == (ends[3], names(0, 12))
        replica.confirm()
        assert (replica.state.applied, replica.topics) == (replica.log.end, names(0, 60))
        assert not replica.state.wants_image


def test_a_queue_that_cannot_grow_is_tried_again(tmp_path: Path) -> None:
    replica, ends = master_at(tmp_path / "m")
    with replica:
        replica.confirm(ends[3])
        with failpoints.armed("fs.write=ENOSPC"), pytest.raises(StoreFullError):
            replica.confirm()
        replica.confirm()
        assert (replica.seen, replica.topics) == (list(range(60)), names(0, 60))


# --- Checkpoints ---


def test_a_restart_goes_on_with_a_checkpoint(tmp_path: Path) -> None:
    replica, ends = master_at(tmp_path / "m")
    with replica:
        replica.confirm(ends[3])
        assert replica.checkpoint() == ends[3] == replica.state.checkpoint_position
        assert replica.checkpoint() == 0, "nothing is new"
        replica.confirm(ends[5])
        image = killed(tmp_path / "m", tmp_path / "image")
    with Replica(image) as again:
        assert (again.state.applied, again.topics) == (ends[3], names(0, 12))
        again.confirm()
        assert again.topics == names(0, 60)


@pytest.mark.parametrize("checkpoint", [0, 3, 9])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_cut_below_what_was_applied_takes_the_state_back(
    tmp_path: Path, checkpoint: int, is_killed: bool
) -> None:
    """From a checkpoint at or below the cut, or from the log's beginning."""
    old, ends = master_at(tmp_path / "m")
    with old, Replica(tmp_path / "n", 2) as new:
        new.follow(old, ends[5])
        new.lead(2, 300, 360, size_bytes=500)
        if checkpoint:
            old.confirm(ends[checkpoint])
            old.checkpoint()
        old.confirm()
        old.cut(ends[5], new)
        assert (old.state.applied, old.topics) == (ends[5], names(0, 18))
        assert old.seen == list(range(18))
        old.follow(new)
        # So long that the checkpoint of the history that is gone would look like one of this.
        assert old.log.end > ends[9]
        old.confirm(ends[5] if is_killed else 0)
        image = killed(tmp_path / "m", tmp_path / "image")
        for root in (image, None):
            replica = old if root is None else Replica(root)
            replica.confirm()
            assert replica.topics == new.topics == names(0, 18) | names(300, 360)
            assert replica.seen == new.seen
            assert replica.state.machine.image() == new.state.machine.image()
            if root is not None:
                replica.close()


@pytest.mark.parametrize(("applied", "announced"), [(4, 4), (5, 8)])
def test_a_cut_above_what_was_applied_leaves_the_state(
    tmp_path: Path, applied: int, announced: int
) -> None:
    """Commands that a dispatch announced, which a full disk stopped half-way, go with the cut."""
    old, ends = master_at(tmp_path / "m")
    with old, Replica(tmp_path / "n", 2) as new:
        new.follow(old, ends[5])
        new.begin_epoch(2)
        new.fill(300, 330, size_bytes=430)
        old.confirm(ends[applied])
        old.log.store.dispatch_to(ends[announced])
        old.cut(ends[5], new)
        assert old.topics == names(0, 3 * applied + 3)
        old.catch_up(new)
        assert old.topics == names(0, 18) | names(300, 330)


def test_no_file_goes_that_a_restart_would_have_to_apply(tmp_path: Path) -> None:
    old, ends = master_at(tmp_path / "m")
    with old, Replica(tmp_path / "n", 2) as new:
        assert old.state.checkpoint_position == 0
        new.follow(old, ends[5])
        new.begin_epoch(2)
        new.fill(300, 360)
        old.confirm()
        old.checkpoint()
        assert old.state.checkpoint_position == ends[-1]
        old.cut(ends[5], new)
        assert old.state.checkpoint_position == 0, "it is of a history that is gone"
        old.follow(new)
        assert old.state.checkpoint_position == 0
        old.confirm()
        old.checkpoint()
        assert old.state.checkpoint_position == new.log.end


# --- Images ---


def shortened(root: Path, *, hi: int = 120) -> Replica:
    """A master whose first file is gone."""
    master, _ = master_at(root, hi=hi)
    master.confirm()
    master.delete_below(FILE)
    return master


def test_a_new_replica_begins_where_the_master_does(tmp_path: Path) -> None:
    with shortened(tmp_path / "m") as master, Replica(tmp_path / "s", 2) as slave:
        image = master.state.make_image()()
        more = master.put(120)
        master.confirm()
        slave.state.take_image(image)
        assert slave.log.min_position == slave.log.end == slave.log.store.durable_position == FILE
        assert (slave.state.is_missing, slave.state.wants_image) == (True, False)
        assert slave.state.checkpoint() is None
        reached = decode(image).position
        slave.catch_up(master, master.log.ship_end(FILE, reached, 5000))
        assert (slave.topics, slave.state.applied) == (set(), 0), "the image is of later"
        slave.catch_up(master, reached)
        assert (slave.topics, slave.state.applied) == (names(0, 120), reached)
        slave.catch_up(master, more)
        assert slave.topics == master.topics == names(0, 123)
        assert slave.seen == master.seen
        assert slave.seen[0] > 0
        assert log_bytes(slave.log) == log_bytes(master.log)
        assert slave.checkpoint() == more
        assert slave.state.make_image()()
    with Replica(tmp_path / "s", 2) as slave:
        assert (slave.topics, slave.state.is_missing) == (names(0, 123), False)


def test_a_restart_before_the_image_was_reached_asks_for_another(tmp_path: Path) -> None:
    with shortened(tmp_path / "m") as master:
        with Replica(tmp_path / "s", 2) as slave:
            slave.state.take_image(master.state.make_image()())
            slave.catch_up(master, master.log.ship_end(FILE, master.log.end, 5000))
        with Replica(tmp_path / "s", 2) as slave:
            assert (slave.state.is_missing, slave.state.wants_image) == (True, True)
            slave.catch_up(master)
            assert slave.seen == master.seen
            slave.state.take_image(master.state.make_image()())
            assert (slave.topics, slave.state.is_missing) == (master.topics, False)


def test_a_cut_below_the_checkpoint_of_a_shortened_log_needs_an_image(tmp_path: Path) -> None:
    """The old master of an asynchronous group, say."""
    with shortened(tmp_path / "m") as old, Replica(tmp_path / "n", 2) as new:
        new.state.take_image(old.state.make_image()())
        new.catch_up(old)
        lost = old.log.end
        old.put(120)
        old.confirm()
        old.checkpoint()
        new.lead(2, 300, 330)
        old.cut(lost, new)
        assert (old.state.is_missing, old.state.wants_image) == (True, True)
        assert old.topics == set()
        old.catch_up(new)
        assert old.seen == new.seen
        old.state.take_image(new.state.make_image()())
        assert (old.topics, old.state.is_missing) == (new.topics, False)


def test_an_image_of_a_history_that_ended_is_dropped(tmp_path: Path) -> None:
    with shortened(tmp_path / "m") as old, Replica(tmp_path / "n", 2) as new:
        new.state.take_image(old.state.make_image()())
        new.catch_up(old)
        begin = new.log.ship_end(FILE, new.log.end, 5000)
        old.put(120)
        old.confirm()
        image = old.state.make_image()()
        assert decode(image).epoch == EpochStart(1, 0)
        with Replica(tmp_path / "s", 3) as slave:
            slave.state.take_image(image)
            slave.follow(old, begin)
            assert (slave.state.is_missing, slave.state.wants_image) == (True, False)
            new.lead(2, 300, 330)  # The old one died, and record 120 with it.
            slave.catch_up(new)
            assert slave.state.wants_image
            assert "t120" not in slave.topics
            slave.state.take_image(new.state.make_image()())
            assert slave.topics == new.topics


def test_an_image_is_not_made_beside_a_deletion(tmp_path: Path) -> None:
    master, _ = master_at(tmp_path / "m", hi=120)
    with master:
        master.confirm()
        make = master.state.make_image()
        master.delete_below(FILE)
        with pytest.raises(PositionRangeError):
            make()
        assert decode(master.state.make_image()()).begin == FILE


def test_bytes_that_are_no_image_are_refused(tmp_path: Path) -> None:
    with shortened(tmp_path / "m") as master, Replica(tmp_path / "s", 2) as slave:
        good = master.state.make_image()()
        for at in (0, 9, 30, len(good) // 2, len(good) - 1):
            bad = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
            with pytest.raises(HaProtocolError):
                slave.state.take_image(bad)
        for bad in (b"", good[:20], good[:-1], good + b"x"):
            with pytest.raises(HaProtocolError):
                slave.state.take_image(bad)
        assert (slave.log.end, slave.log.min_position) == (0, 0)
        slave.state.take_image(good)
        assert slave.log.end == FILE


def test_an_image_that_nobody_needs_any_more_changes_nothing(tmp_path: Path) -> None:
    master, _ = master_at(tmp_path / "m")
    with master, Replica(tmp_path / "s", 2) as slave:
        master.confirm()
        slave.catch_up(master)
        slave.state.take_image(master.state.make_image()())
        assert slave.topics == master.topics
        again = AppliedState(slave.log, slave.fs, LIMITS)
        assert again.machine.state.topics.keys() == master.topics


def test_a_loss_is_reported_before_the_cut(tmp_path: Path) -> None:
    """Else a crash in between would lose acked messages without a word."""
    old, ends = master_at(tmp_path / "m")
    with old:
        end, seen = old.log.end, []

        def report(aside: CutFile) -> None:
            seen.append((aside.lo, aside.hi, old.log.end, Path(aside.path).exists()))
            if len(seen) == 1:
                raise FileSystemError("write", "haLosses.0", 28)

        with pytest.raises(FileSystemError):
            old.state.cut(ends[5], end, 1, report)
        assert old.log.end == end, "nothing was cut"
        old.state.cut(ends[5], end, 1, report)
        assert old.log.end == ends[5]
        assert seen == [(ends[5], end, end, True)] * 2


def test_a_log_that_begins_anew_behind_a_checkpoint_has_no_state_of_it(tmp_path: Path) -> None:
    """The checkpoint is of this history, but what follows it here was deleted by the master."""
    master, ends = master_at(tmp_path / "m")
    with master, Replica(tmp_path / "s", 2) as slave:
        slave.catch_up(master, ends[5])
        assert slave.checkpoint() == ends[5] < FILE
        assert slave.topics == names(0, 18)
        master.fill(60, 120)
        master.confirm()
        master.delete_below(FILE)
        slave.state.take_image(master.state.make_image()(), lambda begin: True)
        assert (slave.log.min_position, slave.state.is_missing) == (FILE, True)
        assert (slave.state.applied, slave.topics) == (0, set())
        slave.catch_up(master)
        assert slave.topics == master.topics


def test_an_image_serves_once(tmp_path: Path) -> None:
    """A state that a cut takes away again needs another one, before the next epoch is seen."""
    with shortened(tmp_path / "m") as first, Replica(tmp_path / "n", 2) as second:
        parted = first.log.end
        second.state.take_image(first.state.make_image()())
        second.follow(first)
        second.lead(2, 300, 330)
        first.put(120)  # The second one has not heard of it, nor it of the second one.
        with Replica(tmp_path / "s", 3) as slave:
            slave.state.take_image(second.state.make_image()())
            slave.catch_up(second)
            assert (slave.topics, slave.state.is_missing) == (second.topics, False)
            slave.cut(parted, first)
            assert slave.log.epochs.last.number == 1
            assert (slave.state.is_missing, slave.state.wants_image) == (True, True)


def test_the_last_image_says_how_an_empty_log_begins(tmp_path: Path) -> None:
    """The first one came from a master that ended before it shipped anything."""
    gone, other = shortened(tmp_path / "g"), Replica(tmp_path / "o")
    with gone, other, Replica(tmp_path / "s", 2) as slave:
        other.begin_epoch(1)
        for at in range(0, 120, 3):
            other.put(at, size_bytes=700)
        other.confirm()
        other.delete_below(FILE)
        slave.state.take_image(gone.state.make_image()())
        assert (slave.log.end, slave.log.is_empty) == (FILE, True)
        slave.state.take_image(other.state.make_image()())
        slave.catch_up(other)
        assert other.seen[0] != gone.seen[0]
        assert slave.seen == other.seen
        assert slave.log.store.reads.queue_range("orders", 0) == other.log.store.reads.queue_range(
            "orders", 0
        )
