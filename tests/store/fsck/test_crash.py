"""Stores that were killed: what opening mends is no damage, and a repair loses nothing durable."""

import shutil
from pathlib import Path
from random import Random

import pytest

from store.config import StoreConfig
from store.fsck.inspect import inspect, readable_time
from store.fsck.plan import loses, plan
from store.fsck.repair import apply
from store.fsck.types import Part, Severity
from store.record.message import encode_message
from tests.store.fsck_stores import (
    Clock,
    contents,
    files_of,
    fill,
    findings,
    fsck_config,
    given_sizes,
    make_store,
    open_store,
)
from tests.store.ledgers import add, new_ledger, open_ledger


def killed(root: Path, config: StoreConfig, random: Random) -> tuple[Path, int]:
    """A copy of a running store with `count` synced records, and with async flush three more."""
    clock = Clock()
    shutil.rmtree(root, ignore_errors=True)
    with open_store(root / "store", config, clock) as store:
        count = random.randrange(2, 30) * 2
        middle = random.randrange(count // 2) * 2
        fill(store, clock, 0, middle)
        if random.random() < 0.7:
            store.maintain()
        fill(store, clock, middle, count)
        for number in range(count, count + 6, 2) if config.flush == "async" else ():
            clock.unix_ms += 5
            store.append(encode_message("topic0", 0, b"%08d" % number, {"KEYS": "k"}))
        copy = Path(shutil.copytree(root / "store", root / "copy"))
    if random.random() < 0.5:
        (copy / "boot_id").write_text("00000000-0000-0000-0000-000000000001\n11b9f7d6\n")
    return copy, count


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_killed_store_is_mended_and_nothing_synced_is_lost(
    tmp_path: Path, config: StoreConfig, flush: str
) -> None:
    config = fsck_config(config.container, flush=flush)
    random, given = Random(flush), given_sizes(config)
    for number in range(25):
        root, count = killed(tmp_path / f"{number}", config, random)
        assert findings(root, given) == [], number
        for _ in range(random.choice([0, 1, 1, 2])):  # Zeros, as pages that never reached the disk.
            path = root / random.choice([n for n in files_of(root) if (root / n).stat().st_size])
            data = path.read_bytes()
            at = random.randrange(len(data))
            path.write_bytes(data[:at] + bytes(min(200, len(data) - at)) + data[at + 200 :])
        actions = plan(str(root), findings(root, given), given=given)
        apply(str(root), actions, accept_loss=True)
        assert findings(root, given) == [], number
        numbers_by_topic = contents(root, config)
        for topic in (0, 1):
            wanted = [n for n in range(count) if n // 2 % 2 == topic]
            more = [count, count + 2, count + 4] if flush == "async" and topic == 0 else []
            kept = numbers_by_topic[f"topic{topic}"]
            assert kept == (wanted + more)[: len(kept)]
            if flush == "sync" and loses(actions) is None:
                assert kept == wanted, number


def test_a_ledger_that_was_cut_and_reset_has_no_damage(tmp_path: Path) -> None:
    """Written without a store around it, so marks and derived files are missing."""
    ledger = new_ledger(tmp_path)
    add(ledger, 30)
    ledger.reset(12345, 70_000, 77, 5)
    ledger.close()
    assert {f.part for f in findings(tmp_path)} == {Part.MARKS}
    ledger, _ = open_ledger(tmp_path)
    ledger.term = 6
    add(ledger, 40, size_bytes=700)
    ledger.truncate_from(12350, commit_index=0)
    ledger.close()
    problems = findings(tmp_path)
    assert {f.part for f in problems} == {Part.MARKS, Part.QUEUE, Part.KEY_INDEX}
    assert Severity.DAMAGE not in {f.severity for f in problems}
    row = inspect(str(tmp_path))
    assert (row["first_index"], row["last_index"]) == (12345, 12349)


def test_inspect_looks_into_whatever_is_there(tmp_path: Path, config: StoreConfig) -> None:
    make_store(tmp_path / "store", config)
    random = Random(7)
    whole = inspect(str(tmp_path / "store"))
    assert whole["left_over"] == whole["unknown"] == []
    for name in files_of(tmp_path / "store"):
        for size_bytes in (0, 7, 100):
            root = Path(shutil.copytree(tmp_path / "store", tmp_path / "copy"))
            (root / name).write_bytes(random.randbytes(size_bytes))
            row = inspect(str(root), given=given_sizes(config))
            assert row.keys() == whole.keys()
            shutil.rmtree(root)


def test_times_are_readable() -> None:
    assert readable_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert [readable_time(ms) for ms in (0, -1, 1 << 62)] == [None] * 3
