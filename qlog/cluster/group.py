"""`qlog group`: list, describe and delete consumer groups; the rest is in `group_settings`.

Owns the options and the printing; the work is the admin client's.
"""

from typing import TYPE_CHECKING

import click

from qlog.broker_groups import shown_rows, warn_away
from qlog.cluster.group_settings import progress, reset, set_settings, settings
from qlog.cluster.pop import pop
from qlog.connection import ask, confirm, server_option
from qlog.output import Format, output_option, print_record, print_rows
from quorumlog.command_errors import ExitCode

if TYPE_CHECKING:
    from quorumlog.admin.types import GroupDescription, GroupInfo

_COLUMNS = ("group", "member_count", "lag_count", "topics")


@click.group()
def group() -> None:
    """List, describe and change consumer groups, and see how far they have come."""


@group.command("list")
@server_option
@output_option
def list_groups(server: str | None, output: Format) -> int:
    """List all groups: who is in one, and how far it is behind.

    \b
    Keys of -o json:
      group, member_count, lag_count, topics

    \b
    Examples:
      qlog group list
      qlog group list -o json | jq '.[] | select(.lag_count > 0)'
    """

    found = sorted(
        ask(server, lambda client: client.admin.list_groups()), key=lambda info: info.group
    )
    print_rows([_group_row(info) for info in found], output, columns=_COLUMNS)
    return ExitCode.OK


@group.command()
@click.argument("name", metavar="GROUP")
@server_option
@output_option
def describe(name: str, server: str | None, output: Format) -> int:
    """Show a group: its members, and the stored offset of each queue.

    \b
    Keys of -o json:
      group, member_count, lag_count, topics, client_ids, queues
      queues: group (the broker group), topic, queue_id, offset, min_offset, max_offset,
        lag_count

    \b
    Examples:
      qlog group describe billing
      qlog group describe billing -o json | jq .lag_count
    """

    found = ask(server, lambda client: client.admin.describe_group(name))
    queues: list[dict[str, object]] = [
        {
            "group": queue.group,
            "topic": queue.topic,
            "queue_id": queue.queue_id,
            "offset": queue.offset,
            "min_offset": queue.min_offset,
            "max_offset": queue.max_offset,
            "lag_count": queue.lag_count,
        }
        for queue in found.queues
    ]
    members = sorted(found.client_ids)
    warn_away(found.away)
    if output is Format.TABLE:
        queues = shown_rows(queues)
    print_record({**_group_row(found), "client_ids": members, "queues": queues}, output)
    return ExitCode.OK


@group.command()
@click.argument("name", metavar="GROUP")
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_option
@output_option
def delete(name: str, yes: bool, server: str | None, output: Format) -> int:
    """Delete a group and its stored offsets. Messages stay.

    \b
    Keys of -o json:
      group, deleted

    \b
    Examples:
      qlog group delete billing
      qlog group delete billing --yes
    """
    confirm(f"Delete group {name} and its stored offsets?", is_confirmed=yes)

    ask(server, lambda client: client.admin.delete_group(name))
    print_record({"group": name, "deleted": True}, output)
    return ExitCode.OK


for command in (settings, set_settings, reset, progress, pop):
    group.add_command(command)


def _group_row(info: "GroupInfo | GroupDescription") -> dict[str, object]:
    return {
        "group": info.group,
        "member_count": info.member_count,
        "lag_count": info.lag_count,
        "topics": sorted(info.topics),
    }
