"""Sends or receives with the official client for Python, in an environment of its own.

`tests/compat/official/clients.py` says how each such program is called and what it prints.
"""

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

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

KINDS: Final = ("ordered", "ordinary", "delayed", "transactional")
LANE_COUNT: Final = 10
PAUSE_S: Final = 0.05
MODE, ENDPOINTS, PREFIX, COUNT = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
CONFIGURATION: Final = ClientConfiguration(ENDPOINTS, Credentials())
_OUT: Final = sys.stdout
_LOCK: Final = threading.Lock()
_NEVER: Final = threading.Event()


def say(event: str, **fields: object) -> None:
    with _LOCK:
        _OUT.write(json.dumps({"event": event, **fields}) + "\n")
        _OUT.flush()


class Checker(TransactionChecker):  # type: ignore[misc]
    def check(self, message: Any) -> Any:
        if message.properties.get("fate") == "commit":
            return TransactionResolution.COMMIT
        return TransactionResolution.ROLLBACK


class Listener(MessageListener):  # type: ignore[misc]
    def __init__(self, group: str) -> None:
        self.group = group

    def consume(self, message: Any) -> Any:
        say_received(self.group, message)
        return ConsumeResult.SUCCESS


def say_received(group: str, message: Any) -> None:
    say(
        "received",
        group=group,
        body=message.body.decode(),
        now_ms=time.time_ns() // 1_000_000,
        attempt=message.delivery_attempt,
    )


def produce() -> None:
    topics = [f"{PREFIX}-{kind}" for kind in KINDS]
    producer = Producer(CONFIGURATION, topics, Checker())
    producer.startup()
    say("ready")
    lanes = [
        threading.Thread(target=send_lane, args=(producer, kind, lane), daemon=True)
        for kind in KINDS
        for lane in range(LANE_COUNT)
    ]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()
    say("done")


def send_lane(producer: Any, kind: str, lane: int) -> None:
    for number in range(lane, COUNT, LANE_COUNT):
        while not send(producer, kind, number):
            _NEVER.wait(PAUSE_S)


def send(producer: Any, kind: str, number: int) -> bool:
    message = Message()
    message.topic, message.body = f"{PREFIX}-{kind}", f"{kind}:{number}".encode()
    is_kept, due_ms = True, 0
    try:
        if kind == "transactional":
            is_kept = number % 7 != 3
            send_transaction(producer, message, is_kept)
        else:
            if kind == "ordered":
                message.message_group = f"g{number % LANE_COUNT}"
            if kind == "delayed":
                due_ms = time.time_ns() // 1_000_000 + 1_000 * (2 + number % 5)
                message.delivery_timestamp = due_ms // 1_000
            producer.send(message)
    except Exception as error:  # noqa: BLE001 - whatever it is, the application tries again.
        say("failed", what=f"send {kind}:{number}", error=repr(error))
        return False
    at_ms = time.monotonic_ns() // 1_000_000
    say("acked", kind=kind, number=number, at_ms=at_ms, due_ms=due_ms, kept=is_kept)
    return True


def send_transaction(producer: Any, message: Any, is_kept: bool) -> None:
    message.add_property("fate", "commit" if is_kept else "rollback")
    transaction = producer.begin_transaction()
    producer.send(message, transaction)
    try:
        if is_kept:
            transaction.commit()
        else:
            transaction.rollback()
    except Exception as error:  # noqa: BLE001 - the cluster asks, and the checker says so.
        say("failed", what="end", error=repr(error))


def consume() -> None:
    for group in ("simple", "simple-orderly"):
        # A simple consumer asks its topics in turn, and waits at each that is empty.
        for topic, expression in subscriptions().items():
            subscription = {topic: expression}
            consumer = SimpleConsumer(CONFIGURATION, f"{PREFIX}-{group}", subscription, 1)
            consumer.startup()
            threading.Thread(target=receive, args=(consumer, group), daemon=True).start()
    for group in ("push", "push-orderly"):
        PushConsumer(CONFIGURATION, f"{PREFIX}-{group}", Listener(group), subscriptions()).startup()
    say("ready")


def subscriptions() -> dict[str, Any]:
    return {f"{PREFIX}-{kind}": FilterExpression() for kind in KINDS}


def receive(consumer: Any, group: str) -> None:
    pool = ThreadPoolExecutor(LANE_COUNT)
    while True:
        try:
            messages = consumer.receive(32, 10) or []
            for message in messages:
                say_received(group, message)
            list(pool.map(consumer.ack, messages))
        except Exception as error:  # noqa: BLE001 - whatever it is, the application goes on.
            say("failed", what=group, error=repr(error))


def main() -> None:
    sys.stdout = sys.stderr  # What the client prints is for the log.
    if MODE == "produce":
        produce()
    else:
        consume()
    sys.stdin.read()  # The harness closes the input when it has seen enough.
    os._exit(0)


main()
