"""Texts that are taken apart: every reader takes them apart by the same rule."""

import pytest

from node.rocketmq.protocol.messages import from_record
from node.rocketmq.protocol.names import filter_of
from node.rocketmq.protocol.statuses import CallRefusedError
from node.rocketmq.remoting.clients import Subscription
from node.rocketmq.remoting.protocol.answers import RefusedError
from quorumlog.pb.rocketmq_pb2 import FilterExpression, FilterType
from quorumlog.records.batch import decode_records
from store.record.message import decode_message, encode_message

SPACES = [chr(n) for n in range(1, 0x3001) if chr(n).isspace() and chr(n) != " "]


@pytest.mark.parametrize("space", SPACES, ids=ascii)
def test_one_blank_and_nothing_else_separates_keys(space: str) -> None:
    record = encode_message("orders", 0, b"x", {"KEYS": f" a{space}b  c{space} "})
    keys = [f"a{space}b", f"c{space}"]
    assert [message.keys for message in decode_records(record)] == [keys]
    stored = decode_message(record)
    assert stored.keys == keys
    assert from_record(stored, "orders").system_properties.keys == keys


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("a", ["a"]),
        (" a||b ", ["a", "b"]),
        ("a || || b", ["a", "b"]),
        ("|| a ||", ["a"]),
        ("a||a", ["a"]),
        ("", []),
        (" * ", []),
        ("||", None),
        (" || || ", None),
    ],
)
def test_both_protocols_read_the_same_tags(expression: str, tags: list[str] | None) -> None:
    filter_expression = FilterExpression(type=FilterType.TAG, expression=expression)
    if tags is None:
        with pytest.raises(CallRefusedError, match="names no tag"):
            filter_of(filter_expression)
        with pytest.raises(RefusedError, match="names no tag"):
            Subscription("orders", expression, is_sql=False)
        return
    assert list(filter_of(filter_expression).tags) == tags
    assert Subscription("orders", expression, is_sql=False).tags == tags
