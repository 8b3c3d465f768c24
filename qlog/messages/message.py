"""`qlog message`: find single messages, and show their history.

Owns the options and the printing.
"""

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from qlog import names
from qlog.command_decorators import Printout, TableRows, cluster_command, printed
from qlog.connection import ask, server_option
from qlog.message_rows import COLUMNS, message_row, table_row, time_text
from qlog.output import Row, say_if_more
from qlog.parsed import TIME
from quorumlog.command_errors import CliError, ExitCode

if TYPE_CHECKING:
    from quorumlog.client import Client
    from quorumlog.records.message import Message

_FIND_COUNT_MAX = 64
_ID = re.compile("(?:[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})")  # Of a store at an address of IPv4 or IPv6.
_UNIQUE_KEY = re.compile(r"[0-9A-Fa-f]{34}")
"""As clients of RocketMQ 5 make and print them; the id in a receipt has 32 digits, 56 with IPv6."""

topic_option = click.option(
    "--topic",
    shell_complete=names.topics,
    help="Take ID for the unique key of a message in this topic: clients of RocketMQ print it.",
)


@click.group()
def message() -> None:
    """Fetch single messages, by id or by key, and see what became of one."""


@message.command()
@click.argument("message_id", metavar="ID")
@topic_option
@cluster_command
async def get(client: "Client", message_id: str, topic: str | None) -> Row:
    """Show the message with an id, as a receipt or `qlog consume -o jsonl` names it.

    \b
    Keys of -o json:
      topic, queue_id, queue_offset, message_id, key, tag, properties,
      born_unix_ms, store_unix_ms, log_position, body_size_bytes, body_encoding
      (utf-8 or base64, then ", compressed" for a body that cannot be unpacked),
      body, broker_group

    \b
    Examples:
      qlog message get 7F00000100001F910000000000000ACC
      qlog message get 7F00000100001F910000000000000ACC -o json | jq -r .body
      qlog message get 0102A5B4C6D80003E9094C1A2B00000000 --topic orders
    """
    found = await _by_unique_key(client, message_id, topic)
    return message_row(found or await client.get_message(message_id))


@message.command()
@click.argument("topic", metavar="TOPIC", shell_complete=names.topics)
@click.option("--key", required=True, help="The key that messages were sent with.")
@click.option("--since", type=TIME, metavar="TIME", help="Stored at this time or later.")
@click.option("--before", type=TIME, metavar="TIME", help="Stored before this time.")
@click.option(
    "--max-count",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Maximum number of messages.",
)
@cluster_command
async def query(
    client: "Client",
    topic: str,
    key: str,
    since: int | None,
    before: int | None,
    max_count: int,
) -> Printout:
    """Find the newest messages of a topic that have a key.

    A TIME is 2026-01-31T12:00:00Z, a Unix time in seconds or milliseconds, or an age as -15m.

    \b
    Keys of -o json:
      topic, queue_id, queue_offset, message_id, key, tag, properties,
      born_unix_ms, store_unix_ms, log_position, body_size_bytes, body_encoding
      (utf-8 or base64, then ", compressed" for a body that cannot be unpacked),
      body, broker_group

    \b
    Examples:
      qlog message query orders --key order-17
      qlog message query orders --key order-17 --since -1h -o jsonl

    Ends with 0 when there is one, and with 1 when there is none.
    """
    messages = await client.query_by_key(
        topic, key, lo_unix_ms=since or 0, hi_unix_ms=before or 0, max_count=max_count + 1
    )
    say_if_more(messages, max_count)
    return _printout(messages[-max_count:])


@message.command()
@click.argument("topic", metavar="[TOPIC|ID]", required=False)
@click.option("--id", "message_id", metavar="ID", help="The id in a receipt; needs no TOPIC.")
@click.option("--key", help="A key that it was sent with.")
@click.option("--unique", metavar="KEY", help="Its unique key (UNIQ_KEY).")
@server_option
@printed
def find(
    topic: str | None,
    message_id: str | None,
    key: str | None,
    unique: str | None,
    server: str | None,
) -> Printout:
    """Find messages by id, by key or by unique key: the newest 64.

    \b
    Keys of -o json:
      topic, queue_id, queue_offset, message_id, key, tag, properties,
      born_unix_ms, store_unix_ms, log_position, body_size_bytes, body_encoding
      (utf-8 or base64, then ", compressed" for a body that cannot be unpacked),
      body, broker_group

    \b
    Examples:
      qlog message find 7F00000100001F910000000000000ACC
      qlog message find orders --key order-17
      qlog message find orders --unique 0A00000100001F91018F2C5B00000ACC -o json

    Ends with 0 when there is one, and with 1 when there is none.
    """
    given = [message_id, key, unique].count(None)
    if topic is not None and given == 3 and _ID.fullmatch(topic):
        topic, message_id, given = None, topic, 2
    if given == 3:
        topic = topic or "TOPIC"
        raise CliError(
            "neither an id nor a key says which message is meant",
            "an id in a receipt has 32 or 56 hexadecimal digits; a key is one of a TOPIC",
            f"qlog message find {shlex.quote(topic)} --key KEY, or qlog message find ID",
            ExitCode.USAGE,
        )
    if given != 2:
        raise click.UsageError("name one of --id, --key and --unique")
    if message_id is None and topic is None:
        raise click.UsageError("a key is one of a TOPIC; name it")

    async def call(client: "Client") -> "Sequence[Message]":
        from quorumlog.errors import NotFoundError

        if message_id is not None:
            try:
                return [await client.get_message(message_id)]
            except NotFoundError:
                return []
        return await client.query_by_key(
            topic or "", key or unique or "", max_count=_FIND_COUNT_MAX + 1
        )

    answer = ask(server, call)
    say_if_more(answer, _FIND_COUNT_MAX, "use `qlog message query` with --max-count")
    return _printout(answer[-_FIND_COUNT_MAX:])


@message.command()
@click.argument("message_id", metavar="ID")
@topic_option
@cluster_command
async def trace(client: "Client", message_id: str, topic: str | None) -> Printout:
    """Show what became of a message: stored, delayed, committed, consumed, retried, dead.

    It is found in the log and in the state when you ask, nothing is written for it beforehand. A
    message without a unique key is looked for in long queues up to a limit; is_complete says so.

    \b
    Keys of -o json:
      message_id, topic, queue_id, queue_offset, is_complete, events
      events: kind, unix_ms (null: the state says it), group, producer_group,
        topic, queue_id, offset, reconsume_times, message_id

    A kind is stored, half (sent in a transaction that is open), open (its transaction), committed,
    rolled back, given up, expired, delayed, consumed (a group has passed it), retried or dead.

    \b
    Examples:
      qlog message trace 7F00000100001F910000000000000ACC
      qlog message trace 7F00000100001F910000000000000ACC -o json | jq .events
      qlog message trace 0102A5B4C6D80003E9094C1A2B00000000 --topic orders
    """
    if found := await _by_unique_key(client, message_id, topic):
        message_id = found.message_id
    traced = await client.admin.trace_message(message_id)
    if traced.message is not None:
        topic, queue_id = traced.message.topic, traced.message.queue_id
        queue_offset = traced.message.queue_offset
    else:  # One that is held: the first of its events in the log is where.
        own = next(event for event in traced.events if event.message_id)
        topic, queue_id, queue_offset = own.topic, own.queue_id, own.offset
    record = {
        "message_id": message_id,
        "topic": topic,
        "queue_id": queue_id,
        "queue_offset": queue_offset,
        "is_complete": traced.is_complete,
    }
    events, lines = list[Row](), list[Row]()
    for event in traced.events:
        place: Row = {
            "group": event.group or None,
            "producer_group": event.producer_group or None,
            "topic": event.topic or None,
            "queue_id": event.queue_id if event.topic else None,
            "offset": event.offset if event.topic else None,
            "reconsume_times": event.reconsume_times,
            "message_id": event.message_id or None,
        }
        events.append({"kind": event.kind, "unix_ms": event.unix_ms or None, **place})
        at = time_text(event.unix_ms) if event.unix_ms else None
        lines.append({"kind": event.kind, "time": at, **place})
    return Printout({**record, "events": events}, table=[{**record, "events": lines}])


async def _by_unique_key(client: "Client", key: str, topic: str | None) -> "Message | None":
    """Return the newest message of a topic with this unique key; None without a topic.

    Raises NotFoundError, and CliError for what can be no id."""
    from quorumlog.errors import NotFoundError

    if topic is None:
        if _UNIQUE_KEY.fullmatch(key) is None:
            return None
        command = click.get_current_context().command_path
        raise CliError(
            f"{key} is the unique key of a message, and not its id",
            "clients of RocketMQ 5 print it; it is looked up in one topic",
            f"name the topic: {command} {key} --topic TOPIC",
            ExitCode.USAGE,
        )
    messages = await client.query_by_key(topic, key, max_count=1)
    if not messages:
        text = f"no message of topic {topic} has the unique key {key}; check both"
        raise NotFoundError(text, code="node.message_not_found")
    return messages[-1]


def _printout(messages: "Sequence[Message]") -> Printout:
    return Printout(
        [message_row(message) for message in messages],
        table=[TableRows.of(COLUMNS, [table_row(message) for message in messages])],
        exit_code=ExitCode.OK if messages else ExitCode.FINDINGS,
    )
