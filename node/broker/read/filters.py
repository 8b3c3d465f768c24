"""Keeps the records that carry one of some tags, or whose properties make a filter true.

Owns the walk over records, and the comparison of the tag itself: the consume queue has hashes only,
and two tags may share one (storage-formats 1.9); `filter_tree` owns the meaning of a filter of
properties. Records were checked when they were appended, so lengths are believed; those that no
filter can read are damaged, and read again.
"""

import struct
from collections.abc import Callable, Collection, Iterable
from typing import Final

from node.errors.common import BadRequestError
from store import format as fmt
from store.derived.queues.pull import PullResult
from store.errors import RecordFormatError
from store.record.message import decode_properties, record_layout, tags_code

_LENGTH_MAX: Final = 32_767
"""Characters of all tags of one reader: no record has a longer one."""
_NAME: Final = fmt.PROPERTY_TAGS.encode() + fmt.NAME_VALUE_SEPARATOR.encode()
_SEPARATOR: Final = fmt.PROPERTY_SEPARATOR.encode()
_INNER_NAME: Final = _SEPARATOR + _NAME


class TagFilter:
    """The tags of one reader."""

    __slots__ = ("_tags", "codes")

    def __init__(self, tags: Collection[str], count_max: int) -> None:
        """Raise BadRequestError for more tags, or longer ones, than a reader may name: each is
        hashed."""
        if len(tags) > count_max:
            raise BadRequestError("tags", f"at most {count_max} of them", str(len(tags)))
        if "" in tags:
            raise BadRequestError("tags", "names", "an empty one")
        # Expressions of RocketMQ come here split; of `a || *` its brokers take both as names.
        for tag in tags:
            if "||" in tag or {*tags} == {"*"}:
                raise BadRequestError("tags", "each tag alone, and none for all", repr(tag[:200]))
        length = sum(map(len, tags))
        if length > _LENGTH_MAX:
            expected = f"at most {_LENGTH_MAX} characters together"
            raise BadRequestError("tags", expected, str(length))
        self._tags = frozenset(tag.encode() for tag in tags)
        self.codes: Final = frozenset(map(tags_code, tags))
        """Hashes of the tags, as the consume queue has them."""

    def keep(self, data: bytes) -> tuple[bytes, int]:
        """Return the matching records of those that lie back to back in `data`, and their count."""
        parts: list[bytes] = []
        at, lo, count, is_all = 0, 0, 0, True
        while at < len(data):
            end = at + fmt.INT32.unpack_from(data, at)[0]
            if self._matches(data, at, end):
                count += 1
            else:
                parts.append(data[lo:at])
                lo, is_all = end, False
            at = end
        if is_all:
            return data, count
        parts.append(data[lo:])
        return b"".join(parts), count

    def _matches(self, data: bytes, at: int, end: int) -> bool:
        magic = fmt.INT32.unpack_from(data, at + 4)[0] & 0xFFFFFFFF
        sys_flag = fmt.INT32.unpack_from(data, at + fmt.SYS_FLAG_AT)[0]
        if magic == fmt.MAGIC_V1 and not sys_flag & fmt.SYS_FLAG_ANY_V6:
            body_size_bytes = fmt.INT32.unpack_from(data, at + fmt.BODY_LENGTH_AT)[0]
            body_hi = at + fmt.BODY_AT + body_size_bytes
            properties_at = body_hi + 1 + data[body_hi] + 2
        else:
            properties_at = record_layout(memoryview(data), at).properties_at
        if data.startswith(_NAME, properties_at):
            tag_at = properties_at + len(_NAME)
        else:
            inner_at = data.find(_INNER_NAME, properties_at, end)
            if inner_at < 0:
                return False
            tag_at = inner_at + len(_INNER_NAME)
        tag_hi = data.find(_SEPARATOR, tag_at, end)
        return data[tag_at : tag_hi if tag_hi >= 0 else end] in self._tags


class SqlFilter:
    """The filter of one reader. Raises BadFilterError."""

    __slots__ = ("_node", "test_count")

    def __init__(self, text: str) -> None:
        # lark and its parser take a tenth of a node's start, and most nodes never see a filter. The
        # first filter makes them on the event loop, once: about 0.1 s, a fifth of the shortest
        # time-out of an election.
        from node.broker.read.filter_language import parse

        self._node: Final = parse(text)
        self.test_count: Final = self._node.test_count
        """Tests of one record."""

    def keep(self, data: bytes) -> tuple[bytes, int]:
        """Return the matching records of those that lie back to back in `data`, and their count."""
        parts: list[bytes] = []
        view, at = memoryview(data), 0
        while at < len(data):
            hi = at + fmt.INT32.unpack_from(data, at)[0]
            properties_at = record_layout(view, at).properties_at
            if self._node.decide(decode_properties(data[properties_at:hi])):
                parts.append(data[at:hi])
            at = hi
        return b"".join(parts), len(parts)


def pull_kept(
    pull: Callable[..., PullResult], *filters: TagFilter | SqlFilter
) -> tuple[PullResult, bytes, int]:
    """Pull, and return the result, the records of it that the filters keep, and their count.

    `pull(verify=True)` is the second call, for records that cannot be read, or that lack the tag
    of their units: of damaged ones, or of another tag with the same hash. Raises as `Reads.pull`.
    """
    result = pull()
    try:
        data, count, is_as_told = _kept(result, filters)
    except (RecordFormatError, IndexError, struct.error):
        is_as_told = False
    if not is_as_told:
        result = pull(verify=True)
        data, count, _ = _kept(result, filters)
    return result, data, count


def _kept(result: PullResult, filters: Iterable[TagFilter | SqlFilter]) -> tuple[bytes, int, bool]:
    """Return the records that filters keep, their count, and whether all have the tag of their
    unit."""
    data, count, is_as_told = result.data, result.record_count, True
    for one in filters if data else ():
        data, left_count = one.keep(data)
        is_as_told &= isinstance(one, SqlFilter) or left_count == count
        count = left_count
    return data, count, is_as_told
