"""Keeps the records whose properties make a filter true.

Owns the walk over records; `node.broker.read.filter_tree` owns the meaning of a filter. Records
were checked when they were appended, so lengths are believed.
"""

from typing import Final

from store import format as fmt
from store.record.message import decode_properties, record_layout


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
