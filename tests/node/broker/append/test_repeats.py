"""What comes under a used number is the batch that has it, or is refused: nothing is dropped."""

from pathlib import Path
from typing import Any

import pytest

from node.errors.common import SequenceReusedError
from quorumlog.pb.log_pb2 import AppendRequest
from quorumlog.pb.transaction_pb2 import ConsumedOffset, ConsumedOffsets, HalfMessages
from store import format as fmt
from store.record.message import encode_message
from tests.node.broker_fakes import node_at

SENT: dict[str, Any] = {"body": b"a", "properties": {"KEYS": "k", "TAGS": "t"}, "flag": 1}
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "delayed": {"has_delayed": True},
    "half": {"transaction": HalfMessages(producer_group="p")},
    "consumed": {
        "consumed": ConsumedOffsets(
            group="g", offsets=[ConsumedOffset(topic="orders", queue_id=0, expected=-1, offset=0)]
        )
    },
}


def batch(feature: str, count: int = 2, **change: Any) -> AppendRequest:
    how = {"topic": "orders", "queue_id": 0, **SENT, **change}
    if feature == "delayed":
        how["properties"] = {**how["properties"], fmt.PROPERTY_DELAY_MS: "50"}
    records = encode_message(**how) * count
    return AppendRequest(records=records, record_count=count, producer_id=7, **FEATURES[feature])


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("is_under_way", [False, True])
async def test_other_messages_under_a_used_number_are_refused_and_the_same_are_known(
    tmp_path: Path, feature: str, is_under_way: bool
) -> None:
    async with node_at(tmp_path, topics={"orders": 2, "bills": 2}) as node:
        node.driver.is_holding = is_under_way
        first = node.broker.append_nowait(batch(feature))
        if not is_under_way:
            await first
        node.clock.now_ms += 1_000  # A delayed one is due now, and would not be held any more.
        changes: list[dict[str, Any]] = [
            {"body": b"b"},
            {"flag": 2},
            {"topic": "bills"},
            {"topic": "bills", "properties": SENT["properties"] | {"REAL_TOPIC": "orders"}},
            {"properties": {"KEYS": "l", "TAGS": "t"}},
            {"properties": {"KEYS": "k"}},
            {"count": 1},
            {"count": 3},
        ]
        others = [node.broker.append_nowait(batch(feature, **change)) for change in changes]
        repeats: list[dict[str, Any]] = [
            {},
            {"born_unix_ms": 9},
            {"born_host": ("10.0.0.9", 1)},
            {"queue_id": 1},
        ]
        same = [node.broker.append_nowait(batch(feature, **repeat)) for repeat in repeats]
        if is_under_way:
            node.driver.release()
        receipt, size_bytes = await first, node.log.store.log.max_position
        for other in others:
            with pytest.raises(SequenceReusedError, match="send these under an id"):
                await other
        for repeated in same:
            answer = await repeated
            assert (answer.is_duplicate, answer.position) == (True, receipt.position)
        assert node.log.store.log.max_position == size_bytes
        assert node.broker.produce.duplicates_total == len(repeats)
