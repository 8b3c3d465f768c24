"""RocketMQ's checkpoint file, and the way from durable positions to durable times."""

import struct
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.durability.checkpoint import FILE_NAME, Checkpoint, CheckpointValues, DurableTimes
from store.errors import StoreError, SyncFailedError
from store.files import failpoints
from store.files.file_system import FileSystem
from tests.store.power_loss import PowerLossFileSystem

FS = FileSystem()


def test_the_file_is_rocketmqs(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(FS, str(tmp_path))
    checkpoint.advance(CheckpointValues(5, 4, 3, 2))
    checkpoint.advance(CheckpointValues(confirm_position=1))
    checkpoint.close()
    data = (tmp_path / FILE_NAME).read_bytes()
    assert len(data) == 4096
    assert struct.unpack(">5q", data[:40]) == (5, 4, 3, 2, 1)
    assert data[40:] == bytes(4056)


def test_a_file_of_a_broker_is_read(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(struct.pack(">5q", 9_000, 8_000, 4_000, 7, -1).ljust(4096))
    checkpoint = Checkpoint.open(FS, str(tmp_path))
    assert checkpoint.values == CheckpointValues(9_000, 8_000, 4_000, 7, 0)


def test_a_short_file_counts_as_zero_and_is_made_whole(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"\1" * 39)
    checkpoint = Checkpoint.open(FS, str(tmp_path))
    assert checkpoint.values == CheckpointValues()
    checkpoint.advance(CheckpointValues(physic_unix_ms=7))
    checkpoint.close()
    assert Checkpoint.open(FS, str(tmp_path)).values.physic_unix_ms == 7


def test_fields_only_move_forward(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(FS, str(tmp_path))
    checkpoint.advance(CheckpointValues(physic_unix_ms=50, logics_unix_ms=50))
    checkpoint.advance(CheckpointValues(physic_unix_ms=40, logics_unix_ms=60))
    assert checkpoint.values == CheckpointValues(50, 60)


def test_saving_syncs_once_and_only_what_changed(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(FS, str(tmp_path))
    with failpoints.census() as calls:
        assert not checkpoint.save()
        checkpoint.advance(CheckpointValues(physic_unix_ms=1))
        assert checkpoint.save()
        assert not checkpoint.save()
        checkpoint.close()
    assert (calls["fs.write"], calls["fs.sync"]) == (1, 1)


def test_a_failed_sync_is_raised_and_not_forgotten(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(FS, str(tmp_path))
    checkpoint.advance(CheckpointValues(physic_unix_ms=1))
    with failpoints.armed("fs.sync=EIO"), pytest.raises(SyncFailedError):
        checkpoint.save()
    assert checkpoint.save(), "it does not count as saved"


@pytest.mark.parametrize(
    "failpoint", ["fs.open=ENOSPC", "fs.write=ENOSPC", "fs.sync=EIO", "fs.rename=EIO"]
)
def test_a_creation_that_fails_can_be_repeated(tmp_path: Path, failpoint: str) -> None:
    with failpoints.armed(failpoint), pytest.raises(StoreError):
        Checkpoint.open(FS, str(tmp_path))
    assert not (tmp_path / FILE_NAME).exists()
    Checkpoint.open(FS, str(tmp_path)).close()


@pytest.mark.parametrize("seed", range(10))
def test_a_power_loss_leaves_the_old_or_the_new_values(tmp_path: Path, seed: int) -> None:
    fs = PowerLossFileSystem()
    run = tmp_path / "run"
    run.mkdir()
    checkpoint = Checkpoint.open(fs, str(run))
    checkpoint.advance(CheckpointValues(physic_unix_ms=10, logics_unix_ms=10))
    checkpoint.save()
    checkpoint.advance(CheckpointValues(physic_unix_ms=20, logics_unix_ms=20))
    fs.build_image(str(run), str(tmp_path / "image"), Random(seed))
    reopened = Checkpoint.open(FS, str(tmp_path / "image"))
    assert reopened.values == CheckpointValues(10, 10), "what was not saved is not there"


# --- From positions to times ---

APPENDS = st.lists(st.tuples(st.integers(1, 9), st.integers(-2, 3)), max_size=60)


@given(APPENDS, st.integers(1, 8), st.randoms(use_true_random=False))
def test_a_time_is_durable_only_when_all_its_records_are(
    appends: list[tuple[int, int]], sample_count_max: int, random: Random
) -> None:
    """Against the definition: no record with that time or an older one lies beyond the position."""
    times = DurableTimes(sample_count_max)
    records: list[tuple[int, int]] = []
    end, now, answers = 0, 1000, [0]
    durable = 0
    for size_bytes, step in appends:
        end, now = end + size_bytes, now + step
        times.note(end, now)
        records.append((end, now))
        if random.random() < 0.4:
            durable = random.randint(durable, end)
            answers.append(times.up_to(durable))
            # A clock that stepped back stamps old times again: those the max rule lets through.
            newest, late = 0, []
            for record_end, unix_ms in records:
                newest = max(newest, unix_ms)
                if record_end > durable:
                    late.append(newest)
            assert all(answers[-1] < unix_ms for unix_ms in late)
    assert answers == sorted(answers)
    assert times.up_to(end) >= max([0, *(t for _, t in records)]) - 1, "all durable: up to now"


def test_samples_are_bounded_and_forgetting_is_safe() -> None:
    times = DurableTimes(2)
    for number in range(1, 100):
        times.note(number * 10, number)
    assert times.up_to(10) == 1
    assert times.up_to(980) == 1, "forgotten, so older"
    assert times.up_to(990) == 98, "the newest millisecond may come again"


def test_samples_come_in_the_order_of_the_log() -> None:
    times = DurableTimes()
    times.note(50, 6)
    with pytest.raises(AssertionError, match="noted 49 after"):
        times.note(49, 7)
