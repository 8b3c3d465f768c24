"""Sends with the official client and prints the time it took; runs in the client's environment."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rocketmq import (  # type: ignore[import-not-found]
    ClientConfiguration,
    Credentials,
    Message,
    Producer,
)


def main() -> None:
    """Take endpoint, topic, count, size and threads; print one line of JSON."""
    endpoint, topic = sys.argv[1:3]
    count, size_bytes, thread_count = map(int, sys.argv[3:6])
    producer = Producer(ClientConfiguration(endpoint, Credentials()), [topic])
    producer.startup()
    body = bytes(size_bytes)
    times_ms: list[float] = []

    def send(_: int) -> None:
        message: Any = Message()
        message.topic, message.body = topic, body
        began = time.perf_counter()
        producer.send(message)
        times_ms.append((time.perf_counter() - began) * 1000)

    for _ in range(50):
        send(0)
    times_ms.clear()
    began = time.perf_counter()
    if thread_count == 1:
        for number in range(count):
            send(number)
    else:
        with ThreadPoolExecutor(thread_count) as pool:
            list(pool.map(send, range(count)))
    took_s = time.perf_counter() - began
    times_ms.sort()
    figures = {
        "per_s": count / took_s,
        "p50_ms": times_ms[len(times_ms) // 2],
        "p99_ms": times_ms[len(times_ms) * 99 // 100],
    }
    print(json.dumps(figures), flush=True)
    producer.shutdown()


if __name__ == "__main__":
    main()
