"""`qlog group`: list, describe and delete consumer groups; the rest is in `group_settings`.

Owns the options and the printing; the work is the admin client's.
"""

from typing import TYPE_CHECKING

import click

from qlog.broker_groups import warn_away
from qlog.cluster.group_settings import progress, reset, set_settings, settings
from qlog.cluster.pop import pop
from qlog.command_decorators import Printout, cluster_command, confirmed
from qlog.output import Row

if TYPE_CHECKING:
    from quorumlog.admin.types import GroupInfo
    from quorumlog.client import Client


@click.group()
def group() -> None:
    """List, describe and change consumer groups, and see how far they have come."""


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
@click.argument("name", metavar="GROUP")
@cluster_command
async def describe(client: "Client", name: str) -> Printout:
    """Show a group: its members, and the stored offset of each queue.

    \b
    Keys of -o json:
      group, member_count, lag_count, topics, client_ids, warnings, queues
      queues: group (the broker group), topic, queue_id, offset, min_offset, max_offset,
        lag_count

    \b
    Examples:
      qlog group describe billing
      qlog group describe billing -o json | jq .lag_count
    """
    described = await client.admin.describe_group(name)
    warn_away(described.away)
    return Printout(described, omits_group=True)


@group.command()
@click.argument("name", metavar="GROUP")
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


for command in (settings, set_settings, reset, progress, pop):
    group.add_command(command)
