"""Lists of dead letters, whose answers a node limits in bytes."""

import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.admin.groups import GroupAdmin
from quorumlog.pb.retry_pb2 import ListDeadLettersRequest, ListDeadLettersResponse
from store.record.message import encode_message

AT_ONCE = 4


def letter(offset: int) -> bytes:
    record = bytearray(encode_message("%DLQ%readers", 0, b"x"))
    struct.pack_into(">q", record, 20, offset)
    return bytes(record)


class LetterAdmin(GroupAdmin):
    """A node that has 10 dead letters, from offset 5 on, and room for few in an answer."""

    def __init__(self) -> None:
        """Know one broker group."""
        groups = {"": SimpleNamespace(name="g")}
        self._groups, self._timeout_ms = cast(Any, groups), 1_000
        self.asked: list[tuple[int, int]] = []

    async def _lead(self, group: Any, request: Any, **_: Any) -> Any:
        assert isinstance(request, ListDeadLettersRequest)
        self.asked.append((request.offset, request.max_count))
        lo = max(request.offset, 5)
        hi = min(15, lo + min(AT_ONCE, request.max_count or AT_ONCE))
        return ListDeadLettersResponse(
            records=b"".join(letter(offset) for offset in range(lo, hi)),
            record_count=hi - lo,
            resent=[offset for offset in range(lo, hi) if offset % 2],
            next_offset=hi,
            min_offset=5,
            max_offset=15,
        )


@pytest.mark.parametrize(
    ("max_count", "found", "calls"), [(64, 10, 3), (9, 9, 3), (4, 4, 1), (0, 4, 1)]
)
async def test_a_list_goes_on_where_an_answer_ended(max_count: int, found: int, calls: int) -> None:
    admin = LetterAdmin()
    letters = await admin.dead_letters("readers", max_count=max_count)
    assert [one.offset for one in letters] == list(range(5, 5 + found))
    assert all(one.is_resent == bool(one.offset % 2) for one in letters)
    assert len(admin.asked) == calls
