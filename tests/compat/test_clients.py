"""The official clients for Python and Node.js, unmodified, against three nodes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.local import LocalCluster
from tests.compat.drivers import CallFailedError, Client, body_of
from tests.patience import PATIENCE_S, wait_for

Message = dict[str, Any]


def receive(
    client: Client, count: int, *, ack: bool = True, invisible_s: int = 30
) -> list[Message]:
    """Receive so many messages, or fail; more than that is a failure too."""
    messages: list[Message] = []

    def are_there() -> bool:
        for message in client.call("receive", invisible_s=invisible_s):
            messages.append(message)
            if ack:
                client.call("ack", message_id=message["id"])
        return len(messages) >= count

    wait_for(f"{count} messages", are_there)
    assert len(messages) == count
    return messages


def test_a_message_is_received_as_it_was_sent(client: Client, topic: str) -> None:
    client.call("producer", topics=[topic])
    sent = client.call(
        "send",
        topic=topic,
        body=bytes(range(256)),
        tag="red",
        keys=["k1"],
        properties={"colour": "blau", "größe": "ü"},
    )
    client.call("simple", group="g-basic-" + topic, topic=topic)
    message = receive(client, 1)[0]
    assert body_of(message) == bytes(range(256))
    assert (message["id"], message["tag"], message["keys"]) == (sent["id"], "red", ["k1"])
    assert message["properties"] == {"colour": "blau", "größe": "ü"}
    assert (message["attempt"], message["is_corrupted"]) == (1, False)
    assert client.call("receive") == [], "it was acknowledged"


@pytest.mark.long
def test_bodies_of_one_mebibyte(client: Client, topic: str) -> None:
    body = bytes(range(256)) * 4096
    client.call("producer", topics=[topic])
    client.call("send", topic=topic, body=body)
    client.call("simple", group="g-large-" + topic, topic=topic)
    assert body_of(receive(client, 1)[0]) == body


def test_tags_are_filtered(client: Client, topic: str) -> None:
    client.call("producer", topics=[topic])
    for number, tag in enumerate(["red", "green", "blue", "red"]):
        client.call("send", topic=topic, body=b"%d" % number, tag=tag)
    client.call("simple", group="g-tags-" + topic, topic=topic, tags="red || blue")
    messages = receive(client, 3)
    assert {body_of(message) for message in messages} == {b"0", b"2", b"3"}


def test_a_message_group_is_received_in_order(client: Client, topic: str) -> None:
    client.call("producer", topics=[topic])
    for number in range(20):
        client.call("send", topic=topic, body=b"%d" % number, group=f"g{number % 2}")
    client.call("simple", group="g-fifo-" + topic, topic=topic)
    messages = receive(client, 20)
    for group in ("g0", "g1"):
        bodies = [int(body_of(m)) for m in messages if m["group"] == group]
        assert bodies == sorted(bodies)
        assert len(bodies) == 10


@pytest.mark.long
def test_a_delayed_message_comes_when_it_is_due(client: Client, topic: str) -> None:
    client.call("producer", topics=[topic])
    client.call("simple", group="g-delay-" + topic, topic=topic)
    began_s = time.time()
    sent = client.call("send", topic=topic, body=b"late", delay_ms=3_000)
    message = receive(client, 1)[0]
    assert message["id"] == sent["id"]
    # The Python client cuts the time to a whole second.
    assert message["received_s"] >= began_s + 2.0


@pytest.mark.long
def test_a_recalled_message_never_comes(client: Client, topic: str) -> None:
    client.call("producer", topics=[topic])
    gone = client.call("send", topic=topic, body=b"gone", delay_ms=4_000)
    client.call("send", topic=topic, body=b"stays", delay_ms=4_000)
    assert client.call("recall", topic=topic, handle=gone["recall"])["id"] == gone["id"]
    client.call("simple", group="g-recall-" + topic, topic=topic)
    assert body_of(receive(client, 1)[0]) == b"stays"
    with pytest.raises(CallFailedError):
        client.call("recall", topic=topic, handle="never given out")


@pytest.mark.long
def test_an_unacknowledged_message_comes_again(client: Client, topic: str) -> None:
    client.call("producer", topics=[topic])
    sent = client.call("send", topic=topic, body=b"again")
    client.call("simple", group="g-again-" + topic, topic=topic)
    first = receive(client, 1, ack=False, invisible_s=60)[0]
    assert client.call("receive") == [], "it is invisible"
    client.call("change", message_id=first["id"], invisible_s=0)
    second = receive(client, 1)[0]
    assert (second["id"], second["attempt"]) == (sent["id"], 2)


@pytest.mark.long
def test_transactions_are_all_or_nothing(client: Client, topic: str) -> None:
    client.call("producer", topics=[topic], checker="commit")
    client.call("simple", group="g-transaction-" + topic, topic=topic)
    client.call("half", topic=topic, body=b"rolled back")
    client.call("rollback")
    kept = client.call("half", topic=topic, body=b"committed")
    assert client.call("receive") == [], "a half message is not seen"
    client.call("commit")
    message = receive(client, 1)[0]
    assert (message["id"], body_of(message)) == (kept["id"], b"committed")
    assert client.call("receive") == []


@pytest.mark.long
def test_orphaned_transactions_are_asked_for(client: Client, topic: str) -> None:
    client.call("producer", topics=[topic], checker="commit")
    client.call("simple", group="g-orphan-" + topic, topic=topic, await_s=5)
    sent = client.call("half", topic=topic, body=b"orphan")
    message = receive(client, 1)[0]
    assert message["id"] == sent["id"]
    assert sent["id"] in client.call("checked")


@pytest.mark.long
def test_push_consumers_share_the_messages(
    client: Client, language: str, cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    group = "g-push-" + topic
    with Client(language, cluster.address(2), tmp_path / "home2") as second:
        for consumer in (client, second):
            consumer.call("push", group=group, topic=topic)
        client.call("producer", topics=[topic])
        sent = {client.call("send", topic=topic, body=b"%d" % n)["id"] for n in range(60)}
        messages = pushed(client, second, lambda seen: {m["id"] for m in seen} >= sent)
        assert sorted(m["id"] for m in messages) == sorted(sent), "each once"


@pytest.mark.long
def test_a_message_that_fails_is_pushed_again(client: Client, topic: str) -> None:
    client.call("producer", topics=[topic])
    client.call("push", group="g-fail-" + topic, topic=topic)
    sent = client.call("send", topic=topic, body=b"x", properties={"fail_until": "3"})
    messages = pushed(client, None, lambda seen: len(seen) >= 3)
    assert [m["attempt"] for m in messages] == [1, 2, 3]
    assert {m["id"] for m in messages} == {sent["id"]}


def pushed(
    first: Client, second: Client | None, is_enough: Callable[[list[Message]], bool]
) -> list[Message]:
    """Return what was pushed, once it is enough."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        seen = [m for c in (first, second) if c for m in c.call("pushed", count=0, timeout_s=0.2)]
        if is_enough(seen):
            return seen
        assert time.monotonic() < deadline, f"{len(seen)} messages"
        first.call("pushed", count=len(seen) + 1, timeout_s=1.0)


@pytest.mark.long
def test_unknown_topics_and_groups_are_told(client: Client, topic: str) -> None:
    client.call("producer", topics=[topic])
    with pytest.raises(CallFailedError, match=r"no_such_topic|40402|NotFound|not found|route"):
        client.call("send", topic="no_such_topic", body=b"x")
    client.call("send", topic=topic, body=b"the client goes on")
