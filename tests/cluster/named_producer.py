"""A producer with a name, as a process of its own: address, name, prefix of the bodies.

It reads one line of its input for each message that it is to send, and answers with a line: the
offset of the message, or the code and outcome of the error.
"""

import asyncio
import sys

import quorumlog
from quorumlog.errors import QuorumlogError

TOPIC = "orders"


async def main() -> None:
    server, name, prefix = sys.argv[1:]
    async with quorumlog.connect(server, timeout_ms=60_000) as client:
        producer = client.producer(name=name)
        number = 0
        while await asyncio.to_thread(sys.stdin.readline):
            body = f"{prefix}{number:04d}"
            number += 1
            try:
                receipt = await producer.send(TOPIC, body, queue_id=0)
            except QuorumlogError as error:
                print(error.code, error.outcome.value, flush=True)
            else:
                print("acked", receipt.queue_offset, flush=True)
        await producer.abort()


if __name__ == "__main__":
    asyncio.run(main())
