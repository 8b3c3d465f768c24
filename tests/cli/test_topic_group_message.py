"""`qlog topic`, `qlog group` and `qlog message` against a cluster of real processes."""

from pathlib import Path

import pytest

from tests.cli.running import Qlog

pytestmark = pytest.mark.slow


def produce(qlog: Qlog, tmp_path: Path, topic: str, text: str, *options: object) -> None:
    path = tmp_path / "in"
    path.write_text(text)
    assert qlog.json("produce", topic, "--file", path, *options)["complete"] is True


def test_a_topic_from_create_to_delete(qlog: Qlog, tmp_path: Path) -> None:
    made = qlog.json("topic", "create", "life", "--queues", 2)
    share = {"group": "g0", "queue_count": 2, "permission": "rw"}
    assert made == {"topic": "life", "queue_count": 2, "permission": "rw", "shares": [share]}
    again = qlog("topic", "create", "life", code=3)
    assert len(again.stderr.splitlines()) == 3
    assert "life" in again.stderr
    grown = qlog.json("topic", "create", "life", "--queues", 4, "--exist-ok")
    assert grown["queue_count"] == 4
    [listed] = [row for row in qlog.json("topic", "list") if row["topic"] == "life"]
    assert listed == {**made, "queue_count": 4, "shares": [{**share, "queue_count": 4}]}

    produce(qlog, tmp_path, "life", "a\nb\nc\n", "--queue", 3)
    found = qlog.json("topic", "describe", "life")
    assert (found["topic"], found["queue_count"], found["message_count"]) == ("life", 4, 3)
    assert [(q["queue_id"], q["min_offset"], q["max_offset"]) for q in found["queues"]] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
        (3, 0, 3),
    ]
    assert found["queues"][0]["last_store_unix_ms"] is None
    assert found["queues"][3]["last_store_unix_ms"] > 1_600_000_000_000
    assert "message_count  3\n" in qlog("topic", "describe", "life").stdout

    assert qlog.json("topic", "delete", "life", "--yes") == {"topic": "life", "deleted": True}
    assert "life" not in [row["topic"] for row in qlog.json("topic", "list")]
    gone = qlog("topic", "describe", "life", code=3)
    assert len(gone.stderr.splitlines()) == 3


def test_system_topics_are_listed_when_asked_for(qlog: Qlog, topic: str) -> None:
    plain = {row["topic"] for row in qlog.json("topic", "list")}
    everything = {row["topic"] for row in qlog.json("topic", "list", "--system")}
    assert topic in plain
    assert plain < everything
    assert {"rmq_sys_quorumlog", "RMQ_SYS_TRANS_HALF_TOPIC"} <= everything - plain


def test_a_group_is_seen_and_deleted(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    produce(qlog, tmp_path, topic, "a\nb\nc\n")
    taken = qlog("consume", topic, "--group", "seen", "--max-count", 2)
    assert taken.stdout == "a\nb\n"
    [row] = [row for row in qlog.json("group", "list") if row["group"] == "seen"]
    assert row == {"group": "seen", "member_count": 0, "lag_count": 1, "topics": [topic]}
    found = qlog.json("group", "describe", "seen")
    assert found["client_ids"] == []
    [queue] = found["queues"]
    assert queue == {
        "group": "g0",
        "topic": topic,
        "queue_id": 0,
        "offset": 2,
        "min_offset": 0,
        "max_offset": 3,
        "lag_count": 1,
    }
    assert qlog.json("group", "delete", "seen", "--yes") == {"group": "seen", "deleted": True}
    assert "seen" not in [row["group"] for row in qlog.json("group", "list")]
    assert len(qlog("group", "describe", "seen", code=3).stderr.splitlines()) == 3


def test_a_message_is_found_by_id_and_by_key(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    produce(qlog, tmp_path, topic, "k1=one\nk2=two\nk1=three\n", "--key-separator", "=")
    rows = qlog.json("consume", topic, "--until", "end")
    assert [row["body"] for row in rows] == ["one", "two", "three"]
    assert qlog.json("message", "get", rows[1]["message_id"]) == rows[1]
    assert qlog.json("message", "query", topic, "--key", "k1") == [rows[0], rows[2]]
    assert qlog.json("message", "query", topic, "--key", "k1", "--max-count", 1)
    table = qlog("message", "query", topic, "--key", "k2").stdout.splitlines()
    assert table[0].split()[:3] == ["topic", "queue_id", "queue_offset"]
    assert len(table) == 2

    assert qlog.json("message", "query", topic, "--key", "none", code=1) == []
    assert qlog.json("message", "query", topic, "--key", "k1", "--before", "-1h", code=1) == []
    assert len(qlog.json("message", "query", topic, "--key", "k1", "--since", "-1h")) == 2
    assert len(qlog("message", "get", "nonsense", code=3).stderr.splitlines()) == 3
    qlog("message", "query", topic, "--key", "k1", "--since", "soon", code=2)
