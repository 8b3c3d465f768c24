"""`qlog produce` and `qlog consume` against a cluster of real processes: bytes, counts, ends."""

import json
import os
import signal
from pathlib import Path

import pytest

from qlog.messages.produce import COMPRESSIONS
from quorumlog import sync
from quorumlog.produce.outgoing_messages import BATCH_SIZE_BYTES_LIMIT
from quorumlog.records.compression import IS_COMPRESSED, LZ4, ZLIB, ZSTD
from tests.patience import PATIENCE_S, wait_for
from tests.qlog.running import Qlog

LINES = [f"line {number:05d} ".encode() + b"x" * (number % 200) for number in range(5_000)]
TEXT = b"\n".join(LINES) + b"\n"


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "in"
    path.write_bytes(data)
    return path


def message_count(qlog: Qlog, topic: str) -> int:
    return int(qlog.json("topic", "describe", topic)["message_count"])


def test_a_file_comes_back_byte_for_byte(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    summary = qlog.json("produce", topic, "--file", write(tmp_path, TEXT))
    assert summary["acked_msgs_per_s"] > 0
    assert {key: summary[key] for key in list(summary)[:10]} == {
        "topic": topic,
        "source": str(tmp_path / "in"),
        "complete": True,
        "taken_count": 5_000,
        "acked_count": 5_000,
        "failed_count": 0,
        "unknown_count": 0,
        "acked_in_order_count": 5_000,
        "duplicate_count": 0,
        "durability": {"quorum_disk": 5_000},
    }
    assert summary["acked_size_bytes"] == sum(map(len, LINES))
    mean = {row["stage"]: row["mean_ms"] for row in summary["times"]}
    assert set(mean) == {"total", "leader", "queued", "sent", "quorum", "applied"}
    assert mean["total"] >= mean["leader"] > 0
    assert mean["sent"] + mean["quorum"] + mean["applied"] >= mean["leader"] - 0.1
    assert qlog("consume", topic, "--until", "end").stdout_bytes == TEXT
    read = ("consume", topic, "--until", "end", "--node")
    nodes = qlog.nodes.node_ids
    wait_for("all at each", lambda: all(qlog(*read, n).stdout_bytes == TEXT for n in nodes))


def test_where_to_begin_and_to_end(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    path = write(tmp_path, b"a\nb\nc\n")
    qlog("produce", topic, "--file", path)
    assert qlog("consume", topic, "--from", 1, "--until", "end").stdout == "b\nc\n"
    assert qlog("consume", topic, "--max-count", 2).stdout == "a\nb\n"
    assert qlog("consume", topic, "--queue", 0, "--from", 2, "--max-count", 1).stdout == "c\n"
    later = qlog.json("consume", topic, "--from", 2, "--max-count", 1)[0]["store_unix_ms"] + 1
    qlog("produce", topic, "--file", write(tmp_path, b"d\n"))
    assert qlog("consume", topic, "--from", f"@{later}", "--until", "end").stdout == "d\n"
    assert qlog("consume", topic, "--from", "@-1h", "--until", "end").stdout == "a\nb\nc\nd\n"
    for start, end, found in (
        ("-2", "end", "c\nd\n"),
        ("-100", 2, "a\nb\n"),
        ("-3", f"@{later}", "b\nc\n"),
        ("first", 0, ""),
        ("first", 10**9, "a\nb\nc\nd\n"),
        (3, "@-1h", ""),
    ):
        assert qlog("consume", topic, "--from", start, "--until", end).stdout == found
    assert (
        qlog("consume", topic, "--group", "newest", "--from", "-1", "--until", "end").stdout
        == "d\n"
    )
    for wrong in (("--from", "-0"), ("--until", "-1"), ("--until", "first"), ("--until", "")):
        qlog("consume", topic, *wrong, code=2)
    qlog("consume", topic, "--group", "g", "--until", 2, code=2)
    qlog("consume", topic, "--from", "soon", code=2)
    qlog("consume", topic, "--from", "end", "--until", "end", code=2)
    qlog("consume", topic, "--group", "g", "--queue", 0, code=2)
    assert len(qlog("consume", "no-such-topic", "--until", "end", code=4).stderr.splitlines()) == 3


def test_json_lines_can_be_produced_again(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    rows = [
        {"body": "höllo", "key": "k", "tag": "t", "queue_id": 0, "properties": {"colour": "red"}},
        {"body": "AAH/", "body_encoding": "base64"},
    ]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode() + b"\n  \n"
    qlog("produce", topic, "--format", "jsonl", "--file", write(tmp_path, data))
    first = qlog("consume", topic, "--until", "end", "-o", "jsonl").stdout_bytes
    qlog("produce", topic, "--format", "jsonl", "--file", write(tmp_path, first))
    messages = qlog.json("consume", topic, "--until", "end")
    kept = ("body", "body_encoding", "key", "tag", "properties")
    assert [{key: row[key] for key in kept} for row in messages[:2]] == [
        {key: row[key] for key in kept} for row in messages[2:]
    ]
    assert [row["body"] for row in messages[:2]] == ["höllo", "AAH/"]
    assert messages[0]["properties"].items() >= {"colour": "red"}.items()
    assert qlog.json("consume", topic, "--until", "end", "--tag", "t")[0]["body"] == "höllo"
    assert len(qlog.json("consume", topic, "--until", "end", "--tag", "t")) == 2


def test_raw_and_options_for_all_messages(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    data = bytes(range(256)) * 100
    path = write(tmp_path, data)
    send = ("produce", topic, "--format", "raw", "--tag", "all", "--queue", 0, "--file", path)
    assert "  1 synced on a quorum\n" in qlog(*send).stdout
    assert qlog("consume", topic, "--until", "end", "-o", "raw").stdout_bytes == data
    assert qlog.json("consume", topic, "--until", "end")[0]["tag"] == "all"


def test_a_template_reads_and_writes_the_parts_of_messages(
    qlog: Qlog, tmp_path: Path, topic: str
) -> None:
    path = write(tmp_path, b"k1\tnew;a:b\n\t;100%\n")
    send = ("produce", topic, "--key", "spare", "--property", "a=b", "--property", "c=d")
    qlog(*send, "--file", path, "--format", r"%k\t%g;%s\n")
    qlog(*send, "--file", write(tmp_path, b"last"))
    read = ("consume", topic, "--until", "end", "--format")
    shown = qlog(*read, r"%t/%p:%o [%k,%K] %g %v %V %h%%\x00\n").stdout.replace(topic, "t")
    assert shown.splitlines() == [
        "t/0:0 [k1,2] new a:b 3 a=b,c=d%\0",
        "t/0:1 [spare,5]  100% 4 a=b,c=d%\0",
        "t/0:2 [spare,5]  last 4 a=b,c=d%\0",
    ]
    assert qlog(*read, "%d%m").stdout.startswith("1")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("consume t --format %q", "'%q' means nothing"),
        ("consume t --format=", "an empty template writes nothing"),
        ("consume t --format %s -o json", "without -o"),
        ("produce t --format %k%s", "nothing between two parts"),
        ("produce t --format %k:%o", "means nothing here; use %g %k %p %s %v %% "),
        ("produce t --format %k:%g", "has no %s, which is the body"),
        ("produce t --format %s-%v", "has %s twice"),
        ("produce t --property a=b --property a=c", "'a' is given twice"),
        ("produce t --format liens", "'liens' is none of lines"),
        ("produce t --property a", "'a' is not NAME=VALUE"),
    ],
)
def test_a_template_that_makes_no_sense_is_refused_at_once(
    qlog: Qlog, words: str, says: str
) -> None:
    assert says in qlog(*words.split(), code=2).stderr


def test_compressed_bodies_take_less_and_come_back_whole(
    qlog: Qlog, tmp_path: Path, topic: str
) -> None:
    body = TEXT * 12
    assert len(body) > BATCH_SIZE_BYTES_LIMIT, "no entry holds it as it is"
    send = ("produce", topic, "--file", write(tmp_path, body), "--format", "raw")
    qlog(*send, code=5)
    for name in COMPRESSIONS:
        assert qlog.json(*send, "--compression", name)["acked_size_bytes"] == len(body)
    assert qlog("consume", topic, "--until", "end", "-o", "raw").stdout_bytes == body * 3
    with (
        sync.connect(qlog.nodes.bootstrap) as client,
        client.pull_consumer(topic, until="end") as consumer,
    ):
        kinds = [message.sys_flag for message in consumer]
    assert kinds == [IS_COMPRESSED | kind for kind in (ZLIB, LZ4, ZSTD)]
    qlog(*send, "--compression", "brotli", code=2)


def test_a_failure_is_counted_and_ends_the_reading(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    data = b"good\n" + b"x" * (8 << 20) + b"\n" + b"late\n" * 100_000
    result = qlog("produce", topic, "--file", write(tmp_path, data), "-o", "json", code=5)
    summary = json.loads(result.stdout)
    assert summary["complete"] is False
    assert summary["failed_count"] == 1
    assert summary["acked_in_order_count"] == 1
    assert summary["taken_count"] < 100_002
    assert summary["acked_count"] == message_count(qlog, topic)
    failure = json.loads(result.stderr)
    assert (failure["code"], failure["exit_code"]) == ("client.too_large", 5)
    assert failure["do"].endswith("skip the first message")

    near = topic.replace("counted", "countd")
    assert not qlog("produce", near, "--file", write(tmp_path, b""), code=4).stdout
    result = qlog("produce", near, "--file", write(tmp_path, b"a\n" * 3), code=4)
    what, _why, do = result.stderr.splitlines()
    assert (result.stdout, what) == ("", f"error: nothing was sent: topic {near!r} does not exist")
    assert do.startswith(f"  do:  did you mean '{topic}'")


def test_nothing_more_is_taken_once_time_ran_out(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    path = write(tmp_path, (b"x" * 99_999 + b"\n") * 100)
    paused = [n for n in qlog.nodes.node_ids if n != qlog.nodes.leader_id()]
    try:
        for node_id in paused:
            qlog.nodes.pause(node_id)
        result = qlog("produce", topic, "--file", path, "--timeout", "2s", "-o", "json", code=7)
    finally:
        for node_id in paused:
            qlog.nodes.resume(node_id)
        qlog.nodes.wait_ready()
    assert json.loads(result.stdout)["taken_count"] <= 42


def test_a_bad_line_stops_it_after_the_good_ones(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    path = write(tmp_path, b"a=1\nb=2\nbad\n")
    send = ("produce", topic, "--file", path, "--key-separator", "=")
    assert f"line 3 of {path} has not the form '%k=%s'" in qlog(*send, code=3).stderr
    assert message_count(qlog, topic) == 2
    path.write_bytes(b"\xff=1\n")
    result = qlog(*send, code=3)
    assert ("no UTF-8" in result.stderr, result.stdout) == (True, "")


def test_ctrl_c_waits_for_receipts_of_what_was_taken(qlog: Qlog, topic: str) -> None:
    process = qlog.start("produce", topic, "-o", "json")
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\n")
    process.stdin.flush()
    wait_for("both", lambda: message_count(qlog, topic) == 2)
    process.send_signal(signal.SIGINT)
    process.wait(PATIENCE_S)  # Its stdin is still open: the signal ended it, not the input.
    stdout, stderr = process.communicate()
    assert process.returncode == 130
    summary = json.loads(stdout)
    assert (summary["acked_count"], summary["unknown_count"]) == (2, 0)
    assert summary["complete"] is False
    assert stderr.decode().splitlines()[-1] == "interrupted"


def test_a_second_ctrl_c_says_what_is_unknown(qlog: Qlog, topic: str) -> None:
    leader_id = qlog.nodes.leader_id()
    followers = [node_id for node_id in qlog.nodes.node_ids if node_id != leader_id]
    process = qlog.start("produce", topic, "-o", "json")
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"before\n")
    process.stdin.flush()
    wait_for("the first", lambda: message_count(qlog, topic) == 1)
    try:
        for node_id in followers:
            qlog.nodes.pause(node_id)
        with sync.connect(qlog.nodes.bootstrap) as client:
            before = client.admin.node_status(leader_id).last_index
            process.stdin.write(b"one\ntwo\n")
            process.stdin.flush()
            wait_for("the two", lambda: client.admin.node_status(leader_id).last_index > before)
        process.send_signal(signal.SIGINT)
        assert b"2 messages without a receipt yet" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
        stdout, _ = process.communicate()
    finally:
        for node_id in followers:
            qlog.nodes.resume(node_id)
    assert process.returncode == 130
    summary = json.loads(stdout)
    assert (summary["taken_count"], summary["acked_count"], summary["unknown_count"]) == (3, 1, 2)
    qlog.nodes.wait_ready()


def test_a_group_goes_on_where_it_was(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    qlog("produce", topic, "--file", write(tmp_path, TEXT))
    first = qlog("consume", topic, "--group", "steps", "--max-count", 1_234).stdout_bytes
    rest = qlog("consume", topic, "--group", "steps", "--until", "end").stdout_bytes
    assert first.count(b"\n") == 1_234
    assert first + rest == TEXT
    assert qlog("consume", topic, "--group", "steps", "--until", "end").stdout == ""


def test_ctrl_c_commits_what_was_written(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    qlog("produce", topic, "--file", write(tmp_path, b"a\nb\n"))
    process = qlog.start("consume", topic, "--group", "stopped")
    assert process.stdout is not None
    assert process.stdout.readline() + process.stdout.readline() == b"a\nb\n"
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stdout, stderr) == (0, b"", b"")
    [queue] = qlog.json("group", "describe", "stopped")["queues"]
    assert queue["offset"] == 2


def test_a_terminal_sees_that_messages_are_waited_for(qlog: Qlog, topic: str) -> None:
    ours, theirs = os.openpty()
    process = qlog.start("consume", topic, stderr=theirs)
    with open(ours, "rb", buffering=0) as terminal:
        said = b""
        while b"waiting for messages; Ctrl-C ends" not in said:
            said += terminal.read(100)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    os.close(theirs)
    assert process.returncode == 0


def test_a_reader_that_went_away_is_no_error(qlog: Qlog, tmp_path: Path, topic: str) -> None:
    qlog("produce", topic, "--file", write(tmp_path, TEXT * 4))
    process = qlog.start("consume", topic, "--until", "end")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == LINES[0] + b"\n"
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 141
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.stdin is not None
    process.stdin.close()
