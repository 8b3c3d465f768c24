"""`qlog group pop` and `qlog consume --pop`: messages that are handed out one by one.

Owns the printing, and when a message is acknowledged: after its bytes were handed to the reader of
stdout.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

import click

from quorumlog.cli.broker_groups import shown_rows
from quorumlog.cli.connection import connected, run, server_option
from quorumlog.cli.errors import ExitCode
from quorumlog.cli.message_rows import time_text
from quorumlog.cli.output import Format, output_option, print_rows

if TYPE_CHECKING:
    from quorumlog.admin.pop import PopQueue
    from quorumlog.cli.messages.consume_output import Writer
    from quorumlog.cli.progress import Show
    from quorumlog.client import Client
    from quorumlog.consume.pop import Start

_WAIT_S = 20.0
_COLUMNS = (
    "topic", "queue_id", "group", "offset", "next_offset", "in_flight_count", "waiting_count",
    "delivery_count_max", "first_visible_unix_ms", "is_full",
    "held_reason",
)  # fmt: skip


@click.command()
@click.argument("name", metavar="GROUP")
@server_option
@output_option
def pop(name: str, server: str | None, output: Format) -> int:
    """Show what a group has in flight by pop: handed out, and not acknowledged.

    A queue that is full gives nothing new until something of it is acknowledged. One with a
    held_reason gives nothing until its damage is repaired; other queues go on.

    \b
    Keys of -o json:
      topic, queue_id, group (the broker group), offset, next_offset, in_flight_count,
      waiting_count (behind an earlier one of their message group), delivery_count_max,
      first_visible_unix_ms, is_full, held_reason

    \b
    Examples:
      qlog group pop billing
      qlog group pop billing -o json | jq '.[] | select(.is_full)'
    """

    async def act() -> "list[PopQueue]":
        async with connected(server) as client:
            return await client.admin.describe_pop(name)

    rows: list[dict[str, object]] = [asdict(queue) for queue in run(act())]
    if output is Format.TABLE:
        for row in rows:
            unix_ms = row["first_visible_unix_ms"]
            assert isinstance(unix_ms, int), f"{unix_ms}"
            row["first_visible_unix_ms"] = time_text(unix_ms) if unix_ms else ""
        rows = shown_rows(rows)
    print_rows(rows, output, columns=_COLUMNS)
    return ExitCode.OK


class PopJob(Protocol):
    """The part of `qlog consume`'s job that this module uses."""

    topic: str
    position: int | str
    ends: bool
    max_count: int | None
    tags: tuple[str, ...]
    sql: str
    done_count: int


async def consume_by_pop(
    client: "Client", job: PopJob, group: str, writer: "Writer", show: "Show"
) -> None:
    """Take, write and acknowledge messages until enough are written, or none is left."""
    from quorumlog.consume.pop import RECEIVE_COUNT_MAX

    start: Start = "end" if job.position == "end" else "first"
    consumer = client.pop_consumer(group, job.topic, tags=job.tags, sql=job.sql, start=start)
    async with consumer:
        while job.max_count is None or job.done_count < job.max_count:
            left = RECEIVE_COUNT_MAX if job.max_count is None else job.max_count - job.done_count
            found = await consumer.receive(
                min(left, RECEIVE_COUNT_MAX), wait=0 if job.ends else _WAIT_S
            )
            if not found and job.ends:
                return
            await writer.write(found)
            job.done_count += len(found)
            if found:
                await consumer.ack(found)
            show("consumed", job.done_count, job.max_count)
