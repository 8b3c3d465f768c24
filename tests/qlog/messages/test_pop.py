"""`qlog consume --pop` and `qlog group pop` against a cluster of real processes."""

from pathlib import Path

from quorumlog import sync
from tests.qlog.running import Qlog


def test_single_messages_are_written_and_acknowledged(
    qlog: Qlog, tmp_path: Path, topic: str
) -> None:
    qlog.produce(tmp_path, topic, "a\nb\nc\n")
    pop = ("consume", topic, "--group", "workers", "--pop")
    assert qlog(*pop, "--max-count", 2).stdout == "a\nb\n"
    assert qlog.json(*pop, "--until", "end")[0]["body"] == "c"
    assert qlog(*pop, "--until", "end").stdout == ""
    assert qlog.json("group", "pop", "workers") == []
    assert qlog.json("group", "describe", "workers")["lag_count"] == 0
    for wrong in (
        ("consume", topic, "--pop"),
        (*pop, "--from", 7),
        (*pop, "--sql", "a =", "--tag", "t"),
        (*pop, "--queue", 0),
    ):
        qlog(*wrong, code=2)


def test_messages_in_flight_are_shown(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    qlog.produce(tmp_path, topic, "a\nb\nc\n")
    with (
        sync.connect(qlog.nodes.bootstrap) as client,
        client.pop_consumer("readers", topic) as consumer,
    ):
        first, second = consumer.receive(2)
        consumer.ack(second)
        [queue] = qlog.json("group", "pop", "readers")
        assert {**queue, "first_visible_unix_ms": 0} == {
            "topic": topic,
            "queue_id": 0,
            "broker_group": "g0",
            "offset": 0,
            "next_offset": 2,
            "in_flight_count": 1,
            "waiting_count": 0,
            "delivery_count_max": 1,
            "first_visible_unix_ms": 0,
            "is_full": False,
            "held_reason": "",
        }
        assert queue["first_visible_unix_ms"] == first.visible_unix_ms
        assert topic in qlog("group", "pop", "readers").stdout
        consumer.ack(first)
