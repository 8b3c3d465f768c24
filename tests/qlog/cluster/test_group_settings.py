"""Settings and progress of groups, dead letters, tables of RocketMQ, and the list of nodes."""

import json
import os
from pathlib import Path

import quorumlog.sync
from tests.qlog.running import Qlog


def test_settings_of_a_group(qlog: Qlog) -> None:
    assert len(qlog("group", "settings", "nobody", code=4).stderr.splitlines()) == 3
    made = qlog.json(
        "group", "set", "billing", "--retries", 3, "--retry-delays", "1s,2m", "--no-broadcast",
        "--forbid", "salaries",
    )  # fmt: skip
    assert made == {
        "group": "billing",
        "retry_count_max": 3,
        "retry_delays_ms": [1_000, 120_000],
        "is_consume_enabled": True,
        "is_broadcast_enabled": False,
        "is_orderly": False,
        "forbidden_topics": ["salaries"],
    }
    assert qlog.json("group", "settings", "billing") == made
    table = qlog("group", "set", "billing", "--allow", "salaries", "--forbid", "x").stdout
    assert "retry_delays_ms       1 s, 2 m\n" in table
    again = qlog.json("group", "set", "billing", "--retry-delays", "default")
    assert (again["forbidden_topics"], again["retry_delays_ms"]) == (["x"], [])
    assert "nothing to change" in qlog("group", "set", "billing", code=2).stderr
    assert "no duration" in qlog("group", "set", "billing", "--retry-delays", "x", code=2).stderr


def test_a_group_goes_on_from_another_place(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    qlog.produce(tmp_path, topic, "a\nb\nc\n")
    assert qlog("consume", topic, "--group", "moved", "--max-count", 3).stdout == "a\nb\nc\n"
    [row] = qlog.json("group", "progress", "moved")
    assert (row["topic"], row["queue_id"], row["broker_group"]) == (topic, 0, "g0")
    assert (row["broker_offset"], row["consumer_offset"], row["diff"]) == (3, 3, 0)
    assert row["last_time"].endswith("Z")
    assert "diff total  0" in qlog("group", "progress", "moved").stdout

    [back] = qlog.json("group", "reset", "moved", "--topic", topic, "--to-time", "-1h")
    assert back == {"broker_group": "g0", "topic": topic, "queue_id": 0, "offset": 0}
    [dry] = qlog.json("group", "reset", "moved", "--topic", topic, "--to", "end", "--dry-run")
    [row] = qlog.json("group", "progress", "moved")
    assert (dry["offset"] > 0, row["consumer_offset"]) == (True, back["offset"])
    [end] = qlog.json("group", "reset", "moved", "--topic", topic, "--to", "end")
    assert end["offset"] == 3
    [queue_row] = qlog.json("group", "reset", "moved", "--topic", topic, "--to-offset", 1)
    assert queue_row["offset"] == 1
    assert qlog("consume", topic, "--group", "moved", "--max-count", 2).stdout == "b\nc\n"
    qlog("group", "reset", "moved", "--topic", topic, code=2)
    unknown = qlog("group", "reset", "movd", "--topic", topic, "--to", "end", code=4)
    assert "do:  did you mean 'moved'" in unknown.stderr
    assert "movd" not in [row["group"] for row in qlog.json("group", "list")]
    qlog("group", "reset", "moved", "--topic", topic, "--to-time", "soon", code=2)

    with (
        quorumlog.sync.connect(qlog.nodes.bootstrap) as client,
        client.group_consumer("moved", topic),
    ):
        refused = qlog("group", "reset", "moved", "--topic", topic, "--to", "first", code=5)
        assert "has members" in refused.stderr
        assert "--force" in refused.stderr
        qlog("group", "reset", "moved", "--topic", topic, "--to", "first", "--force")
        [row] = qlog.json("group", "progress", "moved")
        assert row["diff"] == 3


def test_dead_letters_are_seen_and_sent_again(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    qlog.produce(tmp_path, topic, "a\nb\nc\n")
    with (
        quorumlog.sync.connect(qlog.nodes.bootstrap) as client,
        client.group_consumer("dying", topic) as consumer,
    ):
        batch = consumer.next_batch()
        assert batch is not None
        assert consumer.reject(batch.messages).dead_count == 3
    rows = qlog.json("dlq", "list", "dying")
    assert [row["body"] for row in rows] == ["a", "b", "c"]
    assert [(row["offset"], row["origin_topic"]) for row in rows] == [(n, topic) for n in range(3)]
    shown = qlog.json("dlq", "show", "dying", 1)
    assert (shown["body"], shown["is_resent"], shown["reconsume_times"]) == ("b", False, 1)
    assert len(qlog("dlq", "show", "dying", 9, code=4).stderr.splitlines()) == 3

    assert qlog.json("dlq", "resend", "dying", "--offset", 1) == {
        "resent_count": 1,
        "already_resent_count": 0,
        "kept": [],
    }
    assert qlog.json("dlq", "resend", "dying", "--all")["resent_count"] == 2
    assert qlog.json("dlq", "resend", "dying", "--offset", 1)["already_resent_count"] == 1
    assert all(row["is_resent"] for row in qlog.json("dlq", "list", "dying"))
    assert qlog("consume", topic, "--until", "end").stdout == "a\nb\nc\nb\na\nc\n"
    assert qlog.json("dlq", "list", "dying", "--from", 7, code=1) == []
    qlog("dlq", "resend", "dying", code=2)

    some = qlog.json("dlq", "resend", "dying", "--offset", 0, "--offset", 9, code=1)
    assert (some["already_resent_count"], some["kept"][0]["offset"]) == (1, 9)
    assert some["kept"][0]["code"] == "node.no_such_offset"
    cut = qlog("dlq", "list", "dying", "--max-count", 2)
    assert (len(cut.stdout.splitlines()), cut.stderr[:22]) == (3, "there are more than 2:")


def test_more_letters_than_a_batch_holds_are_sent_but_for_those_that_cannot(
    qlog: Qlog, tmp_path: Path, topic: str
) -> None:
    gone = f"{topic}-gone"
    qlog("topic", "create", gone)
    with quorumlog.sync.connect(qlog.nodes.bootstrap) as client:
        with client.producer() as producer:
            producer.send(gone, b"gone")
            for _ in range(100):
                producer.enqueue(topic, bytes(60_000))
            producer.flush()
        with client.group_consumer("heavy", [gone, topic]) as consumer:
            dead_count = 0
            while dead_count < 101:
                batch = consumer.next_batch()
                assert batch is not None
                dead_count += consumer.reject(batch.messages).dead_count
    qlog("topic", "delete", gone, "--yes")
    done = qlog.json("dlq", "resend", "heavy", "--all", code=1)
    assert (done["resent_count"], done["already_resent_count"]) == (100, 0)
    [kept] = done["kept"]
    assert kept["code"] == "node.unknown_topic"
    assert gone in kept["reason"]
    assert qlog.json("dlq", "resend", "heavy", "--all", code=1)["resent_count"] == 0


def test_tables_come_and_go(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    qlog.produce(tmp_path, topic, "a\nb\n")
    qlog("consume", topic, "--group", "tables", "--max-count", 1)
    tables = tmp_path / "tables"
    written = qlog.json("config-files", "export", tables)
    names = ["consumerOffset.json", "delayOffset.json", "subscriptionGroup.json", "topics.json"]
    assert [row["file"] for row in written] == names
    assert f'"{topic}@tables":{{0:1}}' in (tables / "consumerOffset.json").read_text()

    done = qlog.json("config-files", "import", tables)
    counts = [done[f"{name}_count"] for name in ("topic", "group", "offset")]
    assert (counts, done["refusals"], done["warnings"]) == ([0, 0, 0], [], [])

    topics = json.loads((tables / "topics.json").read_text())
    rows = topics["topicConfigTable"]
    rows["TBW102"] = {**rows[topic], "topicName": "TBW102"}
    rows["new-topic"] = {
        **rows[topic], "topicName": "new-topic", "writeQueueNums": 3, "order": True,
    }  # fmt: skip
    rows[topic] = {**rows[topic], "writeQueueNums": 0, "readQueueNums": 0}
    (tables / "topics.json").write_text(json.dumps(topics))
    refused = qlog.json("config-files", "import", tables, code=1)
    assert [text.startswith(f"topics.json: {topic}: ") for text in refused["refusals"]] == [True]
    assert "new-topic" not in [row["topic"] for row in qlog.json("topic", "list")]

    del rows[topic]
    (tables / "topics.json").write_text(json.dumps(topics))
    dry = qlog.json("config-files", "import", tables, "--dry-run")
    assert (dry["topic_count"], dry["refusals"]) == (1, [])
    assert "topics.json: TBW102 belongs to the cluster" in dry["skipped"]
    unused = "topics.json: new-topic: has no effect here: order=true, readQueueNums=1"
    assert dry["warnings"] == [unused]
    shown = qlog("config-files", "import", tables, "--dry-run", "-o", "table").stdout
    assert f"warning: {unused}" in shown.splitlines()
    assert "new-topic" not in [row["topic"] for row in qlog.json("topic", "list")]
    assert qlog.json("config-files", "import", tables)["topic_count"] == 1
    assert qlog.json("config-files", "import", tables)["topic_count"] == 0
    assert qlog.json("topic", "describe", "new-topic")["queue_count"] == 3
    empty = tmp_path / "empty"
    empty.mkdir()
    assert len(qlog("config-files", "import", empty, code=3).stderr.splitlines()) == 3


def test_tables_that_are_none_are_refused_by_name(qlog: Qlog, tmp_path: Path) -> None:
    deep = tmp_path / "topics.json"
    deep.write_text("[" * 100_000 + "]" * 100_000)
    refused = qlog.json("config-files", "import", tmp_path, code=1)
    assert "nested more than 64 deep" in refused["refusals"][0]
    deep.write_bytes(b"\xff\xfe")
    assert "cannot be read" in qlog("config-files", "import", tmp_path, code=3).stderr
    deep.unlink()
    os.mkfifo(deep)  # Would be waited for.
    assert "it is no file" in qlog("config-files", "import", tmp_path, code=3).stderr
    deep.unlink()
    with deep.open("wb") as file:
        file.truncate(1 << 40)
    assert "one import takes" in qlog("config-files", "import", tmp_path, code=3).stderr


def test_the_nodes_are_listed_with_their_rates(qlog: Qlog) -> None:
    rows = qlog.json("cluster", "list", "--interval", 0.1)
    assert [row["node_id"] for row in rows] == [1, 2, 3]
    assert all(row["activated"] and row["in_tps"] >= 0 and row["out_tps"] >= 0 for row in rows)
    assert sorted(row["role"] for row in rows) == ["follower", "follower", "leader"]


def test_messages_are_chosen_by_their_properties(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    qlog.produce(tmp_path, topic, "a\nb\n")
    with quorumlog.sync.connect(qlog.nodes.bootstrap) as client, client.producer() as producer:
        producer.send(topic, b"c", properties={"amount": "7"})
        producer.send(topic, b"d", properties={"amount": "70"})
    chosen = qlog("consume", topic, "--sql", "amount > 10", "--until", "end")
    assert chosen.stdout == "d\n"
    assert "filter, character 3" in qlog("consume", topic, "--sql", "a b", code=5).stderr
