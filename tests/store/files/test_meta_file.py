"""Small files that are replaced as a whole (S12): the old one or the new one, or a refusal."""

import shutil
from pathlib import Path
from random import Random

import pytest

from store.errors import (
    CorruptionError,
    FileSystemError,
    LayoutError,
    LimitExceededError,
    StoreError,
    StoreFullError,
    SyncFailedError,
)
from store.files import failpoints
from store.files.file_system import FileSystem
from store.files.meta_file import META_SIZE_BYTES_MAX, Json, MetaFile
from store.files.staging import TEMPORARY_SUFFIX
from tests.store.overwrites import bit_flips
from tests.store.power_loss import PowerLossFileSystem

FS = FileSystem()


def load(path: Path, *, must_exist: bool = True) -> dict[str, Json] | None:
    return MetaFile(FS, str(path), "vote").load(must_exist=must_exist)


def saved(path: Path, count: int) -> MetaFile:
    """Save terms 1 to `count`. Generation 1 is a copy of the first one, generation 2."""
    meta = MetaFile(FS, str(path), "vote")
    meta.load(must_exist=False)
    for term in range(1, count + 1):
        assert meta.save({"term": term, "vote": f"n{term}"}) == term + 1
    return meta


def newest(count: int) -> str:
    """The file that holds the term `count` after that many saves."""
    return f"vote.{(count + 1) % 2}"


def test_the_newest_is_returned_and_two_generations_are_kept(tmp_path: Path) -> None:
    for count in (1, 2, 3, 4):
        path = tmp_path / str(count)
        path.mkdir()
        saved(path, count)
        assert load(path) == {"term": count, "vote": f"n{count}"}
        names = sorted(entry.name for entry in path.iterdir())
        assert names == ["vote.0", "vote.1"]


def test_the_file_can_be_read_by_people(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    for generation in (1, 2):
        text = (tmp_path / f"vote.{generation % 2}").read_text()
        head, _, payload = text.partition("\n")
        assert head.split()[:4] == ["quorumlog-meta", "1", str(generation), str(len(payload))]
        assert payload == '{\n "term": 1,\n "vote": "n1"\n}'


def test_an_absent_file_is_none_unless_it_must_exist(tmp_path: Path) -> None:
    assert load(tmp_path, must_exist=False) is None
    with pytest.raises(LayoutError, match="no such file"):
        load(tmp_path)


def test_a_save_without_a_load_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="before it was loaded"):
        MetaFile(FS, str(tmp_path), "vote").save({})


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_bit_flip_of_the_newest_is_refused(tmp_path: Path, count: int) -> None:
    """The other generation may be older than a vote, so it is never an answer."""
    saved(tmp_path, count)
    path = tmp_path / newest(count)
    original = path.read_bytes()
    for _, data in bit_flips(original):
        path.write_bytes(data)
        with pytest.raises(CorruptionError):
            load(tmp_path)
    path.write_bytes(original)
    assert load(tmp_path) == {"term": count, "vote": f"n{count}"}


def test_every_cut_of_the_newest_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    path = tmp_path / newest(3)
    original = path.read_bytes()
    for size_bytes in range(len(original)):
        path.write_bytes(original[:size_bytes])
        with pytest.raises(CorruptionError):
            load(tmp_path)
    path.write_bytes(original + b"x")
    with pytest.raises(CorruptionError, match="payload size"):
        load(tmp_path)


def test_damage_in_the_older_one_matters_only_if_it_might_be_the_newest(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    older = tmp_path / newest(2)
    original = older.read_bytes()
    older.write_bytes(original[:-3] + b"x" + original[-2:])
    assert load(tmp_path) == {"term": 3, "vote": "n3"}, "its header says that it is older"
    older.write_bytes(b"?" + original[1:])
    with pytest.raises(CorruptionError, match="header"):
        load(tmp_path)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("lost", ["vote.0", "vote.1"])
def test_a_lost_generation_is_refused(tmp_path: Path, lost: str, count: int) -> None:
    saved(tmp_path, count)
    (tmp_path / lost).unlink()
    with pytest.raises(LayoutError, match="no such file"):
        load(tmp_path)


def test_a_first_save_that_was_cut_short_is_finished(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    (tmp_path / "vote.0").unlink()
    assert load(tmp_path, must_exist=False) == {"term": 1, "vote": "n1"}
    assert load(tmp_path, must_exist=True) == {"term": 1, "vote": "n1"}


@pytest.mark.parametrize("nth", [1, 2])
def test_a_first_save_that_fails_leaves_nothing(tmp_path: Path, nth: int) -> None:
    meta = MetaFile(FS, str(tmp_path), "vote")
    meta.load(must_exist=False)
    with failpoints.armed(f"fs.write=ENOSPC@{nth}"), pytest.raises(StoreFullError):
        meta.save({"term": 1})
    assert load(tmp_path, must_exist=False) is None
    assert meta.save({"term": 2}) == 2
    assert load(tmp_path) == {"term": 2}


def test_generations_of_different_times_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    shutil.copy(tmp_path / "vote.0", tmp_path / "backup")
    meta = MetaFile(FS, str(tmp_path), "vote")
    meta.load(must_exist=True)
    for term in range(2, 7):
        meta.save({"term": term})
    shutil.copy(tmp_path / "backup", tmp_path / "vote.0")
    with pytest.raises(CorruptionError, match="generation is 2, expected 6"):
        load(tmp_path)
    shutil.copy(tmp_path / "backup", tmp_path / "vote.1")
    with pytest.raises(CorruptionError, match="generation"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("failpoint", "error"),
    [
        ("fs.open=ENOSPC", StoreFullError),
        ("fs.write=ENOSPC", StoreFullError),
        ("fs.write=short", StoreFullError),
        ("fs.rename=EIO", FileSystemError),
        ("meta_file.before_rename=EIO", OSError),
    ],
)
def test_a_save_that_fails_changes_nothing(
    tmp_path: Path, failpoint: str, error: type[Exception]
) -> None:
    meta = saved(tmp_path, 3)
    with failpoints.armed(failpoint), pytest.raises(error):
        meta.save({"term": 99})
    assert load(tmp_path) == {"term": 3, "vote": "n3"}
    assert not list(tmp_path.glob("*" + TEMPORARY_SUFFIX))
    assert meta.save({"term": 4}) == 5
    assert load(tmp_path) == {"term": 4}


@pytest.mark.parametrize("failpoint", ["fs.sync=EIO", "fs.sync_directory=EIO"])
def test_a_failed_sync_is_final(tmp_path: Path, failpoint: str) -> None:
    meta = saved(tmp_path, 3)
    with failpoints.armed(failpoint), pytest.raises(SyncFailedError):
        meta.save({"term": 99})
    with pytest.raises(SyncFailedError):
        meta.save({"term": 100})
    values = load(tmp_path)
    assert values is not None
    assert values["term"] in (3, 99), "unknown, but one of them"


def test_limits(tmp_path: Path) -> None:
    meta = saved(tmp_path, 1)
    with pytest.raises(LimitExceededError):
        meta.save({"text": "x" * META_SIZE_BYTES_MAX})
    with pytest.raises(ValueError, match="JSON"):
        meta.save({"number": float("nan")})
    big = "x" * (META_SIZE_BYTES_MAX - 100)
    meta.save({"text": big})
    assert load(tmp_path) == {"text": big}


@pytest.mark.parametrize("seed", range(15))
def test_a_power_loss_leaves_the_last_saved_or_the_one_in_flight(tmp_path: Path, seed: int) -> None:
    """The power fails before a random call of a random save."""
    random, calls_left = Random(seed), -1
    run, image, end_image = tmp_path / "run", tmp_path / "image", tmp_path / "end"

    def fail(_: str) -> None:
        nonlocal calls_left
        if calls_left == 0:
            fs.build_image(str(run), str(image), random)
        calls_left -= 1

    run.mkdir()
    fs = PowerLossFileSystem(fail)
    meta = MetaFile(fs, str(run), "vote")
    meta.load(must_exist=False)
    crash_term = random.randint(1, 4)
    for term in range(1, 5):
        call_count = 8 if term == 1 else 4  # The first one writes two files.
        calls_left = random.randrange(call_count) if term == crash_term else -1
        meta.save({"term": term})
    fs.build_image(str(run), str(end_image), random)
    assert load(end_image) == {"term": 4}
    for leftover in image.glob("*" + TEMPORARY_SUFFIX):
        assert leftover.name.startswith("vote.")
    values = load(image, must_exist=False)
    kept_term = None if values is None else values["term"]
    assert kept_term in (crash_term, crash_term - 1 or None)


def test_each_error_of_the_file_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "vote.0").mkdir()
    with pytest.raises(StoreError):
        load(tmp_path)
