"""What scenarios read from the files of a dead node, and what they compute, is right."""

from pathlib import Path
from random import Random

import pytest
from chaos.log_files import durable_mark, end_position, log_files, newest
from chaos.recorder import Recorder
from chaos.scenarios import derived, resources
from chaos.scenarios.membership import longest_pause_ms

from checkers.history import AppendCall, HistoryReceipt, Kind
from store.config import StoreConfig
from store.derived.keys.key_sums import IndexShape
from store.durability.durable_mark import DurableMark, Mark
from store.files.file_system import FileSystem


@pytest.mark.parametrize("folder", ["dledger-n0/data", "commitlog"])
def test_the_end_of_a_log_is_behind_its_last_byte(tmp_path: Path, folder: str) -> None:
    data = tmp_path / folder
    data.mkdir(parents=True)
    (data / "00000000000000000000").write_bytes(b"x" * 4096)
    (data / "00000000000000004096").write_bytes(b"yz" + bytes(4094))
    (data / "00000000000000008192").write_bytes(bytes(4096))  # Made ahead.
    (data / "00000000000000008192.tmp").write_bytes(b"no log file")
    assert [int(path.name) for path in log_files(tmp_path)] == [0, 4096, 8192]
    assert newest(tmp_path) == (data / "00000000000000004096", 2)
    assert end_position(tmp_path) == 4098


def test_the_newer_of_two_marks_counts(tmp_path: Path) -> None:
    fs = FileSystem()
    mark = DurableMark.create(fs, str(tmp_path), Mark(100, 1), interval_ms=0)
    mark.close()
    again = DurableMark.open(fs, str(tmp_path), interval_ms=0, log_is_empty=False)
    assert durable_mark(tmp_path) == again.mark
    assert durable_mark(tmp_path).durable_position == 100
    again.lower(60, 0)
    assert durable_mark(tmp_path).durable_position == 60
    again.close()


def test_the_longest_time_without_a_receipt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr("chaos.scenarios.membership.now_ns", lambda: 10_000_000)
    assert longest_pause_ms(recorder, 4_000_000) == 6.0
    for at_ns in (3_000_000, 5_000_000, 9_000_000):
        monkeypatch.setattr("chaos.recorder.now_ns", lambda at_ns=at_ns: at_ns)
        call = recorder.begin(1, Kind.APPEND, "q0", AppendCall("a"))
        recorder.done(call, HistoryReceipt(0))
    assert longest_pause_ms(recorder, 4_000_000) == 4.0


def test_words_of_a_node_without_descriptors_are_those_that_came_since(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("OSError: [Errno 24] Too many open files\n")
    size_bytes = log.stat().st_size
    assert resources.is_refused_one(log, 0)
    assert not resources.is_refused_one(log, size_bytes)


def test_bits_are_flipped_in_the_field_that_is_named(tmp_path: Path) -> None:
    queue = tmp_path / "consumequeue" / "t" / "0"
    queue.mkdir(parents=True)
    path = queue / "00000000000000000000"
    good = b"\x11" * 20 * 50 + bytes(20 * 10)
    for lo, hi in ((0, 8), (8, 12), (12, 20)):
        path.write_bytes(good)
        count = derived.flip_units(tmp_path, "t", lo, hi, Random(7))
        changed = [
            at for at, (a, b) in enumerate(zip(good, path.read_bytes(), strict=True)) if a != b
        ]
        assert len(changed) == count == derived.DAMAGE_COUNT
        assert all(lo <= at % 20 < hi and at < 20 * 50 for at in changed)


def test_the_slots_of_an_index_file_follow_from_its_size() -> None:
    config = StoreConfig()
    size_bytes = IndexShape(config.index_slot_count, config.index_entry_count).size_bytes
    assert derived.slot_count_of(size_bytes) == config.index_slot_count
    with pytest.raises(AssertionError, match="an index file"):
        derived.slot_count_of(size_bytes + 1)
