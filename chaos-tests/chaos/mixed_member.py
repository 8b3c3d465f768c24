"""A member of a mixed group as a process of its own, which can be killed.

    python -m chaos.mixed_member sdk|classic ADDRESSES TOPIC GROUP CLIENT_ID

Owns what it writes, a line of JSON each: `queues`, those that it holds from now on, and `took`, a
message with queue, offset and value, before its offset is stored. SIGTERM lets it leave in order.
"""

import asyncio
import contextlib
import json
import signal
import sys
import time

import quorumlog
from chaos.body import value_of
from chaos.classic import ClassicMember
from store.record.message import Message

POLL_S = 0.02


def say(kind: str, what: object) -> None:
    """Write a line, and let the reader have it."""
    print(json.dumps({"at_ns": time.monotonic_ns(), kind: what}), flush=True)


async def classic(addresses: str, topic: str, group: str, client_id: str) -> None:
    """Consume as RocketMQ's clients do."""

    def took(message: Message) -> None:
        # A broker name shows queue ids of its own; the value names the broker group's.
        value = value_of(message.body)
        say("took", [int(value.split("-")[-2]), message.queue_offset, value])

    member = ClassicMember(
        addresses.split(","),
        topic,
        group,
        client_id,
        on_message=took,
        on_queues=lambda queues: say("queues", queues),
        on_moved=lambda what: say("moved", what),
    )
    await member.run()


async def sdk(addresses: str, topic: str, group: str, client_id: str) -> None:
    """Consume as programs of the SDK do."""
    held: list[int] = []

    def look() -> None:
        nonlocal held
        now = [queue.queue_id for queue in member.assignment() if queue.topic == topic]
        if now != held:
            held = now
            say("queues", held)

    async def watch() -> None:
        while True:
            look()
            await asyncio.sleep(POLL_S)

    async with quorumlog.connect(addresses, connect_timeout_ms=30_000) as client:
        member = client.group_consumer(group, topic, client_id=client_id)
        async with member:
            watching = asyncio.create_task(watch())
            try:
                async for message in member:
                    look()
                    place = [message.queue_id, message.queue_offset, value_of(message.body)]
                    say("took", place)
            finally:
                watching.cancel()
                say("queues", [])


async def main() -> None:
    """Be a member until SIGTERM."""
    kind, *given = sys.argv[1:]
    work = asyncio.ensure_future((sdk if kind == "sdk" else classic)(*given))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    say("queues", [])
    with contextlib.suppress(asyncio.CancelledError):
        await work


if __name__ == "__main__":
    asyncio.run(main())
