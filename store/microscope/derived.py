"""The fields of a queue unit, and of header, slot and item of a key index file.

Owns their rows and the comparison with the record that they are of (storage-formats 2.1, 3.1 to
3.3); must not know files.
"""

from typing import Final

from store import format as fmt
from store.derived.keys.index_file import seconds_since
from store.microscope.record import said_by
from store.microscope.specimen import FieldRow, RowList, Specimen, integer_at

_SIZES: Final = (("commitLogOffset", 0, 8), ("size", 8, 4), ("tagsCode", 12, 8))


def points_at(unit: Specimen, record: Specimen) -> bool:
    """Whether a queue unit and a record belong together, as most of their common fields say."""
    said = said_by(record.data)
    if said is None:  # Its lengths do not add up: the fields at fixed places decide.
        own = integer_at(record.data, fmt.PHYSICAL_OFFSET_AT, 8) == record.position
        return own and len(record.data) >= fmt.RECORD_SIZE_BYTES_MIN
    same = (
        said.topic == unit.topic.encode(),
        said.queue_id == unit.queue_id,
        said.offset == unit.number,
    )
    return sum(same) >= 2


def queue_unit_rows(unit: Specimen, record: Specimen | None) -> tuple[FieldRow, ...]:
    """Return the rows of a unit. `record` is what it points at, None where no record is."""
    rows, data = RowList(unit.data), unit.data
    is_filler = integer_at(data, 8) == fmt.CONSUME_QUEUE_FILLER_SIZE and not any(data[:8])
    if is_filler:
        for name, at, size_bytes in _SIZES:
            rows.add_integer(at, size_bytes, name)
        return tuple(rows.rows)
    if record is None or not points_at(unit, record):
        text = f"the position of the record of offset {unit.number}"
        rows.add(0, 8, "commitLogOffset", integer_at(data, 0, 8), False, text)
        rows.add_integer(8, 4, "size")
        rows.add_integer(12, 8, "tagsCode")
        return tuple(rows.rows)
    said = said_by(record.data)
    rows.add_integer(0, 8, "commitLogOffset", record.position)
    rows.add_integer(8, 4, "size", len(record.data))
    rows.add_integer(12, 8, "tagsCode", said.tags_code if said is not None else None)
    return tuple(rows.rows)


def key_header_rows(header: Specimen) -> tuple[FieldRow, ...]:
    """Return the rows of the header of a key index file."""
    rows, data = RowList(header.data), header.data
    begin_ms, end_ms, begin, end, used, count = fmt.INDEX_HEADER.unpack_from(data)
    rows.add_integer(0, 8, "beginTimestamp")
    rows.add(8, 8, "endTimestamp", end_ms, end_ms >= begin_ms, f"{begin_ms} or more")
    rows.add(16, 8, "beginPhyOffset", begin, None if begin >= 0 else False, "0 or more")
    rows.add(24, 8, "endPhyOffset", end, end >= begin, f"{begin} or more")
    most = max(0, count - 1)
    rows.add(32, 4, "hashSlotCount", used, 0 <= used <= most, f"0 to {most}")
    most = header.number if header.number >= 0 else (1 << 31) - 1
    rows.add(36, 4, "indexCount", count, None if 0 <= count <= most else False, f"1 to {most}")
    return tuple(rows.rows)


def key_slot_rows(
    slot: Specimen, header: Specimen | None, item: Specimen | None, record: Specimen | None
) -> tuple[FieldRow, ...]:
    """Return the row of a slot: the number of the last item of its chain, 0 for none."""
    rows = RowList(slot.data)
    value = integer_at(slot.data, 0)
    hi = fmt.INDEX_HEADER.unpack_from(header.data)[5] if header is not None else 1 << 31
    is_right, expected = 0 <= value < max(hi, 1), f"0 to {max(0, hi - 1)}"
    if is_right and value and item is not None:
        own = {_slot_of(item, number) for number in _hashes(item, record)}
        is_right = slot.number in own
        expected = f"an item of slot {slot.number}; item {value} is of slot {min(own)}"
    rows.add(0, len(slot.data), "slot", value, is_right, expected)
    return tuple(rows.rows)


def _slot_of(item: Specimen, key_hash: int) -> int:
    """Return the slot of a hash in the file of an item."""
    entries_at = item.at - item.number * fmt.INDEX_ENTRY_SIZE_BYTES
    slot_count = (entries_at - fmt.INDEX_HEADER_SIZE_BYTES) // fmt.INDEX_SLOT_SIZE_BYTES
    return key_hash % max(1, slot_count)


def _hashes(item: Specimen, record: Specimen | None) -> list[int]:
    """Return the hash of an item, and those of its record if that has another one."""
    said, own = said_by(record.data) if record is not None else None, integer_at(item.data, 0)
    return [own, *said.hashes] if said is not None and own not in said.hashes else [own]


def key_item_rows(
    item: Specimen, header: Specimen | None, slot: Specimen | None, record: Specimen | None
) -> tuple[FieldRow, ...]:
    """Return the rows of an item, compared with the slot that it was found by, and with the record
    that it points at, None where no record is."""
    rows, data = RowList(item.data), item.data
    said = said_by(record.data) if record is not None else None
    key_hash, position, _, before = fmt.INDEX_ENTRY.unpack_from(data)
    hashes = said.hashes if said is not None else ()
    is_of_record = key_hash in hashes
    slot_number = slot.number if slot is not None else -1
    is_record_of_slot = any(_slot_of(item, number) == slot_number for number in hashes)
    is_of_slot = _slot_of(item, key_hash) == slot_number
    # With a key of another record the slot says which of the two fields is the wrong one.
    is_hash_right = is_of_record or (is_of_slot and not is_record_of_slot)
    expected = f"of slot {slot_number}; its record has {', '.join(map(str, hashes)) or 'none'}"
    rows.add(0, 4, "keyHash", key_hash, is_hash_right, expected)
    is_there = said is not None and (is_of_record or is_record_of_slot)
    is_there = is_there or (record is not None and said is None)  # The record is damaged.
    rows.add(4, 8, "phyOffset", position, is_there, "the position of a record with this key")
    wanted = None
    if header is not None and said is not None and is_there:
        wanted = seconds_since(fmt.INDEX_HEADER.unpack_from(header.data)[0], said.store_unix_ms)
    rows.add_integer(12, 4, "timeDiff", wanted)
    rows.add(16, 4, "prevIndex", before, 0 <= before < item.number, f"0 to {item.number - 1}")
    return tuple(rows.rows)
