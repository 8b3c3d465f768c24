"""The official clients for Python and Node.js, unmodified, against three nodes.

Delays, ends of transactions and push consumers are judged while a leader is killed, in
test_leader_killed.py.
"""

from typing import Any

import pytest

from tests.compat.drivers import CallFailedError, Client, body_of
from tests.patience import wait_for

Message = dict[str, Any]
BODY = bytes(range(256)) * 4_096


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
        body=BODY,
        tag="red",
        keys=["k1"],
        properties={"colour": "blau", "größe": "ü"},
    )
    client.call("simple", group="g-basic-" + topic, topic=topic)
    message = receive(client, 1)[0]
    assert body_of(message) == BODY
    assert (message["id"], message["tag"], message["keys"]) == (sent["id"], "red", ["k1"])
    assert message["properties"] == {"colour": "blau", "größe": "ü"}
    assert (message["attempt"], message["is_corrupted"]) == (1, False)
    assert client.call("receive") == [], "it was acknowledged"


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
def test_orphaned_transactions_are_asked_for(client: Client, topic: str) -> None:
    client.call("producer", topics=[topic], commits_orphans=True)
    client.call("simple", group="g-orphan-" + topic, topic=topic, await_s=5)
    sent = client.call("half", topic=topic, body=b"orphan")
    message = receive(client, 1)[0]
    assert message["id"] == sent["id"]
    assert sent["id"] in client.call("checked")


@pytest.mark.long
def test_a_message_that_fails_is_pushed_again(client: Client, topic: str) -> None:
    client.call("producer", topics=[topic])
    client.call("push", group="g-fail-" + topic, topic=topic)
    sent = client.call("send", topic=topic, body=b"x", properties={"fail_until": "3"})
    messages: list[Message] = []

    def are_there() -> bool:
        messages[:] = client.call("pushed", count=3, timeout_s=1.0)
        return len(messages) >= 3

    wait_for("three deliveries", are_there)
    assert [m["attempt"] for m in messages] == [1, 2, 3]
    assert {m["id"] for m in messages} == {sent["id"]}


@pytest.mark.long
def test_unknown_topics_and_groups_are_told(client: Client, topic: str) -> None:
    client.call("producer", topics=[topic])
    with pytest.raises(CallFailedError, match=r"no_such_topic|40402|NotFound|not found|route"):
        client.call("send", topic="no_such_topic", body=b"x")
    client.call("send", topic=topic, body=b"the client goes on")
