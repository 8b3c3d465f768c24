"""The microscope: every kind of thing of real stores, and damage named at its field."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from store.config import StoreConfig
from store.format import SYS_FLAG_INNER_BATCH, SYS_FLAG_NEED_UNWRAP
from store.microscope.difference import first_difference
from store.microscope.directory import LogDirectory
from store.microscope.look import look
from store.microscope.record import record_rows
from store.microscope.specimen import FieldVerdict, RowList, Specimen
from store.record.message import encode_message
from tests.store.fsck_stores import flip, fsck_config, make_store

WRONG = FieldVerdict.WRONG
Find = Callable[[LogDirectory], tuple[Specimen, ...]]


@pytest.fixture(params=["commit_log", "ledger"])
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return fsck_config(request.param)


@pytest.fixture
def root(tmp_path: Path, config: StoreConfig) -> Path:
    make_store(tmp_path / "store", config)
    return tmp_path / "store"


def wrong(specimens: Sequence[Specimen]) -> list[str]:
    """Name the wrong fields; every byte must be in one row, in order."""
    tables = look(specimens)
    for table in tables:
        at = 0
        for row in table.rows:
            assert (row.at, row.size_bytes > 0) == (at, True), row
            at += row.size_bytes
        assert at == len(table.specimen.data)
    return [row.name for p in tables for row in p.rows if row.verdict is WRONG]


def field_at(specimen: Specimen, at: int, rest: Sequence[Specimen]) -> str:
    [table, *_] = look([specimen, *rest])
    return next(row.name for row in table.rows if row.at <= at < row.at + row.size_bytes)


def test_all_of_a_good_store_is_right(root: Path, config: StoreConfig) -> None:
    with LogDirectory.of(str(root)) as there:
        kinds = set()
        things = [
            there.queue_unit(topic, 0, k) for topic in ("topic0", "topic1") for k in range(30)
        ]
        things += [there.record(unit[1].position) for unit in things]
        things += [there.key_slot(k) for k in range(5)]
        records = [one for thing in things for one in thing if one.kind == "record"]
        ends = [one.position + len(one.data) for one in records if one.position < 4096]
        things.append(there.record(max(ends)))
        if config.container == "ledger":
            things += [there.entry(k) for k in range(30)]
            assert there.record(things[-1][0].position) == things[-1]
        for thing in things:
            assert wrong(thing) == []
            kinds |= {specimen.kind.value for specimen in thing}
            for one in thing:
                data = (root / one.file).read_bytes()[one.at : one.at + len(one.data)]
                assert data == one.data
    ledger = {"entry", "entry_before", "ledger_unit"} if config.container == "ledger" else set()
    plain = {"record", "blank", "queue_unit", "key_slot", "key_header", "key_item"}
    assert kinds == plain | ledger


@pytest.mark.parametrize("config", ["ledger"], indirect=True)
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_each_byte_of_an_entry_that_flips_is_wrong_at_its_field_only(root: Path, mask: int) -> None:
    with LogDirectory.of(str(root)) as there:
        things = [there.entry(0), there.entry(5)]
    for entry, *beside in things:
        for at in range(len(entry.data)):
            flipped = bytearray(entry.data)
            flipped[at] ^= mask
            found = wrong([entry._replace(data=bytes(flipped)), *beside])
            assert found == [field_at(entry, at, beside)], at


@pytest.mark.parametrize("config", ["ledger"], indirect=True)
def test_damage_of_several_bytes_is_named_by_checksums_and_own_checks(root: Path) -> None:
    with LogDirectory.of(str(root)) as there:
        entry, *beside = there.entry(5)
    for lo in range(len(entry.data) - 5):
        damaged = entry.data[:lo] + b"\x9b\xe2\x31\x77\xd4" + entry.data[lo + 5 :]
        assert wrong([entry._replace(data=damaged), *beside]), lo


def unit(there: LogDirectory) -> tuple[Specimen, ...]:
    return there.queue_unit("topic0", 0, 3)


def record(there: LogDirectory) -> tuple[Specimen, ...]:
    return there.record(unit(there)[1].position)


def slot(there: LogDirectory) -> tuple[Specimen, ...]:
    return next(thing for k in range(5) if len(thing := there.key_slot(k)) == 4)


@pytest.mark.parametrize(
    ("find", "kind", "at", "name"),
    [
        (unit, "queue_unit", 7, "commitLogOffset"),
        (unit, "queue_unit", 0, "commitLogOffset"),
        (unit, "queue_unit", 11, "size"),
        (unit, "queue_unit", 19, "tagsCode"),
        (unit, "record", 15, "queueId"),
        (unit, "record", 27, "queueOffset"),
        (record, "record", 3, "totalSize"),
        (record, "record", 7, "magicCode"),
        (record, "record", 35, "physicalOffset"),
        (record, "record", 39, "sysFlag"),
        (record, "record", 87, "bodyLength"),
        (record, "record", 90, "bodyCRC"),
        (record, "record", 96, "topicLength"),
        (unit, "record", 97, "topic"),
        (record, "record", 104, "propertiesLength"),
        (slot, "key_slot", 0, "slot"),
        (slot, "key_item", 7, "phyOffset"),
        (slot, "key_item", 15, "timeDiff"),
        (slot, "key_item", 16, "prevIndex"),
        (slot, "key_header", 8, "endTimestamp"),
        (slot, "key_header", 24, "endPhyOffset"),
        (slot, "key_header", 33, "hashSlotCount"),
    ],
)
def test_damage_on_the_disk_is_wrong_at_its_field_only(
    root: Path, find: Find, kind: str, at: int, name: str
) -> None:
    with LogDirectory.of(str(root)) as there:
        before = find(there)
    damaged = next(specimen for specimen in before if specimen.kind == kind)
    bit = 4 if name in ("sysFlag",) else 7
    flip(root / damaged.file, (damaged.at + at) * 8 + bit)
    with LogDirectory.of(str(root)) as there:
        number = next((s.number for s in before if s.kind == "key_slot"), 0)
        position = next((s.position for s in before if s.kind == "record"), 0)
        if find is record:
            thing = there.record(position)
        else:
            thing = unit(there) if find is unit else there.key_slot(number)
    assert wrong(thing) == [name]
    changed = [(a, b) for a, b in zip(look(before), look(thing), strict=False) if a != b]
    differences = [first_difference(a, b) for a, b in changed if a.specimen.kind == kind]
    if name != "commitLogOffset":
        [difference] = differences
        assert difference is not None
        assert difference.at == at
        assert difference.row is not None
        assert first_difference(*[changed[0][0]] * 2) is None


@pytest.mark.parametrize("sys_flag", [0, SYS_FLAG_NEED_UNWRAP | SYS_FLAG_INNER_BATCH])
def test_records_of_all_forms_have_their_rows(sys_flag: int) -> None:
    element = b"".join(n.to_bytes(4, "big") for n in (28, 0, 0, 7, 3)) + b"abc\0\3a\1b"
    body = element * 2 if sys_flag else b"\0\x1b[31m<script>" + bytes(1_000)
    topic, v6 = "%RETRY%" + "x" * 140, ("::1", 7)
    data = encode_message(
        topic, 3, body, {"KEYS": "k", "é": "\x07"}, sys_flag=sys_flag, born_host=v6, store_host=v6,
        position=50, property_crc=False,
    )  # fmt: skip
    rows = RowList(data)
    assert record_rows(rows, 0, len(data), 50) == len(data)
    named = {row.name: row for row in rows.rows}
    assert not [row for row in rows.rows if row.verdict is WRONG]
    assert (named["bornHost"].value, named["bornHost"].size_bytes) == ("[::1]:7", 20)
    assert (named["topicLength"].size_bytes, named["property é"].value) == (2, "\\x07 (1 byte)")
    if sys_flag:
        assert named["message 1 body"].value == "abc (3 bytes)"
    else:
        shown = named["body"].value
        assert shown.startswith("\\x00\\x1b[31m<script>")
        assert shown.endswith(f"... ({len(body)} bytes)")


def test_no_bytes_raise() -> None:
    noise = bytes(range(256)) * 4
    for size in (0, 1, 8, 19, 20, 32, 40, 47, 48, 90, 91, 140, 600):
        for kind in ("entry", "entry_before", "ledger_unit", "record", "queue_unit", "key_header",
                     "key_slot", "key_item", "blank"):  # fmt: skip
            for data in (noise[:size], bytes(size), b"\xff" * size):
                thing = Specimen(kind, data, "f", 0, 7, 3, "t", 0)  # type: ignore[arg-type]
                wrong([thing])
