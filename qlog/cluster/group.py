"""`qlog group`: consumer groups, their settings, their progress, and what they have in flight.

Owns the options and the printing; the work is the admin client's.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from qlog import names
from qlog.broker_groups import warn_away
from qlog.command_decorators import Printout, TableRows, cluster_command, confirmed, printed
from qlog.connection import ask, server_option
from qlog.message_rows import time_text
from qlog.output import Row
from qlog.parsed import TIME, Parsed, duration_text, parse_duration
from qlog.watch import EXISTS, Condition, watched_command
from quorumlog.command_errors import CliError, ExitCode

if TYPE_CHECKING:
    from quorumlog.admin.groups import GroupSettings
    from quorumlog.admin.types import GroupInfo
    from quorumlog.client import Client
    from quorumlog.records.queues import Queue

_POP_COLUMNS = (
    "topic", "queue_id", "broker_group", "offset", "next_offset", "in_flight_count",
    "waiting_count", "delivery_count_max", "first_visible_unix_ms", "is_full", "held_reason",
)  # fmt: skip


@click.group()
def group() -> None:
    """List, describe and change consumer groups, and see how far they have come.

    A consumer group shares the queues of its topics among its members, and the cluster stores the
    offset from which each queue goes on. lag_count is how many messages are still to come.
    """


@group.command("list")
@cluster_command
async def list_groups(client: "Client") -> "list[GroupInfo]":
    """List all groups: who is in one, and how far it is behind.

    \b
    Keys of -o json:
      group, member_count, lag_count, topics

    \b
    Examples:
      qlog group list
      qlog group list -o json | jq '.[] | select(.lag_count > 0)'
    """
    return await client.admin.list_groups()


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=names.groups)
@watched_command(
    {
        "lag=0": Condition("nothing is left to consume", lambda group: not group.lag_count),
        **EXISTS,
    }
)
async def describe(client: "Client", name: str) -> Printout:
    """Show a group: its members, and how far it is in each queue of the topics that it reads.

    A queue without a stored offset is read from its first message on.

    \b
    Keys of -o json:
      group, member_count, lag_count, topics, client_ids, warnings, queues
      queues: broker_group, topic, queue_id, offset, first_offset, end_offset,
        lag_count

    \b
    Examples:
      qlog group describe billing
      qlog group describe billing -o json | jq .lag_count
      qlog group describe billing --until lag=0 --timeout 10m
    """
    described = await client.admin.describe_group(name)
    warn_away(described.away)
    return Printout(described, omits_group=True)


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=names.groups)
@confirmed("Delete group {name} and its stored offsets?")
@cluster_command
async def delete(client: "Client", name: str) -> Row:
    """Delete a group and its stored offsets. Messages stay.

    \b
    Keys of -o json:
      group, deleted

    \b
    Examples:
      qlog group delete billing
      qlog group delete billing --yes
    """
    await client.admin.delete_group(name)
    return {"group": name, "deleted": True}


def _durations(text: str) -> list[int]:
    return [] if text == "default" else list(map(parse_duration, text.split(",")))


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=names.groups)
@cluster_command
async def settings(client: "Client", name: str) -> Printout:
    """Show the settings of a group.

    \b
    Keys of -o json:
      group, retry_count_max, retry_delays_ms, is_consume_enabled,
      is_broadcast_enabled, is_orderly, forbidden_topics

    \b
    Examples:
      qlog group settings billing
      qlog group settings billing -o json | jq .retry_count_max
    """
    return _settings_printout(await client.admin.group_settings(name))


@group.command("set")
@click.argument("name", metavar="GROUP", shell_complete=names.groups)
@click.option(
    "--retries",
    "retry_count_max",
    type=click.IntRange(min=0),
    help="Deliveries after the first one.",
)
@click.option(
    "--retry-delays",
    "retry_delays_ms",
    type=Parsed("durations", _durations),
    metavar="10s,1m,...|default",
    help="Pause before each of them, the last one for all later ones.",
)
@click.option(
    "--consume/--no-consume",
    "is_consume_enabled",
    default=None,
    help="Whether it may consume at all.",
)
@click.option(
    "--broadcast/--no-broadcast",
    "is_broadcast_enabled",
    default=None,
    help="Whether each member may read all messages.",
)
@click.option(
    "--orderly/--no-orderly",
    "is_orderly",
    default=None,
    help="A message that failed comes again before those behind it.",
)
@click.option(
    "--forbid",
    multiple=True,
    metavar="TOPIC",
    shell_complete=names.topics,
    help="A topic that it may not read.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="TOPIC",
    shell_complete=names.topics,
    help="One that it may read again.",
)
@server_option
@printed
def set_settings(
    name: str, forbid: tuple[str, ...], allow: tuple[str, ...], server: str | None, **changes: Any
) -> Printout:
    """Change settings of a group; what is not named stays. The group is made if there is none.

    \b
    Keys of -o json:
      group, retry_count_max, retry_delays_ms, is_consume_enabled,
      is_broadcast_enabled, is_orderly, forbidden_topics

    \b
    Examples:
      qlog group set billing --retries 5 --retry-delays 1s,10s,1m
      qlog group set billing --retry-delays default
      qlog group set billing --no-consume
      qlog group set billing --forbid salaries
    """
    if all(change is None for change in changes.values()) and not forbid and not allow:
        raise click.UsageError("nothing to change; name a setting")

    async def change(client: "Client") -> "GroupSettings":
        topics = await _forbidden(client, name, forbid, allow) if forbid or allow else None
        return await client.admin.set_group_settings(name, forbidden_topics=topics, **changes)

    return _settings_printout(ask(server, change))


async def _forbidden(
    client: "Client", name: str, forbid: Sequence[str], allow: Sequence[str]
) -> list[str]:
    from quorumlog.errors import NotFoundError

    try:
        there = (await client.admin.group_settings(name)).forbidden_topics
    except NotFoundError:
        there = ()
    return sorted({*there, *forbid} - set(allow))


def _settings_printout(settings: "GroupSettings") -> Printout:
    texts = [duration_text(delay_ms) for delay_ms in settings.retry_delays_ms]
    delays = ", ".join(texts) or "10 s, 30 s, 1 m ... 2 h"
    return Printout(settings, table=[asdict(settings) | {"retry_delays_ms": delays}])


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=names.groups)
@click.option(
    "--topic",
    required=True,
    shell_complete=names.topics,
    help="The topic whose offsets are reset.",
)
@click.option(
    "--to", type=click.Choice(["first", "end"]), help="The first message that is kept, or the end."
)
@click.option(
    "--to-time", type=TIME, metavar="TIME", help="The first message stored then or later."
)
@click.option("--to-offset", type=click.IntRange(min=0), help="This offset in each queue.")
@click.option(
    "--force",
    is_flag=True,
    help="Also with members, which go there with their next heartbeat or pull.",
)
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Show the offsets, and change nothing.")
@server_option
@printed
def reset(
    name: str,
    topic: str,
    to: str | None,
    to_time: int | None,
    to_offset: int | None,
    force: bool,
    is_dry_run: bool,
    server: str | None,
) -> Printout:
    """Have a group continue from another place of a topic. Refused while the group has members,
    and for a group that does not exist.

    A TIME is 2026-01-31T12:00:00Z, a Unix time in seconds or milliseconds, or an age as -15m.

    \b
    Keys of -o json:
      broker_group, topic, queue_id, offset

    \b
    Examples:
      qlog group reset billing --topic orders --to-time -1h
      qlog group reset billing --topic orders --to first
      qlog group reset billing --topic orders --to end --dry-run
    """
    moment = None if to_time is None else f"@{to_time}"
    given = [place for place in (to, moment, to_offset) if place is not None]
    if len(given) != 1:
        raise click.UsageError("name one of --to, --to-time and --to-offset")

    from quorumlog.errors import GroupNotEmptyError

    async def move(client: "Client") -> dict["Queue", int]:
        await client.admin.describe_group(name)  # Else a mistyped name would become a group.
        try:
            return await client.admin.reset_offsets(
                name, topic, given[0], force=force, is_dry_run=is_dry_run
            )
        except GroupNotEmptyError as error:
            what, _, do = error.message.rpartition("; ")
            why, do = "they would go on from where they are", f"{do}; or move them, with --force"
            raise CliError(what, why, do, ExitCode.REFUSED, error.code) from error

    offsets = ask(server, move)
    rows = [
        {"broker_group": q.broker_group, "topic": q.topic, "queue_id": q.queue_id, "offset": offset}
        for q, offset in sorted(offsets.items())
    ]
    return Printout(rows, omits_group=True)


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=names.groups)
@cluster_command
async def progress(client: "Client", name: str) -> Printout:
    """Show the progress of a group in each queue, its reader, and the age of the last message.

    diff is how many messages are still to come. last_time is when the last message that was
    consumed had been stored.

    \b
    Keys of -o json:
      topic, broker_group, queue_id, broker_offset, consumer_offset, client_id,
      diff, last_time

    \b
    Examples:
      qlog group progress billing
      qlog group progress billing -o json | jq 'map(.diff) | add'
    """
    described = await client.admin.describe_group(name)
    warn_away(described.away)
    rows = [
        {
            "topic": queue.topic,
            "broker_group": queue.broker_group,
            "queue_id": queue.queue_id,
            "broker_offset": queue.end_offset,
            "consumer_offset": queue.offset,
            "client_id": queue.client_id or None,
            "diff": queue.lag_count,
            "last_time": time_text(queue.last_consumed_unix_ms)
            if queue.last_consumed_unix_ms
            else None,
        }
        for queue in described.queues
    ]
    return Printout(rows, omits_group=True, lines=["", f"diff total  {described.lag_count}"])


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=names.groups)
@cluster_command
async def pop(client: "Client", name: str) -> Printout:
    """Show what a group has in flight by pop: handed out, and not acknowledged.

    A queue that is full gives nothing new until something of it is acknowledged. One with a
    held_reason gives nothing until its damage is repaired; other queues go on.

    \b
    Keys of -o json:
      topic, queue_id, broker_group, offset, next_offset, in_flight_count,
      waiting_count (behind an earlier one of their message group),
      delivery_count_max, first_visible_unix_ms, is_full, held_reason

    \b
    Examples:
      qlog group pop billing
      qlog group pop billing -o json | jq '.[] | select(.is_full)'
    """
    queues = await client.admin.describe_pop(name)
    lines = [
        asdict(queue)
        | {
            "first_visible_unix_ms": time_text(queue.first_visible_unix_ms)
            if queue.first_visible_unix_ms
            else ""
        }
        for queue in queues
    ]
    return Printout(queues, table=[TableRows.of(_POP_COLUMNS, lines)])
