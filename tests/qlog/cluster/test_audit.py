"""`qlog audit`: what it does with rows that are none."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from qlog.cluster.audit import _KEYS, _read

ROW = dict.fromkeys(_KEYS, "x") | {"unix_ms": 1, "node_id": 1, "count": 1, "left_out": 0}


class Batch(list[Any]):
    """What a pull returns."""

    next_offset = 9


async def test_rows_that_cannot_be_read_are_left_out_and_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = [ROW | {"unix_ms": 1 << 60}, ROW | {"call": None}]
    rows = [b"\xff\xfe no JSON", b"[]", b'{"user": "x"}']
    rows += [json.dumps(row).encode() for row in (*wrong, ROW)]

    async def pull(_topic: str, _queue: int, offset: int, **_more: str) -> Batch:
        if offset == Batch.next_offset:
            return Batch()
        return Batch(SimpleNamespace(body=row) for row in rows)

    client: Any = SimpleNamespace(pull=pull)
    assert await _read(client, "g0", 0) == ([ROW], 9)
    assert capsys.readouterr().err == "warning: 5 rows cannot be read; they are left out\n"
