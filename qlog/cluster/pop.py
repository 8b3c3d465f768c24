"""`qlog group pop`: what a group has in flight by pop.

Owns the printing; the work is the admin client's.
"""

from dataclasses import asdict

import click

from qlog.broker_groups import shown_rows
from qlog.connection import ask, server_option
from qlog.message_rows import time_text
from qlog.output import Format, output_option, print_rows
from quorumlog.command_errors import ExitCode

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

    rows: list[dict[str, object]] = [
        asdict(queue) for queue in ask(server, lambda client: client.admin.describe_pop(name))
    ]
    if output is Format.TABLE:
        for row in rows:
            unix_ms = row["first_visible_unix_ms"]
            assert isinstance(unix_ms, int), f"{unix_ms}"
            row["first_visible_unix_ms"] = time_text(unix_ms) if unix_ms else ""
        rows = shown_rows(rows)
    print_rows(rows, output, columns=_COLUMNS)
    return ExitCode.OK
