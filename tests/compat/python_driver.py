"""Drives the official Python client by lines of JSON; runs in an environment of its own.

Each line of the input is a call, each line of the output its answer. It is kept apart because the
client's copy of the protocol cannot live in one process with ours under the same name.
"""

import base64
import json
import os
import sys
import threading
import time
from typing import Any

from rocketmq import (  # type: ignore[import-not-found]
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

_TLS = {"tls_enable": os.environ.get("COMPAT_TLS") == "1"}


def _view(message: Any) -> dict[str, Any]:
    return {
        "id": message.message_id,
        "topic": message.topic,
        "body": base64.b64encode(message.body).decode(),
        "tag": message.tag,
        "keys": list(message.keys),
        "group": message.message_group,
        "properties": dict(message.properties),
        "attempt": message.delivery_attempt,
        "is_corrupted": bool(message.corrupted),
    }


class _Checker(TransactionChecker):  # type: ignore[misc]
    def __init__(self) -> None:
        self.seen: list[str] = []

    def check(self, message: Any) -> Any:
        self.seen.append(message.message_id)
        return TransactionResolution.COMMIT


class _Listener(MessageListener):  # type: ignore[misc]
    """Records messages; refuses those whose attempt is below their property `fail_until`."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.changed = threading.Condition()

    def consume(self, message: Any) -> Any:
        fail_until = int(message.properties.get("fail_until", "0"))
        with self.changed:
            self.seen.append(_view(message))
            self.changed.notify_all()
        is_good = message.delivery_attempt >= fail_until
        return ConsumeResult.SUCCESS if is_good else ConsumeResult.FAILURE


class Driver:
    """Holds one client of each kind."""

    def __init__(self, endpoint: str, key: str, secret: str) -> None:
        self.configuration = ClientConfiguration(endpoint, Credentials(key, secret))
        self.clients: list[Any] = []
        self.producer: Any = None
        self.checker: _Checker | None = None
        self.simple: Any = None
        self.listener: _Listener | None = None
        self.received: dict[str, Any] = {}

    def do_producer(self, topics: list[str], commits_orphans: bool = False) -> None:
        self.checker = _Checker() if commits_orphans else None
        self.producer = Producer(self.configuration, topics, self.checker, **_TLS)
        self.clients.append(self.producer)
        self.producer.startup()

    def _message(self, **fields: Any) -> Any:
        message = Message()
        message.topic = fields["topic"]
        message.body = base64.b64decode(fields["body"])
        if fields.get("tag"):
            message.tag = fields["tag"]
        if fields.get("keys"):
            message.keys = fields["keys"][0]
        if fields.get("group"):
            message.message_group = fields["group"]
        if fields.get("delay_ms"):
            message.delivery_timestamp = int(time.time() + fields["delay_ms"] / 1000)
        for name, value in fields.get("properties", {}).items():
            message.add_property(name, value)
        return message

    def do_send(self, **fields: Any) -> dict[str, Any]:
        receipt = self.producer.send(self._message(**fields))
        return {"id": receipt.message_id, "recall": receipt.recall_handle}

    def do_half(self, **fields: Any) -> dict[str, Any]:
        transaction = self.producer.begin_transaction()
        receipt = self.producer.send(self._message(**fields), transaction)
        return {"id": receipt.message_id}

    def do_checked(self) -> list[str]:
        assert self.checker is not None
        return list(self.checker.seen)

    def do_recall(self, topic: str, handle: str) -> dict[str, Any]:
        return {"id": self.producer.recall_message(topic, handle)}

    def do_simple(self, group: str, topic: str, tags: str = "*", await_s: int = 2) -> None:
        subscription = {topic: FilterExpression(tags)}
        self.simple = SimpleConsumer(self.configuration, group, subscription, await_s, **_TLS)
        self.clients.append(self.simple)
        self.simple.startup()

    def do_receive(self, count: int = 32, invisible_s: int = 30) -> list[dict[str, Any]]:
        messages = self.simple.receive(count, invisible_s) or []
        self.received.update((message.message_id, message) for message in messages)
        return [_view(message) for message in messages]

    def do_ack(self, message_id: str) -> None:
        self.simple.ack(self.received[message_id])

    def do_change(self, message_id: str, invisible_s: int) -> None:
        self.simple.change_invisible_duration(self.received[message_id], invisible_s)

    def do_push(self, group: str, topic: str) -> None:
        self.listener = _Listener()
        consumer = PushConsumer(
            self.configuration, group, self.listener, {topic: FilterExpression()}, **_TLS
        )
        self.clients.append(consumer)
        consumer.startup()

    def do_pushed(self, count: int, timeout_s: float) -> list[dict[str, Any]]:
        assert self.listener is not None
        seen, changed = self.listener.seen, self.listener.changed
        with changed:
            changed.wait_for(lambda: len(seen) >= count, timeout_s)
            return list(seen)

    def do_close(self) -> None:
        for client in self.clients:
            client.shutdown()
        self.clients.clear()


def main() -> None:
    """Answer calls until the input ends."""
    driver = Driver(*sys.argv[1:4])
    out = sys.stdout
    sys.stdout = sys.stderr  # What the client prints is for the log.
    for line in sys.stdin:
        call = json.loads(line)
        try:
            result = getattr(driver, "do_" + call.pop("do"))(**call)
            answer = {"ok": True, "result": result}
        except Exception as error:  # noqa: BLE001 - told to the test.
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
