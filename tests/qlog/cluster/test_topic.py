"""`qlog topic`, `qlog group` and `qlog message` against a cluster of real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qlog.connection import SERVER_VARIABLE
from quorumlog import sync
from tests.qlog.running import PROGRAM, Qlog


def test_a_topic_from_create_to_delete(qlog: Qlog, tmp_path: Path) -> None:
    made = qlog.json("topic", "create", "life", "--queues", 2)
    share = {"broker_group": "g0", "queue_count": 2, "permission": "rw"}
    expected = {"topic": "life", "queue_count": 2, "permission": "rw", "message_type": "MIXED"}
    assert made == {**expected, "shares": [share]}
    again = qlog("topic", "create", "life", code=5)
    for verb in (("describe",), ("delete", "--yes")):
        remedy = qlog("topic", *verb, "liff", code=4).stderr.splitlines()[-1]
        assert remedy == (
            "  do:  did you mean 'life'? else check the name: 'qlog topic list' has all"
        )
    assert len(again.stderr.splitlines()) == 3
    assert "life" in again.stderr
    grown = qlog.json("topic", "create", "life", "--queues", 4, "--exist-ok")
    assert grown["queue_count"] == 4
    [listed] = [row for row in qlog.json("topic", "list") if row["topic"] == "life"]
    assert listed == {**made, "queue_count": 4, "shares": [{**share, "queue_count": 4}]}

    qlog.produce(tmp_path, "life", "a\nb\nc\n", "--queue", 3)
    shown = qlog.json("topic", "describe", "life")
    assert (shown["topic"], shown["queue_count"], shown["message_count"]) == ("life", 4, 3)
    assert [(q["queue_id"], q["first_offset"], q["end_offset"]) for q in shown["queues"]] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
        (3, 0, 3),
    ]
    assert shown["queues"][0]["last_store_unix_ms"] is None
    assert shown["queues"][3]["last_store_unix_ms"] > 1_600_000_000_000
    assert "message_count  3\n" in qlog("topic", "describe", "life").stdout

    assert qlog.json("topic", "delete", "life", "--yes") == {"topic": "life", "deleted": True}
    assert "life" not in [row["topic"] for row in qlog.json("topic", "list")]
    gone = qlog("topic", "describe", "life", code=4)
    assert len(gone.stderr.splitlines()) == 3


def test_system_topics_are_listed_when_asked_for(qlog: Qlog, topic: str) -> None:
    plain = {row["topic"] for row in qlog.json("topic", "list")}
    everything = {row["topic"] for row in qlog.json("topic", "list", "--system")}
    assert topic in plain
    assert plain < everything
    assert {"rmq_sys_quorumlog", "RMQ_SYS_TRANS_HALF_TOPIC"} <= everything - plain


def test_a_group_is_seen_and_deleted(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    qlog.produce(tmp_path, topic, "a\nb\nc\n")
    taken = qlog("consume", topic, "--group", "seen", "--max-count", 2)
    assert taken.stdout == "a\nb\n"
    [row] = [row for row in qlog.json("group", "list") if row["group"] == "seen"]
    assert row == {"group": "seen", "member_count": 0, "lag_count": 1, "topics": [topic]}
    shown = qlog.json("group", "describe", "seen")
    assert shown["client_ids"] == []
    [queue] = shown["queues"]
    assert queue == {
        "broker_group": "g0",
        "topic": topic,
        "queue_id": 0,
        "offset": 2,
        "first_offset": 0,
        "end_offset": 3,
        "lag_count": 1,
    }
    qlog("topic", "create", topic, "--queues", 3, "--exist-ok")
    table = qlog("group", "describe", "seen").stdout.splitlines()
    assert "client_ids    -" in table
    assert table[-1].split() == [topic, "2", "0", "0", "0", "0"]
    assert qlog.json("group", "delete", "seen", "--yes") == {"group": "seen", "deleted": True}
    assert "seen" not in [row["group"] for row in qlog.json("group", "list")]
    assert len(qlog("group", "describe", "seen", code=4).stderr.splitlines()) == 3


def test_a_message_is_found_by_id_and_by_key(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    assert qlog("message", "get", "0" * 32, code=4).stderr.count("expired") == 1
    qlog.produce(tmp_path, topic, "k1=one\nk2=two\nk1=three\n", "--key-separator", "=")
    rows = qlog.json("consume", topic, "--until", "end")
    assert [row["body"] for row in rows] == ["one", "two", "three"]
    assert qlog.json("message", "get", rows[1]["message_id"]) == rows[1]
    assert qlog.json("message", "query", topic, "--key", "k1") == [rows[0], rows[2]]
    cut = qlog("message", "query", topic, "--key", "k1", "--max-count", 1, "-o", "json")
    assert json.loads(cut.stdout) == [rows[2]]
    assert cut.stderr == "there are more than 1: raise --max-count\n"
    table = qlog("message", "query", topic, "--key", "k2").stdout.splitlines()
    assert table[0].split()[:3] == ["topic", "queue_id", "queue_offset"]
    assert len(table) == 2

    assert qlog.json("message", "query", topic, "--key", "none", code=1) == []
    assert qlog.json("message", "query", topic, "--key", "k1", "--before", "-1h", code=1) == []
    assert len(qlog.json("message", "query", topic, "--key", "k1", "--since", "-1h")) == 2
    assert len(qlog("message", "get", "nonsense", code=5).stderr.splitlines()) == 3
    qlog("message", "query", topic, "--key", "k1", "--since", "soon", code=2)


def test_transactions_are_seen_and_ended_by_hand(qlog: Qlog, topic: str) -> None:
    with sync.connect(qlog.nodes.bootstrap) as client:
        producer = client.transactional_producer("billing", lambda _: "unknown")
        first, other = (producer.begin(topic, body, key="k1") for body in (b"one", b"other"))
        listed = qlog.json("transaction", "list", "--producer-group", "billing")
        assert [row["transaction_id"] for row in listed] == [
            first.transaction_id,
            other.transaction_id,
        ]
        assert (listed[0]["message_count"], listed[0]["is_orphaned"]) == (1, False)
        assert "billing" in qlog("transaction", "list").stdout
        shown = qlog.json("transaction", "show", first.transaction_id)
        assert (shown["outcome"], shown["messages"][0]["body"]) == ("open", "one")
        done = qlog.json("transaction", "commit", first.transaction_id, "--yes")
        assert done == {
            "transaction_id": first.transaction_id,
            "outcome": "committed",
            "was_ended": False,
        }
        assert qlog.json("transaction", "rollback", other.transaction_id, "--yes")["outcome"]
        refused = qlog("transaction", "commit", other.transaction_id, "--yes", code=5)
        assert "rolled back before" in refused.stderr
        assert qlog.json("transaction", "show", other.transaction_id)["outcome"] == "rolled back"
        assert qlog("consume", topic, "--until", "end").stdout == "one\n"
        half = first.receipts[0].message_id
    messages = qlog.json("message", "find", topic, "--key", "k1")
    assert [row["body"] for row in messages] == ["one"]
    unique = messages[0]["properties"]["UNIQ_KEY"]
    assert qlog.json("message", "find", topic, "--unique", unique) == messages
    for words in (("--id", messages[0]["message_id"]), (messages[0]["message_id"],)):
        assert qlog.json("message", "find", *words) == messages
    assert qlog.json("message", "get", unique, "--topic", topic) == messages[0]
    traced = qlog.json("message", "trace", unique, "--topic", topic)
    assert traced == qlog.json("message", "trace", messages[0]["message_id"])
    key = f"01{unique}"  # As clients of RocketMQ 5 make one.
    for verb in ("get", "trace"):
        hint = qlog("message", verb, key, code=2).stderr
        assert hint.endswith(f"  do:  name the topic: qlog message {verb} {key} --topic TOPIC\n")
        missing = qlog("message", verb, key, "--topic", topic, code=4).stderr
        assert f"no message of topic {topic} has the unique key {key}" in missing
    assert qlog("message", "find", topic, "--key", "nobody", code=1).stderr == ""
    assert f"find {topic} --key KEY" in qlog("message", "find", topic, code=2).stderr
    trace = qlog.json("message", "trace", half)
    assert [event["kind"] for event in trace["events"]] == ["half", "committed"]
    assert trace["is_complete"] is True
    assert "committed" in qlog("message", "trace", messages[0]["message_id"]).stdout


def test_sizes_of_messages_are_shown(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    qlog.produce(tmp_path, topic, "a\nb\nc\n")
    [sizes] = qlog.json("topic", "stats", topic)
    assert sizes["record_count"] == sum(b["record_count"] for b in sizes["buckets"]) == 3
    assert 91 < sizes["mean_size_bytes"] < 256
    assert "mean_size_bytes" in qlog("topic", "stats", topic).stdout


@pytest.mark.parametrize(
    ("words", "name"),
    [("topic describe", None), ("consume t --node", "2")],
    ids=["topics", "nodes"],
)
def test_a_shell_completes_names_of_the_cluster_and_is_silent_without_one(
    qlog: Qlog, topic: str, words: str, name: str | None
) -> None:
    expected = name or topic
    typed = {
        "_QLOG_COMPLETE": "bash_complete",
        "COMP_WORDS": f"qlog {words} {expected[:-1]}",
        "COMP_CWORD": str(len(words.split()) + 1),
    }
    program = [sys.executable, "-c", PROGRAM]
    for server, shown in ((qlog.nodes.bootstrap, f"plain,{expected}\n"), ("127.0.0.1:1", "")):
        environment = {**os.environ, **typed, SERVER_VARIABLE: server}
        done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
        assert shown in done.stdout
        assert bool(shown) == bool(done.stdout.strip())
        assert done.stderr == ""


def test_rates_of_a_topic_are_set_one_by_one_and_shown(qlog: Qlog, topic: str) -> None:
    rates = {"topic": topic, "bytes_per_second": 10 << 20, "messages_per_second": 0}
    assert qlog.json("topic", "set", topic, "--bytes-per-second", "10MiB") == rates
    rates["messages_per_second"] = 5
    assert qlog.json("topic", "set", topic, "--messages-per-second", 5) == rates
    assert rates.items() <= qlog.json("topic", "describe", topic).items()
    assert "messages_per_second" in qlog("topic", "describe", topic).stdout
    for wrong in ((), ("--bytes-per-second", "1.5k")):
        assert len(qlog("topic", "set", topic, *wrong, code=2).stderr.splitlines()) == 3
    qlog("topic", "set", topic, "--bytes-per-second", 0, "--messages-per-second", 0)
    assert "per_second" not in qlog("topic", "describe", topic).stdout


def test_a_cluster_without_users_has_an_empty_audit(qlog: Qlog) -> None:
    assert qlog.json("audit", "--since", "1h", "--refused", "--user", "shop") == []
