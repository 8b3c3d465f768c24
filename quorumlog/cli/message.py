"""`qlog message`: fetch single messages, by id or by key.

Owns the options and the printing.
"""

from typing import TYPE_CHECKING

import click

from quorumlog.cli.broker_groups import shown_rows
from quorumlog.cli.connection import connected, run, server_option
from quorumlog.cli.errors import ExitCode
from quorumlog.cli.message_rows import COLUMNS, message_row, table_row
from quorumlog.cli.output import Format, output_option, print_record, print_rows
from quorumlog.cli.times import parse_time

if TYPE_CHECKING:
    from quorumlog.message import Message


@click.group()
def message() -> None:
    """Fetch single messages, by id or by key."""


@message.command()
@click.argument("message_id", metavar="ID")
@server_option
@output_option
def get(message_id: str, server: str | None, output: Format) -> int:
    """Show the message with an id, as a receipt or `qlog consume -o jsonl` names it.

    \b
    Keys of -o json:
      topic, queue_id, queue_offset, message_id, key, tag, properties, born_unix_ms,
      store_unix_ms, position, body_size_bytes, body_encoding (utf-8 or base64), body,
      group (the broker group)

    \b
    Examples:
      qlog message get 7F00000100001F910000000000000ACC
      qlog message get 7F00000100001F910000000000000ACC -o json | jq -r .body
    """

    async def act() -> "Message":
        async with connected(server) as client:
            return await client.get_message(message_id)

    print_record(message_row(run(act())), output)
    return ExitCode.OK


def _time(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_time(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@message.command()
@click.argument("topic", metavar="TOPIC")
@click.option("--key", required=True, help="The key that messages were sent with.")
@click.option("--since", callback=_time, metavar="TIME", help="Stored at this time or later.")
@click.option("--before", callback=_time, metavar="TIME", help="Stored before this time.")
@click.option(
    "--max-count",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="At most so many.",
)
@server_option
@output_option
def query(
    topic: str,
    key: str,
    since: int | None,
    before: int | None,
    max_count: int,
    server: str | None,
    output: Format,
) -> int:
    """Find the messages of a topic that have a key.

    A TIME is 2026-01-31T12:00:00Z, a Unix time in seconds or milliseconds, or an age as -15m.

    \b
    Keys of -o json:
      topic, queue_id, queue_offset, message_id, key, tag, properties, born_unix_ms,
      store_unix_ms, position, body_size_bytes, body_encoding (utf-8 or base64), body,
      group (the broker group)

    \b
    Examples:
      qlog message query orders --key order-17
      qlog message query orders --key order-17 --since -1h -o jsonl

    Ends with 0 when there is one, and with 1 when there is none.
    """

    async def act() -> "list[Message]":
        async with connected(server) as client:
            return list(
                await client.query_by_key(
                    topic,
                    key,
                    lo_unix_ms=since or 0,
                    hi_unix_ms=before or 0,
                    max_count=max_count,
                )
            )

    found = run(act())
    if output is Format.TABLE:
        lines = shown_rows([table_row(one) for one in found])
        print_rows(lines, output, columns=tuple(lines[0]) if lines else COLUMNS[1:])
    else:
        rows = [message_row(one) for one in found]
        print_rows(rows, output, columns=tuple(rows[0]) if rows else ())
    return ExitCode.OK if found else ExitCode.FINDINGS
