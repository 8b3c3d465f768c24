"""The fields of a message record, and the question which of its lengths is the wrong one.

Owns the rows of a record (storage-formats 1.2 to 1.11); must not know where it was found. Lengths
are proven by each other and by the body CRC: with one of them wrong, the others say what it should
be. Source: 1.13.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from store import format as fmt
from store.derived.log_walk import Said, said_of
from store.errors import RecordFormatError, TopicNameError
from store.files.checksum import body_crc, crc32
from store.microscope.specimen import RowList, Specimen, integer_at, shown_bytes
from store.record.message import (
    check_topic,
    decode_host,
    property_crc_digits,
    record_layout,
)
from store.record.tail import TailReader

_MAGICS: Final = (fmt.MAGIC_V1, fmt.MAGIC_V2)
_V6_FLAGS: Final = (0, fmt.SYS_FLAG_BORN_HOST_V6, fmt.SYS_FLAG_STORE_HOST_V6, fmt.SYS_FLAG_ANY_V6)
_NEXT: Final = re.compile(
    b"|".join(re.escape(magic.to_bytes(4, "big")) for magic in (1, *_MAGICS, fmt.MAGIC_BLANK))
)
_PROPERTIES_FIELD: Final = 2
_STEP_SIZE_BYTES: Final = 64 * 1024  # One search holds the interpreter for some ms at most.
_BODIES_MAX: Final = 64  # Bodies that are tried for one record: a CRC of each, of up to 4 MiB.
_ENTRY_POSITION_AT: Final = 24
_PORT_MAX: Final = 65_535
_ELEMENT_HEAD: Final = ("totalSize", "magicCode", "bodyCRC", "flag", "bodyLength")


class _Shape(NamedTuple):
    """Where the parts of a record lie, and what its magic and sysFlag must be for that."""

    magic: int
    sys_flag: int
    body_at: int
    body_hi: int
    topic_at: int
    topic_hi: int
    end: int


def _shape(
    data: bytes,
    at: int,
    end: int,
    magic: int,
    sys_flag: int,
    sizes: tuple[int | None, int | None] = (None, None),
) -> _Shape | None:
    """Return the shape that the stated lengths of body and topic give, or those in `sizes`; None
    where they do not fit before `end`."""
    body_at, width = at + fmt.BODY_AT + _v6_bytes(sys_flag), _topic_width(magic)
    if body_at + width + _PROPERTIES_FIELD > end:
        return None
    body_size, topic_size = sizes
    body_hi = body_at + (integer_at(data, body_at - 4) if body_size is None else body_size)
    topic_at = body_hi + width
    if body_hi < body_at or topic_at + _PROPERTIES_FIELD > end:
        return None
    if topic_size is None:
        topic_size = int.from_bytes(data[body_hi:topic_at], "big")
    if topic_at + topic_size + _PROPERTIES_FIELD > end:
        return None
    topic_hi = topic_at + topic_size
    return _Shape(magic, sys_flag, body_at, body_hi, topic_at, topic_hi, end)


def _v6_bytes(sys_flag: int) -> int:
    return (sys_flag & fmt.SYS_FLAG_ANY_V6).bit_count() * fmt.HOST_V6_EXTRA_BYTES


def _topic_width(magic: int) -> int:
    return 2 if magic == fmt.MAGIC_V2 else 1


def _adds_up(data: bytes, shape: _Shape) -> bool:
    stated = integer_at(data, shape.topic_hi, _PROPERTIES_FIELD)
    return stated == shape.end - shape.topic_hi - _PROPERTIES_FIELD


def _has_body(data: bytes, at: int, shape: _Shape) -> bool:
    return body_crc(data[shape.body_at : shape.body_hi]) == integer_at(data, at + fmt.BODY_CRC_AT)


def _explain(data: bytes, at: int, ends: Sequence[int]) -> _Shape | None:
    """Return the shape that needs the fewest stated lengths to be wrong; None where more than one
    is. `ends` are the bytes at which the record may end, if its own size is not right."""
    magic = int.from_bytes(data[at + 4 : at + 8], "big")
    sys_flag = integer_at(data, at + fmt.SYS_FLAG_AT)
    stated_end = at + integer_at(data, at)
    is_end = at + fmt.RECORD_SIZE_BYTES_MIN <= stated_end <= len(data)
    own, others = [stated_end] if is_end else [], [end for end in ends if end != stated_end]
    has_magic = magic in _MAGICS
    first = magic if has_magic else fmt.MAGIC_V1
    places = [(end, first, sys_flag) for end in own] if has_magic else []
    if has_magic:
        places += [(end, magic, sys_flag) for end in others]
    places += [(end, other, sys_flag) for end in own for other in _MAGICS if other != magic]
    flags = [sys_flag & ~fmt.SYS_FLAG_ANY_V6 | v6 for v6 in _V6_FLAGS]
    places += [(end, first, other) for end in own for other in flags if other != sys_flag]
    shapes = [shape for place in places if (shape := _shape(data, at, *place))]
    fitting = [shape for shape in shapes if _adds_up(data, shape)]
    for shape in fitting:
        if _has_body(data, at, shape):
            return shape
    if fitting:  # Body or body CRC.
        return fitting[0]
    for end in (*own, *others):
        mended = _mend_length(data, at, end, first, sys_flag)
        if mended is not None:
            return mended
    return None


def _mend_length(data: bytes, at: int, end: int, magic: int, sys_flag: int) -> _Shape | None:
    """Return the shape in which one length of body, topic or properties is not the stated one."""
    width = _topic_width(magic)
    stated = _shape(data, at, end, magic, sys_flag, (None, 0))
    if stated is not None and _has_body(data, at, stated):
        for topic_size in range(min(fmt.TOPIC_SIZE_CHARACTERS_HARD_MAX, end - stated.topic_at)):
            shape = _shape(data, at, end, magic, sys_flag, (None, topic_size))
            if shape is not None and _adds_up(data, shape):
                return shape
        return _shape(data, at, end, magic, sys_flag)
    body_at = at + fmt.BODY_AT + _v6_bytes(sys_flag)
    lo = max(body_at + width, end - _PROPERTIES_FIELD - fmt.PROPERTIES_SIZE_BYTES_MAX)
    tries_left = _BODIES_MAX
    for topic_hi in range(end - _PROPERTIES_FIELD, lo - 1, -1):
        if integer_at(data, topic_hi, _PROPERTIES_FIELD) != end - topic_hi - _PROPERTIES_FIELD:
            continue
        most = min(fmt.TOPIC_SIZE_CHARACTERS_HARD_MAX, topic_hi - width - body_at)
        for topic_size in range(1, most + 1):
            body_hi = topic_hi - topic_size - width
            if int.from_bytes(data[body_hi : body_hi + width], "big") != topic_size:
                continue
            sizes = (body_hi - body_at, topic_size)
            shape = _shape(data, at, end, magic, sys_flag, sizes)
            if shape is not None and _has_body(data, at, shape):
                return shape
            tries_left -= 1
            if not tries_left:
                return None
    return None


def record_end(data: bytes, position: int, known_end: int = 0) -> int:
    """Return the byte after the record at the start of `data`, which lies at a log position.

    By its own lengths, by `known_end` if that is not 0, or by the next record; all of the bytes
    where nothing says it.
    """
    return _find_end(data, 0, position, known_end)[1]


def _find_end(data: bytes, at: int, position: int, known_end: int) -> tuple[_Shape | None, int]:
    """Return shape and end of the record at byte `at`; `position` is that of byte 0."""
    if len(data) - at < fmt.RECORD_SIZE_BYTES_MIN:
        return None, len(data)
    end, magic = at + integer_at(data, at), int.from_bytes(data[at + 4 : at + 8], "big")
    if magic in _MAGICS and end <= len(data):
        stated = _shape(data, at, end, magic, integer_at(data, at + fmt.SYS_FLAG_AT))
        if stated is not None and _adds_up(data, stated) and _has_body(data, at, stated):
            return stated, end
    following = _next_record(data, at + fmt.RECORD_SIZE_BYTES_MIN, position)
    ends = dict.fromkeys(end for end in (known_end, following) if at < end <= len(data))
    shape = _explain(data, at, tuple(ends))
    return shape, shape.end if shape is not None else next(iter(ends), len(data))


def _next_record(data: bytes, lo: int, position: int) -> int:
    """Return the byte of the next record or entry that names its own place, or of a blank; the end
    of the bytes without one."""
    steps = range(lo, len(data), _STEP_SIZE_BYTES)
    for match in chain.from_iterable(
        _NEXT.finditer(data, step, step + _STEP_SIZE_BYTES + 3) for step in steps
    ):
        is_entry = match[0][0] == 0
        at = match.start() - (0 if is_entry else 4)
        place_at = at + (_ENTRY_POSITION_AT if is_entry else fmt.PHYSICAL_OFFSET_AT)
        is_blank = match[0] == fmt.MAGIC_BLANK.to_bytes(4, "big")
        if at >= lo and (is_blank or integer_at(data, place_at, 8) == position + at):
            return at
    return len(data)


def said_by(data: bytes) -> Said | None:
    """Return unit and keys that a record stands for; None where its lengths do not add up."""
    try:
        with memoryview(data) as view:
            record_layout(view, 0)
    except RecordFormatError:
        return None
    return said_of(TailReader(), data, 0)


def record_rows(
    rows: RowList, at: int, hi: int, position: int, unit: Specimen | None = None
) -> int:
    """Add the rows of the record at byte `at`, and return the byte after it, at most `hi`.

    `position` is the log position of byte `at`. `unit` is the queue unit that points at it.
    """
    data = rows.data[:hi]
    if hi - at < fmt.RECORD_SIZE_BYTES_MIN:
        rows.add(at, hi - at, "record", shown_bytes(data[at:]), False, "91 bytes or more")
        return hi
    known_end = at + integer_at(unit.data, 8) if unit is not None else 0
    shape, end = _find_end(data, at, position - at, known_end)
    _Record(rows, at, position, end, shape, unit, len(rows.rows)).add()
    return end


class _Record(NamedTuple):
    """One record whose rows are made. `shape` is None where its lengths cannot be told."""

    rows: RowList
    at: int
    position: int
    end: int
    shape: _Shape | None
    unit: Specimen | None
    first_row: int

    def add(self) -> None:
        """Add all rows."""
        at, rows, shape, unit = self.at, self.rows, self.shape, self.unit
        data, number = rows.data, rows.add_integer
        number(at, 4, "totalSize", self.end - at)
        magic = int.from_bytes(data[at + 4 : at + 8], "big")
        wanted = shape.magic if shape is not None else magic if magic in _MAGICS else _MAGICS[0]
        number(at + 4, 4, "magicCode", wanted, "08X")
        crc = body_crc(data[shape.body_at : shape.body_hi]) if shape is not None else None
        number(at + fmt.BODY_CRC_AT, 4, "bodyCRC", crc, "08X")
        if unit is not None or integer_at(data, at + fmt.QUEUE_ID_AT) >= 0:
            number(at + fmt.QUEUE_ID_AT, 4, "queueId", unit.queue_id if unit is not None else None)
        else:
            queue_id = integer_at(data, at + fmt.QUEUE_ID_AT)
            rows.add(at + fmt.QUEUE_ID_AT, 4, "queueId", queue_id, False, "0 or more")
        number(at + 16, 4, "flag")
        number(at + 20, 8, "queueOffset", unit.number if unit is not None else None)
        number(at + 28, 8, "physicalOffset", self.position)
        sys_flag = integer_at(data, at + fmt.SYS_FLAG_AT)
        used = shape.sys_flag if shape is not None else sys_flag
        if self.end - at < fmt.BODY_AT + _v6_bytes(used):
            used &= ~fmt.SYS_FLAG_ANY_V6  # Such hosts do not fit.
        is_right = None if used == sys_flag else False
        text, right = f"{sys_flag:#x}", used.to_bytes(4, "big", signed=True)
        rows.add(at + fmt.SYS_FLAG_AT, 4, "sysFlag", text, is_right, f"{used:#x}", right)
        number(at + 40, 8, "bornTimestamp")
        hi = self._add_host(at + 48, "bornHost", bool(used & fmt.SYS_FLAG_BORN_HOST_V6))
        number(hi, 8, "storeTimestamp")
        hi = self._add_host(hi + 8, "storeHost", bool(used & fmt.SYS_FLAG_STORE_HOST_V6))
        number(hi, 4, "reconsumeTimes")
        number(hi + 4, 8, "preparedTransactionOffset")
        if shape is None:
            text = f"what body CRC and lengths say, at most {self.end - hi - 19}"
            rows.add(hi + 12, 4, "bodyLength", integer_at(data, hi + 12), False, text)
            rows.add_rest(hi + 16, self.end)
            return
        number(hi + 12, 4, "bodyLength", shape.body_hi - shape.body_at)
        self._add_body(shape)
        width = _topic_width(shape.magic)
        topic_size, properties_at = shape.topic_hi - shape.topic_at, shape.topic_hi + 2
        form = "d"  # Not negative.
        number(shape.body_hi, width, "topicLength", topic_size, form)
        self._add_topic(data[shape.topic_at : shape.topic_hi], shape.topic_at)
        number(shape.topic_hi, 2, "propertiesLength", shape.end - properties_at)
        self._add_properties(properties_at, shape.end)

    def _add_host(self, at: int, name: str, is_v6: bool) -> int:
        hi = at + (fmt.HOST_V6_SIZE_BYTES if is_v6 else fmt.HOST_V4_SIZE_BYTES)
        host, port = decode_host(self.rows.data[at:hi].ljust(hi - at, b"\0"))
        is_right = None if 0 <= port <= _PORT_MAX else False
        text = f"[{host}]:{port}" if is_v6 else f"{host}:{port}"
        self.rows.add(at, hi - at, name, text, is_right, f"a port up to {_PORT_MAX}")
        return hi

    def _add_body(self, shape: _Shape) -> None:
        """Add the body: messages back to back if it is a batch, else one row."""
        at, hi, data = shape.body_at, shape.body_hi, self.rows.data
        first_row = len(self.rows.rows)
        is_batch = shape.sys_flag & fmt.SYS_FLAG_NEED_UNWRAP
        if is_batch and not shape.sys_flag & fmt.SYS_FLAG_COMPRESSED:
            for number, (lo, end) in enumerate(_elements(data[:hi], at)):
                for k, name in enumerate(_ELEMENT_HEAD):
                    expected = {0: end - lo}.get(k)
                    self.rows.add_integer(lo + 4 * k, 4, f"message {number} {name}", expected)
                size_bytes = integer_at(data, lo + 16)
                body_hi = lo + 20 + size_bytes
                self._add_text(lo + 20, body_hi, f"message {number} body")
                expected = end - body_hi - 2
                self.rows.add_integer(body_hi, 2, f"message {number} propertiesLength", expected)
                self._add_text(body_hi + 2, end, f"message {number} properties")
                at = end
            if at < hi:
                text = shown_bytes(data[at:hi])
                self.rows.add(at, hi - at, "batch", text, False, "messages back to back")
        else:
            self._add_text(at, hi, "body")
        if _has_body(data, self.at, shape):
            self.rows.cover(first_row)

    def _add_text(self, at: int, hi: int, name: str) -> None:
        if at < hi:
            self.rows.add(at, hi - at, name, shown_bytes(self.rows.data[at:hi]))

    def _add_topic(self, topic: bytes, at: int) -> None:
        if not topic:
            return  # Its length is wrong.
        expected, right, is_right = "", b"", None
        try:
            check_topic(topic)
        except TopicNameError:
            is_right, expected = False, "a name of letters, digits and %|_-"
        if self.unit is not None:
            right = self.unit.topic.encode()
            is_right, expected = topic == right, self.unit.topic
        self.rows.add(at, len(topic), "topic", shown_bytes(topic), is_right, expected, right)

    def _add_properties(self, at: int, end: int) -> None:
        """Add the properties one by one; the separator behind each is of its row."""
        data = self.rows.data
        crc_at = end - fmt.PROPERTY_CRC_SIZE_BYTES
        has_crc = crc_at >= at and data.startswith(fmt.PROPERTY_CRC_PREFIX, crc_at)
        hi = crc_at if has_crc else end
        while at < hi:
            separator_at = data.find(b"\x02", at, hi)
            stop = hi if separator_at < 0 else separator_at
            name, equals, value = data[at:stop].partition(b"\x01")
            is_right = None if name and equals and value and b"\0" not in data[at:stop] else False
            shown = shown_bytes(name).rpartition(" (")[0]
            row_hi = min(stop + 1, hi)
            self.rows.add(
                at, row_hi - at, f"property {shown}", shown_bytes(value), is_right,
                "a name, 0x01 and a value, without NUL",
            )  # fmt: skip
            at = row_hi
        if has_crc:
            self._add_crc(crc_at, end)

    def _add_crc(self, at: int, end: int) -> None:
        """Add the property CRC, which covers all bytes of the record before it."""
        data, mended = self.rows.data, self.rows.mended
        right = fmt.PROPERTY_CRC_PREFIX
        right += property_crc_digits(crc32(bytes(mended[self.at : at]))) + b"\x02"
        is_right = data[at:end] == right
        stated, wanted = (shown_bytes(area[9:19]) for area in (data[at:end], right))
        name = f"property {fmt.PROPERTY_CRC}"
        self.rows.add(at, end - at, name, stated, is_right, wanted, right)
        if is_right:
            self.rows.cover(self.first_row)


def _elements(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield the bytes [lo, end) of the messages of a batch that lie back to back (1.11)."""
    while len(data) - at >= 22:
        body_hi = at + 20 + max(0, integer_at(data, at + 16))
        if body_hi + 2 > len(data):
            return
        end = body_hi + 2 + integer_at(data, body_hi, 2)
        if not body_hi + 2 <= end <= len(data) or integer_at(data, at) != end - at:
            return
        yield at, end
        at = end
