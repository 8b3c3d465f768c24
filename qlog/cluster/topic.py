"""`qlog topic`: create, list, describe, limit and delete topics.

Owns the options and the printing; the work is the admin client's.
"""

import dataclasses
from typing import TYPE_CHECKING

import click

from qlog import names
from qlog.broker_groups import warn_away
from qlog.command_decorators import Printout, cluster_command, confirmed
from qlog.output import Row
from qlog.parsed import Parsed, parse_size
from qlog.watch import EXISTS, watched_command

if TYPE_CHECKING:
    from quorumlog.admin.types import TopicDescription, TopicInfo
    from quorumlog.client import Client

_PERMISSIONS = {"rw": 6, "r": 4, "w": 2}
_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")


@click.group()
def topic() -> None:
    """Create, list, describe, limit and delete topics."""


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.option("--queues", "queue_count", type=click.IntRange(min=1), help="Number of queues.")
@click.option(
    "--permission", type=click.Choice(list(_PERMISSIONS)), help="Who may: read, write or both."
)
@click.option(
    "--type",
    "message_type",
    type=click.Choice(_TYPES, case_sensitive=False),
    help="Which messages RocketMQ's clients may send to it; MIXED, all, by default.",
)
@click.option(
    "--exist-ok", is_flag=True, help="Do not fail if it exists; --queues may raise its count."
)
@cluster_command
async def create(
    client: "Client",
    name: str,
    queue_count: int | None,
    permission: str | None,
    message_type: str | None,
    exist_ok: bool,
) -> Printout:
    """Create a topic.

    With several broker groups --queues is the number in each, and shares is what each has. A group
    that does not answer is named on stderr; when it is back, or when a new group has come, run it
    again with --exist-ok.

    \b
    Keys of -o json:
      topic, queue_count (of all groups), permission (rw, r or w), message_type,
      shares
      shares: broker_group, queue_count, permission

    \b
    Examples:
      qlog topic create orders
      qlog topic create orders --queues 8 --exist-ok
      qlog topic create payments --type fifo
      qlog topic create archive --permission r --exist-ok -o json
    """
    made = await client.admin.create_topic(
        name,
        queue_count=queue_count or 0,
        permission=_PERMISSIONS[permission] if permission else 0,
        must_be_new=not exist_ok,
        message_type=message_type or "",
    )
    warn_away(made.away)
    return Printout(_topic_row(made), omitted=_omitted(made))


@topic.command("list")
@click.option("--system", "with_system", is_flag=True, help="Also those that the cluster keeps.")
@watched_command({})
async def list_topics(client: "Client", with_system: bool) -> Printout:
    """List all topics.

    \b
    Keys of -o json:
      topic, queue_count, permission, message_type, shares

    \b
    Examples:
      qlog topic list
      qlog topic list --system -o jsonl
    """
    topics = await client.admin.list_topics(with_system=with_system)
    warn_away(topics[0].away if topics else ())
    return Printout([_topic_row(info) for info in topics], omitted=("shares",))


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=names.topics)
@watched_command(EXISTS)
async def describe(client: "Client", name: str) -> Printout:
    """Show a topic and its queues.

    message_count is what can still be read: end_offset - first_offset, over all queues.

    \b
    Keys of -o json:
      topic, queue_count, permission, message_type, shares, bytes_per_second,
      messages_per_second, message_count, queues
      queues: broker_group, queue_id, first_offset, end_offset, message_count,
        last_store_unix_ms

    \b
    Examples:
      qlog topic describe orders
      qlog topic describe orders -o json | jq .message_count
      qlog topic describe orders --watch
    """
    info = await client.admin.describe_topic(name)
    warn_away(info.away)
    queues = [
        dataclasses.asdict(queue)
        | {
            "message_count": queue.end_offset - queue.first_offset,
            "last_store_unix_ms": queue.last_store_unix_ms or None,
        }
        for queue in info.queues
    ]
    total = sum(queue.end_offset - queue.first_offset for queue in info.queues)
    rates = _rates(info)
    row = {**_topic_row(info), **rates, "message_count": total, "queues": queues}
    omitted = (*_omitted(info), *(name for name, rate in rates.items() if not rate))
    return Printout(row, omitted=omitted, omits_group=True)


@topic.command("set")
@click.argument("name", metavar="TOPIC", shell_complete=names.topics)
@click.option(
    "--bytes-per-second",
    metavar="SIZE",
    type=Parsed("size", parse_size),
    help="What clients may send to it, as 10MiB; 0: no limit.",
)
@click.option(
    "--messages-per-second",
    type=click.IntRange(min=0),
    help="How many messages; 0: no limit.",
)
@cluster_command
async def set_rates(
    client: "Client", name: str, bytes_per_second: int | None, messages_per_second: int | None
) -> Row:
    """Limit what is sent to a topic in a second.

    All clients share the limit, which counts in each broker group. A batch passes if there is
    something left, and the next one waits for what it took too much: clients wait and try again
    until their time-out.

    \b
    Keys of -o json:
      topic, bytes_per_second, messages_per_second

    \b
    Examples:
      qlog topic set orders --bytes-per-second 10MiB --messages-per-second 5000
      qlog topic set orders --bytes-per-second 0
    """
    if bytes_per_second is None and messages_per_second is None:
        raise click.UsageError("give --bytes-per-second, --messages-per-second or both")
    info = await client.admin.set_topic_rates(
        name, bytes_per_second=bytes_per_second, messages_per_second=messages_per_second
    )
    return {"topic": info.topic, **_rates(info)}


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=names.topics)
@cluster_command
async def stats(client: "Client", name: str) -> Printout:
    """Show how large the messages of a topic are.

    Counted by the leader of each broker group since its process started, without those that other
    leaders took; a batch counts by the mean size of its records, headers and properties included.
    One result a broker group.

    \b
    Keys of -o json:
      broker_group, node_id, record_count, size_bytes, since_unix_ms,
      mean_size_bytes, buckets
      buckets: below_size_bytes, record_count

    \b
    Examples:
      qlog topic stats orders
      qlog topic stats orders -o json | jq '.[0].buckets'
    """
    rows = [
        {**sizes.to_dict(), "mean_size_bytes": sizes.size_bytes // max(sizes.record_count, 1)}
        for sizes in await client.admin.topic_sizes(name)
    ]
    return Printout(rows, table=rows, lines=["Messages that other leaders took are not counted."])


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=names.topics)
@confirmed("Delete topic {name} and all its messages?")
@cluster_command
async def delete(client: "Client", name: str) -> Row:
    """Delete a topic. Its messages cannot be read any more.

    \b
    Keys of -o json:
      topic, deleted

    \b
    Examples:
      qlog topic delete orders
      qlog topic delete orders --yes
    """
    await client.admin.delete_topic(name)
    return {"topic": name, "deleted": True}


def _topic_row(info: "TopicInfo | TopicDescription") -> dict[str, object]:
    names = {number: name for name, number in _PERMISSIONS.items()}
    return {
        "topic": info.topic,
        "queue_count": info.queue_count,
        "permission": names.get(info.permission, str(info.permission)),
        "message_type": info.message_type,
        "shares": [
            dataclasses.asdict(share)
            | {"permission": names.get(share.permission, str(share.permission))}
            for share in info.shares
        ],
    }


def _rates(info: "TopicInfo | TopicDescription") -> dict[str, int]:
    return {name: getattr(info, name) for name in ("bytes_per_second", "messages_per_second")}


def _omitted(info: "TopicInfo | TopicDescription") -> tuple[str, ...]:
    return () if len(info.shares) > 1 else ("shares",)
