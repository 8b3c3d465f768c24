"""`qlog topic`: create, list, describe and delete topics.

Owns the options and the printing; the work is the admin client's.
"""

from typing import TYPE_CHECKING, Any

import click

from qlog.broker_groups import shown_rows, warn_away
from qlog.connection import ask, confirm, server_option
from qlog.output import Format, output_option, print_record, print_rows
from quorumlog.command_errors import ExitCode

if TYPE_CHECKING:
    from quorumlog.admin.types import TopicDescription, TopicInfo

_PERMISSIONS = {"rw": 6, "r": 4, "w": 2}
_COLUMNS = ("topic", "queue_count", "permission", "message_type")
_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")


@click.group()
def topic() -> None:
    """Create, list, describe and delete topics."""


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
@click.option("--exist-ok", is_flag=True, help="Be content if it exists; its queues may grow.")
@server_option
@output_option
def create(
    name: str,
    queue_count: int | None,
    permission: str | None,
    message_type: str | None,
    exist_ok: bool,
    server: str | None,
    output: Format,
) -> int:
    """Create a topic.

    With several broker groups each gets so many queues of it. One that does not answer is named on
    stderr; when it is back, or when a new group has come, run it again with --exist-ok.

    \b
    Keys of -o json:
      topic, queue_count (of all groups), permission (rw, r or w), message_type, shares
      shares: group, queue_count, permission

    \b
    Examples:
      qlog topic create orders
      qlog topic create orders --queues 8 --exist-ok
      qlog topic create payments --type fifo
      qlog topic create archive --permission r --exist-ok -o json
    """

    made = ask(
        server,
        lambda client: client.admin.create_topic(
            name,
            queue_count=queue_count or 0,
            permission=_PERMISSIONS[permission] if permission else 0,
            must_be_new=not exist_ok,
            message_type=message_type or "",
        ),
    )
    warn_away(made.away)
    print_record(_shown(_topic_row(made), output), output)
    return ExitCode.OK


@topic.command("list")
@click.option("--system", "with_system", is_flag=True, help="Also those that the cluster keeps.")
@server_option
@output_option
def list_topics(with_system: bool, server: str | None, output: Format) -> int:
    """List all topics.

    \b
    Keys of -o json:
      topic, queue_count, permission, message_type, shares

    \b
    Examples:
      qlog topic list
      qlog topic list --system -o jsonl
    """

    found = sorted(
        ask(server, lambda client: client.admin.list_topics(with_system=with_system)),
        key=lambda info: info.topic,
    )
    warn_away(found[0].away if found else ())
    columns = _COLUMNS if output is Format.TABLE else (*_COLUMNS, "shares")
    rows = [_topic_row(info) for info in found]
    print_rows([{key: row[key] for key in columns} for row in rows], output, columns=columns)
    return ExitCode.OK


@topic.command()
@click.argument("name", metavar="TOPIC")
@server_option
@output_option
def describe(name: str, server: str | None, output: Format) -> int:
    """Show a topic and its queues.

    message_count is what can still be read: max_offset - min_offset, over all queues.

    \b
    Keys of -o json:
      topic, queue_count, permission, message_type, shares, message_count, queues
      queues: group, queue_id, min_offset, max_offset, message_count, last_store_unix_ms

    \b
    Examples:
      qlog topic describe orders
      qlog topic describe orders -o json | jq .message_count
    """

    info = ask(server, lambda client: client.admin.describe_topic(name))
    queues: list[dict[str, object]] = [
        {
            "group": queue.group,
            "queue_id": queue.queue_id,
            "min_offset": queue.min_offset,
            "max_offset": queue.max_offset,
            "message_count": queue.max_offset - queue.min_offset,
            "last_store_unix_ms": queue.last_store_unix_ms or None,
        }
        for queue in info.queues
    ]
    total = sum(int(str(queue["message_count"])) for queue in queues)
    warn_away(info.away)
    row = {**_topic_row(info), "message_count": total, "queues": queues}
    print_record(_shown(row, output), output)
    return ExitCode.OK


@topic.command()
@click.argument("name", metavar="TOPIC")
@server_option
@output_option
def stats(name: str, server: str | None, output: Format) -> int:
    """Show how large the messages of a topic are.

    Counted by the leader of each broker group since its process started; a batch counts by the mean
    size of its records, headers and properties included. One result a broker group.

    \b
    Keys of -o json:
      group, node_id, record_count, size_bytes, since_unix_ms, mean_size_bytes, buckets
      buckets: below_size_bytes, record_count

    \b
    Examples:
      qlog topic stats orders
      qlog topic stats orders -o json | jq '.[0].buckets'
    """

    rows: list[dict[str, object]] = []
    for sizes in ask(server, lambda client: client.admin.topic_sizes(name)):
        row = sizes.to_dict()
        buckets = row.pop("buckets")
        row["mean_size_bytes"] = sizes.size_bytes // sizes.record_count if sizes.record_count else 0
        rows.append({**row, "buckets": buckets})
    if output is Format.TABLE:
        for row in rows:
            print_record(row, output)
    else:
        print_rows(rows, output, columns=tuple(rows[0]))
    return ExitCode.OK


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_option
@output_option
def delete(name: str, yes: bool, server: str | None, output: Format) -> int:
    """Delete a topic. Its messages cannot be read any more.

    \b
    Keys of -o json:
      topic, deleted

    \b
    Examples:
      qlog topic delete orders
      qlog topic delete orders --yes
    """
    confirm(f"Delete topic {name} and all its messages?", is_confirmed=yes)

    ask(server, lambda client: client.admin.delete_topic(name))
    print_record({"topic": name, "deleted": True}, output)
    return ExitCode.OK


def _topic_row(info: "TopicInfo | TopicDescription") -> dict[str, object]:
    names = {number: name for name, number in _PERMISSIONS.items()}
    return {
        "topic": info.topic,
        "queue_count": info.queue_count,
        "permission": names.get(info.permission, str(info.permission)),
        "message_type": info.message_type,
        "shares": [
            {
                "group": share.group,
                "queue_count": share.queue_count,
                "permission": names.get(share.permission, str(share.permission)),
            }
            for share in info.shares
        ],
    }


def _shown(row: dict[str, Any], output: Format) -> dict[str, Any]:
    """Return a row without its group in a table of a cluster with one group."""
    if output is not Format.TABLE:
        return row
    shown = {**row, **({"queues": shown_rows(row["queues"])} if "queues" in row else {})}
    if len(row["shares"]) < 2:
        del shown["shares"]
    return shown
