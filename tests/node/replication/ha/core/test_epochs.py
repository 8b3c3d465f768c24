"""Epoch lists and the two files: what is consistent, what is refused, what survives."""

import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.replication.ha.core.epochs import EPOCHS_KEPT_MAX, Epochs, Rank
from node.replication.ha.core.types import (
    BindingRefusedError,
    EpochStart,
    HaBinding,
    HaStanding,
    ReplicaState,
)
from node.replication.ha.storage.epoch_file import (
    BINDING_FILE,
    BindingFile,
    EpochFile,
    decode,
    encode,
)
from store.errors import CorruptionError, FileSystemError, LayoutError
from store.files.file_system import FileSystem
from store.files.meta_file import MetaFile


def epochs(*entries: tuple[int, int]) -> Epochs:
    return Epochs(EpochStart(*entry) for entry in entries)


class Fails(FileSystem):
    """Every rename after the first `count` fails, as when the process dies there."""

    def __init__(self, count: int) -> None:
        self.left = count

    def rename(self, source: str, target: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise FileSystemError("rename", source, 5)
        super().rename(source, target)


# The list.


def test_consistent_point_is_the_smaller_end_of_the_highest_common_epoch() -> None:
    mine, theirs = epochs((1, 0), (3, 500)), epochs((1, 0), (3, 500), (4, 700))
    assert mine.consistent_point(900, theirs, 1000) == 700
    assert mine.consistent_point(600, theirs, 1000) == 600
    assert epochs((1, 0), (2, 400)).consistent_point(900, theirs, 1000) == 400
    assert epochs((1, 0), (2, 600)).consistent_point(900, theirs, 1000) == 500
    assert epochs((3, 501)).consistent_point(900, theirs, 1000) is None
    assert epochs().consistent_point(900, theirs, 1000) is None


def test_an_empty_epoch_gives_way_to_the_next() -> None:
    history = epochs((1, 0))
    history.append(2, 500)
    history.append(3, 500)
    assert history.entries == ((1, 0), (3, 500))
    # The log of epoch 2 that went on in secret shares nothing from 500 on.
    assert epochs((1, 0), (2, 500)).consistent_point(800, history, 900) == 500


def test_truncation_keeps_an_epoch_that_begins_at_the_point_if_both_have_it() -> None:
    mine = epochs((1, 0), (4, 500), (6, 800))
    mine.truncate(500, epochs((1, 0), (4, 500), (7, 500 + 1)))
    assert mine.entries == ((1, 0), (4, 500))
    mine.truncate(500, epochs((1, 0), (5, 500)))
    assert list(mine.entries) == [(1, 0)]


def test_adoption_goes_as_far_as_the_log() -> None:
    mine, theirs = epochs((1, 0)), epochs((1, 0), (3, 500), (4, 700))
    assert not mine.adopt(theirs, 499)
    assert mine.adopt(theirs, 500)
    assert mine.entries == ((1, 0), (3, 500))
    assert mine.rank(500) == Rank(3, 500) > epochs((2, 0)).rank(9000)


def test_at_trim_and_end() -> None:
    history = epochs((1, 100), (3, 500))
    assert [history.at(p).number for p in (99, 100, 499, 500, 900)] == [0, 1, 1, 3, 3]
    assert (history.end_of(1, 900), history.end_of(3, 900)) == (500, 900)
    assert not history.trim(500)
    assert history.trim(499)
    assert history.entries == ((1, 100),)


def test_the_oldest_epochs_are_forgotten_at_the_limit() -> None:
    history = Epochs()
    for number in range(1, EPOCHS_KEPT_MAX + 3):
        history.append(number, number * 10)
    assert len(history.entries) == EPOCHS_KEPT_MAX
    assert history.entries[0].number == 3


# The epoch file.


def test_form_is_that_of_the_table() -> None:
    lines = b"3-0\n5-1024\n"
    crc = zlib.crc32(lines) & 0x7FFFFFFF
    assert encode(epochs((3, 0), (5, 1024))) == b"2\n%d\n" % crc + lines
    assert decode("f", b"2\n0\n" + lines).entries == ((3, 0), (5, 1024))  # 0: not verified.
    assert decode("f", b"2\n0\n" + lines[:-1]).entries == ((3, 0), (5, 1024))


@given(st.lists(st.tuples(st.integers(1, 2**31 - 1), st.integers(0, 2**63 - 1)), max_size=20))
def test_text_round_trip(pairs: list[tuple[int, int]]) -> None:
    numbers, starts = sorted({p[0] for p in pairs}), sorted({p[1] for p in pairs})
    history = Epochs(EpochStart(*pair) for pair in zip(numbers, starts, strict=False))
    assert decode("f", encode(history)).entries == history.entries


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"x\n0\n",
        b"1\n0\n",
        b"2\n0\n3-0\n",
        b"1\n5\n3-0\n",
        b"1\n0\n3\n",
        b"1\n0\n3-0-1\n",
        b"2\n0\n3-0\n3-9\n",
        b"2\n0\n3-9\n4-9\n",
        b"1\n0\n" + b"3-0\n" * 20_000,
    ],
)
def test_damage_is_reported(text: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode("f", text)


def test_file_survives_a_failure_at_every_rename(tmp_path: Path) -> None:
    directory = str(tmp_path)
    EpochFile(FileSystem(), directory).save(epochs((1, 0)))
    for count, number in ((0, 2), (1, 3)):
        with pytest.raises(FileSystemError):
            EpochFile(Fails(count), directory).save(epochs((1, 0), (number, 50)))
        assert EpochFile(FileSystem(), directory).load().entries == ((1, 0),)
    EpochFile(FileSystem(), directory).save(epochs((1, 0), (4, 50)))
    assert EpochFile(FileSystem(), directory).load().entries == ((1, 0), (4, 50))


def test_a_damaged_file_is_not_replaced_by_its_backup(tmp_path: Path) -> None:
    file = EpochFile(FileSystem(), str(tmp_path))
    assert file.load().entries == ()
    file.save(epochs((1, 0)))
    file.save(epochs((1, 0), (2, 10)))
    assert Path(file.path + ".bak").read_bytes() == encode(epochs((1, 0)))
    Path(file.path).write_bytes(b"2\n1\n1-0\n2-10\n")
    with pytest.raises(CorruptionError):
        file.load()


# The binding.

FIRST = ReplicaState(HaBinding(5, 1, 111), HaStanding.FULL, 7)


def test_a_number_is_bound_to_the_first_pair_for_ever(tmp_path: Path) -> None:
    file = BindingFile(FileSystem(), str(tmp_path))
    assert file.load(must_exist=False) is None
    file.save(FIRST)
    for other in (HaBinding(5, 2, 111), HaBinding(5, 1, 112), HaBinding(4, 1, 111)):
        with pytest.raises(BindingRefusedError) as caught:
            file.save(FIRST._replace(bound=other))
        assert caught.value.bound == FIRST.bound
    again = BindingFile(FileSystem(), str(tmp_path))
    assert again.load(must_exist=True) == FIRST
    stored = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again.save(FIRST)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == stored, "nothing is new"
    with pytest.raises(BindingRefusedError):
        again.save(FIRST._replace(bound=HaBinding(5, 2, 111)))
    higher = FIRST._replace(bound=HaBinding(6, 2, 1 << 63), standing=HaStanding.JOINING)
    again.save(higher)
    last = BindingFile(FileSystem(), str(tmp_path))
    assert last.load(must_exist=True) == higher


@pytest.mark.parametrize("wrong", [{"standing": 99}, {"number": "5"}, {"mode": "later"}])
def test_a_binding_of_another_shape_is_an_error(tmp_path: Path, wrong: dict[str, Any]) -> None:
    file = BindingFile(FileSystem(), str(tmp_path))
    file.load(must_exist=False)
    file.save(FIRST)
    meta = MetaFile(FileSystem(), str(tmp_path), BINDING_FILE)
    binding = meta.load(must_exist=True)
    assert binding is not None
    meta.save(binding | wrong)
    with pytest.raises(LayoutError, match="standing"):
        BindingFile(FileSystem(), str(tmp_path)).load(must_exist=True)
